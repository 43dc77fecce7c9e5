"""cuDNN's attention: the calls that XLA gets are those that JAX itself makes."""

import functools
import json
import re
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import config, model, train
from examples.llama.model import kernels
from examples.llama.model.attention import Scores
from examples.llama.model.plan import Plan
from examples.llama.options import SettingError
from examples.llama.parallel.sharding import Sharding
from examples.llama.train.train_config import Recipe

BATCH, HEADS, KV_HEADS, SEQ, DIM = 2, 4, 2, 128, 64
TARGETS = ["__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"]


def qkv(dtype: torch.dtype = torch.bfloat16, dim: int = DIM) -> list[torch.Tensor]:
    return [torch.ones(BATCH, n, SEQ, dim, dtype=dtype) for n in (HEADS, KV_HEADS, KV_HEADS)]


def calls(module: Any) -> list[tuple[Any, ...]]:
    """Target, shapes, and settings of each custom call of an HLO module."""
    found = []
    for c in module.proto.computations:
        shapes = {i.id: i.shape for i in c.instructions}
        for i in c.instructions:
            if i.opcode == "custom-call" and "cudnn" in i.custom_call_target:
                sizes = [[*shapes[k].dimensions] for k in i.operand_ids]
                results = [([*s.dimensions], s.element_type) for s in i.shape.tuple_shapes]
                found.append((i.custom_call_target, sizes, results, settings(i.backend_config)))
    return sorted(found, key=lambda call: call[0])


def settings(config: bytes) -> Any:
    """Those that are not what protobuf takes for unset."""
    empty = (None, False, 0, 0.0, "0", "", [], {}, "PRIMITIVE_TYPE_INVALID", [False] * 4)

    def kept(x: Any) -> Any:
        if not isinstance(x, dict):
            return x
        return {k: made for k, v in x.items() if (made := kept(v)) not in empty}

    return kept(json.loads(config))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "scale", "dtype"), [(None, None, torch.bfloat16), (40, 0.25, torch.float16)]
)
def test_cudnn_attention_calls_match_jax(window: Any, scale: Any, dtype: torch.dtype) -> None:
    def ours(q: Any, k: Any, v: Any, ct: Any) -> Any:
        run = functools.partial(kernels.cudnn_attention, window=window, scores=Scores(scale))
        out, pull = xf.vjp(run, q, k, v)
        return out, *pull(ct)

    def theirs(*args: Any) -> Any:
        how = {"window": window or 0, "scale": scale or DIM**-0.5}
        return xf.call_jax("tests.llama.jax_attention:passes", *args, platform="cuda", **how)

    given = [*qkv(dtype), qkv(dtype)[0]]
    both: tuple[Any, ...] = ours, theirs
    got, want = (calls(xf.jit(f).lower(*given).module) for f in both)
    assert [call[0] for call in got] == TARGETS
    assert got == want


@pytest.mark.slow
def test_cudnn_train_step_has_one_call_per_pass() -> None:
    sizes = model.Config(256, 128, 256, layers=3, heads=4, kv_heads=2)
    recipe = Recipe(sizes, 10, Plan("everything", "cudnn"), "mixed", warmup=1)
    tokens: Any = xf.ShapeDtypeStruct((2, 128), torch.int32)
    weights = model.shapes(sizes, torch.float32)
    state = xf.eval_shape(lambda p: train.start(recipe, p), weights)
    lowered = train.train_step.lower(state, model.Batch(tokens, tokens), recipe=recipe)
    assert [call[0] for call in calls(lowered.module)] == TARGETS
    assert xf.export.deserialize(xf.export.serialize(lowered)).donated


@pytest.mark.slow
def test_cudnn_attention_sharded_over_rows_and_heads() -> None:
    where = Sharding.of({"data": 1, "fsdp": 2, "tensor": 4}, abstract=True)
    run = functools.partial(kernels.cudnn_attention, sharding=where)
    lowered = xf.jit(run).lower(*qkv())
    [(_, sizes, _, _)] = calls(lowered.module)
    assert sizes == [[1, 1, SEQ, DIM]] * 3  # each key's head twice, for four devices


@pytest.mark.parametrize(
    ("given", "named", "why"),
    [
        (qkv(torch.float32), {}, "torch.float32"),
        (qkv(dim=60), {}, "heads of 60 features (multiples of 8 up to 256)"),
        (qkv(), {"segments": torch.ones(BATCH, SEQ)}, "rows of several documents"),
        (qkv(), {"scores": Scores(cap=30.0)}, "scores with a cap"),
    ],
)
def test_cudnn_attention_unsupported_inputs_raise(given: Any, named: Any, why: str) -> None:
    said = f"cuDNN has no attention for {re.escape(why)}: use the attention 'blockwise'"
    with pytest.raises(ValueError, match=said):
        xf.jit(functools.partial(kernels.cudnn_attention, **named))(*given)


def test_cudnn_attention_on_cpu_is_refused() -> None:
    run = config.Run("out", Recipe(model.CONFIGS["tiny"], 10, Plan(attention="cudnn")))
    with pytest.raises(SettingError, match="is cudnn, a kernel for GPUs, and these devices are"):
        run.recipe(1)
