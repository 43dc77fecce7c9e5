"""custom_jvp, stop_gradient and linearize, and what both kinds of rules may close over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


class TestCustomJvp:
    def test_rule_used_in_both_modes(self) -> None:
        @xf.custom_jvp
        def f(x: torch.Tensor, n: Any) -> torch.Tensor:
            return x * n

        @f.defjvp
        def rule(primals: Any, tangents: Any) -> Any:
            (x, n), (dx, dn) = primals, tangents
            assert dn.dtype == n.dtype
            return x * n, 1000 * dx

        for g in (
            xf.grad(lambda x: f(x, 2).sum()),
            xf.grad(xf.jit(lambda x: f(x, 2).sum())),
            lambda x: xf.jvp(lambda y: f(y, 2), (x,), (torch.ones_like(x),))[1],
            lambda x: xf.vmap(xf.grad(lambda y: f(y, 2)))(x),
            lambda x: xf.linearize(lambda y: f(y, 2), x)[1](torch.ones_like(x)),
            xf.grad(lambda x: xf.scan(lambda c, v: (c, f(v, 2)), 0, x)[1].sum()),
        ):
            torch.testing.assert_close(g(X).cpu(), torch.full_like(X, 1000))

    def test_safe_logarithm(self) -> None:
        """The example of JAX's documentation: log(1 + exp(x)) for large x."""
        plain = lambda x: torch.log(1 + torch.exp(x))  # noqa: E731
        safe = xf.custom_jvp(plain)
        safe.defjvp(lambda p, t: (safe(*p), (1 - 1 / (1 + torch.exp(p[0]))) * t[0]))
        assert xf.grad(plain)(torch.tensor(100.0)).isnan()
        assert xf.grad(safe)(torch.tensor(100.0)).item() == 1.0
        assert xf.grad(xf.grad(safe))(torch.tensor(0.0)).item() == 0.25

    def test_defjvps_rule_per_argument(self) -> None:
        f = xf.custom_jvp(lambda x, y: x * y)
        f.defjvps(lambda dx, out, x, y: 10 * dx * y, None)
        gx, gy = xf.grad(lambda x, y: f(x, y).sum(), argnums=(0, 1))(X, X + 1)
        torch.testing.assert_close(gx.cpu(), 10 * (X + 1))
        assert not gy.any()

    def test_errors(self) -> None:
        f = xf.custom_jvp(lambda x: x)
        with pytest.raises(TypeError, match=r"(?s)has no rule.*defjvp"):
            f(X)
        f.defjvp(lambda p, t: p[0])
        with pytest.raises(xf.errors.TreeMismatchError, match=r"(?s)not a pair.*\(output, tangent"):
            xf.grad(lambda x: f(x).sum())(X)
        f.defjvp(lambda p, t: (p[0], t[0].sum()))
        with pytest.raises(
            xf.errors.TreeMismatchError, match=r"(?s)tangent: float64\[\] instead of float64\[3\]"
        ):
            xf.grad(lambda x: f(x).sum())(X)


class TestStopGradient:
    def test_forward_and_reverse_mode(self) -> None:
        f = lambda x: (xf.stop_gradient({"a": x})["a"] * x).sum()  # noqa: E731
        torch.testing.assert_close(xf.grad(f)(X).cpu(), X)
        assert xf.jvp(f, (X,), (X,))[1].item() == (X * X).sum().item()
        assert not xf.hessian(f)(X).any()

    def test_straight_through_estimator(self) -> None:
        def rounded(x: torch.Tensor) -> torch.Tensor:
            return x + xf.stop_gradient(x.round() - x)

        value, g = xf.value_and_grad(lambda x: rounded(x).sum())(X)
        assert value.item() == X.round().sum().item()
        torch.testing.assert_close(g.cpu(), torch.ones_like(X))


