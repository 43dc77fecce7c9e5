"""`torch.autocast` in traced functions: dtypes and values of eager torch on the CPU."""

import functools
from typing import Any

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


@pytest.mark.parametrize("kind", ["cpu", "cuda", "xla"])
def test_autocast_norms_squares_and_resizing_in_float32(kind: str) -> None:
    def low(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(kind, dtype=torch.bfloat16):
            y = x @ x
            return (
                torch.linalg.vector_norm(y),
                torch.linalg.matrix_norm(y, "nuc"),
                torch.linalg.norm(y),
                torch.square(y),
                F.interpolate(y[None], scale_factor=2),
            )

    assert [r.dtype for r in xf.eval_shape(low, A)] == [torch.float32] * 5
    assert xf.eval_shape(xf.grad(lambda x: sum(r.sum() for r in low(x))), A).dtype is torch.float32


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x @ y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        return grads[0].float() @ y.mT, x.mT @ grads[0].float()


with torch.random.fork_rng():
    torch.manual_seed(0)
    MODULES = {
        "MultiheadAttention": torch.nn.MultiheadAttention(4, 2),
        "TransformerEncoderLayer": torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
        "RNN": torch.nn.RNN(4, 3),
        "Bilinear": torch.nn.Bilinear(4, 4, 3),
        "autograd.Function": _Product.apply,
    }


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", MODULES)
def test_autocast_of_modules_like_eager_torch(name: str) -> None:
    f: Any = MODULES[name]
    more = {"MultiheadAttention": 2, "Bilinear": 1, "autograd.Function": 1}.get(name, 0)

    def low(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = f(x, *[x] * more)
        return out[0] if isinstance(out, tuple) else out

    want, found = low(A), xf.jit(low)(A)
    assert found.dtype is want.dtype
    torch.testing.assert_close(found.cpu(), want, rtol=5e-2, atol=5e-2)
    x = A.clone().requires_grad_()
    (expected,) = torch.autograd.grad(low(x).float().square().sum(), x)
    slope = xf.grad(lambda x: low(x).float().square().sum())(A)
    torch.testing.assert_close(slope.cpu(), expected, rtol=0.1, atol=0.2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_for_cuda_in_traced_function_without_cuda(dtype: torch.dtype) -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=dtype):
            return x @ x

    assert xf.jit(product)(A).dtype is dtype
    common: Any = torch.cuda.amp.common
    if common.amp_definitely_not_available():  # As elsewhere, torch disables it outside.
        with pytest.warns(UserWarning, match="CUDA is not available"):
            assert product(A).dtype is torch.float32


def test_autocast_for_the_device_of_an_argument() -> None:
    def product(x: torch.Tensor, enabled: bool) -> torch.Tensor:
        kind = x.device.type
        assert torch.amp.is_autocast_available(kind)
        with torch.autocast(device_type=kind, dtype=torch.bfloat16, enabled=enabled):
            assert torch.is_autocast_enabled(kind) is enabled
            assert torch.get_autocast_dtype(kind) is torch.bfloat16
            return x @ x

    for enabled in (True, False):
        want = product(A, enabled)
        found = xf.jit(product, static_argnums=1)(A, enabled)
        assert found.dtype is want.dtype
        torch.testing.assert_close(found.cpu(), want, rtol=2e-2, atol=2e-2)
        batch = xf.eval_shape(xf.vmap(functools.partial(product, enabled=enabled)), A[None])
        assert batch.dtype is want.dtype


@pytest.mark.parametrize("kind", ["cuda", "xla", "cpu"])
def test_disabling_autocast_for_the_device_of_an_argument(kind: str) -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        with (
            torch.autocast(kind, dtype=torch.bfloat16),
            torch.autocast(x.device.type, enabled=False),
        ):
            return x @ x

    assert xf.eval_shape(product, A).dtype is torch.float32
