"""Functions that a program of JAX brings along: `ravel_pytree`, `vectorize` and the like."""

from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

torch.manual_seed(0)
X, M = torch.randn(3), torch.randn(2, 3)
TREE = {"a": M, "b": (torch.arange(3, dtype=torch.int32), 2.5)}


def test_ravel_pytree() -> None:
    vector, unravel = xf.ravel_pytree(TREE)
    assert vector.dtype is torch.float32
    assert vector.tolist() == [*M.flatten().tolist(), 0.0, 1.0, 2.0, 2.5]
    back = unravel(vector * 2)
    assert back["b"][0].dtype is torch.int32
    assert back["b"][0].tolist() == [0, 2, 4]
    assert torch.equal(back["a"], M * 2)
    assert torch.equal(xf.jit(lambda t: xf.ravel_pytree(t)[0])(TREE).cpu(), vector)
    grad = xf.grad(lambda t: xf.ravel_pytree(t)[0].square().sum())({"a": M, "b": X})
    torch.testing.assert_close(xf.device_get(grad), {"a": 2 * M, "b": 2 * X})
    empty, unravel = xf.ravel_pytree({"a": ()})
    assert unravel(empty) == {"a": ()}
    wrongs: Any = (vector[:3], vector.double(), 3)
    for wrong in wrongs:
        with pytest.raises(xf.errors.TreeMismatchError, match=r"raveled to float32\[10\]"):
            xf.ravel_pytree(TREE)[1](wrong)


@pytest.mark.parametrize(
    ("fun", "signature", "shapes"),
    [
        (torch.mv, "(m,n),(n)->(m)", [(2, 3), (3,)]),
        (torch.mv, "(m,n),(n)->(m)", [(5, 1, 2, 3), (4, 3)]),
        (torch.mv, "(m, n), (n) -> (m)", [(1, 2, 3), (1, 1, 3)]),
        (lambda x, y: x * y + 1, None, [(3, 1), (4,)]),
        (lambda x, y: x * y + 1, None, [(), (4,)]),
        (lambda x, y: x.outer(y), "(m),(n)->(m,n)", [(6, 2), (5, 1, 3)]),
    ],
)
def test_vectorize(fun, signature, shapes) -> None:
    arrays = [torch.randn(s) for s in shapes]
    want = np.vectorize(lambda *a: fun(*map(torch.tensor, a)).numpy(), signature=signature)(
        *(a.numpy() for a in arrays)
    )
    f = xf.vectorize(fun, signature=signature)
    for got in (f(*arrays), xf.jit(f)(*arrays)):
        torch.testing.assert_close(got.cpu(), torch.from_numpy(want).float())


def test_vectorize_excluded_arguments() -> None:
    f = xf.vectorize(
        lambda x, n, *, k: (x.sum() * n, x[:k]), excluded=(1,), signature="(a)->(),(b)"
    )
    total, first = f(M, 3, k=2)
    torch.testing.assert_close(total.cpu(), M.sum(1) * 3)
    assert torch.equal(first.cpu(), M[:, :2])


@pytest.mark.parametrize(
    ("signature", "arguments", "error", "match"),
    [
        ("(m,n)->m", (M,), ValueError, "signature '(.*)m'"),
        ("(m),(m)->()", (X,), ValueError, "but was called with 1 arrays"),
        ("(m,n),(n)->(m)", (M, X[:2]), xf.errors.TreeMismatchError, r"\(n\) with n = 3 at its end"),
        ("(m,n)->()", (X,), xf.errors.TreeMismatchError, r"array 0 has the shape \(3,\)"),
        ("(n)->(n)", (M,), xf.errors.TreeMismatchError, r"returned the shape \(\)"),
        ("(n)->(),()", (M,), xf.errors.TreeMismatchError, "returned 1 arrays"),
        (None, (M, X[:2]), xf.errors.TreeMismatchError, "do not broadcast"),
    ],
)
def test_vectorize_errors(signature, arguments, error, match) -> None:
    def f(*xs):
        return xs[0].sum()

    with pytest.raises(error, match=match):
        xf.vectorize(f, signature=signature)(*arguments)


def test_tree_transpose() -> None:
    outer, inner = xf.tree.structure([0, 0]), xf.tree.structure({"a": 0, "b": (0,)})
    tree = [{"a": 1, "b": (2,)}, {"a": 3, "b": (4,)}]
    for given in (inner, None):
        assert xf.tree.transpose(outer, given, tree) == {"a": [1, 3], "b": ([2, 4],)}
    for wrong in (tree[:1], [{"a": 1, "c": (2,)}] * 2, [tree[0], 3]):
        with pytest.raises(xf.errors.TreeMismatchError, match="which is not"):
            xf.tree.transpose(outer, inner, wrong)


LINEAR = {
    "matrix": (lambda x: M.to(x.device) @ x, (X,), torch.randn(2)),
    "tree": (
        lambda t, y: {"s": t["u"].sum() - y[0], "v": torch.cat([t["u"], y])},
        ({"u": X}, X[:2]),
        {"s": torch.tensor(2.0), "v": torch.randn(5)},
    ),
    "index": (lambda x: x[torch.tensor([0, 0, 2])].flip(0), (X,), torch.randn(3)),
    "loop": (
        lambda x: xf.scan(lambda c, _: (c.roll(1) * 2, c), x, length=2)[1],
        (X,),
        torch.randn(2, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_linear_transpose(name: str) -> None:
    fun, primals, ct = LINEAR[name]
    want = xf.vjp(fun, *primals)[1](ct)
    like = xf.tree.map(lambda x: xf.ShapeDtypeStruct(x.shape, x.dtype), primals)
    for given in (primals, like):
        back = xf.linear_transpose(fun, *given)
        for got in (back(ct), xf.jit(back)(ct)):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("fun", "primals", "match"),
    [
        (lambda x: x * x, (X,), "not linear in argument"),
        (lambda x, y: x * y, (X, X), r"not linear in argument \[0\]"),
        (torch.relu, (X,), "not linear in argument"),
        (lambda x: x * 2, (torch.arange(3),), r"argument leaf 0 is int64\[3\]"),
        (lambda x: x.int(), (X,), r"result leaf 0 is int32\[3\]"),
    ],
)
def test_linear_transpose_of_nonlinear_is_refused(fun, primals, match) -> None:
    with pytest.raises(TypeError, match=match):
        xf.linear_transpose(fun, *primals)


def test_closure_convert() -> None:
    count = torch.arange(3)

    def f(w):
        def inner(x):
            return (x * w["a"]).sum() * w["b"] + count.sum()

        converted, consts = xf.closure_convert(inner, X)
        assert [tuple(c.shape) for c in consts] == [(3,), ()]
        return converted(X.to(w["a"].device), *consts), converted, consts

    w = {"a": X + 1, "b": torch.tensor(3.0)}
    torch.testing.assert_close(f(w)[0].cpu(), (X * (X + 1)).sum() * 3 + 3)
    grad = xf.device_get(xf.grad(lambda w: f(w)[0])(w))
    torch.testing.assert_close(grad, {"a": 3 * X, "b": (X * (X + 1)).sum()})
    _, converted, consts = f(w)
    with pytest.raises(TypeError, match="called with 1 values of what it closes over, but it"):
        converted(X, consts[0])
    with pytest.raises(xf.errors.TreeMismatchError, match=r"float32\[2\] instead of float32\[3\]"):
        converted(X[:2], *consts)


def test_devices() -> None:
    assert xf.devices() == [0]
