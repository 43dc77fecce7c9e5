"""Rematerialisation: what each policy keeps of a Llama 3.1 8B layer, and what it recomputes.

JAX under the policy of the same name and torch's partitioner at each activation memory budget were
recorded by `benchmarks.remat_jax` and `benchmarks.remat_torch`, whose rules are followed here. Our
numbers are read from the HLO of the two halves; nothing is compiled and nothing runs.

The bar: for each point that a JAX policy or torch budget reaches, one of ours needs no more bytes,
no more matrix-product operations and no more operations in all.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import xfunc as xf
from examples.llama.model import PUBLISHED, attend, mlp, rms_norm, shapes
from examples.llama.model.plan import Plan
from xfunc import checkpoint_policies as cp
from xfunc.core.avals import Aval
from xfunc.graph import opcodes
from xfunc.graph.graph import Graph
from xfunc.graph.node import Node
from xfunc.hlo.estimate.cost import costs, roofline
from xfunc.program.program import Joint, TracedProgram
from xfunc.remat.joint_graph import joint_graph
from xfunc.remat.policies import Policy, everything_saveable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DATA = Path(__file__).with_name("data")
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "remat.png"
SEQ = 8192
CONFIG, PLAN = PUBLISHED["llama3.1-8b"], Plan(attention="dense")
WEIGHTS = shapes(CONFIG)["layers"]
NAMES = ("attn_out", "mlp_in")
POLICIES: dict[str, Policy] = {
    "everything_saveable": cp.everything_saveable,
    "dots_saveable": cp.dots_saveable,
    "dots_with_no_batch_dims_saveable": cp.dots_with_no_batch_dims_saveable,
    "offload_dot_with_no_batch_dims": cp.offload_dot_with_no_batch_dims,
    "save_only_these_names": cp.save_only_these_names(*NAMES),
    "save_and_offload_only_these_names": cp.save_and_offload_only_these_names(
        names_which_can_be_saved=[NAMES[1]], names_which_can_be_offloaded=[NAMES[0]]
    ),
    "nothing_saveable": cp.nothing_saveable,
}


@dataclasses.dataclass(frozen=True)
class Point:
    """What is kept and recomputed.

    Attributes:
        bytes: kept on the device; arguments and constants do not count.
        host_bytes: kept in the memory of the host.
        matmul_flops: matrix-product operations done twice.
        flops: all operations done twice.
        seconds: their time by the roofline that `min_cut` uses; unknown for the peers.
    """

    bytes: int
    host_bytes: int
    matmul_flops: int
    flops: int
    seconds: float | None = None

    def is_as_good_as(self, other: Point) -> bool:
        """Whether it is no worse in any respect."""
        fields = ("bytes", "host_bytes", "matmul_flops", "flops")
        return all(getattr(self, f) <= getattr(other, f) for f in fields)


# -- ours -----------------------------------------------------------------------------------------


def layer(x: Tensor, cos: Tensor, sin: Tensor, *weights: Tensor) -> list[Tensor]:
    """One layer: ``[1, seq, hidden]`` to the same."""
    w, rope = dict(zip(WEIGHTS, weights, strict=True)), (cos, sin)
    mixed = attend(rms_norm(x, w["attn_norm"], CONFIG.norm_eps), w, rope, None, CONFIG, PLAN)
    x = x + xf.checkpoint_name(mixed, NAMES[0])
    h = xf.checkpoint_name(rms_norm(x, w["mlp_norm"], CONFIG.norm_eps), NAMES[1])
    return [x + mlp(h, w)]


def joint() -> Joint:
    """Both passes of the layer, differentiated with respect to x and the weights."""
    angles = Aval((SEQ, CONFIG.head_dim), torch.float32)
    weights = (Aval(tuple(w.shape[1:]), torch.bfloat16) for w in WEIGHTS.values())
    x = Aval((1, SEQ, CONFIG.hidden), torch.bfloat16)
    program = TracedProgram("layer", layer, [x, angles, angles, *weights])
    return program.joint((True, False, False, *(True for _ in WEIGHTS)))


def measured(joint: Joint, policy: Policy) -> Point:
    """What a policy keeps and recomputes."""
    n = len(joint.outputs)
    flat = policy is not everything_saveable  # which is cut without cleanup
    whole = joint_graph(joint.lowering, n_inputs=joint.n_inputs, n_outputs=n, flat=flat)
    halves = joint.split(policy)
    forward, backward = halves.forward.graph, halves.backward.graph
    kept = forward.outputs[n:]
    once, *both = (work(g) for g in (whole.graph, forward, backward))
    products, total, seconds = (a + b - c for a, b, c in zip(*both, once, strict=True))
    host = sum(k.bytes for k in kept if k.opcode == "custom-call")  # sent there
    on_device = sum(k.bytes for k in kept) - host
    return Point(on_device, host, int(products), int(total), seconds)


def work(graph: Graph) -> tuple[float, float, float]:
    """The cost of computing everything that depends on inputs.

    Floating-point operations of matrix products, those of all operations, and seconds.
    """
    known = costs(graph)
    products = total = 0
    seconds = 0.0
    for n in _varying(graph):
        if n.opcode in opcodes.FREE or n.opcode == "custom-call":  # to the host and back
            continue
        own = known[n].flops + known[n].transcendentals
        products += own * (n.opcode == "dot")
        total += own
        seconds += roofline(known[n])
    return products, total, seconds


def _varying(graph: Graph) -> Iterator[Node]:
    varies = set(graph.inputs)
    for n in graph.nodes:
        if n in varies or not varies.isdisjoint(n.operands):
            varies.add(n)
            yield n


def ours(budgets: Iterable[int]) -> dict[str, Point]:
    """Every policy, and `min_cut` without a budget and with each of these."""
    both = joint()
    found = {name: measured(both, policy) for name, policy in POLICIES.items()}
    found["min_cut()"] = measured(both, cp.min_cut())
    for b in sorted(set(budgets), reverse=True):
        found[f"min_cut({b})"] = measured(both, cp.min_cut(b))
    return found


# -- the peers ------------------------------------------------------------------------------------


def recorded(peer: str) -> dict[str, Point]:
    """The points recorded for a peer, ``"jax"`` or ``"torch"``, by the name of each setting."""
    data = json.loads((DATA / f"remat_{peer}.json").read_text())
    return {name: _point(row) for name, row in data.get("policies", data.get("settings")).items()}


def _point(row: dict[str, Any]) -> Point:
    matmul, total = row["recomputed_matmul_flops"], row["recomputed_flops"]
    return Point(row["bytes"], row.get("host_bytes", 0), matmul, total)


def match(found: dict[str, Point], peer: Point) -> str | None:
    """Our setting with the fewest bytes among those as good as a peer's in every respect."""
    good = [name for name, p in found.items() if p.is_as_good_as(peer)]
    return min(good, key=lambda name: found[name].bytes, default=None)


