"""custom_linear_solve and fwd_and_bwd, against plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf

X = torch.ones(2)

A = torch.tensor([[3.0, 1.0], [0.5, 2.0]], dtype=torch.float64)
B = torch.tensor([1.0, -2.0], dtype=torch.float64)
MANY = torch.stack([A, A + 1, A.T * 2])
THREE: Any = 3
ROWS = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]], dtype=torch.float64)


def jacobi(matvec: Any, b: torch.Tensor) -> torch.Tensor:
    """A loop of unknown length, which reverse mode cannot go through."""
    eye = torch.eye(2, dtype=b.dtype, device=b.device)
    m = xf.vmap(matvec, in_axes=1, out_axes=1)(eye)
    step = b / torch.diagonal(m)

    def again(x: torch.Tensor) -> torch.Tensor:
        return x + (b - m @ x) / torch.diagonal(m)

    return xf.while_loop(lambda x: ((m @ x - b).abs() > 1e-13).any(), again, step)


def solved(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return xf.custom_linear_solve(lambda x: a @ x, b, jacobi, jacobi)


def cramer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    det = a[0, 0] * a[1, 1] - a[0, 1] * a[1, 0]
    first = b[0] * a[1, 1] - a[0, 1] * b[1]
    return torch.stack([first, a[0, 0] * b[1] - b[0] * a[1, 0]]) / det


def square(f: Any) -> Any:
    return lambda a, b: (f(a, b) ** 2).sum()


TABLE: dict[str, Any] = {
    "jit": lambda f: xf.jit(f)(A, B),
    "grad": lambda f: xf.grad(square(f), (0, 1))(A, B),
    "jvp": lambda f: xf.jvp(f, (A, B), (MANY[2], ROWS[0])),
    "jvp of jvp": lambda f: xf.jvp(
        lambda a, b: xf.jvp(f, (a, b), (a * a, b * 2))[1], (A, B), (MANY[2], ROWS[0])
    ),
    "hessian": lambda f: xf.hessian(square(f))(A, B),
    "grad of grad": lambda f: xf.grad(lambda a: (xf.grad(square(f))(a, B) ** 2).sum())(A),
    "jvp of grad of grad": lambda f: xf.jvp(
        lambda a: xf.grad(lambda a: (xf.grad(square(f))(a, B) ** 2).sum())(a), (A,), (MANY[2],)
    )[1],
    "jacrev": lambda f: xf.jacrev(f, (0, 1))(A, B),
    "vmap": lambda f: xf.vmap(f)(MANY, ROWS),
    "vmap over b": lambda f: xf.vmap(f, in_axes=(None, 1))(A, ROWS.T),
    "vmap over a": lambda f: xf.vmap(f, in_axes=(2, None))(MANY.movedim(0, 2), B),
    "vmap of grad": lambda f: xf.vmap(xf.grad(square(f), (0, 1)), in_axes=(None, 0))(A, ROWS),
    "grad of vmap": lambda f: xf.grad(
        lambda a: (xf.vmap(f, in_axes=(None, 0))(a, ROWS) ** 2).sum()
    )(A),
    "jvp of vmap": lambda f: xf.jvp(lambda a: xf.vmap(f)(a, ROWS), (MANY,), (MANY * MANY,))[1],
    "grad of scan": lambda f: xf.grad(
        lambda a: xf.scan(lambda x, _: (f(a, x), None), B, None, length=3)[0].sum()
    )(A),
}


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("eager", [True, False])  # Eager first: what it needs is not traced yet.
@pytest.mark.parametrize("name", TABLE)
def test_custom_linear_solve_under_transforms(name: str, eager: bool) -> None:
    want = TABLE[name](cramer)
    with xf.disable_jit(eager):
        got = TABLE[name](solved)
    for g, w in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        torch.testing.assert_close(g.cpu(), w.cpu(), rtol=1e-9, atol=1e-10)


def newton(f: Any, x: torch.Tensor) -> torch.Tensor:
    def again(x: torch.Tensor) -> torch.Tensor:
        y, slope = xf.jvp(f, (x,), (torch.ones_like(x),))
        return x - y / slope

    return xf.while_loop(lambda x: (f(x).abs() > 1e-13).any(), again, x)


def rooted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    squares = (a @ b) ** 2 + 1
    return xf.custom_root(
        lambda x: x * x - squares,
        torch.ones_like(b),
        newton,
        lambda g, y: y / g(torch.ones_like(y)),
    )


@pytest.mark.parametrize("name", TABLE)
def test_custom_root_under_transforms(name: str) -> None:
    got, want = TABLE[name](rooted), TABLE[name](lambda a, b: ((a @ b) ** 2 + 1).sqrt())
    for g, w in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        torch.testing.assert_close(g.cpu(), w.cpu(), rtol=1e-9, atol=1e-9)


def test_custom_linear_solve_trees_aux_symmetric() -> None:
    def solve(matvec: Any, b: Any) -> Any:
        return {"x": b["x"] / matvec({"x": torch.ones_like(b["x"])})["x"]}, b["x"].sum()

    def total(scale: torch.Tensor) -> Any:
        x, aux = xf.custom_linear_solve(
            lambda x: {"x": scale * x["x"]}, {"x": B}, solve, symmetric=True, has_aux=True
        )
        return x["x"].sum() + 100 * aux

    value, g = xf.value_and_grad(total)(torch.tensor([2.0, 4.0], dtype=torch.float64))
    assert value.item() == -100.0
    assert g.tolist() == [-0.25, 0.125]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: xf.custom_linear_solve(THREE, B, jacobi),
            TypeError,
            "given 3 .*not callable",
        ),
        (
            lambda: xf.custom_linear_solve(lambda x: x[:1], B, jacobi),
            xf.errors.TreeMismatchError,
            r"float64\[1\] instead of float64\[2\]",
        ),
        (
            lambda: xf.custom_linear_solve(lambda x: x, torch.arange(3), jacobi),
            TypeError,
            r"b, which is int64\[3\], not floating",
        ),
        (
            lambda: xf.custom_linear_solve(lambda x: x, B, lambda m, b: b, has_aux=True),
            TypeError,
            "has_aux=True needs a pair",
        ),
        (
            lambda: xf.grad(lambda a: xf.custom_linear_solve(lambda x: a @ x, B, jacobi).sum())(A),
            TypeError,
            "no transpose_solve, which reverse mode needs",
        ),
        (lambda: xf.fwd_and_bwd(cramer, 0)[1](A, B), TypeError, "a Tensor as residuals"),
        (lambda: xf.fwd_and_bwd(cramer, 0)[0](A.long(), B), TypeError, "not floating"),
        (
            lambda: xf.fwd_and_bwd(cramer, 0)[1](xf.fwd_and_bwd(cramer, 0)[0](A, B)[1], A),
            xf.errors.TreeMismatchError,
            r"float64\[2,2\] instead of float64\[2\]",
        ),
    ],
)
def test_linear_solve_and_fwd_and_bwd_errors(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("eager", [False, True])
def test_fwd_and_bwd(eager: bool) -> None:
    scale = torch.tensor(2.0, dtype=torch.float64)

    def f(a: torch.Tensor, n: torch.Tensor, b: torch.Tensor) -> Any:
        return {"y": cramer(a, b) * scale}, n + 1

    fwd, bwd = xf.fwd_and_bwd(f, (0, 2), has_aux=True)
    n, ct = torch.tensor(3), {"y": ROWS[0]}
    with xf.disable_jit(eager):
        out, residuals, aux = fwd(A, n, B)
        got = bwd(residuals, ct)
        again = bwd(fwd(A + 1, n, B)[1], ct)
    assert aux.item() == 4
    for g, at in ((got, A), (again, A + 1)):
        pull: Any = torch.func.vjp(lambda a, b: 2 * cramer(a, b), at, B)[1]
        torch.testing.assert_close(tuple(x.cpu() for x in g), pull(ROWS[0]))
    torch.testing.assert_close(out["y"].cpu(), 2 * cramer(A, B))
    assert eager or (xf.trace_count(fwd), xf.trace_count(bwd)) == (1, 1)


def test_fwd_and_bwd_under_transforms() -> None:
    fwd, bwd = xf.fwd_and_bwd(cramer, 0)

    def slope(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out, residuals = fwd(a, b)
        return bwd(residuals, 2 * out)

    want = xf.grad(square(cramer))
    for transform in (
        xf.jit,
        xf.vmap,
        lambda f: xf.grad(lambda a, b: (f(a, b) ** 2).sum()),
        lambda f: lambda a, b: xf.jvp(f, (a, b), (a * a, b))[1],
    ):
        args = (MANY, ROWS) if transform is xf.vmap else (A, B)
        torch.testing.assert_close(transform(slope)(*args), transform(want)(*args))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: xf.linear_transpose(lambda x, y: x, X, "a"), "y is 'a', not an array"),
        (lambda: xf.linear_transpose(lambda x: x, {"w": [None, b"b"]}), r"x\['w'\]\[1\] is b'b'"),
        (lambda: xf.linear_transpose(lambda x: x, X)("ct"), "cotangent: 'ct' instead of float"),
        (lambda: xf.vjp(lambda x: x, X)[1](X.sum), "cotangent: <built-in method sum"),
        (lambda: xf.jvp(lambda x: x, (X,), ("t",)), "'t' instead of float"),
    ],
)
def test_derivative_argument_no_array_is_named(call, said):
    with pytest.raises(TypeError, match=said):
        call()
