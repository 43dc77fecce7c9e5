"""`xf.at` against `jax.numpy.ndarray.at`, as recorded by `tests/record/indexing.py`."""

import types
from pathlib import Path

import numpy as np
import pytest
import torch

import xfunc as xf

RECORDED = dict(np.load(Path(__file__).parents[1] / "data" / "indexing.npz"))
N = torch.arange(1, 25, dtype=torch.int32).reshape(2, 3, 4)


class Array:
    """A tensor with what the recorded expressions write of JAX's arrays."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor
        self.at = xf.at(tensor)

    def __gt__(self, other: float) -> torch.Tensor:
        return self.tensor > other

    def astype(self, name: str) -> "Array":
        return Array(self.tensor.to(getattr(torch, name)))


class Mask(torch.Tensor):
    """A boolean tensor that can be indexed, and updated in the recorded expressions."""

    @property
    def at(self) -> object:
        return xf.at(self.as_subclass(torch.Tensor))


NAMES = {
    "jnp": types.SimpleNamespace(arange=torch.arange, negative=torch.neg),
    "i": torch.tensor([1, 0, -1]),
    "j": torch.tensor([2, 0, 2, -1, 1]),
    "k": torch.tensor([[3, 0, 3], [1, -2, 0]]),
    "o": torch.tensor([1, 9, -1, -8]),
    "s": torch.tensor(1),
}


def evaluate(call: str, x: torch.Tensor, n: torch.Tensor, **names: torch.Tensor) -> torch.Tensor:
    if call.startswith("(n > 3)"):
        call = call.replace("(n > 3)", "mask(n > 3)")
    call = call.replace("(n > 7)[", "plain(n > 7)[").replace("[n > ", "[plain(n.tensor) > ")
    everything = {**NAMES, **names, "x": Array(x), "n": Array(n)}
    everything |= {"mask": lambda m: Array(m), "plain": lambda m: m}
    return eval(call, everything)


def check(got: torch.Tensor, call: str) -> None:
    want = torch.from_numpy(RECORDED[call])
    torch.testing.assert_close(got.cpu(), want, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.sample(12, seed=0)
@pytest.mark.parametrize("call", RECORDED)
def test_at_matches_jax(call: str) -> None:
    check(evaluate(call, N.float(), N), call)


TRACED = [c for c in RECORDED if "n > 20" not in c and "0, (n" not in c][::6]


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("call", TRACED)
def test_at_with_traced_indices(call: str) -> None:
    names = {k: v for k, v in NAMES.items() if isinstance(v, torch.Tensor)}
    check(xf.jit(lambda x, n, t: evaluate(call, x, n, **t))(N.float(), N, names), call)


@pytest.mark.parametrize("call", TRACED[::2])
def test_at_under_disable_jit(call: str) -> None:
    with xf.disable_jit():
        check(evaluate(call, N.float(), N), call)


X = torch.tensor([1.0, 2.0, 3.0, 4.0])
I = torch.tensor([1, 9, 1, -1])  # noqa: E741
V = torch.tensor([0.5, 2.0, 3.0, -1.5])

# The update, and the same in plain torch without what is out of bounds.
UPDATES = {
    "set": (lambda x, v: xf.at(x)[I[1:]].set(v[1:]), lambda x, v: x.index_put((I[2:],), v[2:])),
    "add": (
        lambda x, v: xf.at(x)[I].add(v),
        lambda x, v: x.index_put((I[[0, 2, 3]],), v[[0, 2, 3]], accumulate=True),
    ),
    "mul": (
        lambda x, v: xf.at(x)[I].mul(v),
        lambda x, v: x * torch.stack([torch.ones(()), v[0] * v[2], torch.ones(()), v[3]]),
    ),
    "divide": (
        lambda x, v: xf.at(x)[I].divide(v),
        lambda x, v: x / torch.stack([torch.ones(()), v[0] * v[2], torch.ones(()), v[3]]),
    ),
    "min": (
        lambda x, v: xf.at(x)[I].min(v),
        lambda x, v: torch.stack(
            [x[0], torch.minimum(x[1], torch.minimum(v[0], v[2])), x[2], torch.minimum(x[3], v[3])]
        ),
    ),
    "get": (lambda x, v: xf.at(x)[I].get() * v, lambda x, v: x[[1, 3, 1, 3]] * v),
    "get filled": (
        lambda x, v: xf.at(x)[I].get(mode="fill", fill_value=7.0) * v,
        lambda x, v: torch.stack([x[1], torch.tensor(7.0), x[1], x[3]]) * v,
    ),
    "slice": (
        lambda x, v: xf.at(x)[::-2].mul(v[:2]),
        lambda x, v: torch.stack([x[0], x[1] * v[1], x[2], x[3] * v[0]]),
    ),
    "number": (lambda x, v: xf.at(x)[2].add(v[0]), lambda x, v: x + torch.eye(4)[2] * v[0]),
    "mask": (lambda x, v: xf.at(x)[x > 2].add(v[0]), lambda x, v: torch.where(x > 2, x + v[0], x)),
    "apply": (
        lambda x, v: xf.at(x)[I[1:]].apply(lambda t: t * t, unique_indices=True) * v,
        lambda x, v: torch.stack([x[0], x[1] ** 2, x[2], x[3] ** 2]) * v,
    ),
}


def examples(axes, args):
    return [[a if d is None else a[k] for a, d in zip(args, axes, strict=True)] for k in range(3)]


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", UPDATES)
def test_at_derivatives_and_vmap(name: str) -> None:
    ours, plain = UPDATES[name]

    def total(f):
        return lambda x, v: (f(x, v) * torch.arange(1.0, 5.0, device=x.device)).sum()

    want = torch.func.grad(total(plain), (0, 1))(X, V)
    got = xf.grad(total(ours), (0, 1))(X, V)
    xs = torch.stack([X, X * 2 - 5, X.flip(0)])
    torch.testing.assert_close(tuple(g.cpu() for g in got), want)
    got = xf.jvp(ours, (X, V), (V, X))[1]
    torch.testing.assert_close(got.cpu(), torch.func.jvp(plain, (X, V), (V, X))[1])
    for axes, args in (((0, None), (xs, V)), ((None, 0), (X, xs)), ((0, 0), (xs, xs + 1))):
        rows = [
            [a if d is None else a[k] for a, d in zip(args, axes, strict=True)] for k in range(3)
        ]
        want = torch.stack([plain(*row) for row in rows])
        torch.testing.assert_close(xf.vmap(ours, axes)(*args).cpu(), want)
        wants = torch.stack([torch.func.grad(total(plain))(*row) for row in rows])
        torch.testing.assert_close(xf.vmap(xf.grad(total(ours)), axes)(*args).cpu(), wants)


@pytest.mark.parametrize("name", ["set", "add", "multiply", "min", "get", "apply"])
def test_at_vmap_over_indices(name: str) -> None:
    places = torch.tensor([[0, 3], [2, 2], [5, -1]])

    def f(x, i):
        where = xf.at(x)[i]
        if name == "get":
            return where.get(mode="fill")
        return where.apply(torch.neg) if name == "apply" else getattr(where, name)(0.5)

    for axes, args in (((None, 0), (X, places)), ((0, 0), (torch.stack([X, -X, X * 3]), places))):
        rows = [
            [a if d is None else a[k] for a, d in zip(args, axes, strict=True)] for k in range(3)
        ]
        want = torch.stack([f(*row).cpu() for row in rows])
        torch.testing.assert_close(xf.vmap(f, axes)(*args).cpu(), want, equal_nan=True)


def test_at_apply_with_repeated_indices() -> None:
    def f(x):
        return xf.at(x)[torch.tensor([1, 1, 2])].apply(torch.square)

    assert f(X).tolist() == [1.0, 16.0, 9.0, 4.0]
    assert xf.jvp(f, (X,), (torch.ones(4),))[1].tolist() == [1.0, 32.0, 6.0, 1.0]
    with pytest.raises(xf.errors.UnsupportedOpError, match="while_loop"):
        xf.grad(lambda x: f(x).sum())(X)


@pytest.mark.parametrize("v", [[2.0, 3.0, 4.0], [0.0, 3.0, 4.0], [0.0, 0.0, 4.0]], ids=repr)
def test_at_mul_with_repeated_indices_derivatives(v) -> None:
    places = torch.tensor([1, 1, 1])

    def ours(x, v):
        return xf.at(x)[places].mul(v).square().sum()

    def plain(x, v):
        return torch.cat([x[:1], (x[1] * v[0] * v[1] * v[2])[None], x[2:]]).square().sum()

    def second(t, f, args):
        return t.jvp(t.grad(f), args, (torch.ones(4), torch.ones(3)))[1:]

    for x in (X, X * torch.tensor([1.0, 0.0, 1.0, 1.0])):
        args = x, torch.tensor(v)
        for way in (lambda t, f, args: t.grad(f, (0, 1))(*args), second):
            got = tuple(g.cpu() for g in way(xf, ours, args))
            torch.testing.assert_close(got, tuple(way(torch.func, plain, args)))


def test_at_set_in_scan() -> None:
    def step(cache, row):
        place, value = row
        return xf.at(cache)[place].set(value), cache.sum()

    cache, _ = xf.scan(
        step, torch.zeros(4), (torch.tensor([2, 0, 9]), torch.tensor([5.0, 7.0, 1.0]))
    )
    assert cache.tolist() == [7.0, 0.0, 5.0, 0.0]


def test_at_new_index_does_not_retrace() -> None:
    f = xf.jit(lambda x, i, v: xf.at(x)[i].add(v))
    assert [f(X, i, 1.0).tolist()[i] for i in range(4)] == [2.0, 3.0, 4.0, 5.0]
    assert f.cache_info().traces == 1


ERRORS = {
    "a list": (lambda x: xf.at(x)[[0, 1]].set(0), TypeError, r"the index \[0, 1\] \(a list\)"),
    "a number": (lambda x: xf.at(x)[1.0].set(0), TypeError, r"the index 1\.0 \(a float\)"),
    "True": (lambda x: xf.at(x)[True].set(0), TypeError, r"the index True \(a bool\)"),
    "too many": (lambda x: xf.at(x)[0, 0].set(0), IndexError, "2 indices for an array of"),
    "option": (
        lambda x: xf.at(x)[0].set(0, wrap=1),  # pyright: ignore[reportCallIssue]
        TypeError,
        "the unknown option 'wrap'",
    ),
    "dots": (lambda x: xf.at(x)[..., ...].set(0), IndexError, "more than one `...`"),
    "slice": (lambda x: xf.at(x)[I[0] :].set(0), IndexError, r"a tensor \(int64\[\]"),
    "shape": (lambda x: xf.at(x)[:2].set(V), ValueError, r"\(4,\) do not broadcast to .*\(2,\)"),
    "more axes": (lambda x: xf.at(x)[1].set(V[:1]), ValueError, r"\(1,\) do not broadcast .*\(\)"),
    "arrays": (
        lambda x: xf.at(x.reshape(2, 2))[I[:2], I[:3]].set(0),
        IndexError,
        r"\[\(2,\), \(3,\)\] do not broadcast",
    ),
    "mode": (lambda x: xf.at(x)[0].set(0, mode="wrap"), ValueError, "mode='wrap'"),
    "dtype": (lambda x: xf.at(x.int())[0].set(0.5), TypeError, r"int32\[4\] cannot hold: float32"),
    "string": (
        lambda x: xf.at(x)[0].set("a"),  # pyright: ignore[reportArgumentType]
        TypeError,
        r"cannot hold: 'a' \(a str\)",
    ),
    "mask": (lambda x: xf.at(x)[(x > 1)[:2]].set(0), IndexError, r"a mask bool\[2\] for an array"),
    "values of a mask": (
        lambda x: xf.jit(lambda x: xf.at(x)[x > 2].set(V[:2]))(x),
        IndexError,
        r"number of values in bool\[4\] is not known",
    ),
    "mask and more": (
        lambda x: xf.jit(lambda x: xf.at(x.reshape(2, 2))[0, x[:2] > 2].set(0))(x),
        IndexError,
        r"a traced mask \(bool\[2\]\) beside other indices",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_at_errors(name: str) -> None:
    wrong, kind, match = ERRORS[name]
    with pytest.raises(kind, match=match):
        wrong(X)
