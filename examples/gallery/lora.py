"""LoRA: a language model of the transformers package, fine-tuned by two thin matrices per weight.

The adapters are a dict beside the frozen weights. The loss adds their products to the weights and
calls the unchanged model by `xf.functional`, so nothing is injected into it, and merging for use is
the same addition. `xf.grad` takes derivatives of the adapters only.

In JAX: `flax.traverse_util` and `optax.multi_transform` over a model's frozen params, or `lorax`.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import xfunc as xf
from examples.gallery._training import minimize

Weights = dict[str, Tensor]
Adapters = dict[str, tuple[Tensor, Tensor]]


class Result(NamedTuple):
    """The model with its own weights, the merged ones, and the loss before each step."""

    model: LlamaForCausalLM
    weights: Weights
    adapters: Adapters
    losses: Tensor


def init(key: Tensor, weights: Weights, rank: int) -> Adapters:
    """Adapters of all projections of the layers, without an effect at first."""
    names = [name for name in weights if name.endswith("_proj.weight")]
    shapes = ((name, *weights[name].shape) for name in names)
    return {
        name: (torch.zeros(n_out, rank), xf.random.normal(k, (rank, n_in)) / n_in**0.5)
        for k, (name, n_out, n_in) in zip(xf.random.split(key, len(names)), shapes, strict=True)
    }


def merge(weights: Weights, adapters: Adapters) -> Weights:
    """The weights with the adapters added."""
    return weights | {name: weights[name] + b @ a for name, (b, a) in adapters.items()}


def main() -> Result:
    """Teach a small model with random weights one sentence of tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).eval()
    apply, weights, buffers = xf.functional(model)
    tokens = xf.random.randint(xf.random.key(0), (1, 16), 0, 64, torch.int64)

    def loss(adapters: Adapters, _: Tensor) -> Tensor:
        merged = merge(weights, adapters)
        return apply(merged, buffers, input_ids=tokens, labels=tokens, use_cache=False)[0].loss

    start = init(xf.random.key(1), weights, rank=4)
    adapters, losses = minimize(loss, start, xf.optim.adamw(1e-2), torch.arange(100))
    trained, frozen = (sum(t.numel() for t in xf.tree.leaves(p)) for p in (adapters, weights))
    print(f"{trained} numbers trained, {frozen} frozen")
    print(f"loss: {losses[0].item():.1f} at first, {losses[-1].item():.1f} at the end")
    return Result(model, *xf.device_get((weights, adapters, losses)))


if __name__ == "__main__":
    main()
