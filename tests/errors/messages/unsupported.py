"""Errors about operations that cannot be part of a program."""

# ruff: noqa: E501 (a line of a message is as long as it is)

from tests.errors.messages.case import Case, Section

UNSUPPORTED = Section(
    "UnsupportedOpError",
    "*(NotImplementedError)* An operation, dtype or layout cannot be part of a program. The most common cause is a result whose shape depends on data.",
    [
        Case(
            "Indexing with a boolean mask.",
            """\
@xf.jit
def positive_mean(x):
    return x[x > 0].mean()

positive_mean(torch.tensor([-1.0, 1.0, 3.0]))
""",
            """\
UnsupportedOpError: the shape of the result of indexing with a boolean mask depends on data (while tracing positive_mean)
  at example.py:3 in positive_mean: return x[x > 0].mean()
Hint: keep the shape fixed: torch.where(mask, x, 0) instead of x[mask], torch.sort or torch.topk instead of unique or nonzero.""",
            """\
@xf.jit
def positive_mean(x):
    mask = x > 0
    return torch.where(mask, x, 0.0).sum() / mask.sum()

assert positive_mean(torch.tensor([-1.0, 1.0, 3.0])).item() == 2.0
""",
        ),
        Case(
            "The indices of nonzero elements.",
            """\
@xf.jit
def places(x):
    return torch.nonzero(x)

places(torch.tensor([0.0, 1.0]))
""",
            """\
UnsupportedOpError: the shape of the result of torch.nonzero depends on data (while tracing places)
  at example.py:3 in places: return torch.nonzero(x)
Hint: keep the shape fixed: torch.where(mask, x, 0) instead of x[mask], torch.sort or torch.topk instead of unique or nonzero.""",
        ),
        Case(
            "The distinct elements.",
            """\
@xf.jit
def distinct(x):
    return torch.unique(x)

distinct(torch.tensor([1.0, 1.0]))
""",
            """\
UnsupportedOpError: the shape of the result of torch.unique depends on data (while tracing distinct)
  at example.py:3 in distinct: return torch.unique(x)
Hint: keep the shape fixed: torch.where(mask, x, 0) instead of x[mask], torch.sort or torch.topk instead of unique or nonzero.""",
        ),
        Case(
            "A dtype that the device does not support.",
            """\
xf.jit(lambda x: x + 1)(torch.ones(3, dtype=torch.uint32))
""",
            """\
UnsupportedOpError: x (uint32[3]) cannot be used: its dtype torch.uint32 is not supported (while tracing <lambda>)
  at example.py:1 in <module>: xf.jit(lambda x: x + 1)(torch.ones(3, dtype=torch.uint32))
Hint: convert it to a dense tensor of a supported dtype first.""",
            """\
xf.jit(lambda x: x + 1)(torch.ones(3, dtype=torch.int64))
""",
        ),
        Case(
            "A sparse tensor.",
            """\
xf.jit(lambda a, x: a @ x)(torch.eye(3).to_sparse(), torch.ones(3))
""",
            """\
UnsupportedOpError: a (float32[3,3]) cannot be used: its layout torch.sparse_coo is not supported (while tracing <lambda>)
  at example.py:1 in <module>: xf.jit(lambda a, x: a @ x)(torch.eye(3).to_sparse(), torch.ones(3))
Hint: convert it to a dense tensor of a supported dtype first.""",
            """\
xf.jit(lambda a, x: a @ x)(torch.eye(3), torch.ones(3))
""",
        ),
        Case(
            "A tensor without data, such as a module's on the meta device.",
            """\
weight = torch.ones(3, device="meta")
xf.jit(lambda x: weight * x)(torch.ones(3))
""",
            """\
UnsupportedOpError: a captured tensor (float32[3]) cannot be used: it is on the meta device and has no data (while tracing <lambda>)
  at example.py:2 in <lambda>: xf.jit(lambda x: weight * x)(torch.ones(3))
Hint: make it on another device, or use its shape and dtype only.""",
        ),
        Case(
            "A tensor without memory of its own: a FakeTensor, a DTensor, a MaskedTensor or another wrapper.",
            """\
from torch._subclasses.fake_tensor import FakeTensorMode

fake = FakeTensorMode().from_tensor(torch.ones(3))
xf.jit(lambda x: 2 * x)(fake)
""",
            """\
UnsupportedOpError: x (float32[3]) cannot be used: it is a FakeTensor, which has no data (while tracing <lambda>)
  at example.py:4 in <module>: xf.jit(lambda x: 2 * x)(fake)
Hint: call the function with real tensors, outside of torch.jit.trace, torch.export, make_fx and FakeTensorMode; xf.export writes its program, and xf.eval_shape finds the shapes of its results.""",
            """\
shape = xf.eval_shape(lambda x: 2 * x, fake)
""",
        ),
        Case(
            "A call inside of something of torch's that records operations, which would not see what a program computes.",
            """\
from torch.fx.experimental.proxy_tensor import make_fx

double = xf.jit(lambda x: 2 * x)
make_fx(lambda x: double(x) + 1)(torch.ones(3))
""",
            """\
UnsupportedOpError: <lambda> was called inside of make_fx or torch.export, which does not see what a program does
  at example.py:4 in <lambda>: make_fx(lambda x: double(x) + 1)(torch.ones(3))
Hint: call the function with real tensors, outside of torch.jit.trace, torch.export, make_fx and FakeTensorMode; xf.export writes its program, and xf.eval_shape finds the shapes of its results.""",
            """\
program = xf.jit(lambda x: double(x) + 1).lower(torch.ones(3)).as_text()
""",
        ),
        Case(
            "The same, called in traced code.",
            """\
from torch.fx.experimental.proxy_tensor import make_fx

xf.jit(lambda x: make_fx(torch.sin)(x)(x + 1))(torch.ones(3))
""",
            """\
UnsupportedOpError: make_fx was called in traced code, whose values it would take for constants (while tracing <lambda>)
  at example.py:3 in <lambda>: xf.jit(lambda x: make_fx(torch.sin)(x)(x + 1))(torch.ones(3))
Hint: call it outside, with tensors; xf.jit(f).trace(x) prints the program of a function.""",
            """\
print(xf.jit(torch.sin).trace(torch.ones(3)))
""",
        ),
        Case(
            "`torch.func.functionalize` of a traced function.",
            """\
xf.jit(torch.func.functionalize(lambda x: x.clone().mul_(2)))(torch.ones(3))
""",
            """\
UnsupportedOpError: torch.func.functionalize was applied in traced code (while tracing <lambda>)
  at example.py:1 in <module>: xf.jit(torch.func.functionalize(lambda x: x.clone().mul_(2)))(torch.ones(3))
Hint: leave it out: what is traced has no in-place operations.""",
            """\
xf.jit(lambda x: x.clone().mul_(2))(torch.ones(3))
""",
        ),
        Case(
            "Control flow of torch's.",
            """\
xf.jit(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))(torch.ones(3))
""",
            """\
UnsupportedOpError: torch.compile, which torch's control flow needs too, was given traced values (while tracing <lambda>)
  at example.py:1 in <lambda>: xf.jit(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))(torch.ones(3))
Hint: call the function itself, which is compiled with the rest; or use xf.cond, xf.while_loop or xf.scan.""",
            """\
xf.jit(lambda x: xf.cond(x.sum() > 0, torch.sin, torch.cos, x))(torch.ones(3))
""",
        ),
        Case(
            "A TorchScript module that holds tensors.",
            """\
scripted = torch.jit.script(torch.nn.Linear(3, 2))
xf.jit(lambda x: scripted(x))(torch.ones(3))
""",
            """\
UnsupportedOpError: TorchScript ran an operation of a traced value with a tensor that it holds itself (while tracing <lambda>)
  at example.py:2 in <lambda>: xf.jit(lambda x: scripted(x))(torch.ones(3))
Hint: call the module or function that the script was made from.""",
            """\
linear = torch.nn.Linear(3, 2)
xf.jit(lambda x: linear(x))(torch.ones(3))
""",
        ),
        Case(
            "An old-style `torch.autograd.Function`.",
            """\
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g

xf.vmap(Double.apply)(torch.ones(3))
""",
            """\
UnsupportedOpError: a torch.autograd.Function whose forward takes ctx cannot be transformed (while tracing vmap(Double.apply))
  at example.py:10 in <module>: xf.vmap(Double.apply)(torch.ones(3))
Hint: split it into forward(*inputs) and setup_context(ctx, inputs, output), or use xf.custom_vjp.""",
            """\
class Double(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 2 * g

xf.vmap(Double.apply)(torch.ones(3))
""",
        ),
        Case(
            "A `torch.autograd.Function` without a batching rule.",
            """\
class Triple(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return 3 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 3 * g

xf.vmap(Triple.apply)(torch.ones(3))
""",
            """\
UnsupportedOpError: a torch.autograd.Function has no rule for batching (while tracing vmap(Triple.apply))
  at example.py:14 in <module>: xf.vmap(Triple.apply)(torch.ones(3))
Hint: set `generate_vmap_rule = True` in the class, or use xf.custom_vjp.""",
        ),
        Case(
            "A `torch.autograd.Function` without a rule for forward mode.",
            """\
class Triple(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return 3 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 3 * g

xf.jvp(Triple.apply, (torch.ones(3),), (torch.ones(3),))
""",
            """\
UnsupportedOpError: a torch.autograd.Function has no rule for forward-mode differentiation (while tracing jvp(Triple.apply))
  at example.py:14 in <module>: xf.jvp(Triple.apply, (torch.ones(3),), (torch.ones(3),))
Hint: give the class a `jvp` staticmethod, or use xf.custom_jvp.""",
        ),
        Case(
            "A `while_loop` is differentiated in reverse mode.",
            """\
def grow(x):
    return xf.while_loop(lambda v: v < 100, lambda v: v * 2, x)

xf.grad(grow)(1.0)
""",
            """\
UnsupportedOpError: reverse mode cannot differentiate while_loop of grow.<locals>.<lambda>: its number of steps depends on data, so nothing bounds what the backward pass would have to keep
  at example.py:2 in grow: return xf.while_loop(lambda v: v < 100, lambda v: v * 2, x)
Hint: use xf.scan, or xf.fori_loop with Python integers as bounds; or differentiate in forward mode (xf.jvp, xf.jacfwd); or stop the gradient with xf.stop_gradient.""",
            """\
xf.jvp(grow, (torch.tensor(1.0),), (torch.tensor(1.0),))
""",
        ),
        Case(
            "Complex numbers are ordered.",
            """\
@xf.jit
def weights(z):
    return z.softmax(0)

weights(torch.ones(3, dtype=torch.complex64))
""",
            """\
UnsupportedOpError: torch.softmax was given complex64: complex numbers have no order
  at example.py:3 in weights: return z.softmax(0)
Hint: convert to a floating dtype (x.real, x.imag, x.abs()).""",
            """\
@xf.jit
def weights(z):
    return z.abs().softmax(0)

weights(torch.ones(3, dtype=torch.complex64))
""",
        ),
        Case(
            "Boolean matrices are multiplied.",
            """\
@xf.jit
def reachable(a):
    return a @ a

reachable(torch.eye(3) > 0)
""",
            """\
UnsupportedOpError: torch.mm was given bool: matrix products of booleans are not defined
  at example.py:3 in reachable: return a @ a
Hint: convert to another dtype (x.int(), x.float()).""",
            """\
@xf.jit
def reachable(a):
    return a.float() @ a.float() > 0

reachable(torch.eye(3) > 0)
""",
        ),
        Case(
            "Floating-point numbers are shifted.",
            """\
@xf.jit
def half(x):
    return x >> 1

half(torch.ones(3))
""",
            """\
UnsupportedOpError: torch.bitwise_right_shift was given float32, but it shifts integers
  at example.py:3 in half: return x >> 1
Hint: convert with .to(torch.int64) first.""",
            """\
@xf.jit
def half(x):
    return x / 2

half(torch.ones(3))
""",
        ),
        Case(
            "Complex numbers with float16 parts.",
            """\
@xf.jit
def turn(x):
    return torch.complex(x, x)

turn(torch.ones(4, dtype=torch.float16))
""",
            """\
UnsupportedOpError: torch.complex makes complex numbers of float16 (torch.complex32), which XLA does not support (while tracing turn)
  at example.py:3 in turn: return torch.complex(x, x)
Hint: convert to float32 first: x.float().""",
            """\
turn(torch.ones(4))
""",
        ),
        Case(
            "An operation has no derivative with respect to this argument.",
            """\
def loss(a, x):
    return torch.igamma(a, x).sum()

xf.grad(loss)(torch.ones(3), torch.ones(3))
""",
            """\
UnsupportedOpError: igamma has no derivative (while tracing grad(loss))
  at example.py:4 in <module>: xf.grad(loss)(torch.ones(3), torch.ones(3))
Hint: write it with other torch operations, or give a function that calls it a rule with xf.custom_vjp.""",
            """\
xf.grad(loss, argnums=1)(torch.ones(3), torch.ones(3))
""",
        ),
        Case(
            "The shape of a view is changed in place, and the view is differentiated.",
            """\
def loss(x):
    y = x[:2]
    y.t_()
    return y.sum()

xf.grad(loss)(torch.ones(3, 2))
""",
            """\
UnsupportedOpError: Tensor.t_ changes the shape of a view in place, which differentiation would not see
  at example.py:3 in loss: y.t_()
Hint: make a new tensor: x = x.t(...).""",
            """\
def loss(x):
    return x[:2].t().sum()

xf.grad(loss)(torch.ones(3, 2))
""",
        ),
    ],
)
