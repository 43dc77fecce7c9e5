"""Errors about what torch and the user's code raise."""

# ruff: noqa: E501 (a line of a message is as long as it is)

from tests.errors.messages.case import Case, Section

OTHERS = Section(
    "Errors of torch and of your own",
    "",
    [
        Case(
            "Shapes do not match: torch's own error is raised, with a note that names the operation and your line.",
            """\
@xf.jit
def linear(x, w):
    return x @ w

linear(torch.ones(2, 4), torch.ones(3, 4))
""",
            """\
RuntimeError: ...mat1 and mat2 shapes cannot be multiplied (2x4 and 3x4)
raised by Tensor.matmul(float32[2,4], float32[3,4]) (while tracing linear)
  at example.py:3 in linear: return x @ w
Hint: make the shapes and dtypes match; `print(x)` in the function shows those of x.""",
            """\
linear(torch.ones(2, 4), torch.ones(4, 3))
""",
        ),
        Case(
            "An index is out of range.",
            """\
@xf.jit
def fifth(x):
    return x[4]

fifth(torch.ones(3))
""",
            """\
IndexError: index 4 is out of bounds for dimension 0 with size 3
raised by Tensor.__getitem__(float32[3], 4) (while tracing fifth)
  at example.py:3 in fifth: return x[4]
Hint: make the shapes and dtypes match; `print(x)` in the function shows those of x.""",
        ),
        Case(
            "A function calls itself endlessly.",
            """\
@xf.jit
def factorial(n):
    return torch.where(n > 1, n * factorial(n - 1), 1)

factorial(5)
""",
            """\
RecursionError: factorial calls itself, with arguments of the same shapes, while it is being traced: the trace would never end
  at example.py:3 in factorial: return torch.where(n > 1, n * factorial(n - 1), 1)
Hint: use xf.scan for a loop of fixed length, or make the depth a static argument.""",
            """\
@xf.jit
def factorial(n):
    steps = torch.arange(1, 21)
    return torch.where(steps <= n, steps, 1).prod()

assert factorial(5).item() == 120
""",
        ),
        Case(
            "A donated tensor is used afterwards.",
            """\
@xf.jit(donate_argnums=0)
def step(state):
    return state + 1

state = xf.device_put(torch.ones(3))
step(state)
state.sum()
""",
            """\
RuntimeError: this tensor was donated to a jitted function, which has reused its buffer
  at example.py:7 in <module>: state.sum()
Hint: use the function's result instead, or leave the argument out of donate_argnums.""",
            """\
state = xf.device_put(torch.ones(3))
state = step(state)
state.sum()
""",
        ),
        Case(
            "Errors raised by your own code are passed through unchanged.",
            """\
@xf.jit
def check(x):
    if x.ndim != 2:
        raise ValueError(f"a matrix is needed, not {x}")
    return x

check(torch.ones(3))
""",
            """\
ValueError: a matrix is needed, not Traced<float32[3]>""",
        ),
        Case(
            "A constant index is out of range for the data that it indexes.",
            """\
@xf.jit
def sixth(x):
    return torch.take(x, torch.tensor([5]))

sixth(torch.ones(3))
""",
            """\
IndexError: torch.take was given the index 5, which is out of bounds: its input has 3 (while tracing sixth)
  at example.py:3 in sixth: return torch.take(x, torch.tensor([5]))
Hint: give indices from -3 to 2.""",
        ),
    ],
)
