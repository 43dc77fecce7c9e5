"""`prepare_to_run` writes programs of several devices so that every runtime reads them."""

from __future__ import annotations

import torch

import xfunc as xf
from xfunc.backends.target_passes import prepare_to_run
from xfunc.sharding import P


def mesh() -> xf.Mesh:
    return xf.make_mesh((4, 2), ("x", "y"))


def test_prepare_to_run_lists_replica_groups() -> None:
    x = torch.ones(8, 8)
    spec = P("y", "x")

    def f(x: torch.Tensor) -> torch.Tensor:
        return xf.sharding.psum(x, "x")

    run = xf.sharding.shard_map(f, mesh=mesh(), in_specs=spec, out_specs=P("y"))
    proto = xf.jit(run).lower(x).module.proto
    prepare_to_run("f", proto, 8, True)
    found = [
        i.collective_device_list
        for c in proto.computations
        for i in c.instructions
        if i.opcode == "all-reduce"
    ]
    assert [[list(g.replica_ids) for g in groups.replica_groups] for groups in found] == [
        [[0, 2, 4, 6], [1, 3, 5, 7]]
    ]
    assert not any(g.HasField("iota_replica_group_list") for g in found)
