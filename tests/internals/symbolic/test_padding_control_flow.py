"""Programs of a bucket: loops as long as a Dim, derived Dims, tables, pools, draws, donation.

Torch computes the expected results, or a program of the exact shape where torch has none. A fixture
puts garbage into the padding.
"""

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from xfunc.errors import OutOfMemoryError, ShapeError
from xfunc.symbolic import call_cache

D = torch.float64
S, B = xf.Dim("S", min=2, max=32), xf.Dim("B", min=2, max=8)
E = xf.Dim("S", min=2, max=32, multiple_of=2)


@pytest.fixture(autouse=True)
def garbage_in_the_padding(monkeypatch):
    """NaN, True or the largest number, where the library puts zeros."""
    pad = call_cache.pad

    def wide(x, shape):
        found = pad(x, shape)
        if tuple(x.shape) == tuple(shape):
            return found
        if found.dtype == torch.bool:
            fill = True
        else:
            floating = found.dtype.is_floating_point
            fill = torch.nan if floating else torch.iinfo(found.dtype).max
        full = torch.full_like(found, fill)
        inside = tuple(slice(0, n) for n in x.shape)
        full[inside] = found[inside]
        return full

    monkeypatch.setattr(call_cache, "pad", wide)


def rows(n):
    return (torch.randn(n, 4, dtype=D),)


def line(n):
    return (torch.randn(n, dtype=D),)


def decaying(x):
    return xf.scan(lambda c, _: (c * 0.9 + x.sum(), c), x.sum(), length=x.shape[0])[1]


def decaying_in_torch(x):
    c, found = x.sum(), []
    for _ in range(x.shape[0]):
        found.append(c)
        c = c * 0.9 + x.sum()
    return torch.stack(found)


def all_pairs(x):
    def inner(a):
        return xf.scan(lambda d, b: (d + (a * b).sum().sin(), None), a[0] * 0, x)[0]

    return xf.scan(lambda c, a: (c + inner(a), None), x[0, 0] * 0, x)[0]


@xf.custom_vjp
def doubled_slope(x):
    return x.sin()


doubled_slope.defvjp(lambda x: (x.sin(), x), lambda x, g: (g * x.cos() * 2,))


def assigned(x):
    y = torch.zeros(x.shape[0] + 2, 4, dtype=D)
    y[1:-1] = x
    y[0] = 1
    return y.cumsum(0)


def counted(x):
    return xf.while_loop(
        lambda s: s[0] < x.shape[0],
        lambda s: (s[0] + 1, s[1] + x[s[0]]),
        (torch.tensor(0), x[0] * 0),
    )[1]


def drawn(x):
    key = xf.random.key(3)
    return x * xf.random.normal(key, x.shape, dtype=D), xf.random.categorical(key, x)


def exactly(f):
    """The program of the exact shape."""
    return lambda *args: xf.tree.map(lambda x: x.cpu(), xf.jit(lambda *a: f(*a))(*args))


