"""Errors about programs that cannot be compiled, and about sizes declared by `dynamic_shapes`."""

# ruff: noqa: E501 (a line of a message is as long as it is)

from tests.errors.messages.case import Case, Section

COMPILATION = Section(
    "CompileError",
    "*(RuntimeError)* The compiler rejected a program that was traced successfully. The message quotes the compiler. A program that fails later, while it runs (another process ended, for example), is an `ExecutionError`, also a RuntimeError.",
    [
        Case(
            "A kernel for the TPU runs on the CPU.",
            """\
@xf.jit
def attention(q):
    kernel = "jax.experimental.pallas.ops.tpu.flash_attention:flash_attention"
    return xf.call_jax(kernel, q, q, q, platform="tpu")[0]

attention(torch.ones(1, 1, 128, 128))
""",
            """\
CompileError: XLA could not compile attention: No registered implementation for untyped custom call to tpu_custom_call for Host
  at example.py:6 in <module>: attention(torch.ones(1, 1, 128, 128))
Hint: rewrite the operation that it names; if it names none, please report the program.""",
            """\
@xf.jit
def attention(q):
    return torch.softmax(q, 0)

attention(torch.ones(3))
""",
        ),
    ],
)

MEMORY = Section(
    "OutOfMemoryError",
    "*(CompileError)* A program does not fit on the device. `required_bytes` and `limit_bytes` are the compiler's figures, or None if it gave none.",
    [
        Case(
            "The results are larger than the memory.",
            """\
@xf.jit
def table(x):
    return torch.zeros(2**20, 2**20) + x

table(1.0)
""",
            """\
OutOfMemoryError: the results of table take 4398046511104 bytes, and the machine has ...
  at example.py:5 in <module>: table(1.0)
Hint: use a smaller batch, xf.checkpoint (keep less for the backward pass), xf.scan over layers, or a narrower dtype.""",
            """\
@xf.jit
def table(x):
    return torch.zeros(2**10, 2**10) + x

table(1.0)
""",
        ),
        Case(
            "A Jacobian has as many elements as inputs times outputs.",
            """\
def f(x):
    return torch.sin(x).cumsum(0)

xf.jacfwd(f)(torch.ones(2**20))
""",
            """\
OutOfMemoryError: the results of jacfwd(f) take 4398046511104 bytes, and the machine has ...
  at example.py:4 in <module>: xf.jacfwd(f)(torch.ones(2**20))
Hint: use a smaller batch, xf.checkpoint (keep less for the backward pass), xf.scan over layers, or a narrower dtype.""",
            """\
x, v = torch.ones(2**20), torch.ones(2**20)
y, jacobian_times_v = xf.jvp(f, (x,), (v,))
""",
        ),
    ],
)

SIZES = Section(
    "ShapeError",
    "*(ValueError)* A size is not what `dynamic_shapes` declares. See [dynamic shapes](dynamic-shapes.md).",
    [
        Case(
            "A size is larger than the declared maximum.",
            """\
S = xf.Dim("S", max=512)
total = xf.jit(torch.sum, dynamic_shapes=((S,),))
total(torch.ones(600))
""",
            """\
ShapeError: dimension 0 of argument 0 of sum is 600, which is declared as S; S is at most 512
  at example.py:3 in <module>: total(torch.ones(600))
Hint: declare Dim('S', ...) with other bounds, or pass another size.""",
            """\
total(torch.ones(500))
""",
        ),
        Case(
            "Two arguments disagree about a size.",
            """\
def distance(x, y):
    return ((x - y) ** 2).sum()

S = xf.Dim("S")
distance = xf.jit(distance, dynamic_shapes=((S,), (S,)))
distance(torch.ones(5), torch.ones(6))
""",
            """\
ShapeError: dimension 0 of y of distance is 6 where S is declared, but dimension 0 of x of distance makes it S=5
  at example.py:6 in <module>: distance(torch.ones(5), torch.ones(6))
Hint: pass arguments that agree about S.""",
            """\
distance(torch.ones(6), torch.ones(6))
""",
        ),
    ],
)
