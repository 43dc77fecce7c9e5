"""Functions lowered and compiled for a range of shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.errors import (
    CompileError,
    OutOfMemoryError,
    ShapeError,
    TreeMismatchError,
    UnsupportedOpError,
)
from xfunc.stages import Compiled, Lowered

S = xf.Dim("S", max=64)
W = torch.linspace(-1, 1, 12).reshape(4, 3)


def struct(*shape: Any) -> Any:
    return xf.ShapeDtypeStruct(shape, torch.float32)


def f(x: Any, w: Any) -> Any:
    return {"p": torch.softmax(x @ w, 0), "d": x[1:] - x[:-1]}


@pytest.fixture(scope="module")
def lowered() -> Any:
    jitted = xf.jit(f, dynamic_shapes=((S, None), None), buckets=[16, 64])
    return jitted.lower(struct(S, 4), struct(4, 3))


@pytest.fixture(scope="module")
def compiled(lowered: Any) -> Any:
    return lowered.compile()


def test_lowered_range_has_attributes_of_one_shape(lowered: Any, compiled: Any) -> None:
    def public(kind: type) -> set[str]:
        fields = getattr(kind, "__dataclass_fields__", {})
        return {n for n in (*dir(kind), *fields) if not n.startswith("_")}

    assert public(Lowered) - public(type(lowered)) == {"traced"}
    assert public(Compiled) - public(type(compiled)) == {"program"}


def test_compiled_range_equals_exact_shape(compiled: Any) -> None:
    for n in (1, 2, 15, 16, 17, 64):
        x = torch.randn(n, 4)
        got = compiled(x, W)
        torch.testing.assert_close(got["p"].cpu(), torch.softmax(x @ W, 0))
        torch.testing.assert_close(got["d"].cpu(), x[1:] - x[:-1])


def test_lowered_range_costs_and_memory_of_bucket(lowered: Any, compiled: Any) -> None:
    for s, top in ((1, 16), (16, 16), (17, 64), (64, 64)):
        alone = xf.jit(f).lower(struct(top, 4), struct(4, 3))
        extra = 64 * top  # masks
        own = lowered.at(S=s).cost_analysis()
        assert 0 <= own["flops"] - alone.cost_analysis()["flops"] <= extra
        sizes = compiled.at(S=s).memory_analysis()
        assert sizes.argument_size_in_bytes == 4 * (4 * top + 12) + 8  # and the size
        assert sizes.output_size_in_bytes >= 4 * (3 * top + 4 * (top - 1))
    assert (
        lowered.cost_analysis() == lowered.at().cost_analysis() == lowered.at(S=64).cost_analysis()
    )
    assert compiled.memory_analysis() == compiled.at(S=64).memory_analysis()
    assert compiled.cost_analysis() == compiled.at().cost_analysis()
    assert "f32[S-1,4]" in lowered.as_text()
    assert "tensor<64x4xf32>" in lowered.as_text("stablehlo")
    assert "f32[64,4]" in str(lowered.module)
    assert "f32[64,4]" in compiled.as_text()
    assert compiled.topology is None
    assert compiled.largest_buffers() is None
    loaded = xf.export.deserialize(compiled.serialize())
    x = torch.randn(9, 4)
    torch.testing.assert_close(loaded(x, W)["p"].cpu(), torch.softmax(x @ W, 0))


X = torch.ones(5, 4)
ERRORS: dict[str, tuple[Any, type[Exception], str]] = {
    "too large": (lambda lo, co: lo.at(S=65), ShapeError, "no program at S=65"),
    "too small": (lambda lo, co: co.at(S=0), ShapeError, r"(?s)at S=0.*its sizes are 1 to 64"),
    "no Dim": (lambda lo, co: lo.at(Q=3), ValueError, r"(?s)at Q=3.*number for some of S"),
    "no number": (lambda lo, co: lo.at(S=True), ValueError, "at S=True"),
    "dialect": (lambda lo, co: lo.as_text("mlir"), ValueError, "unknown dialect 'mlir'"),
    "beyond": (lambda lo, co: co(torch.ones(65, 4), W), ShapeError, "S is at most 64"),
    "empty": (lambda lo, co: co(torch.ones(0, 4), W), ShapeError, "it is empty"),
    "another constant": (lambda lo, co: co(torch.ones(5, 3), W), ShapeError, "3 where 4"),
    "a fixed argument": (lambda lo, co: co(X, W[:, :2]), TreeMismatchError, r"float32\[4,3\]"),
    "dtype": (lambda lo, co: co(X.double(), W), TreeMismatchError, r"float32\[S,4\]"),
    "one argument": (lambda lo, co: co(X), TreeMismatchError, "compiled for other arguments"),
    "a bucket": (lambda lo, co: co.at(S=5)(X, W), ValueError, "the program of a bucket of f"),
    "gradient": (lambda lo, co: xf.grad(lambda x: co(x, W)["p"].sum())(X), UnsupportedOpError,
                 "cannot be traced, differentiated or batched"),
    "autograd": (lambda lo, co: co(X.clone().requires_grad_(), W), UnsupportedOpError, "detach"),
    "vmap": (lambda lo, co: xf.vmap(co)(X[None], W[None]), UnsupportedOpError, "batched"),
    "trace": (lambda lo, co: xf.jit(co)(X, W), UnsupportedOpError, "cannot be traced"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_lowered_range_errors_then_next_call_works(name: str, lowered: Any, compiled: Any) -> None:
    call, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text) as caught:
        call(lowered, compiled)
    assert "Hint: " in str(caught.value)
    torch.testing.assert_close(compiled(X, W)["p"].cpu(), torch.softmax(X @ W, 0))


def test_compiled_range_two_dims_static_and_captured() -> None:
    B, held = xf.Dim("B", max=4), torch.arange(3.0)

    def g(k: int, batch: Any, *, shift: Any) -> Any:
        return k * batch["x"].mean(1) + shift, (batch["y"] + held).sum()

    jitted = xf.jit(
        g, static_argnums=0, dynamic_shapes=(None, {"x": (B, S), "y": (S, None)}),
        buckets={"B": [1, 4], "S": [8, 64]},
    )  # fmt: skip
    lowered: Any = jitted.lower(3, {"x": struct(B, S), "y": struct(S, 3)}, shift=struct())
    compiled = lowered.compile()
    for b, s in ((1, 8), (3, 5), (4, 33)):
        x, y = torch.randn(b, s), torch.randn(s, 3)
        got = compiled({"x": x, "y": y}, shift=torch.tensor(0.5))
        torch.testing.assert_close(got[0].cpu(), 3 * x.mean(1) + 0.5)
        torch.testing.assert_close(got[1].cpu(), (y + held).sum())
    assert "[4,64]" in str(lowered.at(S=9).module)  # B has its largest size


def test_compiled_range_for_tpu() -> None:
    lowered: Any = xf.jit(f, dynamic_shapes=((S, None), None), buckets=[64]).lower(
        struct(S, 4), struct(4, 3)
    )
    compiled = lowered.compile("tpu:v6e:1x1")
    assert compiled.topology.devices == 1
    assert compiled.memory_analysis().peak_memory_in_bytes > 0
    assert compiled.at(S=3).serialize()
    with pytest.raises(ValueError, match=r"(?s)has 1 programs for .*at\(\.\.\.\)\.serialize"):
        compiled.serialize()
    with pytest.raises(CompileError, match="and cannot run here"):
        compiled(X, W)


# -- under a limit --------------------------------------------------------------------------------


def layer(h: Any, w: Any) -> Any:
    return torch.tanh(torch.tanh(h @ w) @ w.T) * h.sin(), None


def loss(ws: Any, x: Any) -> Any:
    return xf.scan(layer, x, ws)[0].sum()


def expected(ws: Any, x: Any) -> Any:
    def unrolled(ws: Any) -> Any:
        h = x
        for w in ws:
            h = layer(h, w)[0]
        return h.sum()

    return torch.func.grad(unrolled)(ws)


def limited(bytes: int) -> Any:
    shapes = (None, (None, S, None))
    jitted = xf.jit(xf.grad(loss), dynamic_shapes=shapes, buckets=[16, 64], memory_limit=bytes)
    return jitted.lower(struct(6, 16, 16), struct(8, S, 16))


@pytest.mark.slow
def test_memory_limit_holds_in_each_bucket_and_file() -> None:
    ws, limit = torch.randn(6, 16, 16) / 4, 700_000
    lowered, free = limited(limit), limited(10**8)
    compiled = lowered.compile()
    for s in (16, 64):
        assert compiled.at(S=s).memory_analysis().peak_memory_in_bytes <= limit
    assert free.compile().memory_analysis().peak_memory_in_bytes > limit
    # The short one computes nothing again.
    assert lowered.at(S=16).cost_analysis() == free.at(S=16).cost_analysis()
    assert lowered.cost_analysis()["flops"] > free.cost_analysis()["flops"]
    assert "f32[6,16,16]" in free.as_text()
    with pytest.raises(ShapeError, match="memory_limit makes buckets keep other values"):
        lowered.as_text()
    loaded = xf.export.deserialize(xf.export.serialize(lowered))
    for n in (7, 50):
        x = torch.randn(8, n, 16)
        for run in (compiled, loaded):
            want = expected(ws, x)
            torch.testing.assert_close(run(ws, x).cpu(), want, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_memory_limit_too_small_for_bucket_raises() -> None:
    with pytest.raises(OutOfMemoryError, match=r"at S=16 fits no memory_limit of 5000 bytes"):
        limited(5000).compile()
    with pytest.raises(OutOfMemoryError, match=r"(?s)at S=64 fits no .*or S of at most") as caught:
        limited(400_000).compile()
    needed = caught.value.required_bytes
    assert needed is not None
    assert limited(needed).compile().memory_analysis().peak_memory_in_bytes <= needed


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize(
    ("limit", "most"),
    [(10**8, 8), (700_000, 21), (1000, 20)],  # fits; long batches recompute; nothing fits
)
def test_memory_limit_planning_takes_few_traces(limit: int, most: int) -> None:
    shapes = (None, (None, S, None))
    step = xf.jit(xf.grad(loss), dynamic_shapes=shapes, buckets=[16, 64], memory_limit=limit)
    step.clear_cache()  # Functions of one skeleton share theirs.
    ws = torch.randn(6, 16, 16) / 4
    if limit == 1000:
        with pytest.raises(OutOfMemoryError, match="fits no memory_limit of 1000 bytes"):
            step(ws, torch.randn(8, 5, 16))
    else:
        for n in (5, 50):
            x = torch.randn(8, n, 16)
            torch.testing.assert_close(step(ws, x).cpu(), expected(ws, x), rtol=2e-5, atol=2e-5)
        before = step.cache_info().traces
        for n in (9, 40):
            step(ws, torch.randn(8, n, 16))
        assert step.cache_info().traces == before
        assert step.cache_info().compiles == 2  # one for each bucket
    assert step.cache_info().traces <= most
