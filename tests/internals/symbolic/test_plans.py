"""Plans under a limit of memory: the choice among them, refusals, and equal results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.errors import OutOfMemoryError
from xfunc.hlo.estimate.liveness import peak
from xfunc.symbolic.plans import Plans, candidates, offloading
from xfunc.symbolic.shape_domain import Range, ShapeDomain

BOX = ShapeDomain({"B": Range(1, 16), "S": Range(2, 512)})
WEIGHTS: Any = xf.ShapeDtypeStruct((6, 16, 16), torch.float32)


def layer(h: Any, w: Any) -> Any:
    return torch.tanh(torch.tanh(h @ w) @ w.T) * h.sin(), None


def loss(ws: Any, x: Any) -> Any:
    return xf.scan(layer, x, ws)[0].sum()


def unrolled(ws: Any, x: Any) -> Any:
    for w in ws:
        x = layer(x, w)[0]
    return x.sum()


def rows(b: int, s: int) -> Any:
    return xf.ShapeDtypeStruct((b, s, 16), torch.float32)


def plans(f: Any, limit: int, box: ShapeDomain = BOX) -> Plans:
    def trace(env: Any) -> Any:
        return xf.jit(xf.grad(f)).lower(WEIGHTS, rows(env["B"], env["S"])).module, ()

    return Plans("f", trace, box, limit)


@pytest.mark.slow
@pytest.mark.parametrize(("f", "limit"), [(loss, 4_000_000), (unrolled, 6_000_000)])
def test_plans_keep_less_at_larger_sizes(f: Any, limit: int) -> None:
    found = plans(f, limit)
    chosen = [found.choose({"B": 16, "S": s}) for s in (8, 64, 128, 256)]
    assert chosen[0].name == ("everything" if f is loss else "as written")
    assert chosen[0] is not chosen[-1]
    for plan, s in zip(chosen, (8, 64, 128, 256), strict=True):
        env = {"B": 16, "S": s}
        assert plan.peak(env) <= limit
        others = [p for p in found.plans if p.peak(env) <= limit]
        # Some were only looked at for the larger sizes.
        assert plan.seconds(env) <= 1.1 * min(p.seconds(env) for p in others)
        end = plan.largest(BOX, env, "S", limit)
        assert end is not None
        assert plan.peak({"B": 16, "S": end}) <= limit
        assert end == 512 or plan.peak({"B": 16, "S": end + 1}) > limit


@pytest.mark.slow
def test_plans_required_bytes_suffice() -> None:
    env = {"B": 16, "S": 512}
    found = plans(loss, 1_000_000)
    with pytest.raises(OutOfMemoryError, match="f at B=16, S=512 fits no memory_limit") as caught:
        found.choose(env)
    needed = caught.value.required_bytes
    assert needed is not None
    found.limit = needed - 1
    with pytest.raises(OutOfMemoryError, match=f"give memory_limit={needed} or more, or B of at"):
        found.choose(env)
    found.limit = needed
    assert found.choose(env).peak(env) == needed
    # All have been looked at. Each is one cut at all sizes, so its peak is known at all of them.
    assert len(found.plans) > 2
    for plan in found.plans:
        assert plan.why_one_by_one is None
        module, donated = plan.traced({"B": 3, "S": 100})
        assert plan.peak({"B": 3, "S": 100}) == peak(module, donated).bytes
    assert "everything" in found.explain()
    assert {p.name for p in found.plans} <= candidates().keys() | offloading().keys()


def test_plans_of_function_that_differs_by_size() -> None:
    def odd(ws: Any, x: Any) -> Any:
        return loss(ws, x if x.shape[1] % 2 else x.cos())

    found = plans(odd, 10**9)
    env = {"B": 4, "S": 9}
    plan = found.choose(env)
    module, donated = plan.traced(env)
    assert plan.peak(env) == peak(module, donated).bytes
    assert "size by size: another program for other sizes" in found.explain(env)


def test_jit_memory_limit_holds() -> None:
    torch.manual_seed(0)
    ws, x = torch.randn(6, 16, 16) / 4, torch.randn(8, 64, 16)
    expected = torch.func.grad(unrolled)(ws, x)
    free = xf.jit(xf.grad(loss)).lower(ws, x)
    most = free.compile().memory_analysis().peak_memory_in_bytes
    assert most is not None
    tight = xf.jit(xf.grad(loss), memory_limit=most - 200_000)
    for _ in range(2):
        torch.testing.assert_close(tight(ws, x).cpu(), expected, rtol=2e-5, atol=2e-5)
    held = tight.lower(ws, x).compile().memory_analysis().peak_memory_in_bytes
    assert held is not None
    assert held <= most - 200_000
    assert "memory_limit of" in tight.explain()
    before = tight.cache_info()
    tight(ws, x)
    assert tight.cache_info().traces == before.traces
    wide = xf.jit(xf.grad(loss), memory_limit=2 * most)
    torch.testing.assert_close(wide(ws, x).cpu(), expected, rtol=2e-5, atol=2e-5)
    assert wide.lower(ws, x).cost_analysis() == free.cost_analysis()


@pytest.mark.slow
def test_memory_limit_of_function_without_checkpoints() -> None:
    ws, x = torch.randn(6, 16, 16) / 4, torch.randn(8, 64, 16)
    found = plans(unrolled, 1)
    with pytest.raises(OutOfMemoryError, match="fits no memory_limit of 1 bytes"):
        found.choose({"B": 8, "S": 64})
    peaks = [p.peak({"B": 8, "S": 64}) for p in found.plans]
    assert min(peaks) < 0.85 * peaks[0]

    def both(ws: Any, x: Any) -> Any:
        return xf.value_and_grad(lambda ws: (unrolled(ws, x), {"x": x, "n": 3}), has_aux=True)(ws)

    limit = xf.jit(both).lower(ws, x).compile().memory_analysis().peak_memory_in_bytes
    (value, aux), gradient = xf.jit(both, memory_limit=limit)(ws, x)
    torch.testing.assert_close(value.cpu(), unrolled(ws, x))
    torch.testing.assert_close(gradient.cpu(), torch.func.grad(unrolled)(ws, x))
    torch.testing.assert_close(aux["x"].cpu(), x)


@pytest.mark.slow
def test_memory_limit_too_small_raises() -> None:
    ws, x = torch.randn(6, 16, 16) / 4, torch.randn(8, 64, 16)
    tight = xf.jit(xf.grad(loss), memory_limit=1000)
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match=r"(?s)loss.*Hint: give memory_limit="):
            tight(ws, x)
    with pytest.raises(OutOfMemoryError, match="give memory_limit=") as caught:
        tight.lower(ws, x).compile()
    assert caught.value.required_bytes is not None
    enough = xf.jit(xf.grad(loss), memory_limit=caught.value.required_bytes)
    torch.testing.assert_close(
        enough(ws, x).cpu(), torch.func.grad(unrolled)(ws, x), rtol=2e-5, atol=2e-5
    )


@pytest.mark.slow
def test_memory_limit_recomputes_in_long_bucket_only() -> None:
    torch.manual_seed(0)
    ws = torch.randn(6, 16, 16) / 4
    length = xf.Dim("S", max=64)
    shapes = (None, (None, length, None))
    limit = 700_000
    f = xf.jit(xf.grad(loss), dynamic_shapes=shapes, buckets=[16, 64], memory_limit=limit)
    for s in (5, 16, 60, 64, 9, 50):
        x = torch.randn(8, s, 16)
        torch.testing.assert_close(
            f(ws, x).cpu(), torch.func.grad(unrolled)(ws, x), rtol=2e-5, atol=2e-5
        )
    before = f.cache_info()
    f(ws, torch.randn(8, 31, 16))
    after = f.cache_info()
    assert (after.traces, after.compiles) == (before.traces, before.compiles)
    text = f.explain()
    assert "S=16: everything" in text
    assert "S=64: everything" not in text
    assert "one program" in text
    with pytest.raises(OutOfMemoryError, match=r"S=9 fits no memory_limit of 5000 bytes"):
        xf.jit(xf.grad(loss), dynamic_shapes=shapes, buckets=[16, 64], memory_limit=5000)(
            ws, torch.randn(8, 9, 16)
        )


@pytest.mark.parametrize("limit", [0, -1, 1.5, "14 GiB", True])
def test_memory_limit_invalid_raises(limit: Any) -> None:
    with pytest.raises(ValueError, match="memory_limit="):
        xf.jit(loss, memory_limit=limit)
