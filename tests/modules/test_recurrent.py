"""`nn.LSTM`, `nn.GRU` and `nn.RNN` in traced code are loops: compared with eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import xfunc as xf

MODULES: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(3, 2),
    "LSTM both ways": lambda: nn.LSTM(3, 2, 2, bidirectional=True, batch_first=True),
    "LSTM with projections": lambda: nn.LSTM(3, 4, 2, proj_size=2, bias=False),
    "GRU": lambda: nn.modules.GRU(3, 2, 2, bidirectional=True),
    "RNN": lambda: nn.RNN(3, 2, batch_first=True),
    "RNN of relu": lambda: nn.RNN(3, 2, 2, nonlinearity="relu", bidirectional=True),
}


def _setting(name: str) -> tuple[nn.Module, dict[str, torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    module = MODULES[name]().double()
    params = {k: p.detach().clone() for k, p in module.named_parameters()}
    return module, params, torch.randn(4, 3, 3, dtype=torch.float64)


def _functions(module: nn.Module) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The module as a function of its parameters and input, with xfunc and with torch."""
    apply, _, buffers = xf.functional(module)

    def ours(params: Any, x: torch.Tensor) -> Any:
        return apply(params, buffers, x)

    def plain(params: Any, x: torch.Tensor) -> Any:
        return torch.func.functional_call(module, params, (x,))

    return ours, plain


def _loss(f: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Uses the outputs and the last states."""

    def loss(params: Any, x: torch.Tensor) -> torch.Tensor:
        parts = [part.sin() * k for k, part in enumerate(xf.tree.leaves(f(params, x)), 1)]
        return torch.stack([part.sum() for part in parts]).sum()

    return loss


def _close(got: Any, want: Any) -> None:
    torch.testing.assert_close(xf.tree.leaves(xf.device_get(got)), xf.tree.leaves(want))


def _eager_gradient(loss: Callable[..., torch.Tensor], params: Any, x: torch.Tensor) -> Any:
    params = {k: p.clone().requires_grad_() for k, p in params.items()}
    x = x.clone().requires_grad_()
    loss(params, x).backward()
    return {k: p.grad for k, p in params.items()}, x.grad


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("name", MODULES)
def test_recurrent_modules_match_eager(name: str) -> None:
    module, params, x = _setting(name)
    ours, plain = _functions(module)
    _close(xf.jit(ours)(params, x), plain(params, x))
    found = xf.grad(_loss(ours), argnums=(0, 1))(params, x)
    _close(found, _eager_gradient(_loss(plain), params, x))


@pytest.mark.sample(9, seed=0)
@pytest.mark.parametrize("transform", ["jvp", "hessian", "vmap of grad"])
@pytest.mark.parametrize("name", MODULES)
def test_recurrent_modules_under_transforms(name: str, transform: str) -> None:
    module, params, x = _setting(name)
    ours, plain = map(_loss, _functions(module))
    direction = x.cos()
    if transform == "jvp":
        found = xf.jvp(lambda x: ours(params, x), (x,), (direction,))[1]
        _close(found, (_eager_gradient(plain, params, x)[1] * direction).sum())
    elif transform == "hessian":
        found = xf.hessian(lambda x: ours(params, x))(x)
        _close(found, torch.autograd.functional.hessian(lambda x: plain(params, x), x))
    else:
        found = xf.vmap(xf.grad(ours), in_axes=(None, 0))(params, torch.stack([x, direction]))
        want = [_eager_gradient(plain, params, each)[0] for each in (x, direction)]
        _close(found, {k: torch.stack([w[k] for w in want]) for k in params})


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_recurrent_modules_by_functional_call(name: str) -> None:
    """torch leaves the weights of such a call in the module."""
    module, params, x = _setting(name)
    own = module(x)
    _, plain = _functions(nn.Sequential(module))
    params = {f"0.{k}": p * 2 for k, p in params.items()}
    want, step = plain(params, x), xf.jit(plain)
    for _ in range(2):
        _close(step(params, x), want)
    loss = _loss(plain)
    _close(xf.grad(loss, argnums=(0, 1))(params, x), _eager_gradient(loss, params, x))
    assert torch.equal(module(x)[0], own[0])


def test_lstm_program_does_not_grow_with_the_length() -> None:
    module = nn.LSTM(3, 2)
    apply, params, buffers = xf.functional(module)

    def size_of(length: int) -> int:
        step = xf.jit(xf.grad(lambda params, x: apply(params, buffers, x)[0][0].sum()))
        return step.lower(params, torch.ones(length, 1, 3)).as_text().count("\n")

    assert size_of(200) <= size_of(20) + 2


def test_lstm_of_an_empty_sequence_is_refused_as_in_torch() -> None:
    apply, params, buffers = xf.functional(nn.LSTM(3, 2))
    with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
        xf.jit(lambda x: apply(params, buffers, x)[0])(torch.ones(0, 1, 3))


def test_packed_sequences_are_refused() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 3), torch.ones(1, 3)])
    params = [p.detach() for p in nn.modules.GRU(3, 2).parameters()]

    def run(data: torch.Tensor, sizes: torch.Tensor) -> Any:
        return torch.gru(data, sizes, torch.zeros(1, 2, 2), params, True, 1, 0.0, False, False)

    with pytest.raises(xf.errors.UnsupportedOpError, match="gru was given a PackedSequence"):
        xf.jit(run)(packed.data, packed.batch_sizes)
    pack = nn.utils.rnn.pack_padded_sequence
    with pytest.raises(xf.errors.UnsupportedOpError, match="pack_padded_sequence makes a Packed"):
        xf.jit(lambda x: pack(x, [2, 1]).data)(torch.ones(2, 2, 3))
