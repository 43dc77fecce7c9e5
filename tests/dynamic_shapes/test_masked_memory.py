"""A bucket's program takes hardly more memory than that of its exact shape, masks included."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

Tensor = torch.Tensor
Model = Callable[[Sequence[Tensor], Tensor], Tensor]


def layers(f: Callable[[Tensor], Tensor]) -> Model:
    def model(ws: Sequence[Tensor], x: Tensor) -> Tensor:
        for w in ws:
            x = f(x @ w)
        return (x * x).sum()

    return model


def checkpointed(ws: Sequence[Tensor], x: Tensor) -> Tensor:
    keep = xf.checkpoint_policies.everything_saveable
    for w in ws:
        x = xf.checkpoint(lambda w, x: torch.tanh(x @ w), policy=keep)(w, x)
    return (x * x).sum()


def attention(ws: Sequence[Tensor], x: Tensor) -> Tensor:
    for w in ws:
        h = F.layer_norm(x, (16,))
        q = h @ w
        x = x + torch.softmax(q @ q.mT / 4, -1) @ h
    return (x * x).mean()


def normalised(ws: Sequence[Tensor], x: Tensor) -> Tensor:
    for w in ws:
        x = x + F.gelu(F.layer_norm(x, (16,)) @ w)
    return x.square().sum()


def scanned(ws: Sequence[Tensor], x: Tensor) -> Tensor:
    x, _ = xf.scan(lambda x, w: (torch.tanh(x @ w), None), x, torch.stack([*ws]))
    return (x * x).sum()


MODELS: dict[str, Model] = {
    "tanh": layers(torch.tanh),
    "sigmoid": layers(torch.sigmoid),
    "relu": layers(torch.relu),
    "gelu": layers(F.gelu),
    "silu": layers(F.silu),
    "softplus": layers(F.softplus),
    "checkpoint": checkpointed,
    "attention": attention,
    "layer norm": normalised,
    "scan": scanned,
}


QUICK = ("tanh", "relu")


@pytest.mark.one_device
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]
)
def test_gradient_of_model_in_bucket_takes_hardly_more_memory(name: str) -> None:
    step = xf.jit(xf.grad(MODELS[name]))
    ws = [xf.ShapeDtypeStruct((16, 16), torch.float32)] * 4

    def peak(size: object) -> int:
        x = xf.ShapeDtypeStruct((4, size, 16), torch.float32)  # type: ignore[arg-type]
        compiled = step.lower(ws, x).compile()
        found = compiled.memory_analysis().peak_memory_in_bytes
        assert found is not None
        return found

    assert peak(xf.Dim("S", max=64)) <= 1.15 * peak(64)