ROWS, LINE = ((S, None),), ((S,),)
grad, torch_grad = xf.grad, torch.func.grad
# The function, dynamic_shapes, arguments of a size, and what is right (None: torch runs it too).
PROGRAMS = {
    "for": (lambda x: xf.fori_loop(0, x.shape[0], lambda i, c: c + x[i] * i, x[0] * 0), ROWS, rows,
            lambda x: sum(x[i] * i for i in range(x.shape[0]))),
    "while": (counted, ROWS, rows, lambda x: x.sum(0)),
    "length": (decaying, LINE, line, decaying_in_torch),
    "slope of a length": (grad(lambda x: decaying(x).mean()), LINE, line,
                          torch_grad(lambda x: decaying_in_torch(x).mean())),
    "loop in a loop": (grad(all_pairs), ROWS, rows, torch_grad(lambda x: (x @ x.T).sin().sum())),
    "switch": (lambda x: xf.switch(torch.tensor(1), [torch.sin, lambda x: x.softmax(0)], x), LINE,
               line, lambda x: x.softmax(0)),
    "map": (lambda x: xf.map(lambda a: a.softmax(0) * x.mean(), x), ROWS, rows,
            lambda x: x.softmax(1) * x.mean()),
    "own derivative": (grad(lambda x: doubled_slope(x).mean()), LINE, line,
                       lambda x: 2 * x.cos() / x.numel()),
    "hessian": (xf.hessian(lambda x: (x.softmax(0) ** 2).sum()), LINE, line,
                torch.func.hessian(lambda x: (x.softmax(0) ** 2).sum())),
    "vmap over it": (lambda x: xf.vmap(lambda a: a.softmax(0) * a.mean(), 1, 1)(x), ROWS, rows,
                     lambda x: x.softmax(0) * x.mean(0)),
    "one more": (lambda x, y: (y[1:] - x, torch.cat([x, y]).cumsum(0)), ((S,), (S + 1,)),
                 lambda n: (*line(n), *line(n + 1)), None),
    "twice": (lambda x, y: (y.view(2, -1) * x, y.view(-1, 2)[:, 0] * x), ((S,), (2 * S,)),
              lambda n: (*line(n), *line(2 * n)), None),
    "half": (lambda x, y: (x[: x.shape[0] // 2] * y, x.view(2, -1).sum(0) + y), ((E,), (E // 2,)),
             lambda n: (*line(2 * n), *line(n)), None),
    "squares": (lambda x: (x @ x.T).reshape(-1).cumsum(0), ROWS, rows, None),
    "tables": (lambda t, i: (t[i], t[-1], t[-2:]), ((S, None), None),
               lambda n: (*rows(n), torch.tensor([0, 1, -1, n - 1])), None),
    "gathered": (lambda x, i: x.gather(0, i), ((S, None),) * 2,
                 lambda n: (*rows(n), torch.randint(0, n, (n, 4))), None),
    "put": (lambda x, i: torch.zeros(40, dtype=D).index_put((i,), x), ((S,),) * 2,
            lambda n: (*line(n), torch.randperm(n)), None),
    "slope of a table": (grad(lambda t, i: (t[i] ** 2).sum()), (None, (S,)),
                         lambda n: (*rows(7), torch.randint(0, 7, (n,))),
                         torch_grad(lambda t, i: (t[i] ** 2).sum())),
    "assigned": (assigned, ROWS, rows, None),
    "whole numbers": (lambda i: (i.sum(), i.amax(), i.amin(), i.prod(), (i > 1).any()), LINE,
                      lambda n: (torch.randint(1, 3, (n,)),), None),
    "bytes": (lambda i: (i.amax(), i.amin()), LINE,
              lambda n: (torch.randint(0, 9, (n,), dtype=torch.uint8),), None),
    "yes and no": (lambda b: (b.any(), b.all(), b.sum()), LINE, lambda n: (torch.rand(n) > 0.5,),
                   None),
    "ignored": (lambda x, t: F.cross_entropy(x, t, ignore_index=1), ((S, None), (S,)),
                lambda n: (*rows(n), torch.arange(n) % 4), None),
    "pooled": (lambda x: F.max_pool2d(x[:, None].sin(), 2), ((S, None, None),),
               lambda n: (torch.randn(n, 4, 4, dtype=D),), None),
    "slope of a pool": (grad(lambda x: (F.max_pool2d(x[:, None].sin(), 2) ** 2).mean()),
                        ((S, None, None),), lambda n: (torch.randn(n, 4, 4, dtype=D),),
                        torch_grad(lambda x: (F.max_pool2d(x[:, None].sin(), 2) ** 2).mean())),
    "images": (grad(lambda w, x: (F.conv2d(x[None, None], w, padding=1) ** 2).mean()),
               (None, (B, S)),
               lambda n: (torch.ones(2, 1, 3, 3, dtype=D), torch.randn(5, n, dtype=D)),
               torch_grad(lambda w, x: (F.conv2d(x[None, None], w, padding=1) ** 2).mean())),
    "normalised": (lambda x: F.batch_norm(x, None, None, training=True) + x.mean(), ROWS, rows,
                   None),
    "draws": (drawn, ROWS, rows, exactly(drawn)),
}  # fmt: skip


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", PROGRAMS)
def test_padding_control_flow_equals_exact_shape(name):
    f, spec, given, right = PROGRAMS[name]
    buckets = {"S": [16, 32], "B": [8]} if name == "images" else [16, 32]
    jitted = xf.jit(f, dynamic_shapes=spec, buckets=buckets)
    for n in (3, 5, 8):
        args = given(n)
        want = (right or f)(*args)
        for g, w in zip(xf.tree.leaves(jitted(*args)), xf.tree.leaves(want), strict=True):
            torch.testing.assert_close(g.cpu(), w, rtol=1e-9, atol=1e-9, check_dtype=False)
    assert "one program" in jitted.explain()


def test_padding_static_and_donated_arguments():
    scaled = xf.jit(lambda k, x: x.sum() * k + x.shape[0], static_argnums=0,
                    dynamic_shapes=(None, (S,)), buckets=[16])  # fmt: skip
    given = xf.jit(lambda x, y: (x + 1, y * x.sum()), donate_argnums=0,
                   dynamic_shapes=((S,), None), buckets=[16])  # fmt: skip
    for n in (3, 5):
        x, y = torch.randn(n), torch.randn(4)
        torch.testing.assert_close(scaled(n, x).cpu(), x.sum() * n + n)
        total, kept = x.sum(), x.clone()
        one_more, product = given(x, y)
        torch.testing.assert_close(one_more.cpu(), kept + 1)
        torch.testing.assert_close(product.cpu(), y * total)


def test_padding_call_after_refused_call():
    f = xf.jit(lambda x, y: x.sum() + y.sum(), dynamic_shapes=((E,), (E,)), buckets=[16])
    for sizes, text in [
        ((34, 34), "S is at most 32"),
        ((5, 5), "S is a multiple of 2"),
        ((4, 6), "is 6 where S is declared"),
        ((0, 0), "it is empty"),
        ((18, 18), "largest bucket of"),
    ]:
        with pytest.raises(ShapeError, match=text):
            f(*map(torch.ones, sizes))
        assert f(torch.ones(6), torch.ones(6)).item() == 12
    small = xf.jit(lambda x: x.sin().sum(), dynamic_shapes=((S,),), memory_limit=100)
    with pytest.raises(OutOfMemoryError, match="fits no memory_limit of 100 bytes"):
        small(torch.ones(32))
    torch.testing.assert_close(small(torch.ones(2)).cpu(), torch.ones(2).sin().sum())
