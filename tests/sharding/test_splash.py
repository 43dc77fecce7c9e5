"""Splash attention of the Llama example on a mesh: each device has its own rows and heads."""

from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import splash
from examples.llama.attention import dense
from examples.llama.sharding import Sharding

DOCUMENTS = torch.tensor([[1] * 50 + [2] * 78, [1] * 128, [1] * 100 + [0] * 28, [1, 2] * 64])


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize(
    ("axes", "segments"),
    [({"data": 2, "fsdp": 2, "tensor": 2}, DOCUMENTS), ({"fsdp": 2, "tensor": 4}, None)],
    ids=["documents", "devices_share_heads"],
)
def test_equals_dense_attention(
    axes: dict[str, int], segments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splash, "PLATFORM", "cpu")
    sharding = Sharding.of(axes)
    generator = torch.Generator().manual_seed(0)
    qkv = [torch.randn(4, n, 128, 16, generator=generator) for n in (4, 2, 2)]
    weights = torch.randn(4, 4, 128, 16, generator=generator)

    def gradients(attention: Any) -> Any:
        value = xf.value_and_grad(lambda qkv: (attention(*qkv) * weights).sum())
        return xf.device_get(value(qkv))

    got = gradients(lambda q, k, v: splash.splash_attention(q, k, v, segments, sharding=sharding))
    want = gradients(lambda q, k, v: dense(q, k, v, segments))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
