"""`torch.autocast` in traced functions: dtypes and values of eager torch on the CPU."""

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

DEVICES = ["xla", "cpu"]
A = torch.randn(4, 4)

# Functions that CUDA's list and the CPU's treat alike.
FUNCTIONS = {
    "matmul": lambda x, y: x @ y,
    "mm": torch.mm,
    "linear": lambda x, y: F.linear(x, y, x[0]),
    "addmm": lambda x, y: torch.addmm(x, x, y),
    "bmm": lambda x, y: torch.bmm(x[None], y[None]),
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y),
    "conv1d": lambda x, y: F.conv1d(x[None], y[..., None]),
    "prod": lambda x, _: x.bfloat16().prod(),
    "mse_loss": lambda x, y: F.mse_loss(x.bfloat16(), y.bfloat16()),
    "cat": lambda x, y: torch.cat([x.bfloat16(), y]),
    "add": lambda x, y: x.bfloat16() + y,
    "relu": lambda x, _: torch.relu(x.bfloat16()),
    "float64": lambda x, _: x.double() @ x.double(),
}


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_autocast_inside_jit_and_around(name: str, kind: str) -> None:
    f = FUNCTIONS[name]

    def inside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(kind, dtype=torch.bfloat16):
            return f(x, y)

    y = torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want = f(A, y)
    with torch.autocast(kind, dtype=torch.bfloat16):
        around = xf.jit(f)(A, y)
    for found in (around, xf.jit(inside)(A, y)):
        torch.testing.assert_close(found.cpu(), want, rtol=2e-2, atol=2e-2)
    assert xf.jit(f)(A, y).dtype == f(A, y).dtype  # it has ended


@pytest.mark.parametrize("kind", DEVICES)
def test_autocast_gradients_have_dtypes_of_parameters(kind: str) -> None:
    y = torch.randn(4, 4)

    def loss(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(kind, dtype=torch.bfloat16):
            return torch.tanh(x @ y).float().square().mean()

    def eager(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.tanh(x @ y).float().square().mean()

    want = torch.func.grad(eager)(A)
    for gradient in (xf.grad(loss), xf.jit(xf.grad(loss)), xf.grad(xf.checkpoint(loss))):
        found = gradient(A)
        assert found.dtype is torch.float32
        torch.testing.assert_close(found.cpu(), want, rtol=5e-2, atol=1e-2)
    rows = torch.stack([A, -A])
    torch.testing.assert_close(xf.vmap(xf.grad(loss))(rows)[0].cpu(), want, rtol=5e-2, atol=1e-2)


def test_autocast_float32_functions_and_explicit_dtype() -> None:
    low = A.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kinds = xf.jit(
            lambda x: (x.softmax(-1), x.exp(), x.sum(), x.sum(dtype=torch.bfloat16), x**2)
        )(low)
        attended = xf.jit(lambda x: F.scaled_dot_product_attention(x, x, x))(A[None])
        with torch.autocast("cpu", enabled=False):
            plain = xf.jit(lambda x: (x @ x).exp())(A)
    assert [k.dtype for k in kinds] == [torch.float32] * 3 + [torch.bfloat16, torch.float32]
    torch.testing.assert_close(kinds[0].cpu(), low.float().softmax(-1))
    assert plain.dtype is torch.float32
    assert attended.dtype is torch.bfloat16
