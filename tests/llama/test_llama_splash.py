"""Splash attention: the kernel interpreted on the CPU, and compiled for a TPU."""

import functools
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama.model import kernels
from examples.llama.model.attention import Scores, dense
from examples.llama.parallel.sharding import Sharding
from xfunc.errors import CompileError, UnsupportedOpError

BATCH, HEADS, KV_HEADS, SEQ, DIM = 2, 4, 2, 256, 32
DOCUMENTS = torch.tensor([[1] * 100 + [2] * 130 + [0] * 26, [1] * 40 + [2] * 216])
WEIGHTS = torch.randn(BATCH, HEADS, SEQ, DIM, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PLATFORM", "cpu")


def qkv(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = HEADS, KV_HEADS, KV_HEADS
    return [torch.randn(BATCH, n, SEQ, DIM, generator=generator).to(dtype) for n in sizes]


def blocks_of_128(*inputs: Any) -> torch.Tensor:
    return kernels.splash_attention(*inputs, block=128)


def results(attention: Any, segments: Any, dtype: torch.dtype = torch.float32) -> Any:
    """What it returns, and gradients."""

    def weighted(qkv: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        out = attention(*qkv, segments)
        return (out.float() * WEIGHTS).sum(), out

    (_, out), grads = xf.value_and_grad(weighted, has_aux=True)(qkv(dtype))
    return xf.device_get([out, *grads])


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("segments", [None, DOCUMENTS], ids=["row", "documents"])
def test_splash_matches_dense_attention(segments: Any) -> None:
    got, want = (results(f, segments) for f in (blocks_of_128, dense))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_splash_with_window_and_cap() -> None:
    kind = Scores(scale=0.3, cap=2.0)
    see = functools.partial(kernels.splash_attention, block=128, window=50, scores=kind)
    want = results(functools.partial(dense, reach=50, scores=kind), DOCUMENTS)
    torch.testing.assert_close(results(see, DOCUMENTS), want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_splash_in_bfloat16() -> None:
    got = results(blocks_of_128, DOCUMENTS, torch.bfloat16)
    assert {t.dtype for t in got} == {torch.bfloat16}
    for a, b in zip(got, results(dense, DOCUMENTS), strict=True):
        assert (a - b).abs().max() < 0.02 * b.abs().max()


def layers(x: Any, segments: Any, policy: Any, attention: Any = blocks_of_128) -> torch.Tensor:
    """Three layers that do nothing but attend."""

    def layer(x: Any, scale: torch.Tensor) -> Any:
        q, k, v = x
        return (q + attention(q, k, v * scale, segments), k, v), None

    scales = torch.tensor([1.0, 0.5, 0.25], dtype=x[0].dtype)
    (q, _, _), _ = xf.scan(layer, x, scales, checkpoint_policy=policy)
    return (q * WEIGHTS.to(q.dtype)).sum()


FULL = xf.checkpoint_policies.nothing_saveable
NAMED = xf.checkpoint_policies.save_only_these_names("attention")


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("policy", [FULL, NAMED], ids=["full", "attention"])
def test_splash_in_scanned_layers(policy: Any) -> None:
    x = tuple(qkv())
    got = xf.device_get(xf.grad(lambda x: layers(x, DOCUMENTS, policy))(x))
    want = xf.device_get(xf.grad(lambda x: layers(x, DOCUMENTS, FULL, dense))(x))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "forwards"), [(FULL, 2), (NAMED, 1)], ids=["full", "attention"])
def test_splash_named_results_are_not_recomputed(policy: Any, forwards: int) -> None:
    x = tuple(xf.ShapeDtypeStruct(t.shape, torch.bfloat16) for t in qkv())
    lowered = xf.jit(xf.grad(lambda x: layers(x, None, policy))).lower(x)
    assert len(kernel_names(lowered)) == forwards + 2  # one for dq, one for dk and dv


def kernel_names(lowered: Any) -> list[str]:
    instructions = [i for c in lowered.module.computations for i in c.instructions]
    return [i.name for i in instructions if i.proto.custom_call_target == "tpu_custom_call"]


@pytest.mark.slow
def test_splash_compiles_for_tpu_with_sharded_heads_and_rows() -> None:
    sharding = Sharding.of({"fsdp": 2, "tensor": 2}, abstract=True)

    def weighted(q: Any, k: Any, v: Any, segments: Any) -> torch.Tensor:
        out = kernels.splash_attention(q, k, v, segments, block=128, sharding=sharding)
        return out.float().sum()

    q, k, v = (
        xf.ShapeDtypeStruct(t.shape, torch.bfloat16, sharding.on_mesh(sharding.heads))
        for t in qkv()
    )
    segments = xf.ShapeDtypeStruct((BATCH, SEQ), torch.int32, sharding.on_mesh(sharding.batch))
    lowered = xf.jit(xf.grad(weighted, argnums=(0, 1, 2))).lower(q, k, v, segments)
    compiled = lowered.compile(target="tpu:v6e:2x2")
    text = compiled.as_text()
    assert text is not None
    # Each chip has one row and two heads, and one of keys and values; nothing moves between chips.
    assert f"bf16[1,2,{SEQ},{DIM}]" in text
    assert f"bf16[1,1,{SEQ},{DIM}]" in text
    assert "all-" not in text


@pytest.mark.parametrize(("seq", "block"), [(192, 128), (100, 512), (256, 96), (640, 512)])
def test_splash_unsupported_sizes_raise(seq: int, block: int) -> None:
    q = torch.zeros(1, 1, seq, 64)
    message = (
        rf"a sequence of {seq} in blocks of {min(block, seq)}: .* or the attention 'blockwise'"
    )
    with pytest.raises(ValueError, match=message):
        xf.jit(lambda q: kernels.splash_attention(q, q, q, block=block))(q)


def test_splash_float64_raises() -> None:
    with pytest.raises(ValueError, match=r"splash attention has no float64: use .* 'blockwise'"):
        xf.jit(blocks_of_128)(*qkv(torch.float64), None)


@pytest.mark.slow
def test_splash_vmap_raises() -> None:
    q, k, v = qkv()
    with pytest.raises(UnsupportedOpError, match=r"splash_kernel:forward .* cannot be batched"):
        xf.vmap(lambda q: blocks_of_128(q, k, v, None))(q[None])


@pytest.mark.slow
def test_splash_on_cpu_raises() -> None:
    with pytest.raises(CompileError, match="tpu_custom_call"):
        xf.jit(blocks_of_128)(*qkv(), None)
