"""Plans that keep values in the host's memory, for TPUs that are not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc import checkpoint_policies as cp
from xfunc.core import ambient
from xfunc.core.ambient import Override
from xfunc.errors import OutOfMemoryError
from xfunc.hlo.estimate.cost import CHIPS
from xfunc.hlo.estimate.liveness import peak
from xfunc.hlo.passes.offload import without_offload
from xfunc.remat.offloaded import Offloaded
from xfunc.remat.symbolic_cut import SameCut
from xfunc.symbolic.plan import Plan
from xfunc.symbolic.plans import Plans
from xfunc.symbolic.shape_domain import Range, ShapeDomain

BF16, LAYERS, N = torch.bfloat16, 8, 1024
TPU = "tpu:v6e:1x1"
CARRIES = Offloaded(cp.nothing_saveable)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: Any) -> Any:
    """A cache of libtpu's results for the tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XFUNC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def layer(h: Any, w: Any) -> Any:
    return torch.tanh(torch.tanh(h @ w) @ w.T), None


def loss(ws: Any, x: Any) -> Any:
    return xf.scan(layer, x, ws)[0].float().sum()


def unrolled(ws: Any, x: Any) -> Any:
    for w in ws:
        x, _ = layer(x, w)
    return x.float().sum()


def struct(*shape: Any, dtype: Any = BF16) -> Any:
    return xf.ShapeDtypeStruct(shape, dtype)


WEIGHTS = struct(LAYERS, N, N)
EACH = [struct(N, N)] * LAYERS


def lowered(f: Any, policy: Any, ws: Any, rows: int) -> Any:
    """The gradient of a function under a policy."""
    with ambient.overridden(Override(policy, f is unrolled)):
        return xf.jit(xf.grad(f)).lower(ws, struct(rows, N))


# -- estimates ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rows", [32768, 65536, 131072])
def test_offload_scan_carries_peak_estimate(rows: int) -> None:
    found, state = lowered(loss, CARRIES, WEIGHTS, rows), 2 * rows * N
    estimate = peak(found.module).bytes
    assert peak(without_offload(found.module)).bytes - estimate == LAYERS * state
    memory = found.compile(TPU).memory_analysis()
    assert memory.host_temp_size_in_bytes == LAYERS * state
    assert estimate == pytest.approx(memory.peak_memory_in_bytes, rel=0.01)


@pytest.mark.slow
def test_offload_dots_peak_estimate() -> None:
    found, state = lowered(loss, Offloaded(cp.dots_saveable), WEIGHTS, 65536), 2 * 65536 * N
    memory = found.compile(TPU).memory_analysis()
    assert memory.host_temp_size_in_bytes == 3 * LAYERS * state
    # libtpu brings one value before the memory of another is free.
    assert memory.peak_memory_in_bytes == pytest.approx(peak(found.module).bytes, abs=1.01 * state)


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("policy", [CARRIES, Offloaded(cp.dots_saveable), Offloaded(SameCut(None))])
@pytest.mark.parametrize("f", [loss, unrolled])
def test_plan_offloaded_estimate_and_seconds_at_all_sizes(f: Any, policy: Any) -> None:
    ws = WEIGHTS if f is loss else EACH

    def trace(env: Any) -> Any:
        return xf.jit(xf.grad(f)).lower(ws, struct(env["S"], N)).module, ()

    def plan(box: ShapeDomain) -> Plan:
        return Plan("", Override(policy, f is unrolled), trace, box, "v6e")

    box = ShapeDomain({"S": Range(1, 4096)})
    whole = plan(box)
    assert whole.largest(box, {"S": 1}, "S", 10**15) == 4096
    assert whole.why_one_by_one is None
    for s in (1, 7, 513, 4000):
        alone = plan(ShapeDomain({}))
        env = {"S": s}
        assert whole.estimate(env) == alone.estimate(env)
        assert whole.seconds(env) == pytest.approx(alone.seconds(env), rel=1e-9)


def test_plan_seconds_count_host_link() -> None:
    rows, chip = 4096, CHIPS["v6e"]

    def seconds(policy: Any) -> float:
        def trace(_: Any) -> Any:
            return lowered(loss, policy, WEIGHTS, rows).module, ()

        return Plan("", Override(policy), trace, ShapeDomain({}), "v6e").seconds({})

    both_ways = 2 * LAYERS * 2 * rows * N
    extra = seconds(CARRIES) - seconds(cp.nothing_saveable)
    # Sending and bringing are also copies in the device's memory.
    assert extra == pytest.approx(both_ways / chip.host + 2 * both_ways / chip.bytes, rel=1e-6)


# -- the choice -----------------------------------------------------------------------------------


def limited(limit: int) -> Any:
    return xf.jit(xf.grad(loss), memory_limit=limit)


