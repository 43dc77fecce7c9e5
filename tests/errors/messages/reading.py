"""Errors about values that are read while they are traced."""

# ruff: noqa: E501 (a line of a message is as long as it is)

from tests.errors.messages.case import Case, Section

READING = Section(
    "ConcretizationError",
    "*(TypeError)* A traced value was read. It has a shape and a dtype, but no data until the program runs.",
    [
        Case(
            "A traced value decides a branch.",
            """\
@xf.jit
def relu(x):
    if x.sum() > 0:
        return x
    return 0 * x

relu(torch.ones(3))
""",
            """\
ConcretizationError: Tensor.__bool__ reads a traced value (bool[]), which has no data (while tracing relu)
  at example.py:3 in relu: if x.sum() > 0:
Hint: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass it as a static argument.""",
            """\
@xf.jit
def relu(x):
    return torch.where(x.sum() > 0, x, 0 * x)

relu(torch.ones(3))
""",
        ),
        Case(
            "A traced number determines the shape of the program. Python must know its value, so make it static.",
            """\
@xf.jit
def power(x, n):
    for _ in range(n):
        x = x * x
    return x

power(torch.ones(3), 2)
""",
            """\
ConcretizationError: Tensor.__index__ reads a traced value (int64[]), which has no data (while tracing power)
  at example.py:3 in power: for _ in range(n):
Hint: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass n as a static argument (static_argnames='n').""",
            """\
@xf.jit(static_argnames="n")
def power(x, n):
    for _ in range(n):
        x = x * x
    return x

power(torch.ones(3), n=2)
""",
        ),
        Case(
            "A size depends on data.",
            """\
@xf.jit
def pad(x, n):
    return torch.cat([x, torch.zeros(n)])

pad(torch.ones(3), 2)
""",
            """\
ConcretizationError: torch.zeros reads a traced value (int64[]), which has no data (while tracing pad)
  at example.py:3 in pad: return torch.cat([x, torch.zeros(n)])
Hint: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass n as a static argument (static_argnames='n').""",
            """\
@xf.jit(static_argnums=1)
def pad(x, n):
    return torch.cat([x, torch.zeros(n)])

pad(torch.ones(3), 2)
""",
        ),
        Case(
            "A value is logged inside the function.",
            """\
def loss(w, x):
    value = (w * x).square().mean()
    print(f"loss {value.item():.3f}")
    return value

xf.grad(loss)(torch.ones(3), torch.ones(3))
""",
            """\
ConcretizationError: Tensor.item reads a traced value (float32[]), which has no data (while tracing grad(loss))
  at example.py:3 in loss: print(f"loss {value.item():.3f}")
Hint: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass it as a static argument.""",
            """\
def loss(w, x):
    return (w * x).square().mean()

value, grads = xf.value_and_grad(loss)(torch.ones(3), torch.ones(3))
text = f"loss {value.item():.3f}"
""",
        ),
        Case(
            'A traced value is formatted. (`print(x)` and `f"{x}"` work: they show the shape and the dtype.)',
            """\
@xf.jit
def log(x):
    return x, f"{x.sum():.2f}"

log(torch.ones(3))
""",
            """\
ConcretizationError: formatting with '.2f' reads a traced value (float32[]), which has no data (while tracing log)
  at example.py:3 in log: return x, f"{x.sum():.2f}"
Hint: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass it as a static argument.""",
        ),
        Case(
            "A traced value is handed to NumPy.",
            """\
import numpy as np

@xf.jit
def norm(x):
    return np.linalg.norm(x)

norm(torch.ones(3))
""",
            """\
ConcretizationError: Tensor.__array__ reads a traced value (float32[3]), which has no data (while tracing norm)
  at example.py:5 in norm: return np.linalg.norm(x)
Hint: compute with torch's functions instead of NumPy's, and make a tensor of an array that stands beside a traced value: torch.from_numpy(array).""",
            """\
@xf.jit
def norm(x):
    return torch.linalg.norm(x)

norm(torch.ones(3))
""",
        ),
        Case(
            "A tensor is built from traced values.",
            """\
@xf.jit
def pair(a, b):
    return torch.tensor([a, b])

pair(1.0, 2.0)
""",
            """\
ConcretizationError: torch.tensor reads traced values (float32[]) from a Python sequence (while tracing pair)
  at example.py:3 in pair: return torch.tensor([a, b])
Hint: use torch.stack.""",
            """\
@xf.jit
def pair(a, b):
    return torch.stack([a, b])

pair(1.0, 2.0)
""",
        ),
        Case(
            "The body of a scan stops early.",
            """\
def step(total, x):
    if total > 10:
        return total, total
    return total + x, total

xf.scan(step, 0.0, torch.ones(5))
""",
            """\
ConcretizationError: Tensor.__bool__ reads a traced value (bool[]), which has no data (while tracing step)
  at example.py:2 in step: if total > 10:
Hint: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass it as a static argument.""",
            """\
def step(total, x):
    return torch.where(total > 10, total, total + x), total

xf.scan(step, 0.0, torch.ones(5))
""",
        ),
        Case(
            "An option of an operation is traced. Slopes, bounds and margins [may be traced](operations.md); most options must be Python numbers.",
            """\
@xf.jit
def size(x, ord):
    return torch.linalg.vector_norm(x, ord)

size(torch.ones(3), 3)
""",
            """\
ConcretizationError: torch.linalg.vector_norm reads a traced value as a size, an index or a number, but a traced value has no data (while tracing size)
  at example.py:3 in size: return torch.linalg.vector_norm(x, ord)
Hint: pass ord as a static argument (static_argnames='ord'), or compute with tensors of fixed size.""",
            """\
@xf.jit(static_argnames="ord")
def size(x, ord):
    return torch.linalg.vector_norm(x, ord)

size(torch.ones(3), ord=3)
""",
        ),
        Case(
            "A batched value is used as a size.",
            """\
def head(x):
    return x[: int(x[0])]

xf.vmap(head)(torch.ones(2, 3))
""",
            """\
ConcretizationError: Tensor.__int__ reads a traced value (float32[]), which has no data (while tracing vmap(head))
  at example.py:2 in head: return x[: int(x[0])]
Hint: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass it as a static argument.""",
            """\
def head(x):
    return torch.where(torch.arange(3) < x[0], x, 0)

xf.vmap(head)(torch.ones(2, 3))
""",
        ),
    ],
)
