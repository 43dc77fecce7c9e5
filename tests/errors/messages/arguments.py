"""Errors about arguments and results."""

# ruff: noqa: E501 (a line of a message is as long as it is)

from tests.errors.messages.case import Case, Section

GRADIENTS = Section(
    "TypeError: gradients",
    "Only real floating-point scalars have a gradient, and only with respect to floating-point tensors.",
    [
        Case(
            "The function does not return a scalar.",
            """\
def residuals(w, x):
    return w * x - 1

xf.grad(residuals)(torch.ones(3), torch.ones(3))
""",
            """\
TypeError: grad(residuals) needs a function that returns a real floating scalar, but residuals returned float32[3]
  at example.py:4 in <module>: xf.grad(residuals)(torch.ones(3), torch.ones(3))
Hint: reduce it with .sum() or .mean(); use jacrev or vjp for other outputs, and has_aux=True to return other values as well.""",
            """\
xf.grad(lambda w, x: residuals(w, x).square().mean())(torch.ones(3), torch.ones(3))
""",
        ),
        Case(
            "A differentiated argument contains integers. Keep values that are not parameters out of it.",
            """\
def loss(params, x):
    return (params["w"] * x).sum().sin()

xf.grad(loss)({"w": torch.ones(3), "step": torch.tensor(0)}, torch.ones(3))
""",
            """\
TypeError: grad(loss) differentiates with respect to params['step'], which is int64[], not floating
  at example.py:4 in <module>: xf.grad(loss)({"w": torch.ones(3), "step": torch.tensor(0)}, torch.ones(3))
Hint: convert it with .float(), or choose other argnums.""",
            """\
def loss(params, step, x):
    return (params["w"] * x).sum().sin() / (step + 1)

xf.grad(loss)({"w": torch.ones(3)}, torch.tensor(0), torch.ones(3))
""",
        ),
        Case(
            "The function does not return a pair, despite `has_aux`.",
            """\
xf.grad(lambda w: w.sum(), has_aux=True)(torch.ones(3))
""",
            """\
TypeError: grad(<lambda>) with has_aux=True needs a pair (value, aux), but <lambda at example.py:1> returned a Tensor
  at example.py:1 in <module>: xf.grad(lambda w: w.sum(), has_aux=True)(torch.ones(3))
Hint: return (value, aux), or leave has_aux out.""",
            """\
xf.grad(lambda w: (w.sum(), w), has_aux=True)(torch.ones(3))
""",
        ),
        Case(
            "`vjp` of a function with an integer output.",
            """\
xf.vjp(lambda x: {"y": x.sin(), "best": x.argmax()}, torch.ones(3))
""",
            """\
TypeError: vjp(<lambda>): <lambda at example.py:1> returned int64[] at output['best'], which is not floating
  at example.py:1 in <module>: xf.vjp(lambda x: {"y": x.sin(), "best": x.argmax()}, torch.ones(3))
Hint: return what is not differentiated through has_aux.""",
            """\
xf.vjp(lambda x: (x.sin(), x.argmax()), torch.ones(3), has_aux=True)
""",
        ),
        Case(
            "A result is transformed instead of a function.",
            """\
xf.grad(torch.ones(3).sum())
""",
            """\
TypeError: grad was given tensor(3.), which is not callable
  at example.py:1 in <module>: xf.grad(torch.ones(3).sum())
Hint: pass a function: grad(f)(x) rather than grad(f(x)).""",
        ),
        Case(
            "The function of a `custom_vjp` closes over a value that is being differentiated: its rule would lose that gradient.",
            """\
def loss(w, x):
    @xf.custom_vjp
    def scaled(x):
        return w * x

    scaled.defvjp(lambda x: (w * x, None), lambda _, ct: (w * ct,))
    return scaled(x).sum()

xf.grad(loss)(torch.ones(3), torch.ones(3))
""",
            """\
TypeError: loss.<locals>.scaled closes over a value (float32[3]) that is being differentiated, which its rule does not receive
  at example.py:7 in loss: return scaled(x).sum()
Hint: pass the value as an argument, or close over xf.stop_gradient of it.""",
            """\
@xf.custom_vjp
def scaled(w, x):
    return w * x

scaled.defvjp(lambda w, x: (w * x, (w, x)), lambda r, ct: (ct * r[1], ct * r[0]))

xf.grad(lambda w, x: scaled(w, x).sum())(torch.ones(3), torch.ones(3))
""",
        ),
    ],
)

