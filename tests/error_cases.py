"""The errors that users meet: how each comes about, what it says in full, and the code mended.

``python tests/error_cases.py > docs/errors.md`` writes the page of the documentation, and
``test_errors.py`` compares every message with what is raised. In a message, `...` stands for what
differs between machines, and ``example.py`` for the file of the code.
"""

# ruff: noqa: E501 (a line of a message is as long as it is)

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to meet an error: what happens, the code, its message, the code mended."""

    what: str
    broken: str
    message: str
    mended: str = ""


@dataclasses.dataclass(frozen=True)
class Section:
    """The cases of one error class, or of what is raised as a builtin."""

    title: str
    intro: str
    cases: list[Case]


PREFACE = """\
# Errors

Each message says what happened and to which value, while tracing which function, where in your file, and how to repair it. Frames of
xfunc and torch are left out of the traceback (`xf.config.hide_library_frames = False` brings them back). After an error, everything can be
called again. In the messages below `...` stands for what differs on your machine.

The classes are in `xf.errors`; each is also the builtin in brackets, so `except TypeError` works.

```python
import torch
import xfunc as xf
```
"""


def page() -> str:
    """The text of docs/errors.md."""
    parts = [PREFACE]
    for section in SECTIONS:
        parts.append(f"## {section.title}\n")
        if section.intro:
            parts.append(f"{section.intro}\n")
        for case in section.cases:
            error = case.message.partition(":")[0]
            message = re.sub(r"\bexample\.py:\d+", "docs/errors.md:...", case.message)
            parts.append(f"{case.what}\n")
            parts.append(f"```python raises={error}\n{case.broken}```\n")
            parts.append(f"```text\n{message}\n```\n")
            if case.mended:
                parts.append(f"```python\n{case.mended}```\n")
    return "\n".join(parts)


SECTIONS = [
    Section(
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
Repair: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass it as a static argument.""",
                """\
@xf.jit
def relu(x):
    return torch.where(x.sum() > 0, x, 0 * x)

relu(torch.ones(3))
""",
            ),
            Case(
                "A traced number shapes the program. Python must know it: make it static.",
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
Repair: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass it as a static argument.""",
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
                "A size is computed from data.",
                """\
@xf.jit
def pad(x, n):
    return torch.cat([x, torch.zeros(n)])

pad(torch.ones(3), 2)
""",
                """\
ConcretizationError: torch.zeros reads a traced value (int64[]), which has no data (while tracing pad)
  at example.py:3 in pad: return torch.cat([x, torch.zeros(n)])
Repair: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass it as a static argument.""",
                """\
@xf.jit(static_argnums=1)
def pad(x, n):
    return torch.cat([x, torch.zeros(n)])

pad(torch.ones(3), 2)
""",
            ),
            Case(
                "A value is logged from inside.",
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
Repair: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass it as a static argument.""",
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
Repair: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass it as a static argument.""",
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
Repair: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass it as a static argument.""",
                """\
@xf.jit
def norm(x):
    return torch.linalg.norm(x)

norm(torch.ones(3))
""",
            ),
            Case(
                "A tensor is made of traced values.",
                """\
@xf.jit
def pair(a, b):
    return torch.tensor([a, b])

pair(1.0, 2.0)
""",
                """\
ConcretizationError: torch.tensor reads traced values (float32[]) out of a Python sequence (while tracing pair)
  at example.py:3 in pair: return torch.tensor([a, b])
Repair: use torch.stack.""",
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
Repair: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass it as a static argument.""",
                """\
def step(total, x):
    return torch.where(total > 10, total, total + x), total

xf.scan(step, 0.0, torch.ones(5))
""",
            ),
            Case(
                "An option of an operation is traced. `alpha` of a sum and `value` of `addcmul` may be; most are Python numbers.",
                """\
@xf.jit
def act(x, alpha):
    return torch.nn.functional.elu(x, alpha)

act(torch.ones(3), 0.5)
""",
                """\
ConcretizationError: torch.nn.functional.elu reads a traced value, as a size, an index or a number; a traced value has no data (while tracing act)
  at example.py:3 in act: return torch.nn.functional.elu(x, alpha)
Repair: make it a static argument (static_argnums, static_argnames), or compute with tensors of fixed size.""",
                """\
@xf.jit(static_argnames="alpha")
def act(x, alpha):
    return torch.nn.functional.elu(x, alpha)

act(torch.ones(3), alpha=0.5)
""",
            ),
            Case(
                "A value of a batch is a size.",
                """\
def head(x):
    return x[: int(x[0])]

xf.vmap(head)(torch.ones(2, 3))
""",
                """\
ConcretizationError: Tensor.__int__ reads a traced value (float32[]), which has no data (while tracing vmap(head))
  at example.py:2 in head: return x[: int(x[0])]
Repair: compute with tensors (torch.where instead of `if`), return the value and read it outside, or pass it as a static argument.""",
                """\
def head(x):
    return torch.where(torch.arange(3) < x[0], x, 0)

xf.vmap(head)(torch.ones(2, 3))
""",
            ),
        ],
    ),
    Section(
        "PurityError",
        "*(ValueError)* A function did what a pure function may not do: it changed an argument or a captured tensor, ran `backward()`, or drew from\nthe global random generator.",
        [
            Case(
                "An argument is changed in place.",
                """\
@xf.jit
def update(params, grad):
    params["w"] -= 0.1 * grad
    return params

update({"w": torch.ones(3)}, torch.ones(3))
""",
                """\
PurityError: Tensor.sub_ changes params['w'] (float32[3]) in place (while tracing update)
  at example.py:3 in update: params["w"] -= 0.1 * grad
Repair: compute a new tensor and return it (x = x + 1 instead of x += 1; torch.index_put instead of x[i] = y).""",
                """\
@xf.jit
def update(params, grad):
    return {"w": params["w"] - 0.1 * grad}

update({"w": torch.ones(3)}, torch.ones(3))
""",
            ),
            Case(
                "An element of an argument is assigned.",
                """\
@xf.jit
def first_zero(x):
    x[0] = 0.0
    return x

first_zero(torch.ones(3))
""",
                """\
PurityError: Tensor.__setitem__ changes x (float32[3]) in place (while tracing first_zero)
  at example.py:3 in first_zero: x[0] = 0.0
Repair: compute a new tensor and return it (x = x + 1 instead of x += 1; torch.index_put instead of x[i] = y).""",
                """\
@xf.jit
def first_zero(x):
    y = x.clone()       # made here: ours to change
    y[0] = 0.0
    return y

first_zero(torch.ones(3))
""",
            ),
            Case(
                "A tensor from outside is changed.",
                """\
calls = torch.tensor(0)

@xf.jit
def count(x):
    calls.add_(1)
    return x

count(torch.ones(3))
""",
                """\
PurityError: Tensor.add_ changes a captured tensor (int64[]) in place (while tracing count)
  at example.py:5 in count: calls.add_(1)
Repair: compute a new tensor and return it (x = x + 1 instead of x += 1; torch.index_put instead of x[i] = y).""",
                """\
@xf.jit
def count(x, calls):
    return x, calls + 1

_, calls = count(torch.ones(3), torch.tensor(0))
""",
            ),
            Case(
                "`out=` writes into an argument.",
                """\
@xf.jit
def double(x):
    return torch.mul(x, 2, out=x)

double(torch.ones(3))
""",
                """\
PurityError: torch.mul changes x (float32[3]) in place (while tracing double)
  at example.py:3 in double: return torch.mul(x, 2, out=x)
Repair: compute a new tensor and return it (x = x + 1 instead of x += 1; torch.index_put instead of x[i] = y).""",
            ),
            Case(
                "Numbers are drawn from the global generator.",
                """\
@xf.jit
def noisy(x):
    return x + torch.randn(3)

noisy(torch.ones(3))
""",
                """\
PurityError: torch.randn draws from the global random generator, which a traced function may not (while tracing noisy)
  at example.py:3 in noisy: return x + torch.randn(3)
Repair: draw with a key (xf.random.uniform(key, shape) and the like), or let this code draw from one: `with xf.random.implicit(key):`.""",
                """\
@xf.jit
def noisy(x, key):
    return x + xf.random.normal(key, (3,))

noisy(torch.ones(3), xf.random.key(0))
""",
            ),
            Case(
                "A module drops out.",
                """\
dropout = torch.nn.Dropout(0.1)

@xf.jit
def layer(x):
    return dropout(x)

layer(torch.ones(3))
""",
                """\
PurityError: torch.dropout draws from the global random generator, which a traced function may not (while tracing layer)
  at example.py:5 in layer: return dropout(x)
Repair: draw with a key (xf.random.uniform(key, shape) and the like), or let this code draw from one: `with xf.random.implicit(key):`.""",
                """\
@xf.jit
def layer(x, key):
    with xf.random.implicit(key):
        return dropout(x)

layer(torch.ones(3), xf.random.key(0))
""",
            ),
            Case(
                "`backward` stores gradients.",
                """\
@xf.jit
def step(w, x):
    loss = (w * x).sum()
    loss.backward()
    return w - 0.1 * w.grad

step(torch.ones(3), torch.ones(3))
""",
                """\
PurityError: Tensor.backward writes gradients into `.grad`, a side effect (while tracing step)
  at example.py:4 in step: loss.backward()
Repair: use xf.grad or xf.value_and_grad, which return them; or call backward outside.""",
                """\
@xf.jit
def step(w, x):
    return w - 0.1 * xf.grad(lambda w: (w * x).sum())(w)

step(torch.ones(3), torch.ones(3))
""",
            ),
            Case(
                "`.data` is assigned.",
                """\
@xf.jit
def clip(w):
    w.data = w.data.clamp(-1, 1)
    return w

clip(torch.ones(3))
""",
                """\
PurityError: assigning to .data changes a traced value (float32[3]) in place (while tracing clip)
  at example.py:3 in clip: w.data = w.data.clamp(-1, 1)
Repair: compute a new tensor and return it.""",
                """\
@xf.jit
def clip(w):
    return w.clamp(-1, 1)

clip(torch.ones(3))
""",
            ),
        ],
    ),
    Section(
        "LeakError",
        "*(RuntimeError)* A traced value was kept beyond its trace. It stands for an input of some later call, and is of no use outside.",
        [
            Case(
                "An intermediate value is stored in a list.",
                """\
activations = []

@xf.jit
def net(x):
    h = torch.tanh(x)
    activations.append(h)
    return h.sum()

net(torch.ones(3))
""",
                """\
LeakError: a traced value, float32[3] made by torch.tanh, outlived its trace (while tracing net)
  at example.py:5 in net: h = torch.tanh(x)
Repair: return the value from the function instead of storing it outside: it stands for an input of the next call, not for data.""",
                """\
@xf.jit
def net(x):
    h = torch.tanh(x)
    return h.sum(), [h]

total, activations = net(torch.ones(3))
""",
            ),
            Case(
                "A function under `grad` stores a value on an object.",
                """\
class Net:
    def loss(self, w):
        self.last = w.square()
        return self.last.sum()

net = Net()
xf.grad(net.loss)(torch.ones(3))
""",
                """\
LeakError: a traced value, float32[3] made by Tensor.square, outlived its trace (while tracing grad(Net.loss))
  at example.py:3 in loss: self.last = w.square()
Repair: return the value from the function instead of storing it outside: it stands for an input of the next call, not for data.""",
                """\
def loss(w):
    squares = w.square()
    return squares.sum(), squares

grads, squares = xf.grad(loss, has_aux=True)(torch.ones(3))
""",
            ),
            Case(
                "The body of a scan stores what it computes.",
                """\
seen = []

def step(total, x):
    seen.append(total + x)
    return total + x, None

xf.scan(step, 0.0, torch.ones(3))
""",
                """\
LeakError: a traced value, float32[] made by Tensor.add, outlived its trace (while tracing step)
  at example.py:4 in step: seen.append(total + x)
Repair: return the value from the function instead of storing it outside: it stands for an input of the next call, not for data.""",
                """\
def step(total, x):
    return total + x, total + x

total, seen = xf.scan(step, 0.0, torch.ones(3))
""",
            ),
            Case(
                "A value that leaked is used later.",
                """\
kept = []

@xf.jit
def keep(x):
    kept.append(x + 1)
    return x

try:
    keep(torch.ones(3))
except xf.errors.LeakError:
    pass
kept[0] * 2
""",
                """\
LeakError: a traced value, float32[3] made by Tensor.add, outlived its trace (while tracing keep)
  at example.py:5 in keep: kept.append(x + 1)
Repair: return the value from the function instead of storing it outside: it stands for an input of the next call, not for data.""",
            ),
            Case(
                "A pullback is used after its trace.",
                """\
pullbacks = []

@xf.jit
def forward(x):
    y, pull = xf.vjp(torch.sin, x)
    pullbacks.append(pull)
    return y

try:
    forward(torch.ones(3))
except xf.errors.LeakError:
    pass
pullbacks[0](torch.ones(3))
""",
                """\
LeakError: the pullback of vjp(sin) was called after the trace that made it ended
  at example.py:13 in <module>: pullbacks[0](torch.ones(3))
Repair: call it inside the traced function, or call vjp outside of jit.""",
                """\
y, pull = xf.vjp(xf.jit(torch.sin), torch.ones(3))
pull(torch.ones(3))
""",
            ),
        ],
    ),
    Section(
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
Repair: return a carry of the same structure, shapes and dtypes; convert `init` if its dtype was not meant.""",
                """\
xf.scan(body, {"h": torch.zeros(3), "steps": 0.0}, torch.ones(4, 3))
""",
            ),
            Case(
                "The carry loses a part.",
                """\
xf.scan(lambda carry, x: ({"h": carry["h"] + x}, None), {"h": 0.0, "best": 0.0}, torch.ones(4))
""",
                """\
TreeMismatchError: scan of <lambda>: the carry that the body returns and the one it receives differ:
  carry['best']: missing
  at example.py:1 in <module>: xf.scan(lambda carry, x: ({"h": carry["h"] + x}, None), {"h": 0.0, "best": 0.0}, torch.ones(4))
Repair: return a carry of the same structure, shapes and dtypes; convert `init` if its dtype was not meant.""",
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
Repair: give all leaves of xs the same leading axis.""",
                """\
xf.scan(body, 0.0, {"a": torch.ones(4), "b": torch.ones(4)})
""",
            ),
            Case(
                "The body of a scan returns no pair.",
                """\
xf.scan(lambda total, x: total + x, 0.0, torch.ones(4))
""",
                """\
TreeMismatchError: scan of <lambda>: the body must return a pair (carry, y), not a single array
  at example.py:1 in <module>: xf.scan(lambda total, x: total + x, 0.0, torch.ones(4))
Repair: write `return carry, y`, with None for a y that is not needed.""",
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
TreeMismatchError: cond of <lambda>, <lambda>: the results of <lambda> and of <lambda> differ:
  result['y']: float32[3] instead of float32[]
  at example.py:1 in <module>: xf.cond(torch.tensor(True), lambda x: {"y": x}, lambda x: {"y": x.sum()}, torch.ones(3))
Repair: return the same structure, shapes and dtypes from every branch.""",
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
TreeMismatchError: while_loop of <lambda>: the value that the body returns and the one it receives differ:
  value: float32[] instead of int64[]
  at example.py:1 in <module>: xf.while_loop(lambda n: n < 5, lambda n: n + 0.5, 0)
Repair: return a value of the same structure, shapes and dtypes; convert `init` if its dtype was not meant.""",
                """\
xf.while_loop(lambda n: n < 5, lambda n: n + 0.5, 0.0)
""",
            ),
            Case(
                "The rule of a `custom_vjp` returns gradients unlike the arguments.",
                """\
@xf.custom_vjp
def scaled(x, y):
    return x * y

scaled.defvjp(lambda x, y: (x * y, (x, y)), lambda res, ct: (ct * res[1], ct.sum()))

xf.grad(lambda x, y: scaled(x, y).sum())(torch.ones(3), torch.ones(3))
""",
                """\
TreeMismatchError: scaled: the backward rule <lambda>: a gradient and its argument differ:
  gradient[1]: float32[] instead of float32[3]
  at example.py:7 in <lambda>: xf.grad(lambda x, y: scaled(x, y).sum())(torch.ones(3), torch.ones(3))
Repair: return gradients of the shapes and dtypes of the arguments.""",
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
Repair: map over axes of one size, or None for what is the same for all.""",
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
Repair: give an axis that the array has, or None.""",
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
Repair: give one entry for each positional argument, or one axis for all.""",
            ),
            Case(
                "A cotangent is unlike the output.",
                """\
y, pull = xf.vjp(lambda x: {"sin": torch.sin(x)}, torch.ones(3))
pull({"sin": torch.ones(2)})
""",
                """\
TreeMismatchError: vjp(<lambda>): the cotangent and the output differ:
  cotangent['sin']: float32[2] instead of float32[3]
  at example.py:2 in <module>: pull({"sin": torch.ones(2)})
Repair: pass a tree like the output, for example torch.ones_like of each leaf.""",
                """\
pull({"sin": torch.ones(3)})
""",
            ),
            Case(
                "Tangents are unlike the arguments.",
                """\
xf.jvp(torch.sin, (torch.ones(3),), (torch.ones(3, dtype=torch.float64),))
""",
                """\
TreeMismatchError: jvp(sin): tangents and primals differ:
  tangents[0]: float64[3] instead of float32[3]
  at example.py:1 in <module>: xf.jvp(torch.sin, (torch.ones(3),), (torch.ones(3, dtype=torch.float64),))
Repair: make tangents of the shapes and dtypes of the primals (torch.ones_like).""",
                """\
xf.jvp(torch.sin, (torch.ones(3),), (torch.ones(3),))
""",
            ),
            Case(
                "A compiled function gets arguments of another kind.",
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
Repair: call the jitted function itself, which compiles for each kind of arguments.""",
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
Repair: give trees of one structure.""",
            ),
        ],
    ),
    Section(
        "UnsupportedOpError",
        "*(NotImplementedError)* An operation, dtype or layout that can't be a program. Mostly: the shape of the result depends on data.",
        [
            Case(
                "A boolean mask selects.",
                """\
@xf.jit
def positive_mean(x):
    return x[x > 0].mean()

positive_mean(torch.tensor([-1.0, 1.0, 3.0]))
""",
                """\
UnsupportedOpError: the shape of the result of indexing with a boolean mask depends on data (while tracing positive_mean)
  at example.py:3 in positive_mean: return x[x > 0].mean()
Repair: keep the shape fixed: torch.where(mask, x, 0) instead of x[mask], torch.sort or torch.topk instead of unique or nonzero.""",
                """\
@xf.jit
def positive_mean(x):
    mask = x > 0
    return torch.where(mask, x, 0.0).sum() / mask.sum()

assert positive_mean(torch.tensor([-1.0, 1.0, 3.0])).item() == 2.0
""",
            ),
            Case(
                "The places of nonzero elements.",
                """\
@xf.jit
def places(x):
    return torch.nonzero(x)

places(torch.tensor([0.0, 1.0]))
""",
                """\
UnsupportedOpError: the shape of the result of torch.nonzero depends on data (while tracing places)
  at example.py:3 in places: return torch.nonzero(x)
Repair: keep the shape fixed: torch.where(mask, x, 0) instead of x[mask], torch.sort or torch.topk instead of unique or nonzero.""",
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
Repair: keep the shape fixed: torch.where(mask, x, 0) instead of x[mask], torch.sort or torch.topk instead of unique or nonzero.""",
            ),
            Case(
                "A dtype that the device lacks.",
                """\
xf.jit(lambda x: x + 1)(torch.ones(3, dtype=torch.uint32))
""",
                """\
UnsupportedOpError: x (uint32[3]) cannot be used: its dtype torch.uint32 is not supported (while tracing <lambda>)
  at example.py:1 in <module>: xf.jit(lambda x: x + 1)(torch.ones(3, dtype=torch.uint32))
Repair: convert it to a dense tensor of a supported dtype first.""",
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
Repair: convert it to a dense tensor of a supported dtype first.""",
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
Repair: convert it to a dense tensor of a supported dtype first.""",
            ),
            Case(
                "A `torch.autograd.Function` of the older kind.",
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
UnsupportedOpError: a torch.autograd.Function whose forward takes ctx cannot be transformed (while tracing vmap(Function.apply))
  at example.py:10 in <module>: xf.vmap(Double.apply)(torch.ones(3))
Repair: split it into forward(*inputs) and setup_context(ctx, inputs, output), or use xf.custom_vjp.""",
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
                "One without a rule for batching.",
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
UnsupportedOpError: a torch.autograd.Function has no rule for batching (while tracing vmap(Function.apply))
  at example.py:14 in <module>: xf.vmap(Triple.apply)(torch.ones(3))
Repair: set `generate_vmap_rule = True` in the class, or use xf.custom_vjp.""",
            ),
            Case(
                "One without a rule for forward mode.",
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
UnsupportedOpError: a torch.autograd.Function has no rule for forward-mode differentiation (while tracing jvp(Function.apply))
  at example.py:14 in <module>: xf.jvp(Triple.apply, (torch.ones(3),), (torch.ones(3),))
Repair: give the class a `jvp` staticmethod, or use xf.custom_jvp.""",
            ),
            Case(
                "A `while_loop` is differentiated in reverse.",
                """\
def grow(x):
    return xf.while_loop(lambda v: v < 100, lambda v: v * 2, x)

xf.grad(grow)(1.0)
""",
                """\
UnsupportedOpError: a gradient is asked for through while_loop of grow.<locals>.<lambda>, whose number of steps depends on data: nothing bounds what the backward pass would have to keep
  at example.py:2 in grow: return xf.while_loop(lambda v: v < 100, lambda v: v * 2, x)
Repair: use xf.scan, or xf.fori_loop with Python integers as bounds; or differentiate in forward mode (xf.jvp, xf.jacfwd); or cut the gradient off with xf.stop_gradient.""",
                """\
xf.jvp(grow, (torch.tensor(1.0),), (torch.tensor(1.0),))
""",
            ),
            Case(
                "Complex numbers are put in an order.",
                """\
@xf.jit
def weights(z):
    return z.softmax(0)

weights(torch.ones(3, dtype=torch.complex64))
""",
                """\
UnsupportedOpError: torch.softmax was given complex64: complex numbers have no order
  at example.py:3 in weights: return z.softmax(0)
Repair: convert to a floating dtype (x.real, x.imag, x.abs()).""",
                """\
@xf.jit
def weights(z):
    return z.abs().softmax(0)

weights(torch.ones(3, dtype=torch.complex64))
""",
            ),
            Case(
                "Booleans are multiplied as matrices.",
                """\
@xf.jit
def reachable(a):
    return a @ a

reachable(torch.eye(3) > 0)
""",
                """\
UnsupportedOpError: torch.mm was given bool: booleans have no sums of products
  at example.py:3 in reachable: return a @ a
Repair: convert to a floating dtype (x.float()).""",
                """\
@xf.jit
def reachable(a):
    return a.float() @ a.float() > 0

reachable(torch.eye(3) > 0)
""",
            ),
            Case(
                "Floating numbers are shifted.",
                """\
@xf.jit
def half(x):
    return x >> 1

half(torch.ones(3))
""",
                """\
UnsupportedOpError: torch.bitwise_right_shift was given float32, and shifts integers
  at example.py:3 in half: return x >> 1
Repair: convert with .to(torch.int64) before.""",
                """\
@xf.jit
def half(x):
    return x / 2

half(torch.ones(3))
""",
            ),
            Case(
                "Complex numbers of float16.",
                """\
@xf.jit
def turn(x):
    return torch.complex(x, x)

turn(torch.ones(4, dtype=torch.float16))
""",
                """\
UnsupportedOpError: torch.complex makes complex numbers of float16 (torch.complex32), which XLA does not have (while tracing turn)
  at example.py:3 in turn: return torch.complex(x, x)
Repair: convert to float32 first: x.float().""",
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
Repair: write it with other torch operations, or give a function that calls it a rule with xf.custom_vjp.""",
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
UnsupportedOpError: Tensor.t_ changes the shape of a view in place, of which derivatives would know nothing
  at example.py:3 in loss: y.t_()
Repair: make a new tensor: x = x.t(...).""",
                """\
def loss(x):
    return x[:2].t().sum()

xf.grad(loss)(torch.ones(3, 2))
""",
            ),
        ],
    ),
    Section(
        "ShardingError",
        "*(ValueError)* A sharding does not fit its mesh, its array or the place it is used in. See [sharding](sharding.md).",
        [
            Case(
                "A dimension is no multiple of the devices that it is divided over.",
                """\
mesh = xf.AbstractMesh((4, 2), ("data", "tensor"))
weights = xf.ShapeDtypeStruct((30, 16), torch.float32, xf.NamedSharding(mesh, xf.P("data")))
xf.jit(torch.square).lower(weights)
""",
                """\
ShardingError: argument 0 of square of shape (30, 16) cannot be divided as P('data') says: its dimension 0 is 30, which is no multiple of 4 (data=4)
  at example.py:3 in <module>: xf.jit(torch.square).lower(weights)
Repair: pad or change that dimension, or divide it over fewer devices.""",
                """\
weights = xf.ShapeDtypeStruct((32, 16), torch.float32, xf.NamedSharding(mesh, xf.P("data")))
xf.jit(torch.square).lower(weights)
""",
            ),
            Case(
                "The mesh has no such axis.",
                """\
mesh = xf.AbstractMesh((4, 2), ("data", "tensor"))
xf.NamedSharding(mesh, xf.P("model"))
""",
                """\
ShardingError: P('model'): AbstractMesh(data=4, tensor=2) has no axis 'model'
  at example.py:2 in <module>: xf.NamedSharding(mesh, xf.P("model"))
Repair: its axes are 'data', 'tensor'.""",
                """\
xf.NamedSharding(mesh, xf.P("tensor"))
""",
            ),
            Case(
                "There are fewer devices than the mesh has.",
                """\
xf.make_mesh((4, 2), ("data", "tensor"))
""",
                """\
ShardingError: AbstractMesh(data=4, tensor=2) is too large for this machine: it has 8 devices, and there are 1
  at example.py:1 in <module>: xf.make_mesh((4, 2), ("data", "tensor"))
Repair: change the sizes; on the CPU, xf.config.set_cpu_devices(n) or CPU_NUM_DEVICES=n before the start makes n devices; to lower for devices that are not here, use xf.sharding.AbstractMesh.""",
                """\
xf.AbstractMesh((4, 2), ("data", "tensor"))
""",
            ),
            Case(
                "A program for a mesh that is not here can be lowered, and not run.",
                """\
mesh = xf.AbstractMesh((4,), ("data",))
sharding = xf.NamedSharding(mesh, xf.P("data"))
double = xf.jit(lambda x: xf.with_sharding_constraint(2 * x, sharding))
double(torch.ones(8))
""",
                """\
ShardingError: <lambda> was traced for a mesh of 4 devices, and there are 1
  at example.py:4 in <module>: double(torch.ones(8))
Repair: run it on a mesh of the devices that are there (xf.sharding.make_mesh); an AbstractMesh is for lowering.""",
                """\
double.lower(torch.ones(8)).as_text()
""",
            ),
            Case(
                "A spec alone means the mesh in use.",
                """\
xf.device_put(torch.ones(8), xf.P("data"))
""",
                """\
ShardingError: sharding of x is P('data'), and no mesh is in use
  at example.py:1 in <module>: xf.device_put(torch.ones(8), xf.P("data"))
Repair: pass NamedSharding(mesh, spec), or call in a block of `with xf.sharding.use_mesh(mesh):`.""",
                """\
with xf.use_mesh(xf.make_mesh((1,), ("data",))):
    xf.device_put(torch.ones(8), xf.P("data"))
""",
            ),
            Case(
                "Collectives are for functions of one device's part.",
                """\
@xf.jit
def mean(x):
    return xf.pmean(x, "data")

mean(torch.ones(4))
""",
                """\
ShardingError: pmean over 'data' is called outside of a shard_map, where there are no axes
  at example.py:3 in mean: return xf.pmean(x, "data")
Repair: call it in a function that is given to xf.shard_map, or to xf.vmap(..., axis_name='data').""",
                """\
mesh = xf.make_mesh((1,), ("data",))
mean = xf.shard_map(mean, mesh=mesh, in_specs=xf.P("data"), out_specs=xf.P())
mean(torch.ones(4))
""",
            ),
            Case(
                "What a shard_map returns whole must be the same on each device.",
                """\
mesh = xf.AbstractMesh((4,), ("data",))
local = xf.shard_map(lambda x: x.sum(), mesh=mesh, in_specs=xf.P("data"), out_specs=xf.P())
xf.jit(local).lower(torch.ones(8))
""",
                """\
ShardingError: shard_map of <lambda>: the result has the spec P(), which does not name 'data', and may differ between the devices along that axis
  at example.py:3 in <module>: xf.jit(local).lower(torch.ones(8))
Repair: name 'data' in out_specs, make it the same with a collective such as xf.sharding.psum(x, 'data'), or pass check_vma=False if you know that it is.""",
                """\
total = lambda x: xf.psum(x.sum(), "data")
xf.jit(xf.shard_map(total, mesh=mesh, in_specs=xf.P("data"), out_specs=xf.P())).lower(torch.ones(8))
""",
            ),
            Case(
                "A program is compiled for a TPU that has fewer chips than its mesh.",
                """\
mesh = xf.AbstractMesh((8,), ("data",))
rows = xf.ShapeDtypeStruct((64, 128), torch.bfloat16, xf.NamedSharding(mesh, xf.P("data")))
total = xf.jit(lambda x: x.sum())
total.lower(rows).compile(target="tpu:v6e-4")
""",
                """\
ShardingError: <lambda> was traced for a mesh of 8 devices, and v6e:2x2 has 4
  at example.py:4 in <module>: total.lower(rows).compile(target="tpu:v6e-4")
Repair: make the mesh as large as the topology, or name another topology.""",
            ),
            Case(
                "A collective names an axis that nothing around it has.",
                """\
xf.vmap(lambda x: xf.psum(x, "j"), axis_name="i")(torch.ones(3))
""",
                """\
ShardingError: psum over 'j': no vmap or shard_map around it has an axis 'j'
  at example.py:1 in <lambda>: xf.vmap(lambda x: xf.psum(x, "j"), axis_name="i")(torch.ones(3))
Repair: name those of the vmaps around it, 'i'.""",
                """\
xf.vmap(lambda x: xf.psum(x, "i"), axis_name="i")(torch.ones(3))
""",
            ),
        ],
    ),
    Section(
        "CompileError",
        "*(RuntimeError)* The compiler refused a program that could be traced. The message quotes it.",
        [
            Case(
                "A kernel for the TPU runs on the CPU.",
                """\
import torch_xla

@xf.jit
def attention(q):
    kernel = torch_xla._XLAC._xla_tpu_custom_call
    return kernel([q], "a kernel of Pallas", [[3]], [torch.float32])[0]

attention(torch.ones(3))
""",
                """\
CompileError: XLA could not compile attention: No registered implementation for untyped custom call to tpu_custom_call for Host
  at example.py:8 in <module>: attention(torch.ones(3))
Repair: write the operation that it names differently; if it names none, please report the program.""",
                """\
@xf.jit
def attention(q):
    return torch.softmax(q, 0)

attention(torch.ones(3))
""",
            ),
            Case(
                "A kernel of your own is not registered on the device.",
                """\
import torch_xla

@xf.jit
def mine(x):
    call = torch_xla._XLAC._xla_custom_call
    return call([x], "my_kernel", [[3]], [torch.float32], False, "", 1, {})[0]

mine(torch.ones(3))
""",
                """\
CompileError: XLA could not compile mine: No registered implementation for untyped custom call to my_kernel for Host
  at example.py:8 in <module>: mine(torch.ones(3))
Repair: write the operation that it names differently; if it names none, please report the program.""",
            ),
        ],
    ),
    Section(
        "OutOfMemoryError",
        "*(CompileError)* A program does not fit on the device. `required_bytes` and `limit_bytes` hold what the compiler said, None where it said nothing.",
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
Repair: use a smaller batch, xf.checkpoint (keep less for the backward pass), xf.scan over layers, or a narrower dtype.""",
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
Repair: use a smaller batch, xf.checkpoint (keep less for the backward pass), xf.scan over layers, or a narrower dtype.""",
                """\
x, v = torch.ones(2**20), torch.ones(2**20)
y, jacobian_times_v = xf.jvp(f, (x,), (v,))
""",
            ),
        ],
    ),
    Section(
        "DamagedCheckpointError",
        "*(ValueError)* A file of a [checkpoint](checkpoints.md) is missing, cut off or changed; `file` is its path.",
        [
            Case(
                "A file was cut off.",
                """\
import tempfile

folder = tempfile.mkdtemp()
xf.sharding.save_checkpoint(f"{folder}/100", torch.ones(3))
xf.sharding.save_checkpoint(f"{folder}/200", torch.ones(3))
with open(f"{folder}/200/__0_0.distcp", "ab") as file:
    file.truncate(100)

xf.sharding.load_checkpoint(f"{folder}/200", torch.zeros(3))
""",
                """\
DamagedCheckpointError: the checkpoint at .../200 is damaged: __0_0.distcp has 100 bytes, and was written with ...
  at example.py:9 in <module>: xf.sharding.load_checkpoint(f"{folder}/200", torch.zeros(3))
Repair: use an older checkpoint, or a copy of this one.""",
                """\
xf.sharding.load_checkpoint(f"{folder}/100", torch.zeros(3))
""",
            ),
        ],
    ),
    Section(
        "CheckpointWriteError",
        "*(OSError)* A [checkpoint](checkpoints.md) could not be written. `errno` is the system's number of the reason, such as `errno.ENOSPC` of a full disk.",
        [
            Case(
                "The folder cannot be made.",
                """\
xf.sharding.save_checkpoint("/dev/null/100", torch.ones(3))
""",
                """\
CheckpointWriteError: the checkpoint /dev/null/100 could not be written: [Errno 20] Not a directory: '/dev/null/100.partial'
  at example.py:1 in <module>: xf.sharding.save_checkpoint("/dev/null/100", torch.ones(3))
Repair: make room, or mend what is wrong with the file system, and save again; earlier checkpoints are as they were.""",
                """\
import tempfile

xf.sharding.save_checkpoint(tempfile.mkdtemp() + "/100", torch.ones(3))
""",
            ),
        ],
    ),
    Section(
        "TypeError: gradients",
        "Only real floating scalars have a gradient, with respect to floating tensors.",
        [
            Case(
                "The function returns more than a scalar.",
                """\
def residuals(w, x):
    return w * x - 1

xf.grad(residuals)(torch.ones(3), torch.ones(3))
""",
                """\
TypeError: grad(residuals) needs a function that returns a real floating scalar, but residuals returned float32[3]
  at example.py:4 in <module>: xf.grad(residuals)(torch.ones(3), torch.ones(3))
Repair: reduce it with .sum() or .mean(); use jacrev or vjp for other outputs, and has_aux=True to return more beside the value.""",
                """\
xf.grad(lambda w, x: residuals(w, x).square().mean())(torch.ones(3), torch.ones(3))
""",
            ),
            Case(
                "A differentiated argument holds integers. Keep what is no parameter out of it.",
                """\
def loss(params, x):
    return (params["w"] * x).sum().sin()

xf.grad(loss)({"w": torch.ones(3), "step": torch.tensor(0)}, torch.ones(3))
""",
                """\
TypeError: grad(loss) differentiates with respect to params['step'], which is int64[], not floating
  at example.py:4 in <module>: xf.grad(loss)({"w": torch.ones(3), "step": torch.tensor(0)}, torch.ones(3))
Repair: convert it with .float(), or choose other argnums.""",
                """\
def loss(params, step, x):
    return (params["w"] * x).sum().sin() / (step + 1)

xf.grad(loss)({"w": torch.ones(3)}, torch.tensor(0), torch.ones(3))
""",
            ),
            Case(
                "`has_aux` without a pair.",
                """\
xf.grad(lambda w: w.sum(), has_aux=True)(torch.ones(3))
""",
                """\
TypeError: grad(<lambda>) with has_aux=True needs a pair (value, aux), but <lambda> returned a Tensor
  at example.py:1 in <module>: xf.grad(lambda w: w.sum(), has_aux=True)(torch.ones(3))
Repair: return (value, aux), or leave has_aux out.""",
                """\
xf.grad(lambda w: (w.sum(), w), has_aux=True)(torch.ones(3))
""",
            ),
            Case(
                "An integer output of `vjp`.",
                """\
xf.vjp(lambda x: {"y": x.sin(), "best": x.argmax()}, torch.ones(3))
""",
                """\
TypeError: vjp(<lambda>): <lambda> returned int64[] at output['best'], which is not floating
  at example.py:1 in <module>: xf.vjp(lambda x: {"y": x.sin(), "best": x.argmax()}, torch.ones(3))
Repair: return what is not differentiated through has_aux.""",
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
Repair: pass a function: grad(f)(x) rather than grad(f(x)).""",
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
TypeError: loss.<locals>.scaled closes over a value (float32[3]) that is being differentiated, which its rule knows nothing of
  at example.py:7 in loss: return scaled(x).sum()
Repair: pass the value as an argument, or close over xf.stop_gradient of it.""",
                """\
@xf.custom_vjp
def scaled(w, x):
    return w * x

scaled.defvjp(lambda w, x: (w * x, (w, x)), lambda r, ct: (ct * r[1], ct * r[0]))

xf.grad(lambda w, x: scaled(w, x).sum())(torch.ones(3), torch.ones(3))
""",
            ),
        ],
    ),
    Section(
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
Repair: pass tensors, NumPy arrays and Python numbers; register your own class with xf.tree.register; make anything else static with static_argnums or static_argnames; of an object's method, write jit(obj.method).""",
                """\
@xf.jit(static_argnames="kind")
def act(x, kind):
    return getattr(torch, kind)(x)

act(torch.ones(3), "tanh")
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
Repair: pass a tuple instead of a list, a frozen dataclass instead of a dict; or leave the argument dynamic.""",
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
Repair: use one of v6e-1, v6e-4, v6e-8, v6e-16, v6e-32, v6e-64, v6e-128, v6e-256, or give a grid: v6e:2x2.""",
            ),
            Case(
                "A function returns what is no array.",
                """\
@xf.jit
def named(x):
    return {"value": x, "name": "x"}

named(torch.ones(3))
""",
                """\
TypeError: named returned 'x' (a str) at output['name']
  at example.py:5 in <module>: named(torch.ones(3))
Repair: return tensors, numbers or None, in any tree of tuples, lists, dicts and registered classes.""",
            ),
            Case(
                "A generator is traced.",
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
Repair: return tensors, numbers or None, in any tree of tuples, lists, dicts and registered classes.""",
                """\
@xf.jit
def rows(x):
    return x[0], x[1]

rows(torch.ones(2, 3))
""",
            ),
            Case(
                "`static_argnames` names no parameter.",
                """\
xf.jit(lambda x, n: x * n, static_argnames="m")
""",
                """\
ValueError: <lambda> has no parameter 'm'
  at example.py:1 in <module>: xf.jit(lambda x, n: x * n, static_argnames="m")
Repair: its parameters are x, n.""",
            ),
            Case(
                "`argnums` counts beyond the arguments.",
                """\
xf.grad(lambda w: w.sum(), argnums=1)(torch.ones(3))
""",
                """\
ValueError: grad(<lambda>) has argnums=1, but was called with 1 positional arguments
  at example.py:1 in <module>: xf.grad(lambda w: w.sum(), argnums=1)(torch.ones(3))
Repair: pass the arguments of argnums by position.""",
            ),
            Case(
                "Nothing is mapped over.",
                """\
xf.vmap(torch.sin, in_axes=None)(torch.ones(3))
""",
                """\
ValueError: vmap(sin) has nothing to map over
  at example.py:1 in <module>: xf.vmap(torch.sin, in_axes=None)(torch.ones(3))
Repair: give an in_axes that is not None, or axis_size.""",
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
ValueError: scan of <lambda> has neither xs nor length
  at example.py:1 in <module>: xf.scan(lambda c, _: (c + 1, None), 0)
Repair: give one of them.""",
                """\
xf.scan(lambda c, _: (c + 1, None), 0, length=3)
""",
            ),
            Case(
                "The condition of a `while_loop` is no boolean.",
                """\
xf.while_loop(lambda n: 5 - n, lambda n: n + 1, 0)
""",
                """\
TypeError: while_loop of <lambda>: the condition <lambda> returned int64[], not a boolean scalar
  at example.py:1 in <module>: xf.while_loop(lambda n: 5 - n, lambda n: n + 1, 0)
Repair: compare (x < y), and reduce with .any() or .all().""",
                """\
xf.while_loop(lambda n: 5 - n > 0, lambda n: n + 1, 0)
""",
            ),
            Case(
                "The predicate of a `cond` is no boolean scalar.",
                """\
xf.cond(torch.ones(3) > 0, torch.sin, torch.cos, torch.ones(3))
""",
                """\
TypeError: cond of sin, cos: the predicate is bool[3], not a scalar boolean
  at example.py:1 in <module>: xf.cond(torch.ones(3) > 0, torch.sin, torch.cos, torch.ones(3))
Repair: reduce it with .any() or .all(), or use torch.where or xf.vmap to choose for each element.""",
                """\
xf.cond((torch.ones(3) > 0).all(), torch.sin, torch.cos, torch.ones(3))
""",
            ),
            Case(
                "A function holds an iterator. Reading it changes it, and a program would go on with what it gave at first.",
                """\
def scaled(rates):
    return xf.jit(lambda w: w * next(rates))

scaled(iter([0.1, 0.01]))(torch.ones(3))
""",
                """\
TypeError: a function holds <list_iterator object at ...> (a list_iterator), which gives other values each time it is read
  at example.py:4 in <module>: scaled(iter([0.1, 0.01]))(torch.ones(3))
Repair: make a list or tuple of it, or pass what it gives as an argument.""",
                """\
step = xf.jit(lambda w, rate: w * rate)

for rate in [0.1, 0.01]:
    step(torch.ones(3), rate)
""",
            ),
            Case(
                "`nondiff_argnames` names no parameter.",
                """\
xf.custom_vjp(lambda x, factor: x * factor, nondiff_argnames="k")
""",
                """\
ValueError: <lambda> has no parameter 'k'
  at example.py:1 in <module>: xf.custom_vjp(lambda x, factor: x * factor, nondiff_argnames="k")
Repair: its parameters are x, factor.""",
            ),
            Case(
                "A loop with a traced bound is to be unrolled.",
                """\
@xf.jit
def power(x, n):
    return xf.fori_loop(0, n, lambda i, y: y * x, x, unroll=2)

power(torch.ones(3), 2)
""",
                """\
ValueError: fori_loop of power.<locals>.<lambda> has unroll=2, and a traced bound
  at example.py:3 in power: return xf.fori_loop(0, n, lambda i, y: y * x, x, unroll=2)
Repair: leave unroll out, or make both bounds Python integers (static arguments).""",
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
Repair: convert the values, or the array, with .to(dtype).""",
                """\
xf.jit(lambda n: xf.at(n.float())[0].set(0.5))(torch.ones(3, dtype=torch.int32))
""",
            ),
        ],
    ),
    Section(
        "Errors of torch and of your own",
        "",
        [
            Case(
                "Shapes do not fit: torch's own error, with a note that names the operation and your line.",
                """\
@xf.jit
def linear(x, w):
    return x @ w

linear(torch.ones(2, 4), torch.ones(3, 4))
""",
                """\
RuntimeError: mm(): cannot matrix-multiply tensors f32[2,4] and f32[3,4]. Expected the size of dimension 1 of the first input tensor (4) to be equal the size of dimension 0 of the second input tensor (3).
raised by Tensor.matmul(float32[2,4], float32[3,4]) (while tracing linear)
  at example.py:3 in linear: return x @ w
Repair: make shapes, dtypes and sizes fit; `print(x)` in the function shows those of x.""",
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
Repair: make shapes, dtypes and sizes fit; `print(x)` in the function shows those of x.""",
            ),
            Case(
                "A function calls itself without end.",
                """\
@xf.jit
def factorial(n):
    return torch.where(n > 1, n * factorial(n - 1), 1)

factorial(5)
""",
                """\
RecursionError: factorial calls itself, with arguments of the same shapes, while it is being traced: the trace would never end
  at example.py:3 in factorial: return torch.where(n > 1, n * factorial(n - 1), 1)
Repair: use xf.scan for a loop of fixed length, or make the depth a static argument.""",
                """\
@xf.jit
def factorial(n):
    steps = torch.arange(1, 21)
    return torch.where(steps <= n, steps, 1).prod()

assert factorial(5).item() == 120
""",
            ),
            Case(
                "A donated tensor is used again.",
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
Repair: use the function's result instead, or leave the argument out of donate_argnums.""",
                """\
state = xf.device_put(torch.ones(3))
state = step(state)
state.sum()
""",
            ),
            Case(
                "What your own code raises comes through as it is.",
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
                "A constant index is out of range of the data that it takes from.",
                """\
@xf.jit
def sixth(x):
    return torch.take(x, torch.tensor([5]))

sixth(torch.ones(3))
""",
                """\
IndexError: torch.take was given the index 5, which is out of bounds: its input has 3 (while tracing sixth)
  at example.py:3 in sixth: return torch.take(x, torch.tensor([5]))
Repair: give indices from -3 to 2.""",
            ),
        ],
    ),
]


if __name__ == "__main__":
    print(page(), end="")
