"""The products of a training step in 8 bits, in the inlined program."""

from typing import Any

import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.model.plan import Plan
from examples.llama.tools.hlo_text import products
from xfunc.hlo.flat import inline_calls

TINY = model.TINY["tiny"]


def recipe_of(precision: str, **settings: Any) -> train.Recipe:
    return train.Recipe(TINY, 40, precision=precision, warmup=5, peak_lr=3e-3, **settings)


def test_float8_train_step_products() -> None:
    recipe = recipe_of("float8", plan=Plan(policy="everything"))
    state = xf.eval_shape(lambda: train.init(recipe))
    tokens: Any = xf.ShapeDtypeStruct((4, 32), torch.int64)
    batch = model.Batch(tokens, tokens)
    module = inline_calls(train.train_step.lower(state, batch, recipe=recipe).module)
    dots = [i for c in module.computations for i in c.instructions if i.opcode == "dot"]
    kinds = [{o.shape.dtype for o in i.operands} for i in dots]
    kinds = [k for k in kinds if k <= {torch.float8_e5m2, torch.float8_e4m3fn}]
    pairs = [len(k) == 2 for k in kinds]
    assert (len(pairs), sum(pairs)) == (7 * 3, 7 * 2)  # forward, and two gradients
    counted = products(COMPILED)
    assert counted == {"bf16, bf16": 1, "f8e5m2, f8e4m3fn": 12}


COMPILED = """HloModule step

%fused (p.1: f8e5m2[8,4], q.1: f8e4m3fn[8,4]) -> f32[8,8] {
  %p.1 = f8e5m2[8,4]{1,0} parameter(0)
  %q.1 = f8e4m3fn[8,4]{1,0} parameter(1)
  ROOT %c.1 = f32[8,8]{1,0} convolution(%p.1, %q.1), dim_labels=bf_oi->bf
}

%body (t.2: (s32[], f8e5m2[8,4])) -> (s32[], f8e5m2[8,4]) {
  %t.2 = (s32[], f8e5m2[8,4]{1,0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%t.2), index=0
  %one.2 = s32[] constant(1)
  %next.2 = s32[] add(%i.2, %one.2)
  %x.2 = f8e5m2[8,4]{1,0} get-tuple-element(%t.2), index=1
  %y.2 = f8e4m3fn[8,4]{1,0} convert(%x.2)
  %f.2 = f32[8,8]{1,0} fusion(%x.2, %y.2), kind=kOutput, calls=%fused
  ROOT %r.2 = (s32[], f8e5m2[8,4]{1,0}) tuple(%next.2, %x.2)
}

%condition (t.3: (s32[], f8e5m2[8,4])) -> pred[] {
  %t.3 = (s32[], f8e5m2[8,4]{1,0}) parameter(0)
  %i.3 = s32[] get-tuple-element(%t.3), index=0
  %n.3 = s32[] constant(12)
  ROOT %less.3 = pred[] compare(%i.3, %n.3), direction=LT
}

ENTRY %main (a.4: bf16[4,4], b.4: f8e5m2[8,4]) -> bf16[4,4] {
  %a.4 = bf16[4,4]{1,0} parameter(0)
  %b.4 = f8e5m2[8,4]{1,0} parameter(1)
  %zero.4 = s32[] constant(0)
  %t.4 = (s32[], f8e5m2[8,4]{1,0}) tuple(%zero.4, %b.4)
  %w.4 = (s32[], f8e5m2[8,4]{1,0}) while(%t.4), condition=%condition, body=%body
  ROOT %d.4 = bf16[4,4]{1,0} dot(%a.4, %a.4), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
