"""What a step of the Llama example computes, by formulas."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.model import flops, plan


def counted(fun: Callable[..., Any], config: model.Config, rows: int, seq: int) -> float:
    """The operations of a function of parameters and tokens, for one token, as XLA counts them."""
    tokens = xf.ShapeDtypeStruct((rows, seq), torch.int64)
    lowered = xf.jit(fun).lower(model.shapes(config, torch.float32), tokens)
    return lowered.cost_analysis()["flops"] / (rows * seq)


EXPERTS = ("e_gate", "e_up", "e_down")
CONFIG = model.Config(4096, 512, 1408, layers=3, heads=4, kv_heads=2)


@pytest.mark.parametrize(
    "name", ["qwen3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "glm4.5-air", "deepseek-v3"]
)
def test_flops_count_active_weights(name: str) -> None:
    config = model.PUBLISHED[name]
    e = config.experts
    part = {"embed": 0.0} | ({} if e is None else dict.fromkeys(EXPERTS, e.active / e.count))
    shapes = model.shapes(config)
    used = sum(
        math.prod(leaf.shape) * part.get(key, 1.0)
        for tree in (shapes, *(shapes[stack.name] for stack in config.stacks))
        for key, leaf in tree.items()
        if not isinstance(leaf, dict)
    )
    assert flops.per_token(config, 0) == pytest.approx(6 * used, rel=1e-3)  # it has norms, too


def test_flops_attention_with_window() -> None:
    config = model.PUBLISHED["mistral-7b"]
    seen = sum(min(i + 1, 4096) for i in range(8192)) / 8192
    expected = 32 * 4 * 4096 * seen
    assert flops.forward(config, 8192).attention == pytest.approx(expected, rel=1e-3)


def test_flops_forward_matches_program() -> None:
    dense = plan.Plan(attention="dense")
    found = counted(lambda p, t: model.forward(p, t, CONFIG, dense), CONFIG, 2, 512)
    # Twice the length: the program computes the whole square of scores. And it has norms, too.
    assert found == pytest.approx(sum(flops.forward(CONFIG, 2 * 512)), rel=0.01)


def test_flops_training_matches_program() -> None:
    nothing_again = plan.Plan(policy="everything", attention="dense", loss_chunk=1024)

    def loss(params: Any, tokens: Any) -> Any:
        return model.loss(params, model.Batch(tokens, tokens), CONFIG, nothing_again)

    found = counted(xf.value_and_grad(loss), CONFIG, 2, 512)
    assert found == pytest.approx(flops.per_token(CONFIG, 2 * 512), rel=0.01)


def test_flops_forward_of_latent_attention_matches_program() -> None:
    config = dataclasses.replace(
        CONFIG, family="deepseek_v3", kv_heads=4, latent=model.Latent(128, 192, 32, 96, 64)
    )
    dense = plan.Plan(attention="dense")
    found = counted(lambda p, t: model.forward(p, t, config, dense), config, 2, 512)
    formula = flops.forward(config, 2 * 512)
    # Values have half the features of keys, and zeros beside them.
    assert found == pytest.approx(sum(formula) + formula.attention / 3, rel=0.01)


def test_flops_training_six_per_weight() -> None:
    config = model.PUBLISHED["llama3.1-405b"]
    shapes = model.shapes(config)
    weights = sum(math.prod(leaf.shape) for leaf in xf.tree.leaves(shapes))
    weights -= math.prod(shapes["embed"].shape)
    assert flops.per_token(config, 0) == pytest.approx(6 * weights, rel=1e-4)  # it has norms, too
    tied = model.PUBLISHED["llama3.2-1b"]
    assert flops.forward(tied, 0).head == 2 * 128256 * 2048


def test_flops_utilisation() -> None:
    config = model.PUBLISHED["llama3.1-8b"]
    speed = 918e12 * 4 / flops.per_token(config, 8192)
    given = {"chips": 8, "chip": "v6e"}
    assert flops.utilisation(config, 8192, tokens_per_second=speed, **given) == pytest.approx(0.5)
    given["chip"] = "abacus"
    assert flops.utilisation(config, 8192, tokens_per_second=speed, **given) is None


@pytest.mark.parametrize(("on_tpu", "size"), [(False, 512), (True, 256)])
def test_flops_share_of_padding_among_rows_of_experts(on_tpu: bool, size: int) -> None:
    """The last block of each expert is half empty, on average over loads of any remainder."""
    config, block = model.PUBLISHED["qwen3-30b-a3b"], plan.Plan(block=512, on_tpu=on_tpu)
    assert config.experts is not None
    loads = torch.arange(1024, 1024 + 512)  # of an expert
    blocks = -(-loads // size) * size
    tokens = int(loads.double().mean()) * config.experts.count // config.experts.active
    share = float((blocks - loads).sum() / blocks.sum())
    assert flops.padded(config, block, tokens) == pytest.approx(share, abs=2e-3)