class TestLinearize:
    def test_function_runs_once(self) -> None:
        runs = []

        def f(x: torch.Tensor) -> torch.Tensor:
            runs.append(1)
            return torch.tanh(x).sin()

        out, linear = xf.linearize(f, X)
        n = len(runs)
        for t in (X, X.cos(), torch.ones_like(X)):
            want = torch.func.jvp(lambda x: torch.tanh(x).sin(), (X,), (t,))
            torch.testing.assert_close(out.cpu(), want[0])
            torch.testing.assert_close(linear(t).cpu(), want[1])
        assert len(runs) == n

    def test_has_aux_and_vmap(self) -> None:
        numbers: Any = {"n": 1}
        _, linear, aux = xf.linearize(lambda x: (x**2, numbers), X, has_aux=True)
        assert aux["n"].item() == 1
        got = xf.vmap(linear)(torch.eye(3, dtype=torch.float64)).cpu()
        torch.testing.assert_close(got, torch.diag(2 * X))

    def test_used_after_trace_raises(self) -> None:
        kept = []

        @xf.jit
        def f(x: torch.Tensor) -> torch.Tensor:
            kept.append(xf.linearize(torch.sin, x))
            return kept[0][0] * 1

        with pytest.raises(xf.errors.LeakError, match=r"(?s)a traced value.*outlived its trace"):
            f(X)
        with pytest.raises(xf.errors.LeakError, match=r"the linear function of linear"):
            kept[0][1](X)
        torch.testing.assert_close(xf.jit(torch.cos)(X).cpu(), X.cos())


class TestForwardOverReverse:
    """The gradient's level sees the custom rule, wherever the function is called."""

    @pytest.mark.parametrize("where", ["jit", "checkpoint", "scan", "cond", "nested", "vmap"])
    def test_custom_vjp_function(self, where: str) -> None:
        cube = xf.custom_vjp(lambda x: x**3)
        cube.defvjp(lambda x: (x**3, x), lambda x, ct: (3 * x**2 * ct,))
        inside: dict[str, Any] = {
            "jit": xf.jit(lambda x: cube(x).sum()),
            "checkpoint": xf.checkpoint(lambda x: cube(x).sum()),
            "scan": lambda x: xf.scan(lambda c, _: (cube(c), None), x, None, length=2)[0].sum(),
            "cond": lambda x: xf.cond(x.sum() > -9, lambda y: cube(y).sum(), lambda y: y.sum(), x),
            "nested": xf.jit(lambda x: xf.jit(lambda y: xf.jit(cube)(y).sum())(x) + x.sum()),
            "vmap": xf.jit(lambda x: xf.vmap(xf.jit(cube))(x).sum()),
        }
        power = 9 if where == "scan" else 3

        def plain(x: torch.Tensor) -> torch.Tensor:
            return (x**power).sum() + (x.sum() if where == "nested" else 0)

        ours, t = inside[where], X.cos()
        want = torch.func.jvp(torch.func.grad(plain), (X,), (t,))
        got = xf.device_get(xf.jvp(xf.grad(ours), (X,), (t,)))
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(xf.hessian(ours)(X).cpu(), torch.func.hessian(plain)(X))


def _with_rule(kind: str, w: torch.Tensor) -> Any:
    """A function with a rule, whose body closes over `w`."""
    if kind == "custom_vjp":
        f = xf.custom_vjp(lambda x: x * w)
        f.defvjp(lambda x: (x * w, None), lambda _, ct: (ct * 100,))
        return f
    f = xf.custom_jvp(lambda x: x * w)
    f.defjvp(lambda primals, tangents: (primals[0] * w, tangents[0] * 100))
    return f