ARGUMENTS = Section(
    "TypeError and ValueError: arguments and results",
    "",
    [
        Case(
            "An argument is neither a tensor nor a number.",
            """\
@xf.jit
def act(x, kind):
    return getattr(torch, kind)(x)

act(torch.ones(3), "tanh")
""",
            """\
TypeError: act was given 'tanh' (a str) as kind
  at example.py:5 in <module>: act(torch.ones(3), "tanh")
Hint: pass tensors, NumPy arrays and Python numbers; register your own class with xf.tree.register; make anything else static (static_argnames='kind'); of an object's method, write jit(obj.method).""",
            """\
@xf.jit(static_argnames="kind")
def act(x, kind):
    return getattr(torch, kind)(x)

act(torch.ones(3), "tanh")
""",
        ),
        Case(
            "A module of torch is an argument. Its parameters are, once it is [a function of them](modules.md).",
            """\
model = torch.nn.Linear(3, 1)

def loss(model, x):
    return model(x).square().mean()

xf.grad(loss)(model, torch.ones(3))
""",
            """\
TypeError: grad(loss) differentiates with respect to model, which is Linear(in_features=3, out_features=1, bias=True) (a Linear), not floating
  at example.py:6 in <module>: xf.grad(loss)(model, torch.ones(3))
Hint: pass its parameters: apply, params, buffers = xf.functional(module), and apply(params, buffers, x) computes (module(x), buffers).""",
            """\
apply, params, buffers = xf.functional(torch.nn.Linear(3, 1))

def loss(params, x):
    out, _ = apply(params, buffers, x)
    return out.square().mean()

xf.grad(loss)(params, torch.ones(3))
""",
        ),
        Case(
            "A static argument cannot be hashed.",
            """\
@xf.jit(static_argnames="shape")
def grid(x, shape):
    return x.expand(shape)

grid(torch.ones(3), shape=[2, 3])
""",
            """\
ValueError: static argument 'shape' of grid is not hashable by value: [2, 3] (a list)
  at example.py:5 in <module>: grid(torch.ones(3), shape=[2, 3])
Hint: pass a tuple instead of a list, a frozen dataclass instead of a dict; or leave the argument dynamic.""",
            """\
grid(torch.ones(3), shape=(2, 3))
""",
        ),
        Case(
            "The target of a compilation does not exist.",
            """\
double = xf.jit(lambda x: 2 * x).lower(torch.ones(3))
double.compile(target="tpu:v6e-7")
""",
            """\
ValueError: unknown target 'tpu:v6e-7'
  at example.py:2 in <module>: double.compile(target="tpu:v6e-7")
Hint: use one of v6e-1, v6e-4, v6e-8, v6e-16, v6e-32, v6e-64, v6e-128, v6e-256, or give a grid: v6e:2x2.""",
        ),
        Case(
            "A function returns something that is not an array.",
            """\
@xf.jit
def named(x):
    return {"value": x, "name": "x"}

named(torch.ones(3))
""",
            """\
TypeError: named returned 'x' (a str) at output['name']
  at example.py:5 in <module>: named(torch.ones(3))
Hint: return tensors, numbers or None, in any tree of tuples, lists, dicts and registered classes.""",
        ),
        Case(
            "A generator function is traced.",
            """\
@xf.jit
def rows(x):
    yield x[0]
    yield x[1]

rows(torch.ones(2, 3))
""",
            """\
TypeError: rows returned <generator object rows at ...> (a generator) at output
  at example.py:6 in <module>: rows(torch.ones(2, 3))
Hint: return tensors, numbers or None, in any tree of tuples, lists, dicts and registered classes.""",
            """\
@xf.jit
def rows(x):
    return x[0], x[1]

rows(torch.ones(2, 3))
""",
        ),
        Case(
            "`static_argnames` contains a name that is not a parameter.",
            """\
xf.jit(lambda x, n: x * n, static_argnames="m")
""",
            """\
ValueError: <lambda at example.py:1> has no parameter 'm'
  at example.py:1 in <module>: xf.jit(lambda x, n: x * n, static_argnames="m")
Hint: its parameters are x, n.""",
        ),
        Case(
            "`argnums` exceeds the number of arguments.",
            """\
xf.grad(lambda w: w.sum(), argnums=1)(torch.ones(3))
""",
            """\
ValueError: grad(<lambda>) has argnums=1, but was called with 1 positional arguments
  at example.py:1 in <module>: xf.grad(lambda w: w.sum(), argnums=1)(torch.ones(3))
Hint: pass the arguments of argnums by position.""",
        ),
        Case(
            "Nothing is mapped over.",
            """\
xf.vmap(torch.sin, in_axes=None)(torch.ones(3))
""",
            """\
ValueError: vmap(sin) has nothing to map over
  at example.py:1 in <module>: xf.vmap(torch.sin, in_axes=None)(torch.ones(3))
Hint: give an in_axes that is not None, or axis_size.""",
            """\
xf.vmap(torch.sin, in_axes=None, axis_size=4)(torch.ones(3))
""",
        ),
        Case(
            "A scan has no length.",
            """\
xf.scan(lambda c, _: (c + 1, None), 0)
""",
            """\
ValueError: scan of <lambda at example.py:1> has neither xs nor length
  at example.py:1 in <module>: xf.scan(lambda c, _: (c + 1, None), 0)
Hint: give one of them.""",
            """\
xf.scan(lambda c, _: (c + 1, None), 0, length=3)
""",
        ),
        Case(
            "The condition of a `while_loop` is not a boolean.",
            """\
xf.while_loop(lambda n: 5 - n, lambda n: n + 1, 0)
""",
            """\
TypeError: while_loop of <lambda at example.py:1>: the condition <lambda at example.py:1> returned int64[], not a boolean scalar
  at example.py:1 in <module>: xf.while_loop(lambda n: 5 - n, lambda n: n + 1, 0)
Hint: compare (x < y), and reduce with .any() or .all().""",
            """\
xf.while_loop(lambda n: 5 - n > 0, lambda n: n + 1, 0)
""",
        ),
        Case(
            "The predicate of a `cond` is not a boolean scalar.",
            """\
xf.cond(torch.ones(3) > 0, torch.sin, torch.cos, torch.ones(3))
""",
            """\
TypeError: cond of sin, cos: the predicate is bool[3], not a scalar boolean
  at example.py:1 in <module>: xf.cond(torch.ones(3) > 0, torch.sin, torch.cos, torch.ones(3))
Hint: reduce it with .any() or .all(), or use torch.where or xf.vmap to choose for each element.""",
            """\
xf.cond((torch.ones(3) > 0).all(), torch.sin, torch.cos, torch.ones(3))
""",
        ),
        Case(
            "A function holds an iterator. Reading an iterator changes it, and the compiled program would keep using the first values it gave.",
            """\
def scaled(rates):
    return xf.jit(lambda w: w * next(rates))

scaled(iter([0.1, 0.01]))(torch.ones(3))
""",
            """\
TypeError: scaled.<locals>.<lambda> holds <list_iterator object at ...> (a list_iterator) in 'rates', which gives different values each time it is read
  at example.py:4 in <module>: scaled(iter([0.1, 0.01]))(torch.ones(3))
Hint: make it a list or tuple, or pass its values as an argument.""",
            """\
step = xf.jit(lambda w, rate: w * rate)

for rate in [0.1, 0.01]:
    step(torch.ones(3), rate)
""",
        ),
        Case(
            "`nondiff_argnames` contains a name that is not a parameter.",
            """\
xf.custom_vjp(lambda x, factor: x * factor, nondiff_argnames="k")
""",
            """\
ValueError: <lambda at example.py:1> has no parameter 'k'
  at example.py:1 in <module>: xf.custom_vjp(lambda x, factor: x * factor, nondiff_argnames="k")
Hint: its parameters are x, factor.""",
        ),
        Case(
            "A loop with a traced bound cannot be unrolled.",
            """\
@xf.jit
def power(x, n):
    return xf.fori_loop(0, n, lambda i, y: y * x, x, unroll=2)

power(torch.ones(3), 2)
""",
            """\
ValueError: fori_loop of <lambda at example.py:3> has unroll=2, but a traced bound
  at example.py:3 in power: return xf.fori_loop(0, n, lambda i, y: y * x, x, unroll=2)
Hint: leave unroll out, or make both bounds Python integers (static arguments).""",
            """\
@xf.jit(static_argnames="n")
def power(x, n):
    return xf.fori_loop(0, n, lambda i, y: y * x, x, unroll=2)

power(torch.ones(3), n=2)
""",
        ),
        Case(
            "`xf.at` is given values that the array cannot hold.",
            """\
xf.jit(lambda n: xf.at(n)[0].set(0.5))(torch.ones(3, dtype=torch.int32))
""",
            """\
TypeError: at was given values that int32[3] cannot hold: float32[]
  at example.py:1 in <lambda>: xf.jit(lambda n: xf.at(n)[0].set(0.5))(torch.ones(3, dtype=torch.int32))
Hint: convert the values, or the array, with .to(dtype).""",
            """\
xf.jit(lambda n: xf.at(n.float())[0].set(0.5))(torch.ones(3, dtype=torch.int32))
""",
        ),
    ],
)
