"""One order of the steps for all sizes: next to exhaustive search, and to orders of one size."""

from __future__ import annotations

import heapq
import itertools
import random
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.core import ambient
from xfunc.core.ambient import Override
from xfunc.errors import OutOfMemoryError
from xfunc.hlo.estimate import liveness
from xfunc.hlo.estimate.buffers import Buffer, Flow, Step
from xfunc.hlo.estimate.liveness import peak
from xfunc.hlo.estimate.occupancy import Task, held
from xfunc.symbolic.peak_bound import prepared
from xfunc.symbolic.schedule import (
    arranged,
    candidates,
    chosen,
    list_order,
    reordered,
    schedule,
)
from xfunc.symbolic.shape_domain import Range, ShapeDomain

BOX = ShapeDomain({"B": Range(1, 16), "S": Range(2, 512)})


def task(edges: list[list[int]], sizes: list[int], kept: list[int]) -> Task:
    """Step k reads what the steps in ``edges[k]`` write, and writes ``sizes[k]`` bytes."""
    i: Any = xf.make_hlo(torch.sin)(xf.ShapeDtypeStruct((2,), torch.float32)).entry.root
    buffers = [Buffer(n, i) for n in sizes]
    steps = [Step(i, tuple(buffers[r] for r in rs), {b: ()}) for rs, b in zip(edges, buffers)]  # noqa: B905
    return Task(Flow(tuple(steps), (), [(buffers[k],) for k in kept]), {}, False, {})


Graph = tuple[list[list[int]], list[int], list[int]]


def random_task(n: int, reach: int, seed: int) -> tuple[Task, Graph]:
    draw = random.Random(seed)
    edges = [
        sorted({draw.randrange(max(0, k - reach), k) for _ in range(draw.randint(1, 2))})
        if k
        else []
        for k in range(n)
    ]
    sizes = [draw.choice([1, 2, 3, 8, 20, 50]) for _ in range(n)]
    kept = [n - 1, *draw.sample(range(n - 1), 2)]
    return task(edges, sizes, kept), (edges, sizes, kept)


def least_peak(edges: list[list[int]], sizes: list[int], kept: list[int]) -> int:
    """The least peak of all orders: the path through sets of steps whose worst set is the best."""
    n = len(edges)

    def live(done: frozenset[int]) -> int:
        waiting = {r for k in range(n) if k not in done for r in edges[k]} | set(kept)
        return sum(sizes[k] for k in done & waiting)

    todo: list[tuple[int, int, frozenset[int]]] = [(0, 0, frozenset())]
    seen: set[frozenset[int]] = set()
    count = itertools.count(1)
    while True:
        worst, _, done = heapq.heappop(todo)
        if len(done) == n:
            return worst
        if done in seen:
            continue
        seen.add(done)
        before = live(done)
        for k in range(n):
            if k not in done and done.issuperset(edges[k]):
                high = max(worst, before + sizes[k])
                heapq.heappush(todo, (high, next(count), done | {k}))


@pytest.mark.parametrize(("n", "reach"), [(8, 8), (12, 6), (40, 4)])
def test_chosen_order_within_five_percent_of_best(n: int, reach: int) -> None:
    for seed in range(6):
        given, graph = random_task(n, reach, seed)
        order = chosen(list(candidates([given])), [given])
        found = held(reordered(given, order), given).bytes
        assert found <= 1.05 * least_peak(*graph), seed
        assert found <= held(given.memory.steps, given).bytes


def test_least_peak_equals_all_permutations() -> None:
    for seed in range(3):
        given, graph = random_task(6, 6, seed)
        orders = [
            p for p in itertools.permutations(range(6))
            if all(p.index(r) < p.index(k) for k, rs in enumerate(graph[0]) for r in rs)
        ]  # fmt: skip
        assert len(orders) > 1
        best = min(held(reordered(given, order), given).bytes for order in orders)
        assert least_peak(*graph) == best


def test_list_order_breaks_ties_by_next_read() -> None:
    # Three equal starts; the last step reads 0, the one before it 1, the first one 2.
    edges = [[], [], [], [2], [1, 3], [0, 4]]
    assert list_order(task(edges, [1] * 6, [5]))[0] == 2


def wide(a: Any, b: Any, ws: Any) -> Any:
    """Products written long before they are read, of sizes that cross."""
    early = [a @ w for w in ws]  # B x S x 16 each
    late = [(b * w.sum()).mT @ b for w in ws]  # S x S inside
    total = sum((x * x).sum() for x in late)
    for x in reversed(early):
        total = total + torch.tanh(x @ x.mT).sum() / 7  # XLA fuses a sum into its product
    return total


