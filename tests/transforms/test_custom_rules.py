"""custom_vjp, custom_jvp, stop_gradient and linearize, beside composing (see test_pairs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


def _clipped() -> Any:
    """The identity, whose gradient is clipped: a rule that no automatic derivative would give."""

    @xf.custom_vjp
    def clipped(x: torch.Tensor) -> torch.Tensor:
        return x * 1

    clipped.defvjp(lambda x: (x * 1, None), lambda _, ct: (ct.clamp(-1, 1),))
    return clipped


class TestCustomVjp:
    def test_the_rule_is_used_everywhere(self) -> None:
        clipped = _clipped()

        def loss(x: torch.Tensor) -> torch.Tensor:
            return (clipped(x) * torch.tensor([5.0, -0.5, -7.0], dtype=x.dtype)).sum()

        want = torch.tensor([1.0, -0.5, -1.0], dtype=torch.float64)
        for f in (
            xf.grad(loss),
            xf.jit(xf.grad(loss)),
            xf.grad(xf.jit(loss)),
            xf.grad(xf.checkpoint(loss)),
            lambda x: xf.vjp(loss, x)[1](torch.ones((), dtype=x.dtype))[0],
            lambda x: xf.vmap(xf.grad(loss))(torch.stack([x, x]))[1],
            lambda x: xf.jacrev(loss)(x),
            xf.grad(lambda x: xf.scan(lambda c, v: (c + loss(v), None), c0(x), x[None])[0]),
            xf.grad(lambda x: xf.cond(x.sum() > 0, loss, lambda y: y.sum(), x)),
        ):
            torch.testing.assert_close(f(X).cpu(), want)
        with xf.disable_jit():
            torch.testing.assert_close(xf.grad(loss)(X), want)

    def test_second_derivatives_under_disable_jit(self) -> None:
        """The residuals are differentiated as well, whatever they are."""
        rules: list[tuple[Any, Any]] = [
            (lambda x: (torch.exp(x), x), lambda x, ct: (ct * torch.exp(x),)),
            (lambda x: ((y := torch.exp(x)), y), lambda y, ct: (ct * y,)),
            (lambda x: (torch.exp(x), x.exp() * 2), lambda r, ct: (ct * r / 2,)),
        ]
        for rule in rules:
            f = xf.custom_vjp(torch.exp)
            f.defvjp(*rule)
            with xf.disable_jit():
                second = xf.grad(lambda x, f=f: xf.grad(lambda x: f(x).sum())(x).sum())(X)
                each = xf.vmap(xf.grad(xf.grad(f)))(X)
            torch.testing.assert_close(second, torch.exp(X))
            torch.testing.assert_close(each, torch.exp(X))

    def test_below_the_innermost_gradient_the_forward_rule_counts(self) -> None:
        """As in JAX: the second derivative goes through what the rules compute."""
        clipped = _clipped()
        got = xf.grad(lambda x: xf.grad(lambda y: (clipped(y) ** 2).sum() * 3)(x).sum())(X / 100)
        # d/dx clamp(6 * x, -1, 1): the forward rule is the identity for the outer gradient.
        torch.testing.assert_close(got.cpu(), torch.full_like(X, 6.0))

    def test_trees_integers_and_none(self) -> None:
        @xf.custom_vjp
        def f(p: Any, n: torch.Tensor) -> Any:
            return {"y": p["w"] * n, "n": n}

        def fwd(p: Any, n: torch.Tensor) -> Any:
            return f(p, n), (n, p["w"].shape[0])

        def bwd(res: Any, ct: Any) -> Any:
            n, _ = res
            return {"w": 100 * ct["y"] * n, "unused": None, "b": torch.zeros_like(ct["y"])}, None

        f.defvjp(fwd, bwd)
        params = {"w": X, "b": X, "unused": None}
        g = xf.grad(lambda p, n: f(p, n)["y"].sum())(params, 3)
        torch.testing.assert_close(g["w"].cpu(), torch.full_like(X, 300))
        assert not g["b"].any()
        assert g["unused"] is None

    def test_nondiff_arguments_come_first(self) -> None:
        seen = []

        def power(n: int, x: torch.Tensor, name: str) -> torch.Tensor:
            return x**n

        rule = xf.custom_vjp(power, nondiff_argnums=(0, 2))

        def bwd(n: int, name: str, x: torch.Tensor, ct: torch.Tensor) -> Any:
            seen.append((n, name))
            return (ct * n * x ** (n - 1),)

        rule.defvjp(lambda n, x, name: (x**n, x), bwd)
        for n in (2, 3):
            got = xf.grad(lambda x, n=n: rule(n, x, name="cube").sum())(X)
            torch.testing.assert_close(got.cpu(), n * X ** (n - 1))
        assert set(seen) == {(2, "cube"), (3, "cube")}

    def test_an_argument_that_is_the_same_for_the_batch(self) -> None:
        @xf.custom_vjp
        def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return x * w

        scaled.defvjp(lambda x, w: (x * w, (x, w)), lambda r, ct: (ct * r[1], ct * r[0]))
        batch = torch.stack([X, X * 2])

        def loss(w: torch.Tensor) -> torch.Tensor:
            return xf.vmap(scaled, (0, None))(batch, w).sum()

        torch.testing.assert_close(xf.grad(loss)(X).cpu(), batch.sum(0))
        each = xf.vmap(xf.grad(lambda x, w: scaled(x, w).sum(), argnums=1), (0, None))(batch, X)
        torch.testing.assert_close(each.cpu(), batch)

    def test_methods(self) -> None:
        class Layer:
            factor = 3.0

            @xf.custom_vjp
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.factor

        with pytest.raises(TypeError, match=r"(?s)forward has no rule.*defvjp"):
            Layer().forward(X)

    def test_traced_once(self) -> None:
        runs = []
        f = xf.custom_vjp(lambda x: x**2)

        def bwd(x: torch.Tensor, ct: torch.Tensor) -> Any:
            runs.append(1)
            return (2 * x * ct,)

        f.defvjp(lambda x: (x**2, x), bwd)
        step = xf.jit(xf.grad(lambda x: f(x).sum()))
        for x in (X, X + 1):
            torch.testing.assert_close(step(x).cpu(), 2 * x)
        assert len(runs) == 1

    def test_errors(self) -> None:
        f = _clipped()
        with pytest.raises(
            xf.errors.UnsupportedOpError, match=r"(?s)clipped is a custom_vjp.*Hint"
        ):
            xf.jvp(f, (X,), (X,))
        g = xf.custom_vjp(lambda x: x)
        g.defvjp(lambda x: (x, None), lambda _, ct: (ct, ct))
        with pytest.raises(xf.errors.TreeMismatchError, match=r"(?s)returned 2 values, for 1 arg"):
            xf.grad(lambda x: g(x).sum())(X)
        h = xf.custom_vjp(lambda x: x)
        h.defvjp(lambda x: (x, None), lambda _, ct: (ct.sum(),))
        with pytest.raises(
            xf.errors.TreeMismatchError,
            match=r"(?s)gradient\[0\]: float64\[\] instead of float64\[3\]",
        ):
            xf.grad(lambda x: h(x).sum())(X)
        k = xf.custom_vjp(lambda x: x)
        k.defvjp(lambda x: x, lambda _, ct: (ct,))
        with pytest.raises(
            xf.errors.TreeMismatchError, match=r"(?s)not a pair.*return \(output, res"
        ):
            xf.grad(lambda x: k(x).sum())(X)

        def closes_over(w: torch.Tensor) -> torch.Tensor:
            inner = xf.custom_vjp(lambda x: x * w)
            inner.defvjp(lambda x: (x * w, None), lambda _, ct: (ct * w,))
            return inner(w * 2).sum()

        with pytest.raises(
            TypeError, match=r"(?s)closes over a value.*pass the value as an argument"
        ):
            xf.grad(closes_over)(X)
        n = xf.custom_vjp(lambda a, x: x * a, nondiff_argnums=0)
        n.defvjp(lambda a, x: (x * a, None), lambda a, _, ct: (ct,))
        with pytest.raises(
            TypeError, match=r"(?s)a tensor \(float64\[3\]\) in an argument of nondiff"
        ):
            xf.grad(lambda x: n(X, x).sum())(X)


class TestCustomJvp:
    def test_the_rule_serves_both_modes(self) -> None:
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

    def test_a_safe_logarithm(self) -> None:
        """The example of JAX's documentation: log(1 + exp(x)) for large x."""
        plain = lambda x: torch.log(1 + torch.exp(x))  # noqa: E731
        safe = xf.custom_jvp(plain)
        safe.defjvp(lambda p, t: (safe(*p), (1 - 1 / (1 + torch.exp(p[0]))) * t[0]))
        assert xf.grad(plain)(torch.tensor(100.0)).isnan()
        assert xf.grad(safe)(torch.tensor(100.0)).item() == 1.0
        assert xf.grad(xf.grad(safe))(torch.tensor(0.0)).item() == 0.25

    def test_a_rule_for_each_argument(self) -> None:
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


