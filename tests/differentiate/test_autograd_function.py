"""A ``torch.autograd.Function`` given values that the function inside a transform closes over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor


class Mul(torch.autograd.Function):
    """``a * b``, by rules of its own in both modes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a * b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *cts: Any) -> Any:
        a, b = ctx.saved_tensors
        return cts[0] * b, cts[0] * a

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        (a, b), (da, db) = ctx.saved_tensors, tangents
        return da * b + a * db


class OldMul(torch.autograd.Function):
    """The same in the older style, for plain autograd only."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, *cts: Any) -> Any:
        a, b = ctx.saved_tensors
        return cts[0] * b, cts[0] * a


multiply: Any = Mul.apply
C, YES = torch.tensor(2.0, dtype=torch.float64), torch.tensor(True)
ONE = torch.tensor(1.0, dtype=torch.float64)
Fun = Callable[[Tensor, Callable[..., Any]], Tensor]

# Functions of w and of a product; in each, w is closed over by what a transform traces.
NESTED: dict[str, Fun] = {
    "jit": lambda w, mul: xf.jit(lambda c: mul(c, w))(C),
    "jit of captures": lambda w, mul: xf.jit(lambda c: c + mul(w, w))(C),
    "jit without arguments": lambda w, mul: xf.jit(lambda: mul(w, w))(),
    "jit beside another use": lambda w, mul: xf.jit(lambda c: mul(c, w) + w)(C),
    "jit in jit": lambda w, mul: xf.jit(lambda c: xf.jit(lambda d: mul(d, w) * c)(c))(C),
    "checkpoint": lambda w, mul: xf.checkpoint(lambda c: mul(torch.sin(c), w))(C),
    "cond": lambda w, mul: xf.cond(YES, lambda c: mul(c, w), lambda c: c, C),
    "switch": lambda w, mul: xf.switch(1, [torch.sin, lambda c: mul(c, w)], C),
    "scan": lambda w, mul: xf.scan(lambda k, _: (mul(k, w), None), ONE, None, length=2)[0],
    "fori_loop": lambda w, mul: xf.fori_loop(0, 2, lambda i, k: mul(k, w), C),
    "map": lambda w, mul: xf.map(lambda c: mul(c, w), torch.stack([C, C])).sum(),
    "custom_jvp": lambda w, mul: xf.checkpoint(xf.jit(lambda c: mul(mul(c, w), w)))(C),
}
W = torch.tensor(3.0, dtype=torch.float64)


def by_torch(f: Fun) -> Tensor:
    """The derivative for plain multiplication, by torch in float64."""
    w = W.clone().requires_grad_()
    with xf.disable_jit():
        return torch.autograd.grad(f(w, torch.mul), w)[0]


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("mul", [Mul, OldMul])
def test_autograd_function_of_captured_value_has_its_gradient(name: str, mul: Any) -> None:
    f = NESTED[name]
    found = xf.grad(lambda w: f(w, mul.apply))(W)
    torch.testing.assert_close(found.cpu(), by_torch(f))


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "jacrev": xf.jacrev,
    "jacfwd": xf.jacfwd,
    "jit of grad": lambda f: xf.jit(xf.grad(f)),
    "vmap of grad": lambda f: lambda w: xf.vmap(xf.grad(f))(torch.stack([w, w]))[1],
    "grad of vmap": lambda f: lambda w: xf.grad(lambda v: xf.vmap(f)(torch.stack([v, v]))[1])(w),
}


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_autograd_function_of_captured_value_by_transforms(transform: str, name: str) -> None:
    f = NESTED[name]
    found = TRANSFORMS[transform](lambda w: f(w, Mul.apply))(W)
    torch.testing.assert_close(found.cpu(), by_torch(f))


def test_autograd_function_of_argument_and_captured_value() -> None:
    def f(w: Tensor, c: Tensor) -> Tensor:
        return xf.jit(lambda c: multiply(c, w))(c)

    found = xf.grad(f, argnums=(0, 1))(W, C)
    assert [g.item() for g in found] == [2.0, 3.0]


def _bound_before_import(function: Any) -> Any:
    """What a library keeps of ``apply`` is torch's own function, which nothing can replace."""
    return torch.autograd.Function.__dict__["apply"].__get__(None, function)


@pytest.mark.parametrize("mul", [Mul, OldMul])
def test_autograd_function_bound_before_import(mul: Any) -> None:
    apply = _bound_before_import(mul)
    assert xf.grad(lambda w: xf.jit(lambda c: apply(c, w))(C))(W).item() == 2.0
    assert xf.grad(lambda w: xf.jit(lambda c: apply(apply(c, w), w))(C))(W).item() == 12.0


def test_autograd_function_with_captured_value_by_name() -> None:
    apply = _bound_before_import(Mul)
    try:
        apply(C, b=W)
    except TypeError:  # torch 2.9 takes no operands by name.
        apply = lambda a, b: Mul.apply(a, b)  # noqa: E731
    assert xf.grad(lambda w: xf.jit(lambda c: apply(c, b=w))(C))(W).item() == 2.0


def test_autograd_function_that_applies_another_to_captured_value() -> None:
    apply = _bound_before_import(OldMul)

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, w: Tensor) -> Tensor:
            ctx.save_for_backward(w)
            return apply(apply(w, w), w)

        @staticmethod
        def backward(ctx: Any, *cts: Any) -> Any:
            return cts[0] * 3 * apply(*ctx.saved_tensors, *ctx.saved_tensors)

    cube = _bound_before_import(Cube)
    assert xf.grad(lambda w: xf.jit(lambda c: c * cube(w))(C))(W).item() == 54.0