ONES = torch.ones(3, dtype=torch.float64)
CLOSED_OVER: dict[str, Callable[..., Any]] = {
    "grad": lambda f: xf.grad(lambda w: f(w)(ONES).sum())(X),
    "jit of grad": lambda f: xf.jit(xf.grad(lambda w: f(w)(ONES).sum()))(X),
    "grad of jit": lambda f: xf.grad(lambda w: xf.jit(lambda: f(w)(ONES).sum())())(X),
    "grad of grad": lambda f: xf.grad(
        lambda w: xf.grad(lambda v: (f(w)(ONES) * v).sum())(ONES).sum()
    )(X),
    "grad of scan": lambda f: xf.grad(
        lambda w: xf.scan(lambda c, _: (c + f(w)(ONES), None), ONES, None, length=2)[0].sum()
    )(X),
    "grad of vmap": lambda f: xf.grad(
        lambda w: xf.vmap(lambda a: f(w.sum())(a))(ONES).sum(),
    )(X),
    "vmap of grad": lambda f: xf.vmap(xf.grad(lambda w: f(w)(ONES[0])))(X),
    "jvp": lambda f: xf.jvp(lambda w: f(w)(ONES), (X,), (X,)),
    "linearize": lambda f: xf.linearize(lambda w: f(w)(ONES), X),
    "hessian": lambda f: xf.hessian(lambda w: f(w)(ONES).sum())(X),
    "what is computed from it": lambda f: xf.grad(lambda w: f(w.sin() + 1)(ONES).sum())(X),
    "backward": lambda f: xf.jit(lambda w: f(w)(ONES).sum())(X.clone().requires_grad_()),
}


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
@pytest.mark.parametrize("name", CLOSED_OVER)
def test_custom_rule_differentiated_closure_is_refused(name: str, kind: str) -> None:
    with pytest.raises(TypeError, match=r"(?s)closes over a value \(float64.*stop_gradient"):
        CLOSED_OVER[name](lambda w: _with_rule(kind, w))


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_custom_rule_closure_over_constant(kind: str) -> None:
    def loss(w: torch.Tensor) -> torch.Tensor:
        return (_with_rule(kind, xf.stop_gradient(w))(ONES) * w).sum()

    torch.testing.assert_close(xf.device_get(xf.grad(loss)(X)), X)
    outer = xf.jit(lambda w, x: xf.grad(lambda x: _with_rule(kind, w)(x).sum())(x))
    torch.testing.assert_close(xf.device_get(outer(X, ONES)), ONES * 100)


def _scaled(w: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """``x * w``, by a rule that closes over `w`."""
    f = xf.custom_jvp(lambda x: x * w)
    f.defjvp(lambda primals, tangents: (primals[0] * w, tangents[0] * w))
    return f


STRUCTURES: dict[str, Callable[..., torch.Tensor]] = {
    "jit": lambda x, w: xf.jit(lambda x, w: _scaled(w)(x.sin()))(x, w),
    "checkpoint": lambda x, w: xf.checkpoint(lambda x, w: _scaled(w)(x.sin()))(x, w),
    "scan": lambda x, w: xf.scan(lambda c, w: (_scaled(w)(c.sin()), None), x, w[None])[0],
    "cond": lambda x, w: xf.cond(
        x.sum() > 0, lambda x, w: _scaled(w)(x.sin()), lambda x, w: x * w, x, w
    ),
    "cond under vmap": lambda x, w: xf.vmap(
        lambda x, w: xf.cond(x > -9, lambda x, w: _scaled(w)(x.sin()), lambda x, w: x * w, x, w)
    )(x, w),
    "while_loop": lambda x, w: xf.while_loop(
        lambda c: c[0] < 1, lambda c: (c[0] + 1, _scaled(w)(c[1].sin())), (0, x)
    )[1],
}
TWICE: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]] = {
    "jvp": lambda f: xf.jvp(f, (X,), (X.cos(),))[1],
    "linearize": lambda f: xf.linearize(f, X)[1](X.cos()),
    "jacfwd": lambda f: xf.jacfwd(f)(X).cpu() @ X.cos(),
    "jvp of grad": lambda f: xf.jvp(xf.grad(lambda x: (f(x) ** 2).sum()), (X,), (X.cos(),))[1],
    "grad of grad": lambda f: xf.grad(
        lambda x: (xf.grad(lambda x: (f(x) ** 2).sum())(x) * X.cos()).sum()
    )(X),
    "hessian": lambda f: xf.hessian(lambda x: (f(x) ** 2).sum())(X).cpu() @ X.cos(),
}


