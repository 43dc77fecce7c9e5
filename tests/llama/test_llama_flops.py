"""What a step of the Llama example computes, by formulas, and what its collectives move."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.model import flops, plan
from examples.llama.tools import collectives, planner
from examples.llama.tools.collectives import Traffic

# Formulas


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


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize(
    ("policy", "loss_chunk"), [*((name, 128) for name in plan.POLICIES), ("full", 1024)]
)
def test_flops_training_matches_program(policy: str, loss_chunk: int) -> None:
    one_block = plan.Plan(policy=policy, block=512, loss_chunk=loss_chunk)

    def loss(params: Any, tokens: Any) -> Any:
        return model.loss(params, model.Batch(tokens, tokens), CONFIG, one_block)

    found = counted(xf.value_and_grad(loss), CONFIG, 2, 512)
    assert found == pytest.approx(flops.executed_per_token(CONFIG, 2 * 512, one_block), rel=0.01)


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
    given["chip"] = "cpu"
    assert flops.utilisation(config, 8192, tokens_per_second=speed, **given) is None


def test_flops_and_planner_know_every_policy() -> None:
    assert set(flops.RECOMPUTED) == set(planner.FROM_SMALL) == set(plan.POLICIES)


# Collectives

HLO = """HloModule main

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %s = f32[] add(%a, %b)
}

%start.1 (p: bf16[4,8]) -> (bf16[4,8], bf16[16,8]) {
  %g.1 = bf16[16,8]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), channel_id=1, replica_groups=[2,4]<=[8]
}

%carry_on.1 (p: bf16[4,8]) -> (bf16[4,8], bf16[16,8]) {
  %g.2 = bf16[16,8]{1,0:T(8,128)} all-gather(%p), channel_id=1, replica_groups=[2,4]<=[8]
}

%all-reduce-scatter.3 (p: f32[64]) -> f32[32] {
  %r.1 = f32[64]{0:T(256)} all-reduce(%p), channel_id=2, replica_groups={{0,1},{2,3}}, to_apply=%add
}

%unused (p: f32[64]) -> f32[64] {
  %r.2 = f32[64]{0} all-reduce(%p), channel_id=3, replica_groups={{0,1}}, to_apply=%add
}

%inner_condition (p: (f32[8], u32[])) -> pred[] {
  %i = u32[]{:T(128)} get-tuple-element((f32[8]{0}, u32[]) %p), index=1
  %c = u32[]{:T(128)} constant(9)
  ROOT %l = pred[]{:T(512)} compare(u32[]{:T(128)} %i, u32[]{:T(128)} %c), direction=LT
}

%inner_body (p: (f32[8], u32[])) -> (f32[8], u32[]) {
  %m = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%q), channel_id=4
  %i.1 = u32[]{:T(128)} get-tuple-element((f32[8]{0}, u32[]) %p), index=1
  %two = u32[]{:T(128)} constant(2)
  %n = u32[]{:T(128)} add(u32[]{:T(128)} %i.1, u32[]{:T(128)} %two)
  ROOT %o = (f32[8]{0}, /*index=1*/u32[]{:T(128)}) tuple(f32[8]{0} %q, u32[]{:T(128)} %n)
}

%counts_in_another_way (p: (s32[])) -> pred[] {
  ROOT %o.1 = pred[] fusion(%p), kind=kLoop, calls=%add
}

%condition (p: (s32[])) -> pred[] {
  %c.1 = s32[] constant(4), metadata={op_name="x"}
  %i.2 = s32[] get-tuple-element(%p), index=0
  ROOT %l.1 = pred[] compare(%i.2, %c.1), direction=LT, metadata={op_name="%x"}
}

%body (p: (s32[])) -> (s32[]) {
  %a.1 = (bf16[4,8]{1,0}, bf16[16,8]{1,0}) fusion(%p), kind=kCustom, calls=%start.1
  %a.2 = (bf16[4,8]{1,0}, bf16[16,8]{1,0}) fusion(%a.1), kind=kCustom, calls=%carry_on.1, x={1}
  %zero = u32[]{:T(128)} constant(0)
  %zero.1 = u32[]{:T(128)} copy(u32[]{:T(128)} %zero)
  %start = (f32[8]{0}, u32[]{:T(128)}) tuple(f32[8]{0} %q, u32[]{:T(128)} %zero.1)
  %w.1 = (f32[8]{0}, u32[]{:T(128)}) while((f32[8]{0}, u32[]{:T(128)}) %start), \
condition=%inner_condition, body=%inner_body, metadata={op_name="y"}
  %i.3 = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %n.1 = s32[] add(%i.3, %one)
  ROOT %o.2 = (s32[]) tuple(%n.1)
}

%yes (p: f32[8]) -> f32[8] {
  %t = f32[8]{0} all-to-all(%p), channel_id=9, replica_groups={{0,1,2,3}}, dimensions={0}
}

ENTRY %main (p: f32[64]) -> f32[32] {
  %one.1 = s32[] constant(1)
  %start.2 = (s32[]) tuple(%one.1)
  %w.2 = (s32[]) while(%start.2), condition=%condition, body=%body
  %w.3 = (s32[]) while(%start.2), condition=%counts_in_another_way, body=%yes
  %m.1 = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%q), channel_id=4
  %f = f32[32]{0} fusion(%w.2), kind=kLoop, calls=%all-reduce-scatter.3
  %k = f32[8]{0} conditional(%i, %p, %p), branch_computations={%yes, %unused.2}
  %g = (f32[8]{0}, f32[16]{0}) all-gather-start(%p), channel_id=5, replica_groups=[4,2]<=[8]
  %s = f32[16]{0} reduce-scatter(%p), channel_id=6, replica_groups=[4,2]<=[8], to_apply=%add
  %r = (f32[8]{0}, pred[8]{0}) all-reduce(%p, %p), channel_id=7, replica_groups=[1,8]<=[8]
}
"""


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,2},{1,3}}", 2),
        ("[64,4]<=[256]", 4),
        ("mesh['axis_0'=1,'axis_1'=8,'axis_2'=1] {'axis_1'}", 8),
        ("mesh['a'=4,'b'=8]{'a','b':(2)4}, device_ids=([32])", 16),
    ],
)
def test_traffic_knows_every_form_of_groups(groups: str, size: int) -> None:
    line = f"  %g = f32[64]{{0}} all-gather(%p), channel_id=5, replica_groups={groups}"
    text = f"ENTRY %main (p: f32[8]) -> f32[64] {{\n{line}\n}}\n"
    assert collectives.traffic(text) == {"all-gather": Traffic(1, 64 * 4 * (size - 1) / size)}


def test_traffic_counts_bytes_received_by_each_chip() -> None:
    assert collectives.traffic(HLO) == {
        "all-gather": Traffic(3 + 1, 3 * (16 * 8 * 2) * 3 / 4 + 16 * 4 / 2),
        "reduce-scatter": Traffic(1 + 1, 64 * 4 / 2 + 16 * 4),
        "all-reduce": Traffic(1, 2 * (8 * 4 + 8) * 7 / 8),
        "all-to-all": Traffic(1, 8 * 4 * 3 / 4),  # not that in a branch
        "collective-permute": Traffic(3 * 5 + 1, (3 * 5 + 1) * 8 * 4),
    }