# -- the table and the picture --------------------------------------------------------------------


def main() -> None:
    """Print the tables and write the picture."""
    jax, by_budget = recorded("jax"), recorded("torch")
    found = ours(p.bytes for p in (*jax.values(), *by_budget.values()))
    print("## remat: what is kept of a Llama 3.1 8B layer, and what is computed again\n")
    print("MB kept, MB kept on the host, GFLOP of matrix products done twice, GFLOP in all.\n")
    print("| policy | kept | host | matmul | all | ms | JAX: kept | host | matmul | all |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, p in found.items():
        peer = _cells(jax[name]) if name in jax else " | | |"
        print(f"| {_called(name)} | {_cells(p)} | {_ms(p):.1f} | {peer} |")
    print("\n| torch | kept | host | matmul | all | ours | kept | host | matmul | all |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for names, p in _distinct(by_budget):
        own = match(found, p)
        print(f"| {names} | {_cells(p)} | ", end="")
        print(
            "none is as good | | | | |"
            if own is None
            else f"{_called(own)} | {_cells(found[own])} |"
        )
    draw(found, jax, by_budget)
    print(f"\n{PICTURE.relative_to(PICTURE.parents[2])} is written.")


def _cells(p: Point) -> str:
    return (
        f"{p.bytes / 1e6:.1f} | {p.host_bytes / 1e6:.1f} | "
        f"{p.matmul_flops / 1e9:.1f} | {p.flops / 1e9:.2f}"
    )


def _called(name: str) -> str:
    """A policy's name as printed, with budgets in MB."""
    if name.startswith("min_cut(") and name != "min_cut()":
        return f"`min_cut` of {int(name[8:-1]) / 1e6:.1f} MB"
    return f"`{name}`"


def _distinct(points: dict[str, Point]) -> Iterator[tuple[str, Point]]:
    """Each point once, most bytes first, with the settings that lead there."""
    named: dict[Point, list[str]] = {}
    for name, p in points.items():
        named.setdefault(p, []).append(name)
    for p in sorted(named, key=lambda p: -p.bytes):
        budgets: dict[str, list[str]] = {}
        for name in named[p]:
            solver, _, budget = name.rpartition(" ")
            budgets.setdefault(solver if budget[0].isdigit() else name, []).append(budget)
        yield "; ".join(_settings(*item) for item in budgets.items()), p


def _settings(name: str, budgets: list[str]) -> str:
    if not budgets[0][0].isdigit():
        return name
    return f"{name} {budgets[0]}" + f" to {budgets[-1]}" * (len(budgets) > 1)


def draw(found: dict[str, Point], jax: dict[str, Point], by_budget: dict[str, Point]) -> None:
    """Write the picture: bytes kept against operations done twice, and against their time."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    both = joint()
    curve = [measured(both, cp.min_cut(int(b))) for b in torch.logspace(7.4, 10.2, 60).tolist()]
    curve += [p for name, p in found.items() if name.startswith("min_cut(") and name[-2:] != "()"]
    curve.sort(key=lambda p: p.bytes)
    named, plain = [found[name] for name in POLICIES], [found["min_cut()"]]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    for axes, measure in ((left, _tflop), (right, _ms)):
        _mark(axes, measure, curve, "-", "C0", "xfunc: min_cut of a budget", 3)
        _mark(axes, measure, named, "D", "C0", "xfunc: the policies that JAX has", 9)
        _mark(axes, measure, plain, "*", "C0", "xfunc: min_cut without a budget", 13)
        axes.set_xscale("symlog", linthresh=3e7, linscale=0.4)
        axes.set_xlim(-5e6, 2.5e10)
        axes.set_xlabel("kept for the backward pass, bytes")
        axes.grid(alpha=0.3)
    _mark(left, _tflop, list(jax.values()), "x", "C1", "JAX: its policies", 8)
    _mark(left, _tflop, list(by_budget.values()), "s", "C3", "torch: min-cut, memory budgets", 6)
    left.set_yscale("symlog", linthresh=1e-4, linscale=0.4)
    left.set_ylabel("computed again, TFLOP")
    right.set_ylabel("computed again, ms on a TPU v6e by its roofline")
    left.legend(fontsize=9, loc="lower left")
    figure.suptitle("One layer of Llama 3.1 8B, 8192 tokens")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _tflop(p: Point) -> float:
    return p.flops / 1e12


def _ms(p: Point) -> float:
    return (p.seconds or 0.0) * 1e3


def _mark(
    axes: Axes,
    measure: Callable[[Point], float],
    points: list[Point],
    style: str,
    color: str,
    label: str,
    size: int,
) -> None:
    x, y = [p.bytes + p.host_bytes for p in points], [measure(p) for p in points]
    fill = "none" if style in ("D", "s") else color
    options: dict[str, Any] = {"drawstyle": "steps-post"} if style == "-" else {}
    axes.plot(x, y, style, c=color, label=label, markersize=size, markerfacecolor=fill, **options)