@pytest.mark.parametrize("transform", TWICE)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_custom_jvp_closes_over_constant_of_structure(structure: str, transform: str) -> None:
    """The structure is given a value that nothing is differentiated with respect to."""
    w, t = X + 4, X.cos()
    if structure == "while_loop" and transform not in ("jvp", "linearize", "jacfwd"):
        with pytest.raises(xf.errors.UnsupportedOpError, match="number of steps depends on data"):
            TWICE[transform](lambda x: STRUCTURES[structure](x, w))
        return
    of_square = transform not in ("jvp", "linearize", "jacfwd")
    want = 2 * w**2 * (2 * X).cos() * t if of_square else w * X.cos() * t
    got = TWICE[transform](lambda x: STRUCTURES[structure](x, w))
    torch.testing.assert_close(xf.device_get(got), want)


def _cubed() -> Any:
    @xf.custom_jvp
    def cubed(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @cubed.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        return cubed(*primals), 3 * primals[0] ** 2 * tangents[0]

    return cubed


@pytest.mark.parametrize("eager", [False, True])
def test_custom_jvp_forward_over_forward(eager: bool) -> None:
    """At a rule's own level torch drops the tangents of levels further down."""
    cubed, one = _cubed(), torch.ones_like(X)

    def slope(x: torch.Tensor) -> torch.Tensor:
        return xf.jvp(cubed, (x,), (torch.ones_like(x),))[1]

    def curve(x: torch.Tensor) -> torch.Tensor:
        return xf.jvp(slope, (x,), (torch.ones_like(x),))[1]

    with xf.disable_jit(eager):
        for got, want in (
            (xf.jvp(slope, (X,), (one,))[1], 6 * X),
            (xf.jvp(xf.jit(slope), (X,), (one,))[1], 6 * X),
            (xf.jvp(xf.vmap(slope), (X,), (one,))[1], 6 * X),
            (xf.linearize(slope, X)[1](one), 6 * X),
            (xf.jacfwd(xf.jacfwd(lambda x: cubed(x).sum()))(X), torch.diag(6 * X)),
            (xf.jvp(curve, (X,), (one,))[1], 6 * one),
            (xf.grad(lambda x: curve(x).sum())(X), 6 * one),
        ):
            torch.testing.assert_close(got.cpu(), want)


def _by_jvp(scale: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    doubled = xf.custom_jvp(lambda x: x * 2)
    doubled.defjvp(lambda xs, dots: (doubled(*xs), dots[0] * scale))
    return doubled


def _by_vjp(scale: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    doubled = xf.custom_vjp(lambda x: x * 2)
    doubled.defvjp(lambda x: (doubled(x), None), lambda _, ct: (ct * scale,))
    return doubled


def _by_vmap(scale: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    doubled = xf.custom_vmap(lambda x: x * 2)
    doubled.def_vmap(lambda n, batched, x: (x * scale, True))
    return doubled


AROUND: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]] = {
    "jit": xf.jit,
    "checkpoint": lambda f: xf.jit(xf.checkpoint(f)),
    "scan": lambda f: xf.jit(lambda x: xf.scan(lambda c, _: (f(c) / 2, None), f(x), length=2)[0]),
    "cond": lambda f: xf.jit(lambda x: xf.cond(x.sum() > 0, f, lambda x: x, x)),
    "grad": lambda f: lambda x: xf.jit(xf.grad(lambda w: w.sum() + f(x).sum()))(x) * f(x),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("kind", [_by_jvp, _by_vjp, _by_vmap])
def test_rules_that_are_not_used_may_close_over_traced_values(
    kind: Callable[[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]],
    around: Callable[[Callable[[torch.Tensor], torch.Tensor]], Any],
) -> None:
    """A program of the function alone held the rules, and so what these held: a LeakError."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return kind(torch.ones(()) * three)(x)

    three = torch.tensor(3.0)
    assert around(f)(torch.ones(2)).tolist() == [2.0, 2.0]
