"""Errors about functions that are not pure."""

# ruff: noqa: E501 (a line of a message is as long as it is)

from tests.errors.messages.case import Case, Section

PURITY = Section(
    "PurityError",
    "*(ValueError)* A function did something that a pure function must not do: it changed an argument or a captured tensor, ran `backward()`, or drew from\nthe global random generator.",
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
Hint: compute a new tensor and return it (x = x + 1 instead of x += 1; torch.index_put instead of x[i] = y).""",
            """\
@xf.jit
def update(params, grad):
    return {"w": params["w"] - 0.1 * grad}

update({"w": torch.ones(3)}, torch.ones(3))
""",
        ),
        Case(
            "An element of an argument is assigned to.",
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
Hint: compute a new tensor and return it (x = x + 1 instead of x += 1; torch.index_put instead of x[i] = y).""",
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
Hint: compute a new tensor and return it (x = x + 1 instead of x += 1; torch.index_put instead of x[i] = y).""",
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
Hint: compute a new tensor and return it (x = x + 1 instead of x += 1; torch.index_put instead of x[i] = y).""",
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
PurityError: torch.randn draws from the global random generator, which a traced function must not do (while tracing noisy)
  at example.py:3 in noisy: return x + torch.randn(3)
Hint: draw with a key (xf.random.uniform(key, shape) and the like), or let this code draw from one: `with xf.random.implicit(key):`.""",
            """\
@xf.jit
def noisy(x, key):
    return x + xf.random.normal(key, (3,))

noisy(torch.ones(3), xf.random.key(0))
""",
        ),
        Case(
            "A module applies dropout.",
            """\
dropout = torch.nn.Dropout(0.1)

@xf.jit
def layer(x):
    return dropout(x)

layer(torch.ones(3))
""",
            """\
PurityError: torch.dropout draws from the global random generator, which a traced function must not do (while tracing layer)
  at example.py:5 in layer: return dropout(x)
Hint: draw with a key (xf.random.uniform(key, shape) and the like), or let this code draw from one: `with xf.random.implicit(key):`.""",
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
Hint: use xf.grad or xf.value_and_grad, which return them; or call backward outside.""",
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
Hint: compute a new tensor and return it.""",
            """\
@xf.jit
def clip(w):
    return w.clamp(-1, 1)

clip(torch.ones(3))
""",
        ),
    ],
)

LEAKS = Section(
    "LeakError",
    "*(RuntimeError)* A traced value was kept after its trace ended. It stands for an input of some later call, and cannot be used outside the trace.",
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
LeakError: a traced value, float32[3] made by torch.tanh, outlived its trace, held by the list `activations` (while tracing net)
  at example.py:5 in net: h = torch.tanh(x)
Hint: return the value from the function instead of storing it outside: it stands for an input of the next call, not for data.""",
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
LeakError: a traced value, float32[3] made by Tensor.square, outlived its trace, held by the attribute `last` of a Net (while tracing grad(Net.loss))
  at example.py:3 in loss: self.last = w.square()
Hint: return the value from the function instead of storing it outside: it stands for an input of the next call, not for data.""",
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
LeakError: a traced value, float32[] made by Tensor.add, outlived its trace, held by the list `seen` (while tracing step)
  at example.py:4 in step: seen.append(total + x)
Hint: return the value from the function instead of storing it outside: it stands for an input of the next call, not for data.""",
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
LeakError: a traced value, float32[3] made by Tensor.add, outlived its trace, held by the list `kept` (while tracing keep)
  at example.py:5 in keep: kept.append(x + 1)
Hint: return the value from the function instead of storing it outside: it stands for an input of the next call, not for data.""",
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
Hint: call it inside the traced function, or call vjp outside of jit.""",
            """\
y, pull = xf.vjp(xf.jit(torch.sin), torch.ones(3))
pull(torch.ones(3))
""",
        ),
    ],
)
