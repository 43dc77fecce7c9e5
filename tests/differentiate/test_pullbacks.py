"""Pullbacks of `vjp` made inside a trace and called in the bodies of other transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.errors import UnsupportedOpError

Tensor = torch.Tensor
Pull = Callable[[Tensor], Tensor]

_g = torch.Generator().manual_seed(0)
A = torch.randn(3, 3, generator=_g, dtype=torch.float64) / 3
X = torch.randn(3, generator=_g, dtype=torch.float64)
XS = torch.randn(4, 3, generator=_g, dtype=torch.float64)


def layer(x: Tensor) -> Tensor:
    return torch.tanh(A.to(x.device) @ x) * x.cos()


def _repeated(p: Pull, x: Tensor, n: int = 3) -> Tensor:
    for _ in range(n):
        x = p(x)
    return x


def _solved(p: Pull, x: Tensor) -> Tensor:
    u = x
    for _ in range(200):  # of u + p(u) / 4 == x, a contraction
        u = x - p(u) / 4
    return u


def _in_a_solve(p: Pull, x: Tensor) -> Tensor:
    def solve(matvec: Any, b: Tensor) -> Tensor:
        return xf.fori_loop(0, 200, lambda i, u: u + b - matvec(u), b)

    return xf.custom_linear_solve(lambda u: u + p(u) / 4, x, solve, solve)


def _transposed(p: Pull, x: Tensor) -> Tensor:
    return torch.func.vjp(p, x)[1](x)[0]


# For each transform, a body that calls the pullback, and what it computes.
BODIES: dict[str, tuple[Callable[[Pull, Tensor], Tensor], Callable[[Pull, Tensor], Tensor]]] = {
    "scan": (
        lambda p, x: xf.scan(lambda c, _: (p(c), None), x, None, length=3)[0],
        _repeated,
    ),
    "while_loop": (
        lambda p, x: xf.while_loop(lambda s: s[1] < 3, lambda s: (p(s[0]), s[1] + 1), (x, 0))[0],
        _repeated,
    ),
    "fori_loop": (lambda p, x: xf.fori_loop(0, 3, lambda i, c: p(c), x), _repeated),
    "cond": (
        lambda p, x: xf.cond(x.sum() < 99, lambda c: p(p(c)), torch.sin, x),
        lambda p, x: p(p(x)),
    ),
    "switch": (
        lambda p, x: xf.switch(x.argmax() * 0 + 1, [torch.sin, lambda c: p(2 * c)], x),
        lambda p, x: p(2 * x),
    ),
    "jit": (lambda p, x: xf.jit(lambda c: xf.jit(p)(c) + p(c))(x), lambda p, x: 2 * p(x)),
    "map": (
        lambda p, x: xf.map(p, torch.stack([x, 2 * x])).sum(0),
        lambda p, x: 3 * p(x),
    ),
    "vmap in scan": (
        lambda p, x: xf.scan(
            lambda c, _: (xf.vmap(p)(torch.stack([c, c])).sum(0), None), x, None, length=2
        )[0],
        lambda p, x: 4 * _repeated(p, x, 2),
    ),
    "checkpoint": (lambda p, x: xf.checkpoint(lambda c: p(c).sin())(x), lambda p, x: p(x).sin()),
    "custom_linear_solve": (_in_a_solve, _solved),
    "linear_transpose": (lambda p, x: xf.linear_transpose(p, x)(x)[0], _transposed),
}


def _in_xfunc(case: str) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        pull = xf.vjp(layer, x)[1]
        return BODIES[case][0](lambda ct: pull(ct)[0], x)

    return f


def _plain(case: str) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        pull = torch.func.vjp(layer, x)[1]
        return BODIES[case][1](lambda ct: pull(ct)[0], x)

    return f


def _jvp(f: Any, x: Tensor) -> Tensor:
    return xf.jvp(f, (x,), (torch.ones_like(x),))[1]


# For each way to use the function, the same with torch alone.
USES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Tensor]] = {
    "top level": (lambda f: f, lambda f: f, X),
    "jit": (xf.jit, lambda f: f, X),
    "jit(grad)": (
        lambda f: xf.jit(xf.grad(lambda x: f(x).sum())),
        lambda f: torch.func.grad(lambda x: f(x).sum()),
        X,
    ),
    "jit(vmap)": (
        lambda f: xf.jit(xf.vmap(f)),
        lambda f: lambda xs: torch.stack([*map(f, xs)]),
        XS,
    ),
    "jit(vmap(grad))": (
        lambda f: xf.jit(xf.vmap(xf.grad(lambda x: f(x).sum()))),
        lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).sum())),
        XS,
    ),
    "jit(jvp)": (
        lambda f: xf.jit(lambda x: _jvp(f, x)),
        lambda f: lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
        X,
    ),
    "jit(hessian)": (
        lambda f: xf.jit(xf.hessian(lambda x: f(x).sum())),
        lambda f: torch.func.hessian(lambda x: f(x).sum()),
        X,
    ),
}


@pytest.mark.sample(24, seed=0)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("case", BODIES)
def test_pullback_called_in_body(case: str, use: str) -> None:
    transformed, plain, x = USES[use]
    if case == "while_loop" and ("grad" in use or "hessian" in use):
        with pytest.raises(
            UnsupportedOpError, match="reverse mode cannot differentiate while_loop"
        ):
            transformed(_in_xfunc(case))(x)
        return
    got = transformed(_in_xfunc(case))(x)
    torch.testing.assert_close(got.cpu(), plain(_plain(case))(x))


def _fixed_point(f: Callable[[Any, Tensor], Tensor]) -> Any:
    """``z == f(p, z)``, differentiated by the implicit function theorem."""

    def iterate(step: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        def moves(s: tuple[Tensor, Tensor]) -> Tensor:
            return (s[0] - s[1]).abs().max() > 1e-13

        return xf.while_loop(moves, lambda s: (s[1], step(s[1])), (z, step(z)))[1]

    @xf.custom_vjp
    def solve(p: Any, z: Tensor) -> Tensor:
        return iterate(lambda z: f(p, z), z)

    def forward(p: Any, z: Tensor) -> tuple[Tensor, tuple[Any, Tensor]]:
        z = solve(p, z)
        return z, (p, z)

    def backward(res: tuple[Any, Tensor], ct: Tensor) -> tuple[Any, Tensor]:
        p, z = res
        _, pull = xf.vjp(f, p, z)
        u = iterate(lambda u: ct + pull(u)[1], ct)
        return pull(u)[0], torch.zeros_like(z)

    solve.defvjp(forward, backward)
    return solve


def _iterated(f: Callable[[Any, Tensor], Tensor], p: Any, z: Tensor) -> Tensor:
    for _ in range(400):
        z = f(p, z)
    return z


GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "top level": xf.grad,
    "jit(grad)": lambda f: xf.jit(xf.grad(f)),
    "grad(jit)": lambda f: xf.grad(xf.jit(f)),
    "jit(grad(jit))": lambda f: xf.jit(lambda p: xf.grad(xf.jit(f))(p)),
    "grad(checkpoint)": lambda f: xf.grad(xf.checkpoint(f)),
}


class TestImplicitDifferentiation:
    def deep(self, p: Any, z: Tensor) -> Tensor:
        return torch.tanh(p["w"] @ z + p["b"])

    @pytest.mark.parametrize("use", GRADIENTS)
    def test_deep_equilibrium(self, use: str) -> None:
        solve = _fixed_point(self.deep)
        z, p = torch.zeros_like(X), {"w": A, "b": X}
        got = GRADIENTS[use](lambda p: solve(p, z).square().sum())(p)
        want = torch.func.grad(lambda p: _iterated(self.deep, p, z).square().sum())(p)
        for k in p:
            torch.testing.assert_close(got[k].cpu(), want[k])

    def test_deep_equilibrium_of_batch(self) -> None:
        solve = _fixed_point(self.deep)

        def loss(w: Tensor, b: Tensor) -> Tensor:
            return solve({"w": w, "b": b}, torch.zeros_like(b)).square().sum()

        def plain(w: Tensor) -> Tensor:
            points = [_iterated(self.deep, {"w": w, "b": b}, torch.zeros_like(b)) for b in XS]
            return torch.stack(points).square().sum()

        want = torch.func.grad(plain)(A)
        each = xf.jit(lambda w: xf.vmap(lambda b: xf.grad(loss)(w, b))(XS))(A)
        torch.testing.assert_close(each.sum(0).cpu(), want)
        of_all = xf.jit(xf.grad(lambda w: xf.vmap(lambda b: loss(w, b))(XS).sum()))(A)
        torch.testing.assert_close(of_all.cpu(), want)
        mapped = xf.jit(xf.grad(lambda w: xf.map(lambda b: loss(w, b), XS).sum()))(A)
        torch.testing.assert_close(mapped.cpu(), want)

    def test_sinkhorn(self) -> None:
        """A potential of entropic optimal transport, differentiated in the points."""
        target = torch.randn(5, 2, generator=_g, dtype=torch.float64)

        def cost(x: Tensor) -> Tensor:
            return (x[:, None] - target.to(x.device)).square().sum(-1)

        def step(c: Tensor, f: Tensor) -> Tensor:
            g = -torch.logsumexp(f[:, None] - c, 0)
            f = -torch.logsumexp(g - c, 1)
            return f - f.mean()

        solve = _fixed_point(step)

        def loss(x: Tensor) -> Tensor:
            return solve(cost(x), torch.zeros_like(x[:, 0])).square().sum()

        def plain(x: Tensor) -> Tensor:
            return _iterated(step, cost(x), torch.zeros_like(x[:, 0])).square().sum()

        xs = torch.randn(2, 4, 2, generator=_g, dtype=torch.float64)
        want = torch.stack([torch.func.grad(plain)(x) for x in xs])
        torch.testing.assert_close(xf.jit(xf.grad(loss))(xs[0]).cpu(), want[0])
        torch.testing.assert_close(xf.jit(xf.vmap(xf.grad(loss)))(xs).cpu(), want)


def _thrice(pull: Any, x: Tensor) -> Tensor:
    return xf.scan(lambda c, _: (pull(c)[0], None), x, None, length=3)[0]


class TestInBodies:
    def test_function_runs_once(self) -> None:
        class Runs:
            count = 0

        def f(x: Tensor) -> Tensor:
            Runs.count += 1
            return layer(x)

        @xf.jit
        def h(x: Tensor) -> Tensor:
            pull = xf.vjp(f, x)[1]
            return xf.fori_loop(0, 3, lambda i, c: pull(pull(c)[0])[0], _thrice(pull, x))

        h(X)
        h(2 * X)
        assert Runs.count == 2
        xf.jit(lambda x: xf.vjp(f, x)[1](x))(X)
        assert Runs.count == 3

    def test_grad_of_captured_values(self) -> None:
        def f(w: Tensor, x: Tensor) -> Tensor:
            return _thrice(xf.vjp(lambda x: torch.tanh(w @ x), x)[1], x).sum()

        def plain(w: Tensor, x: Tensor) -> Tensor:
            pull = torch.func.vjp(lambda x: torch.tanh(w @ x), x)[1]
            return _repeated(lambda c: pull(c)[0], x).sum()

        want = torch.func.grad(plain)(A, X)
        for g in (xf.grad(f), xf.jit(xf.grad(f)), xf.grad(xf.jit(f)), torch.func.grad(xf.jit(f))):
            torch.testing.assert_close(g(A, X).cpu(), want)

    def test_trees_and_has_aux(self) -> None:
        @xf.jit
        def h(w: Tensor, d: dict[str, Tensor]) -> Any:
            def f(w: Tensor, d: dict[str, Tensor]) -> Any:
                return {"y": w @ d["x"] * d["k"]}, d["x"].argmax()

            y, pull, aux = xf.vjp(f, w, d, has_aux=True)
            return xf.map(lambda k: pull({"y": k * y["y"]}), torch.arange(2.0).double()), aux

        (gw, gd), best = h(A, {"x": X, "k": torch.ones((), dtype=torch.float64)})
        torch.testing.assert_close(gw[1].cpu(), torch.outer(A @ X, X))
        torch.testing.assert_close(gd["x"][1].cpu(), A.T @ A @ X)
        torch.testing.assert_close(gd["k"][1].cpu(), (A @ X).square().sum())
        assert best.item() == X.argmax()

    def test_debug_callbacks_of_forward_pass_only(self) -> None:
        seen: list[float] = []

        def f(x: Tensor) -> Tensor:
            xf.debug.callback(lambda v: seen.append(v.item()), x.sum())
            return torch.sin(x)

        xf.jit(lambda x: _thrice(xf.vjp(f, x)[1], x))(X)
        assert seen == [pytest.approx(X.sum().item())]

    def test_changed_variables_are_read_at_vjp(self) -> None:
        def f(x: Tensor) -> Tensor:
            pulls = []
            for k in range(3):
                w = x * k
                pulls.append(xf.vjp(lambda x: torch.sin(x) * w * k, x)[1])  # noqa: B023
            return xf.map(pulls[1], x[None])[0][0]

        torch.testing.assert_close(xf.jit(f)(X).cpu(), X.cos() * X * X)

    def test_changed_closure_of_jitted_function_raises(self) -> None:
        @xf.jit
        def f(x: Tensor) -> Tensor:
            k = 1.0
            pull = xf.vjp(xf.jit(lambda x: k * x), x)[1]
            k = 2.0
            return xf.map(pull, x[None])[0][0]

        with pytest.raises(RuntimeError, match=r"(?s)has changed since vjp.*call vjp inside"):
            f(X)

    def test_errors(self) -> None:
        kept: list[Any] = []

        @xf.jit
        def f(x: Tensor) -> Tensor:
            kept.append(xf.vjp(torch.sin, x)[1])
            return xf.map(kept[0], x[None, :2])[0][0]

        with pytest.raises(
            xf.errors.TreeMismatchError, match=r"float64\[2\] instead of float64\[3\]"
        ):
            f(X)
        with pytest.raises(xf.errors.LeakError, match=r"the pullback of vjp.* trace that made it"):
            kept[0](X)

    def test_pullback_made_at_top_level(self) -> None:
        pull, plain = xf.vjp(layer, X)[1], torch.func.vjp(layer, X)[1]
        want: Any = torch.func.jacrev(lambda c: _repeated(lambda c: plain(c)[0], c))(X)
        f = xf.jit(lambda c: _thrice(pull, c))
        torch.testing.assert_close(f(X).cpu(), want @ X)
        torch.testing.assert_close(xf.jit(xf.jacrev(f))(X).cpu(), want)
        torch.testing.assert_close(xf.jit(xf.vmap(f))(XS).cpu(), XS @ want.T)


@pytest.mark.parametrize("transform", [xf.vjp, xf.linearize])
@pytest.mark.parametrize("inside", [False, True])
def test_vjp_and_linearize_read_variables_at_call(transform: Any, inside: bool) -> None:
    def f(x: Tensor) -> Tensor:
        derivatives = [transform(lambda x: torch.sin(x) * k, x)[1] for k in range(3)]  # noqa: B023
        got = xf.grad(lambda c: xf.tree.leaves(derivatives[1](c))[0].sum())(x)
        return got

    torch.testing.assert_close((xf.jit(f) if inside else f)(X).cpu(), X.cos())


W = torch.randn(3, generator=_g, dtype=torch.float64)


def _returned(w: Tensor, x: Tensor) -> Any:
    shift = x.sum()  # a traced value that the differentiated function closes over
    return xf.vjp(lambda w: {"y": torch.tanh(w * x) * shift, "z": w.sum()}, w)


def test_jit_returns_a_pullback() -> None:
    f, apply = xf.jit(_returned), xf.jit(lambda vjp_fn, ct: vjp_fn(ct)[0])
    vjp: Any = torch.func.vjp
    want_out, want_pull = vjp(lambda w: {"y": torch.tanh(w * X) * X.sum(), "z": w.sum()}, W)
    ct = {"y": X, "z": torch.tensor(2.0, dtype=torch.float64)}
    (want,) = want_pull(ct)
    out, pull = f(W, X)
    for vjp_fn in (pull, f(W, X)[1]):
        torch.testing.assert_close(out["y"].cpu(), want_out["y"])
        torch.testing.assert_close(vjp_fn(ct)[0].cpu(), want)
        torch.testing.assert_close(apply(vjp_fn, ct).cpu(), want)
    pulled = xf.vmap(lambda y: pull({"y": y, "z": ct["z"]})[0])(X[None])
    torch.testing.assert_close(pulled[0].cpu(), want)
    assert xf.trace_count(apply) == 1
    assert xf.trace_count(f) == 1
    out, pull = f(2 * W, X)
    (want,) = torch.func.vjp(lambda w: torch.tanh(w * X) * X.sum(), 2 * W)[1](X)
    torch.testing.assert_close(pull({"y": X, "z": 0 * ct["z"]})[0].cpu(), want)


def test_pullback_as_argument_of_jit() -> None:
    apply = xf.jit(lambda vjp_fn, ct: vjp_fn(ct)[0])
    for w in (W, 2 * W):
        pull = xf.vjp(lambda w: torch.tanh(w * X.to(w.device)), w)[1]
        torch.testing.assert_close(apply(pull, X), pull(X)[0])
