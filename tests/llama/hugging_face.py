"""Small models of the Llama example and their likes in transformers."""

from pathlib import Path
from typing import Any

import torch

import xfunc as xf
from examples.llama import model
from examples.llama.hub import hf

CONFIGS = model.TINY | {
    "one-kv-head": model.Config(
        40, hidden=30, intermediate=28, layers=1, heads=5, kv_heads=1, rope_theta=1e4, norm_eps=1e-6
    ),
    "scaled-tied": model.Config(
        48,
        hidden=32,
        intermediate=24,
        layers=2,
        heads=8,
        kv_heads=4,
        tied=True,
        rope_theta=100.0,
        rope_scaling=model.RopeScaling(4.0, 2.0, 3.0, original_context=24),
    ),
}
SEQ = 40


def random_params(config: model.Config, dtype: torch.dtype = torch.float32) -> model.Params:
    generator = torch.Generator().manual_seed(0)

    def leaf(shape: xf.ShapeDtypeStruct) -> torch.Tensor:
        x = torch.randn(shape.shape, generator=generator, dtype=torch.float64)
        return (x * shape.shape[-1] ** -0.5).to(dtype)

    params = xf.tree.map(leaf, model.shapes(config))
    layers = params["layers"]
    for tree, name in (params, "norm"), (layers, "attn_norm"), (layers, "mlp_norm"):
        tree[name] = 1 + tree[name]
    return params


def tokens_of(config: model.Config, batch: int = 2, length: int = SEQ + 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab, (batch, length), generator=generator)


def theirs(folder: Path, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> Any:
    import transformers

    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    return load(folder, dtype=dtype, attn_implementation=attention)


def by_hub_name(config: model.Config, params: model.Params) -> dict[str, torch.Tensor]:
    """Weights as files have them: those of each layer and expert."""
    return {name: t.fetch() for name, t in hf.by_name(config, xf.device_get(params)).items()}


def assert_near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """No element differs by more than a share of the largest one."""
    assert actual.shape == expected.shape
    scale = expected.abs().max().item()
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0.0, atol=tolerance * scale)


def assert_equal(actual: Any, expected: Any) -> None:
    xf.tree.map(lambda a, e: torch.testing.assert_close(a, e, rtol=0, atol=0), actual, expected)