class TestCustomGradient:
    """Beside what is recorded from JAX: see `tests/support/snippets_of_transforms.py`."""

    def test_the_rule_is_used_everywhere(self) -> None:
        @xf.custom_gradient
        def f(x: torch.Tensor, y: torch.Tensor) -> Any:
            z = torch.exp(x)
            return z * y, lambda ct: (2 * ct * z * y, ct * z)

        def loss(x: torch.Tensor) -> torch.Tensor:
            return f(x, x * 0 + 3.0).sum()

        want = 6 * torch.exp(X)  # twice the gradient; that of y goes nowhere
        for g in (
            xf.grad(loss),
            xf.jit(xf.grad(loss)),
            xf.grad(xf.jit(loss)),
            xf.grad(xf.checkpoint(loss)),
            lambda x: xf.vmap(xf.grad(loss))(torch.stack([x, x]))[1],
            xf.grad(lambda x: xf.scan(lambda c, v: (c + loss(v), None), c0(x), x[None])[0]),
            xf.grad(lambda x: xf.grad(loss)(x).sum()),
        ):
            torch.testing.assert_close(g(X).cpu(), want)
        with xf.disable_jit():
            torch.testing.assert_close(xf.grad(loss)(X), want)

    def test_what_the_rule_closes_over_is_kept(self) -> None:
        @xf.custom_gradient
        def f(x: torch.Tensor) -> Any:
            z = torch.exp(x)
            return z.sum(), lambda ct: ct * z

        hlo = str(xf.make_hlo(xf.grad(f))(X))
        assert hlo.count(" exponential(") == 1

    def test_integers_and_numbers_in_the_closure(self) -> None:
        i = torch.tensor(1)

        def scaled(scale: float) -> Any:
            def f(x: torch.Tensor) -> Any:
                where, zeros = i + 1, torch.zeros_like(x)
                return x[where], lambda ct: zeros.index_put((where,), ct * scale)

            return xf.custom_gradient(f)

        for scale in (1.0, 2.0):
            assert xf.grad(scaled(scale))(X).tolist() == [0.0, 0.0, scale]

    def test_errors(self) -> None:
        f = xf.custom_gradient(lambda x: x * 2)
        with pytest.raises(xf.errors.TreeMismatchError, match=r"(?s)not a pair.*\(out, rule\)"):
            f(X)
        f = xf.custom_gradient(lambda x: (x * 2, lambda ct: (ct, ct)))
        with pytest.raises(xf.errors.TreeMismatchError, match="2 values, for 1 arguments"):
            xf.grad(lambda x: f(x).sum())(X)
        with pytest.raises(xf.errors.UnsupportedOpError, match="forward mode"):
            xf.jvp(xf.custom_gradient(lambda x: (x, lambda ct: ct)), (X,), (X,))


