"""Custom rules that call their function on tangents, and that return None."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
Z = torch.tensor(3.0, dtype=torch.float64)
V = torch.tensor([2.0, 3.0], dtype=torch.float64)


def _negative() -> Any:
    @xf.custom_jvp
    def negative(x: Tensor) -> Tensor:
        return -x

    negative.defjvp(lambda p, t: (negative(p[0]), negative(t[0])))
    return negative


def _product() -> Any:
    @xf.custom_jvp
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    product.defjvp(lambda p, t: (product(*p), product(p[0], t[1]) + product(t[0], p[1])))
    return product


def test_custom_jvp_rule_that_calls_its_function_on_the_tangent() -> None:
    f = _negative()
    for call in (f, xf.jit(f), xf.checkpoint(f), lambda x: xf.cond(x > 0, f, f, x)):
        assert xf.grad(call)(Z).item() == -1
        assert xf.jvp(call, (Z,), (Z,))[1].item() == -3
    assert xf.grad(xf.grad(lambda x: f(x) ** 2))(Z).item() == 2
    assert xf.vmap(xf.grad(f))(V).tolist() == [-1, -1]


def test_custom_jvp_rule_that_calls_its_function_on_the_tangent_in_a_jit() -> None:
    @xf.custom_jvp
    def triple(x: Tensor) -> Tensor:
        return 3 * x

    triple.defjvp(lambda p, t: (triple(p[0]), xf.jit(lambda t: triple(t))(t[0])))
    assert xf.grad(triple)(Z).item() == 3


def test_custom_jvp_rule_that_calls_its_function_on_the_tangent_without_jit() -> None:
    with xf.disable_jit():
        assert xf.grad(_negative())(Z).item() == -1
        assert xf.grad(_product(), argnums=(0, 1))(Z, Z + 1) == (4, 3)


def test_custom_jvp_bilinear_rule_in_all_orders() -> None:
    def f(v: Tensor) -> Tensor:
        return _product()(v[0], v[1] ** 2)

    want: Any = torch.autograd.functional.hessian(lambda v: v[0] * v[1] ** 2, V)
    for first in (xf.jacfwd, xf.jacrev):
        for second in (xf.jacfwd, xf.jacrev):
            torch.testing.assert_close(second(first(f))(V).cpu(), want)
    found = xf.grad(lambda v: xf.jvp(f, (v,), (V,))[1])(V)
    torch.testing.assert_close(found.cpu(), want @ V)


def test_custom_jvp_rule_keeps_for_second_derivatives_where_it_calls_itself() -> None:
    """The body's own derivative is not that of the rule: the rule must be used at the primal."""

    @xf.custom_jvp
    def f(x: Tensor) -> Tensor:
        return x.detach().exp()

    f.defjvp(lambda p, t: (f(p[0]), f(p[0]) * t[0]))
    e = Z.exp().item()
    for second in (xf.grad(xf.grad(f)), xf.jacfwd(xf.grad(f)), xf.grad(xf.jacfwd(f))):
        assert second(Z).item() == pytest.approx(e)


@pytest.mark.parametrize("eager", [False, True])
def test_custom_vjp_rule_returning_none_for_leaves_and_subtrees(eager: bool) -> None:
    @xf.custom_vjp
    def first(tree: Any, i: Tensor, y: Tensor) -> Tensor:
        return tree["a"] * 2 + y

    def forward(tree: Any, i: Tensor, y: Tensor) -> Any:
        return first(tree, i, y), None

    first.defvjp(forward, lambda _, g: ({"a": 2 * g, "b": None, "c": (None, None)}, None, None))
    tree = {"a": Z, "b": (Z, {"d": V}), "c": (torch.tensor(1), V)}

    def found() -> Any:
        return xf.vjp(lambda b, y: first(tree | {"b": b}, torch.tensor(0), y), tree["b"], Z)[1](Z)

    def of_a() -> Any:
        return xf.grad(lambda a: first(tree | {"a": a}, torch.tensor(0), Z))(Z)

    if eager:
        with xf.disable_jit():
            (zeros, ds), y, a = *found(), of_a()
    else:
        (zeros, ds), y, a = *found(), of_a()
    assert [zeros.item(), y.item(), a.item()] == [0, 0, 2]
    assert ds["d"].tolist() == [0, 0]


def test_custom_vjp_rule_returning_none_in_another_structure() -> None:
    @xf.custom_vjp
    def first(pair: Any) -> Tensor:
        return pair[0]

    first.defvjp(lambda pair: (pair[0], None), lambda _, g: ((g, None, None),))
    with pytest.raises(xf.errors.TreeMismatchError, match="a gradient and its argument differ"):
        xf.grad(first)((Z, Z))