def test_autograd_function_with_failing_rule_leaves_the_next_ones_lifted() -> None:
    apply = _bound_before_import(OldMul)

    def f(w: Tensor) -> Tensor:
        with pytest.raises(NotImplementedError, match="setup_context"):
            OldMul.setup_context(None, (), None)
        with pytest.raises(TypeError, match="forward"):
            apply(C)
        return xf.jit(lambda c: apply(c, w))(C)

    assert xf.grad(xf.jit(f))(W).item() == 2.0


def _with_function(rule: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """``w.sin()`` with `rule` for its backward pass, in a Function."""

    class Ruled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, w: Tensor) -> Tensor:
            return w.sin()

        @staticmethod
        def backward(ctx: Any, *cts: Any) -> Any:
            return rule(cts[0])

    return lambda w: cast("Tensor", Ruled.apply(w))


def _with_hook(rule: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """``w`` with `rule` for its backward pass, in a hook."""

    def hooked(w: Tensor) -> Tensor:
        out = w * 1.0
        out.register_hook(rule)
        return out

    return hooked


RULED = pytest.mark.parametrize("ruled", [_with_function, _with_hook])


@RULED
def test_backward_pass_of_python_reads_captured_tensors_anew(ruled: Any) -> None:
    scale = torch.tensor(2.0, dtype=torch.float64)
    f = xf.jit(xf.grad(ruled(lambda ct: ct * scale)))
    found = [f(W).item()]
    scale += 1.0
    found.append(f(W).item())
    assert found == [2.0, 3.0]
    assert f.cache_info().traces == 1


@RULED
def test_backward_pass_of_python_draws_from_keys(ruled: Any) -> None:
    f = ruled(lambda ct: ct * torch.rand((), dtype=ct.dtype))
    with pytest.raises(xf.errors.PurityError, match=r"torch\.rand draws from the global"):
        xf.grad(f)(W)

    @xf.jit
    def drawn(w: Tensor, key: Tensor) -> Tensor:
        with xf.random.implicit(key):
            return xf.grad(f)(w)

    found = [drawn(W, xf.random.key(seed)).item() for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


@RULED
def test_backward_pass_of_python_has_errors_of_its_lines(ruled: Any) -> None:
    def halved(ct: Tensor) -> Tensor:
        return ct / 2 if ct > 0 else ct

    with pytest.raises(xf.errors.ConcretizationError, match="in halved: return ct / 2 if ct > 0"):
        xf.grad(ruled(halved))(W)
    kept = list[Tensor]()
    with pytest.raises(xf.errors.LeakError, match=r"made by Tensor\.mul, outlived its trace"):
        xf.grad(ruled(lambda ct: kept.append(ct * 2)))(W)


def test_autograd_function_outside_traces_is_untouched() -> None:
    w = W.clone().requires_grad_()
    assert torch.autograd.grad(multiply(C, w), w)[0].item() == 2.0


SCALE = torch.tensor(2.0, dtype=torch.float64)


class Scaled(torch.autograd.Function):
    """``SCALE * sin(x)``, whose rules all take SCALE from outside."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin() * SCALE

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        slope = inputs[0].cos() * SCALE
        ctx.save_for_backward(slope)
        ctx.save_for_forward(slope)

    @staticmethod
    def backward(ctx: Any, *cts: Any) -> Any:
        return cts[0] * ctx.saved_tensors[0] * (SCALE / SCALE)

    @staticmethod
    def jvp(ctx: Any, *dots: Any) -> Any:
        return dots[0] * ctx.saved_tensors[0] * (SCALE / SCALE)


class ScaledByRule(Scaled):
    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        (x,) = args
        return x.sin() * SCALE, in_dims[0]


class ScaledByGeneratedRule(Scaled):
    generate_vmap_rule = True


@pytest.mark.parametrize("function", [ScaledByRule, ScaledByGeneratedRule])
@pytest.mark.parametrize(
    "transform",
    [
        xf.vmap,
        lambda f: xf.value_and_grad(lambda x: f(x).sum()),
        lambda f: lambda x: xf.jvp(f, (x,), (x,)),
        lambda f: xf.vmap(xf.vmap(lambda x: f(x * x))),
        lambda f: lambda x: xf.jvp(xf.vmap(f), (x,), (x,)),
    ],
)
def test_rules_within_transforms_read_captured_tensors_anew(transform: Any, function: Any) -> None:
    apply = cast("Callable[[Tensor], Tensor]", function.apply)
    x, f = torch.tensor([[0.5, 1.0]], dtype=torch.float64), xf.jit(transform(apply))
    f(x)
    traces = f.cache_info().traces
    for _ in range(2):
        want = transform(lambda x: x.sin() * SCALE.clone())(x)
        for found, expected in zip(xf.tree.leaves(f(x)), xf.tree.leaves(want), strict=True):
            torch.testing.assert_close(found.cpu(), expected.cpu())
        SCALE.add_(1.0)
    assert f.cache_info().traces == traces


@pytest.mark.parametrize("hook", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_of_modules_are_refused(hook: str) -> None:
    net = torch.nn.Linear(2, 2)
    getattr(net, hook)(lambda module, *grads: None)
    apply, params, buffers = xf.functional(net)
    with pytest.raises(xf.errors.UnsupportedOpError, match="sets up backward hooks of modules"):
        xf.grad(lambda x: apply(params, buffers, x)[0].sum())(torch.ones(2))