def loss(a: Any, b: Any, ws: Any) -> Any:
    for w in ws:
        a = torch.softmax(a @ a.mT, -1) @ (a @ w)
    return (a.sum((0, 1)) @ b).sum()


@pytest.mark.slow
@pytest.mark.parametrize("f", [wide, xf.grad(loss), xf.grad(loss, argnums=(0, 1, 2))])
def test_schedule_one_order_for_all_sizes(f: Any) -> None:
    def module(env: Any) -> Any:
        a = xf.ShapeDtypeStruct((env["B"], env["S"], 16), torch.float32)
        b = xf.ShapeDtypeStruct((16, env["S"]), torch.float32)
        return xf.jit(f).lower(a, b, xf.ShapeDtypeStruct((4, 16, 16), torch.float32)).module

    found = schedule(prepared(module, BOX))
    assert sorted(found.positions) == [*range(len(found.positions))]
    draw = random.Random(0)
    better = False
    for _ in range(8):
        env = {"B": draw.randint(1, 16), "S": draw.randint(2, 512)}
        flat = liveness.prepared(module(env))
        given = liveness.task_of(flat.entry)
        arguments = sum(p.bytes for p in flat.entry.parameters)
        here = held(reordered(given, found.positions), given).bytes + arguments
        written = held(given.memory.steps, given).bytes + arguments
        own = chosen([*candidates([given])], [given])
        assert found.peak.at(env) == here
        assert found.as_written.at(env) == written
        assert here <= written
        # No candidate is within 6% of the best orders of all small sizes.
        allowed = 1.02 if here > 1_000_000 else 1.1
        assert here <= allowed * (held(reordered(given, own), given).bytes + arguments)
        assert here <= allowed * peak(flat).bytes
        better |= here < written
    assert better or f is not wide


def numbers(s: int = 256) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    shapes = (16, s, 16), (16, s), (4, 16, 16)
    return tuple(torch.randn(*n, generator=g) for n in shapes)


@pytest.mark.slow
def test_memory_limit_reorders_steps() -> None:
    def held(f: Any) -> int:
        found = f.lower(*numbers()).compile().memory_analysis().peak_memory_in_bytes
        assert found is not None
        return found

    limit = 5_000_000
    assert held(xf.jit(wide)) > 3 * limit
    f = xf.jit(wide, memory_limit=limit)
    torch.testing.assert_close(f(*numbers()).cpu(), wide(*numbers()))
    assert held(f) <= limit
    assert "chosen: as written, in order" in f.explain()
    with pytest.raises(OutOfMemoryError, match="'as written, in order'") as caught:
        xf.jit(wide, memory_limit=2_000_000)(*numbers())
    assert caught.value.required_bytes == held(f)


@pytest.mark.one_device
def test_memory_limit_reorders_steps_in_bucket() -> None:
    S = xf.Dim("S", min=2, max=256)
    spec = ((None, S, None), (None, S), None)
    f = xf.jit(wide, dynamic_shapes=spec, buckets=[256], memory_limit=9_000_000)
    for s in (100, 256, 7):
        torch.testing.assert_close(f(*numbers(s)).cpu(), wide(*numbers(s)), rtol=1e-4, atol=1e-2)
    text = f.explain()
    assert "S=256: as written, in order" in text
    assert "bucket S<=256: 3 calls, one program" in text


def looped(x: Any, ws: Any) -> Any:
    def step(h: Any, w: Any) -> Any:
        return torch.tanh(h @ w), h.sum()

    h, sums = xf.scan(step, x, ws)
    h = xf.cond(sums.sum() > 0, torch.sin, torch.cos, h)
    values, places = (h @ h.mT).sort(-1)
    return {"h": h, "all": (values, places, sums)}, x


def recomputed(x: Any, ws: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        return torch.softmax(x @ w, -1) @ w.mT + x

    def loss(ws: Any) -> Any:
        h = x
        for w in ws:
            h = xf.checkpoint(layer)(h, w)
        return h.square().mean()

    return xf.value_and_grad(loss)(ws)


@pytest.mark.parametrize("f", [looped, recomputed])
def test_arranged_program_has_equal_results(f: Any) -> None:
    args = numbers()[0], numbers()[2] / 4
    expected = xf.jit(f)(*args)
    override = Override(None, False, lambda _found, made, _donated, load: load(arranged(made())))
    with ambient.overridden(override):
        found = xf.jit(f)(*args)
    for got, want in zip(xf.tree.leaves(found), xf.tree.leaves(expected), strict=True):
        torch.testing.assert_close(got.cpu(), want.cpu())
    module = xf.jit(f).lower(*args).module
    calls = [i.opcode for i in arranged(module).entry.instructions].count("call")
    assert calls > 2
