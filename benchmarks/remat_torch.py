"""What torch's partitioner keeps between the passes of a Llama 3.1 8B layer.

Run from the top of the repository, ``python -m benchmarks.remat_torch``; it needs scipy for one of
torch's solvers, and writes `benchmarks/data/remat_torch.json`. The layer is traced on fake tensors:
no memory is taken and nothing is compiled.

AOTAutograd traces the joint graph, with Inductor's decompositions as ``torch.compile`` does, and
``min_cut_rematerialization_partition`` cuts it, under several settings and activation memory
budgets. Residuals are counted by storage: views of one value count once, views of an input of the
layer (x, the weights, the rotary tables) not at all. Recomputation is counted as the work of the
two halves together beyond that of the joint graph. Otherwise the rules are those of
`benchmarks.remat_jax`.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import scipy
import torch
from torch import Tensor, fx
from torch._functorch import config
from torch._functorch.aot_autograd import aot_function
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from examples.llama.model import PUBLISHED, Params, attend, mlp, rms_norm, shapes
from examples.llama.model.plan import Plan

DATA = Path(__file__).with_name("data") / "remat_torch.json"
SEQ = 8192
CONFIG, PLAN = PUBLISHED["llama3.1-8b"], Plan(attention="dense")
Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


def settings() -> Iterator[tuple[str, Partition, dict[str, Any]]]:
    """A name for each point, the partitioner, and its settings in torch's configuration."""
    yield "default_partition", default_partition, {}
    yield "min_cut", min_cut_rematerialization_partition, {}
    aggressive = {"aggressive_recomputation": True}
    yield "min_cut, aggressive", min_cut_rematerialization_partition, aggressive
    for solver in ("dp", "ilp", "greedy"):
        for tenths in range(11):
            point = {
                "activation_memory_budget": tenths / 10,
                "activation_memory_budget_solver": solver,
            }
            yield f"{solver} {tenths / 10}", min_cut_rematerialization_partition, point


def layer(x: Tensor, w: Params, rope: tuple[Tensor, Tensor]) -> Tensor:
    """One layer: ``[1, seq, hidden]`` to the same."""
    x = x + attend(rms_norm(x, w["attn_norm"], CONFIG.norm_eps), w, rope, None, CONFIG, PLAN)
    return x + mlp(rms_norm(x, w["mlp_norm"], CONFIG.norm_eps), w)


def joint_graph() -> tuple[fx.GraphModule, int]:
    """The forward and backward pass in one graph, and how many outputs the forward pass has."""
    found = []

    def leaf(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, requires_grad=True)

    def keep(joint: fx.GraphModule, given: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        found.append((copy.deepcopy(joint), num_fwd_outputs))
        return default_partition(joint, given, num_fwd_outputs=num_fwd_outputs, **options)

    def as_it_is(graph: fx.GraphModule, given: Any) -> fx.GraphModule:
        del given
        return graph

    x = leaf(1, SEQ, CONFIG.hidden)
    w = {k: leaf(*stacked.shape[1:]) for k, stacked in shapes(CONFIG)["layers"].items()}
    rope = torch.empty(SEQ, CONFIG.head_dim), torch.empty(SEQ, CONFIG.head_dim)
    traced = aot_function(
        layer,
        fw_compiler=as_it_is,  # pyright: ignore[reportArgumentType]
        bw_compiler=as_it_is,  # pyright: ignore[reportArgumentType]
        partition_fn=keep,
        decompositions=select_decomp_table(),
    )
    traced(x, w, rope)
    return found[0]


# -- what is kept ---------------------------------------------------------------------------------


def varying(graph: Any) -> set[fx.Node]:
    """The nodes that depend on an input."""
    varies: set[fx.Node] = set()
    for n in graph.nodes:
        if n.op == "placeholder" or not varies.isdisjoint(n.all_input_nodes):
            varies.add(n)
    return varies


def residuals(forward: Any, n_outputs: int) -> list[dict[str, Any]]:
    """The values the forward half passes on, each storage once, without the inputs'."""
    inputs = {_storage(n) for n in forward.nodes if n.op == "placeholder"}
    varies = varying(forward)
    handed = {_storage(n): n for n in forward.output_node().args[0][n_outputs:]}
    found = []
    for storage, n in handed.items():
        if storage in inputs:
            continue
        value = n.meta["val"]
        found.append(
            {
                "shape": list(value.shape),
                "dtype": str(value.dtype).removeprefix("torch."),
                "bytes": value.untyped_storage().nbytes(),
                "made_by": n.target._opname,
                "constant": n not in varies,
            }
        )
    return found


def _storage(n: fx.Node) -> int:
    return n.meta["val"].untyped_storage()._cdata


# -- the work -------------------------------------------------------------------------------------

PRODUCTS = frozenset("mm bmm".split())
REDUCES = frozenset("sum mean amax".split())
MOVES = frozenset(
    "view permute unsqueeze squeeze expand alias clone slice split cat full scalar_tensor "
    "iota convert_element_type _to_copy".split()
)


def flops(*graphs: Any) -> tuple[int, int]:
    """Floating-point operations on what depends on inputs: of matrix products, and in all."""
    products = others = 0
    varies = set[fx.Node]().union(*map(varying, graphs))
    for n in (n for g in graphs for n in g.nodes if n in varies):
        if not isinstance(n.target, OpOverload):
            continue
        name = n.target._opname
        if name in MOVES:
            continue
        size, given = n.meta["val"].numel(), n.args[0].meta["val"]
        if name in PRODUCTS:
            products += 2 * size * given.shape[-1]
        elif name in REDUCES:
            others += given.numel() - size * (name != "mean")  # a mean divides, too
        else:
            others += size
    return products, products + others


def main() -> None:
    """Write the table."""
    table: dict[str, Any] = {}
    with FakeTensorMode():
        joint, n_outputs = joint_graph()
        base = flops(fx_graph_cse(joint.graph))  # AOTAutograd does this before it cuts
        for name, partition, options in settings():
            with config.patch(options):
                halves = partition(copy.deepcopy(joint), (), num_fwd_outputs=n_outputs)
            forward, backward = (half.graph for half in halves)
            both, kept = flops(forward, backward), residuals(forward, n_outputs)
            table[name] = {
                "bytes": sum(r["bytes"] for r in kept if not r["constant"]),
                "constant_bytes": sum(r["bytes"] for r in kept if r["constant"]),
                "recomputed_matmul_flops": both[0] - base[0],
                "recomputed_flops": both[1] - base[1],
                "residuals": [_line(r) for r in kept],
            }
            numbers = {k: f"{v:.4g}" for k, v in table[name].items() if k != "residuals"}
            print(f"{name:20}", numbers)
    data = {
        "versions": {"torch": torch.__version__, "scipy": scipy.__version__},
        "layer": {"seq": SEQ, "batch": 1, "dtype": "bfloat16"} | dataclasses.asdict(CONFIG),
        "matmul_flops": base[0],
        "flops": base[1],
        "settings": table,
    }
    DATA.write_text(json.dumps(data, indent=1) + "\n")


def _line(r: dict[str, Any]) -> str:
    aval = f"{r['dtype']}{r['shape']}".replace(" ", "")
    return f"{r['bytes']} {aval} {r['made_by']}" + " constant" * r["constant"]


if __name__ == "__main__":
    main()
