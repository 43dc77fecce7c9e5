"""Tensors made on the CPU beside traced ones, in operations that compare devices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xfunc as xf


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, device="cpu")


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "attention": lambda x: F.scaled_dot_product_attention(x, ones(2, 3, 4, 5), ones(2, 3, 4, 5)),
    # Of a factor with numbers above its diagonal, torch's gradient is wrong.
    "cholesky_solve": lambda x: torch.cholesky_solve(ones(4, 2), (x[0, 0, :, :4] + 1).tril()),
    "multi_dot": lambda x: torch.linalg.multi_dot([x[0, 0], ones(5, 3), ones(3, 2)]),
    "block_diag": lambda x: torch.block_diag(x[0, 0], ones(2, 2)),
    "lstm_cell": lambda x: torch.lstm_cell(
        x[0, 0], (ones(4, 3), ones(4, 3)), ones(12, 5), ones(12, 3), ones(12), ones(12)
    )[0],
    "bilinear": lambda x: F.bilinear(x[0, 0], ones(4, 5), ones(2, 5, 5)),
    "batch_norm": lambda x: F.batch_norm(x, ones(3), ones(3)),
    "index_put": lambda x: x.index_put((torch.tensor([0], device="cpu"),), ones(3, 4, 5)),
    "cdist": lambda x: torch.cdist(x[0], ones(3, 2, 5)),
    "addmm": lambda x: torch.addmm(ones(4, 2), x[0, 0], ones(5, 2)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_jit_operation_with_cpu_tensors(name: str) -> None:
    f, x = OPERATIONS[name], torch.rand(2, 3, 4, 5) + 0.5
    torch.testing.assert_close(xf.device_get(xf.jit(f)(x)), f(x), rtol=1e-4, atol=1e-5)
    own = x.clone().requires_grad_()
    f(own).sum().backward()
    found = xf.device_get(xf.jit(xf.grad(lambda x: f(x).sum()))(x))
    torch.testing.assert_close(found, own.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.modules.GRU, nn.RNN])  # nn.GRU may be torch_xla's
def test_jit_recurrent_layer_with_captured_input(kind: Callable[[int, int], nn.RNNBase]) -> None:
    module, x = kind(4, 5), torch.randn(3, 7, 4)
    apply, params, buffers = xf.functional(module)
    value, grads = xf.jit(xf.value_and_grad(lambda p: apply(p, buffers, x)[0][0].sum()))(params)
    wanted = module(x)[0].sum()
    wanted.backward()
    torch.testing.assert_close(xf.device_get(value), wanted.detach(), rtol=1e-4, atol=1e-5)
    for name, parameter in module.named_parameters():
        found = xf.device_get(grads[name])
        torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-5)


def test_jit_shape_error_beside_cpu_tensor() -> None:
    with pytest.raises(RuntimeError, match=r"shape|size") as caught:
        xf.jit(lambda x: torch.linalg.multi_dot([x, ones(3, 3)]))(torch.ones(2, 2))
    assert "device" not in str(caught.value)
