"""`torch.utils.checkpoint` inside traced code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import (
    checkpoint as torch_checkpoint,
)
from torch.utils.checkpoint import (
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import xfunc as xf

Tensor = torch.Tensor
checkpoint: Any = torch_checkpoint  # torch declares that it may return None
X, W = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.3, 0.2, 0.1])


def _block(x: Tensor, w: Tensor, power: int = 1, *, scale: Tensor | None = None) -> Tensor:
    out = torch.sin(x * w) ** power
    return out if scale is None else out * scale


PARAMETERS = inspect.signature(checkpoint).parameters
DEFAULTS = {
    name: parameter.default
    for name, parameter in PARAMETERS.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name != "use_reentrant"
}


def _decorated(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """As by ``@checkpoint(...)``, which torch has since 2.15."""
    if PARAMETERS["function"].default is None:
        return checkpoint(**options)(function)
    return functools.partial(checkpoint, function, **options)


CALLS: dict[str, Callable[[Tensor, Tensor, bool], Tensor]] = {
    "arguments": lambda x, w, reentrant: checkpoint(_block, x, w, use_reentrant=reentrant),
    "closed over": lambda x, w, reentrant: checkpoint(
        lambda x: _block(x, w), x, use_reentrant=reentrant
    ),
    "a number": lambda x, w, reentrant: checkpoint(_block, x, w, 2, use_reentrant=reentrant),
    "not preserving": lambda x, w, reentrant: checkpoint(
        _block, x, w, use_reentrant=reentrant, preserve_rng_state=False
    ),
    "all options": lambda x, w, reentrant: checkpoint(
        _block, x, w, use_reentrant=reentrant, **DEFAULTS
    ),
    "decorated": lambda x, w, reentrant: _decorated(_block, use_reentrant=reentrant)(x, w),
}


def _plain(name: str, x: Tensor, w: Tensor) -> Tensor:
    return _block(x, w, 2 if name == "a number" else 1)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_gradient_of_a_checkpointed_call(name: str, reentrant: bool) -> None:
    got = xf.grad(lambda x, w: CALLS[name](x, w, reentrant).square().sum(), argnums=(0, 1))(X, W)
    want = torch.func.grad(lambda x, w: _plain(name, x, w).square().sum(), argnums=(0, 1))(X, W)
    torch.testing.assert_close(xf.device_get(got), want)


def test_hessian_with_keyword_arguments() -> None:
    def ours(x: Tensor) -> Tensor:
        return checkpoint(_block, x, W, 3, scale=x, use_reentrant=False).sum()

    got = xf.jit(xf.hessian(ours))(X)
    want = torch.func.hessian(lambda x: _block(x, W, 3, scale=x).sum())(X)
    torch.testing.assert_close(got.cpu(), want)


def test_it_recomputes_as_xfunc_checkpoint_does() -> None:
    def text(wrap: Callable[..., Callable[[Tensor], Tensor]]) -> str:
        return str(xf.make_hlo(xf.grad(lambda x: wrap(lambda x: x.sin().sin())(x).sum()))(X))

    ours = text(lambda f: lambda x: checkpoint(f, x, use_reentrant=False))
    theirs, plain = text(xf.checkpoint), text(lambda f: f)
    assert ours.count("opt-barrier") == theirs.count("opt-barrier") > plain.count("opt-barrier")


def test_draws_of_an_implicit_key_are_repeated_in_the_backward_pass() -> None:
    def run(x: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        with xf.random.implicit(key):
            outs = [
                checkpoint(torch.nn.functional.dropout, x, use_reentrant=False) for _ in range(2)
            ]
        return outs[0], outs[1]

    def loss(x: Tensor, key: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        outs = run(x, key)
        return (outs[0] * torch.arange(16.0)).sum(), outs

    grads, (first, second) = xf.grad(loss, has_aux=True)(torch.ones(16), xf.random.key(0))
    torch.testing.assert_close(grads.cpu(), first.cpu() * torch.arange(16.0))
    assert not torch.equal(first.cpu(), second.cpu())


def test_checkpoint_sequential_of_a_module() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint_sequential(self.layers, 2, x, use_reentrant=False)

    apply, params, buffers = xf.functional(Model())
    got = xf.grad(lambda p: apply(p, buffers, X)[0].square().sum())(params)
    layers(X).square().sum().backward()
    want = {f"layers.{n}": p.grad for n, p in layers.named_parameters()}
    torch.testing.assert_close(xf.device_get(got), want)


def test_context_fn_is_refused_by_name() -> None:
    def contexts() -> Any:
        return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])

    def run(x: Tensor) -> Tensor:
        return checkpoint(torch.sin, x, use_reentrant=False, context_fn=contexts)

    for f in (run, _decorated(torch.sin, use_reentrant=False, context_fn=contexts)):
        with pytest.raises(xf.errors.UnsupportedOpError, match=r"context_fn[\s\S]*policy="):
            xf.jit(f)(X)


def test_outside_a_trace_it_is_that_of_torch() -> None:
    x = X.clone().requires_grad_()
    out = checkpoint(_block, x, W, use_reentrant=False)
    assert isinstance(out, Tensor)
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.func.grad(lambda x: _block(x, W).sum())(X))
    block = _decorated(_block, use_reentrant=False)
    y = X.clone().requires_grad_()
    block(y, W).sum().backward()
    torch.testing.assert_close(y.grad, x.grad)
    with xf.disable_jit():
        for run in (functools.partial(checkpoint, _block, use_reentrant=False), block):
            got = xf.grad(lambda x, run=run: run(x, W).sum())(X)
            torch.testing.assert_close(got, x.grad)