@pytest.mark.slow
def test_memory_limit_offloads_when_nothing_else_fits() -> None:
    args = WEIGHTS, struct(65536, N)
    with pytest.raises(OutOfMemoryError, match=r"loss\) on v6e:1x1 fits no .*offloaded") as caught:
        limited(10**8).lower(*args).compile(TPU)
    needed = caught.value.required_bytes
    assert needed is not None
    on_device = xf.jit(xf.grad(loss))
    with ambient.overridden(Override(cp.nothing_saveable)):
        least = on_device.lower(*args).compile(TPU).memory_analysis().peak_memory_in_bytes
    assert least is not None
    assert least > 1.5 * needed
    tight = limited(needed)
    memory = tight.lower(*args).compile(TPU).memory_analysis()
    assert memory.peak_memory_in_bytes <= needed
    assert memory.host_temp_size_in_bytes > 0
    assert "memory_limit of grad(loss) on v6e:1x1" in tight.explain()
    assert ", offloaded" in tight.explain().splitlines()[-1]
    wide = limited(3 * least)
    assert wide.lower(*args).compile(TPU).memory_analysis().host_temp_size_in_bytes == 0
    assert "chosen: everything" in wide.explain()


@pytest.mark.slow
def test_memory_limit_offloads_in_long_bucket_only() -> None:
    S = xf.Dim("S", max=65536)
    shapes, limit = (None, (S, None)), 10**9
    step = xf.jit(xf.grad(loss), dynamic_shapes=shapes, buckets=[8192, 65536], memory_limit=limit)
    compiled: Any = step.lower(WEIGHTS, struct(S, N)).compile(TPU)
    short, long = (compiled.at(S=s).memory_analysis() for s in (8192, 65536))
    assert short.host_temp_size_in_bytes == 0
    assert long.host_temp_size_in_bytes > 0
    assert long.peak_memory_in_bytes <= limit
    assert "S=65536: " in step.explain()


def test_memory_limit_on_cpu_plans_no_offload() -> None:
    torch.manual_seed(0)
    ws, x = torch.randn(6, 16, 16) / 4, torch.randn(64, 16)
    step = limited(10**8)
    expected = torch.func.grad(unrolled)(ws, x)
    torch.testing.assert_close(step(ws, x).cpu(), expected, rtol=2e-5, atol=2e-5)
    assert "no plan offloads values: the host's memory is the device's" in step.explain()
    assert ", offloaded" not in step.explain()

    def plan(chip: str) -> Plan:
        def trace(_: Any) -> Any:
            return xf.jit(xf.grad(loss)).lower(ws, x).module, ()

        return Plan("", Override(CARRIES), trace, ShapeDomain({}), chip)

    assert plan("cpu").estimate({}) - plan("v6e").estimate({}) == 6 * x.nbytes


@pytest.mark.parametrize("policy", [cp.dots_saveable, SameCut(0.5), cp.nothing_saveable])
@pytest.mark.parametrize("f", [loss, unrolled])
def test_offload_gradients_equal(f: Any, policy: Any) -> None:
    torch.manual_seed(0)
    ws, x = torch.randn(6, 16, 16) / 4, torch.randn(64, 16)
    with ambient.overridden(Override(Offloaded(policy), f is unrolled)):
        found = xf.jit(xf.grad(f, argnums=(0, 1)))
        is_away = 'placement="pinned_host"' in found.lower(ws, x).as_text()
        # Without a scan, only the arguments are left.
        assert is_away == (f is loss or policy is not cp.nothing_saveable)
        got = found(ws, x)
    expected = torch.func.grad(unrolled, argnums=(0, 1))(ws, x)
    torch.testing.assert_close([g.cpu() for g in got], list(expected), rtol=2e-5, atol=2e-5)


def test_plans_try_offloading_last() -> None:
    box = ShapeDomain({"S": Range(1, 65536)})

    def trace(env: Any) -> Any:
        return xf.jit(xf.grad(loss)).lower(WEIGHTS, struct(env["S"], N)).module, ()

    env = {"S": 65536}
    plans = Plans("f", trace, box, 10**10, "v6e")
    assert plans.choose(env).name == "everything"
    assert [p.name for p in plans.plans] == ["everything"]
    plans.limit = 1
    with pytest.raises(OutOfMemoryError, match=", offloaded'"):
        plans.choose(env)
    away = [", offloaded" in p.name for p in plans.plans]
    assert away == sorted(away)
    least = min(p.peak(env) for p, is_away in zip(plans.plans, away, strict=True) if not is_away)
    plans.limit = least - 1
    chosen = plans.choose(env)
    assert ", offloaded" in chosen.name
    fitting = [p for p in plans.plans if p.peak(env) < least]
    assert chosen.seconds(env) == min(p.seconds(env) for p in fitting)
    on_cpu = Plans("f", trace, box, 1, "cpu")
    with pytest.raises(OutOfMemoryError, match="fits no memory_limit of 1 bytes"):
        on_cpu.choose(env)
    assert not any(", offloaded" in p.name for p in on_cpu.plans)


def test_offload_with_dynamic_shapes() -> None:
    torch.manual_seed(0)
    ws, S = torch.randn(6, 16, 16) / 4, xf.Dim("S", max=64)
    with ambient.overridden(Override(Offloaded(cp.dots_saveable))):
        found = xf.jit(xf.grad(loss), dynamic_shapes=(None, (S, None)), buckets=[64])
        before = found.cache_info().compiles
        for rows in (3, 40, 64):
            x = torch.randn(rows, 16)
            got, expected = found(ws, x), torch.func.grad(unrolled)(ws, x)
            torch.testing.assert_close(got.cpu(), expected, rtol=2e-5, atol=2e-5)
    assert found.cache_info().compiles == before + 1
