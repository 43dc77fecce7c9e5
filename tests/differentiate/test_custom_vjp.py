"""custom_vjp and custom_gradient, beside composing (see test_pairs)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


def _clipped() -> Any:
    """The identity, whose gradient is clipped: a rule that no automatic derivative would give."""

    @xf.custom_vjp
    def clipped(x: torch.Tensor) -> torch.Tensor:
        return x * 1

    clipped.defvjp(lambda x: (x * 1, None), lambda _, ct: (ct.clamp(-1, 1),))
    return clipped


class TestCustomVjp:
    def test_rule_used_under_transforms(self) -> None:
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

    def test_second_derivative_goes_through_rules(self) -> None:
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

    def test_nondiff_argnums_come_first_in_bwd(self) -> None:
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

    def test_vmap_of_unbatched_argument(self) -> None:
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

    def test_method_without_rule_raises(self) -> None:
        class Layer:
            factor = 3.0

            @xf.custom_vjp
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.factor

        with pytest.raises(TypeError, match=r"(?s)forward has no rule.*defvjp"):
            Layer().forward(X)

    def test_bwd_traced_once(self) -> None:
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


def c0(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros((), dtype=x.dtype)


class TestCustomGradient:
    """Beside what is recorded from JAX: see `tests/docs/snippets_of_transforms.py`."""

    def test_rule_used_under_transforms(self) -> None:
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

    def test_rule_closure_is_saved_as_residual(self) -> None:
        @xf.custom_gradient
        def f(x: torch.Tensor) -> Any:
            z = torch.exp(x)
            return z.sum(), lambda ct: ct * z

        hlo = str(xf.make_hlo(xf.grad(f))(X))
        assert hlo.count(" exponential(") == 1

    def test_rule_closes_over_pullback_or_linear_function(self) -> None:
        @xf.custom_gradient
        def pulled(x: torch.Tensor) -> Any:
            y, pull = xf.vjp(torch.sin, x)
            return y, lambda ct: pull(ct)[0]

        @xf.custom_gradient
        def pushed(x: torch.Tensor) -> Any:
            y, push = xf.linearize(torch.sin, x)
            return y, push

        for f in (pulled, pushed):
            g = xf.grad(lambda x, f=f: f(x).sum())
            per_example = xf.vmap(g)(torch.stack([X, 2 * X]))
            torch.testing.assert_close(per_example.cpu(), torch.cos(torch.stack([X, 2 * X])))
            second = xf.grad(lambda x, g=g: g(x).sum())(X)
            torch.testing.assert_close(second.cpu(), -torch.sin(X))

    def test_integers_and_numbers_in_rule_closure(self) -> None:
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
