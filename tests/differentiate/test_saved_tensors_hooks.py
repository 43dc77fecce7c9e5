"""`torch.autograd.graph.saved_tensors_hooks` around transformed functions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import xfunc as xf

pytestmark = pytest.mark.quick


def layers(x: torch.Tensor) -> torch.Tensor:
    return xf.scan(lambda c, _: (c.sin() * x, None), x, None, length=3)[0].sum()


CALLS: dict[str, Callable[..., Any]] = {
    "jit": xf.jit(lambda x: (x.sin() * x.exp()).sum()),
    "scan": layers,
    "jit of scan": xf.jit(layers),
    "jit of grad": xf.jit(lambda x: xf.grad(layers)(x).sum()),
    "vmap": lambda x: xf.vmap(lambda a: a.sin() * a)(x).sum(),
    "checkpoint": xf.jit(xf.checkpoint(layers)),
}


@pytest.mark.parametrize("name", CALLS)
def test_saved_tensors_hooks_see_call_not_trace(name: str) -> None:
    call = CALLS[name]
    packed: list[torch.Tensor] = []
    unpacked: list[int] = []

    def pack(t: torch.Tensor) -> int:
        packed.append(t.detach().cpu())  # It has data.
        return len(packed) - 1

    def unpack(i: int) -> torch.Tensor:
        unpacked.append(i)
        return xf.device_put(packed[i])

    def gradient(*around: Any) -> torch.Tensor:
        x = xf.device_put(torch.tensor([0.3, 0.7])).requires_grad_()
        if around:
            with around[0]:
                out = call(x)
        else:
            out = call(x)
        out.backward()
        assert x.grad is not None
        return x.grad.cpu()

    expected = gradient()
    torch.testing.assert_close(gradient(saved_tensors_hooks(pack, unpack)), expected)
    assert packed
    assert unpacked
    torch.testing.assert_close(gradient(save_on_cpu()), expected)


def test_saved_tensors_hooks_restored_after_error() -> None:
    seen = []
    with saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        with pytest.raises(xf.errors.ConcretizationError, match="reads a traced value"):
            xf.jit(lambda x: float(x))(torch.tensor(1.0))
        assert not seen
        torch.ones(2, requires_grad=True).sin().sum().backward()
    assert len(seen) == 1
