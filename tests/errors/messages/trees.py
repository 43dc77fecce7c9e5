"""Errors about trees that must agree and differ."""

# ruff: noqa: E501 (a line of a message is as long as it is)

from tests.errors.messages.case import Case, Section

TREES = Section(
    "TreeMismatchError",
    "*(TypeError)* Two trees that must agree differ. Every differing path is listed.",
    [
        Case(
            "The carry of a scan changes.",
            """\
def body(carry, x):
    return {"h": carry["h"] + x, "steps": carry["steps"] + 1.0}, None

xf.scan(body, {"h": torch.tensor(0.0), "steps": 0}, torch.ones(4, 3))
""",
            """\
TreeMismatchError: scan of body: the carry that the body returns and the one it receives differ:
  carry['h']: float32[3] instead of float32[]
  carry['steps']: float32[] instead of int64[]
  at example.py:4 in <module>: xf.scan(body, {"h": torch.tensor(0.0), "steps": 0}, torch.ones(4, 3))
Hint: return a carry of the same structure, shapes and dtypes; convert `init` if its dtype was not meant.""",
            """\
xf.scan(body, {"h": torch.zeros(3), "steps": 0.0}, torch.ones(4, 3))
""",
        ),
        Case(
            "The carry loses an entry.",
            """\
xf.scan(lambda carry, x: ({"h": carry["h"] + x}, None), {"h": 0.0, "best": 0.0}, torch.ones(4))
""",
            """\
TreeMismatchError: scan of <lambda at example.py:1>: the carry that the body returns and the one it receives differ:
  carry['best']: missing
  at example.py:1 in <module>: xf.scan(lambda carry, x: ({"h": carry["h"] + x}, None), {"h": 0.0, "best": 0.0}, torch.ones(4))
Hint: return a carry of the same structure, shapes and dtypes; convert `init` if its dtype was not meant.""",
        ),
        Case(
            "The leaves of `xs` differ in length.",
            """\
def body(carry, x):
    return carry + x["a"] * x["b"], None

xf.scan(body, 0.0, {"a": torch.ones(4), "b": torch.ones(5)})
""",
            """\
TreeMismatchError: scan of body: leading axes differ in length:
  xs['a']: 4
  xs['b']: 5
  at example.py:4 in <module>: xf.scan(body, 0.0, {"a": torch.ones(4), "b": torch.ones(5)})
Hint: give all leaves of xs the same leading axis.""",
            """\
xf.scan(body, 0.0, {"a": torch.ones(4), "b": torch.ones(4)})
""",
        ),
        Case(
            "The body of a scan does not return a pair.",
            """\
xf.scan(lambda total, x: total + x, 0.0, torch.ones(4))
""",
            """\
TreeMismatchError: scan of <lambda at example.py:1>: the body must return a pair (carry, y), not a single array
  at example.py:1 in <module>: xf.scan(lambda total, x: total + x, 0.0, torch.ones(4))
Hint: write `return carry, y`, with None for a y that is not needed.""",
            """\
xf.scan(lambda total, x: (total + x, None), 0.0, torch.ones(4))
""",
        ),
        Case(
            "The branches of a `cond` differ.",
            """\
xf.cond(torch.tensor(True), lambda x: {"y": x}, lambda x: {"y": x.sum()}, torch.ones(3))
""",
            """\
TreeMismatchError: cond: the results of true_fun (<lambda at example.py:1>) and false_fun (<lambda at example.py:1>) differ:
  result['y']: float32[3] instead of float32[]
  at example.py:1 in <module>: xf.cond(torch.tensor(True), lambda x: {"y": x}, lambda x: {"y": x.sum()}, torch.ones(3))
Hint: return the same structure, shapes and dtypes from every branch.""",
            """\
xf.cond(torch.tensor(True), lambda x: {"y": x.sum()}, lambda x: {"y": x.sum()}, torch.ones(3))
""",
        ),
        Case(
            "The body of a `while_loop` changes its value.",
            """\
xf.while_loop(lambda n: n < 5, lambda n: n + 0.5, 0)
""",
            """\
TreeMismatchError: while_loop of <lambda at example.py:1>: the value that the body returns and the one it receives differ:
  value: float32[] instead of int64[]
  at example.py:1 in <module>: xf.while_loop(lambda n: n < 5, lambda n: n + 0.5, 0)
Hint: return a value of the same structure, shapes and dtypes; convert `init` if its dtype was not meant.""",
            """\
xf.while_loop(lambda n: n < 5, lambda n: n + 0.5, 0.0)
""",
        ),
        Case(
            "The rule of a `custom_vjp` returns gradients that do not match the arguments.",
            """\
@xf.custom_vjp
def scaled(x, y):
    return x * y

scaled.defvjp(lambda x, y: (x * y, (x, y)), lambda res, ct: (ct * res[1], ct.sum()))

xf.grad(lambda x, y: scaled(x, y).sum())(torch.ones(3), torch.ones(3))
""",
            """\
TreeMismatchError: scaled: the backward rule <lambda at example.py:5>: a gradient and its argument differ:
  gradient[1]: float32[] instead of float32[3]
  at example.py:7 in <lambda>: xf.grad(lambda x, y: scaled(x, y).sum())(torch.ones(3), torch.ones(3))
Hint: return gradients of the shapes and dtypes of the arguments.""",
            """\
scaled.defvjp(lambda x, y: (x * y, (x, y)), lambda res, ct: (ct * res[1], ct * res[0]))

xf.grad(lambda x, y: scaled(x, y).sum())(torch.ones(3), torch.ones(3))
""",
        ),
        Case(
            "The mapped axes of `vmap` differ in size.",
            """\
def score(w, x):
    return (w * x).sum()

xf.vmap(score)(torch.ones(3), torch.ones(8, 3))
""",
            """\
TreeMismatchError: vmap(score): the mapped axes of score differ in size:
  w: 3
  x: 8
  at example.py:4 in <module>: xf.vmap(score)(torch.ones(3), torch.ones(8, 3))
Hint: map over axes of one size, or None for what is the same for all.""",
            """\
xf.vmap(score, in_axes=(None, 0))(torch.ones(3), torch.ones(8, 3))
""",
        ),
        Case(
            "`in_axes` names an axis that the argument does not have.",
            """\
def score(w, x):
    return (w * x).sum()

xf.vmap(score, in_axes=(None, 2))(torch.ones(3), torch.ones(8, 3))
""",
            """\
TreeMismatchError: vmap(score) maps over axis 2 of x, which is float32[8,3]
  at example.py:4 in <module>: xf.vmap(score, in_axes=(None, 2))(torch.ones(3), torch.ones(8, 3))
Hint: give an axis that the array has, or None.""",
        ),
        Case(
            "`in_axes` does not fit the arguments.",
            """\
def score(w, x):
    return (w * x).sum()

xf.vmap(score, in_axes=(None, 0, 0))(torch.ones(3), torch.ones(8, 3))
""",
            """\
TreeMismatchError: vmap(score) has 3 in_axes for 2 positional arguments
  at example.py:4 in <module>: xf.vmap(score, in_axes=(None, 0, 0))(torch.ones(3), torch.ones(8, 3))
Hint: give one entry for each positional argument, or one axis for all.""",
        ),
        Case(
            "A cotangent does not match the output.",
            """\
y, pull = xf.vjp(lambda x: {"sin": torch.sin(x)}, torch.ones(3))
pull({"sin": torch.ones(2)})
""",
            """\
TreeMismatchError: vjp(<lambda>): the cotangent and the output differ:
  cotangent['sin']: float32[2] instead of float32[3]
  at example.py:2 in <module>: pull({"sin": torch.ones(2)})
Hint: pass a tree like the output, for example torch.ones_like of each leaf.""",
            """\
pull({"sin": torch.ones(3)})
""",
        ),
        Case(
            "Tangents do not match the arguments.",
            """\
xf.jvp(torch.sin, (torch.ones(3),), (torch.ones(3, dtype=torch.float64),))
""",
            """\
TreeMismatchError: jvp(sin): tangents and primals differ:
  tangents[0]: float64[3] instead of float32[3]
  at example.py:1 in <module>: xf.jvp(torch.sin, (torch.ones(3),), (torch.ones(3, dtype=torch.float64),))
Hint: make tangents of the shapes and dtypes of the primals (torch.ones_like).""",
            """\
xf.jvp(torch.sin, (torch.ones(3),), (torch.ones(3),))
""",
        ),
        Case(
            "A compiled function is called with arguments of other shapes.",
            """\
@xf.jit
def double(x):
    return 2 * x

compiled = double.lower(torch.ones(3)).compile()
compiled(torch.ones(4))
""",
            """\
TreeMismatchError: double was compiled for other arguments: ('float32[3]',), not ('float32[4]',)
  at example.py:6 in <module>: compiled(torch.ones(4))
Hint: call the jitted function itself, which compiles for each kind of arguments.""",
            """\
double(torch.ones(4))
""",
        ),
        Case(
            "`xf.tree.map` is given trees that differ.",
            """\
params, grads = {"w": torch.ones(3), "b": torch.ones(1)}, {"w": torch.ones(3)}
xf.tree.map(lambda p, g: p - 0.1 * g, params, grads)
""",
            """\
TreeMismatchError: tree.map: tree 2 differs from the first tree:
  tree['b']: missing
  at example.py:2 in <module>: xf.tree.map(lambda p, g: p - 0.1 * g, params, grads)
Hint: give trees of one structure.""",
        ),
    ],
)