class TestStopGradient:
    def test_both_modes(self) -> None:
        f = lambda x: (xf.stop_gradient({"a": x})["a"] * x).sum()  # noqa: E731
        torch.testing.assert_close(xf.grad(f)(X).cpu(), X)
        assert xf.jvp(f, (X,), (X,))[1].item() == (X * X).sum().item()
        assert not xf.hessian(f)(X).any()

    def test_straight_through(self) -> None:
        def rounded(x: torch.Tensor) -> torch.Tensor:
            return x + xf.stop_gradient(x.round() - x)

        value, g = xf.value_and_grad(lambda x: rounded(x).sum())(X)
        assert value.item() == X.round().sum().item()
        torch.testing.assert_close(g.cpu(), torch.ones_like(X))


class TestLinearize:
    def test_the_function_runs_once(self) -> None:
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

    def test_aux_and_batches(self) -> None:
        numbers: Any = {"n": 1}
        _, linear, aux = xf.linearize(lambda x: (x**2, numbers), X, has_aux=True)
        assert aux["n"].item() == 1
        got = xf.vmap(linear)(torch.eye(3, dtype=torch.float64)).cpu()
        torch.testing.assert_close(got, torch.diag(2 * X))

    def test_after_its_trace(self) -> None:
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


def c0(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros((), dtype=x.dtype)


class TestForwardOverReverse:
    """The gradient's level sees the custom rule, wherever the function is called."""

    @pytest.mark.parametrize("where", ["jit", "checkpoint", "scan", "cond", "nested", "vmap"])
    def test_of_a_custom_vjp_function(self, where: str) -> None:
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
def test_a_rule_is_not_ignored_for_what_the_function_closes_over(name: str, kind: str) -> None:
    with pytest.raises(TypeError, match=r"(?s)closes over a value \(float64.*stop_gradient"):
        CLOSED_OVER[name](lambda w: _with_rule(kind, w))


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_a_rule_may_close_over_what_is_not_differentiated(kind: str) -> None:
    def loss(w: torch.Tensor) -> torch.Tensor:
        return (_with_rule(kind, xf.stop_gradient(w))(ONES) * w).sum()

    torch.testing.assert_close(xf.device_get(xf.grad(loss)(X)), X)
    outer = xf.jit(lambda w, x: xf.grad(lambda x: _with_rule(kind, w)(x).sum())(x))
    torch.testing.assert_close(xf.device_get(outer(X, ONES)), ONES * 100)


def _cubed() -> Any:
    @xf.custom_jvp
    def cubed(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @cubed.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        return cubed(*primals), 3 * primals[0] ** 2 * tangents[0]

    return cubed


@pytest.mark.parametrize("eager", [False, True])
def test_forward_mode_of_forward_mode(eager: bool) -> None:
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
