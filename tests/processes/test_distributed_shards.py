"""What processes hold of arrays that are spread over the devices of both."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.support.fresh import Server
from tests.support.processes import free_port

CODE = """
import json, sys, torch, xfunc as xf
xf.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
mesh = xf.make_mesh((2, 2), ("data", "tensor"))
whole, found = torch.arange(32.0).reshape(4, 8), {}
specs = {"rows": xf.P("data"), "columns": xf.P(None, "tensor"), "both": xf.P("tensor", "data")}
specs["everywhere"] = xf.P()
for name, spec in specs.items():
    x = xf.device_put(whole, xf.NamedSharding(mesh, spec))
    found[name] = [
        ([(i.start, i.stop) for i in s.index], s.device, s.replica_id, s.data.tolist())
        for s in xf.sharding.addressable_shards(x)
    ]
    try:
        found["sent " + name] = xf.distributed.broadcast_one_to_all([1.0, x])[1].tolist()
    except xf.errors.ShardingError as error:
        found["sent " + name] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def pair(fresh: Server) -> list[dict[str, Any]]:
    address, env = f"127.0.0.1:{free_port()}", {"JAX_PLATFORMS": "cpu", "CPU_NUM_DEVICES": "2"}
    running = [fresh.start(CODE, address, k, env=env) for k in range(2)]
    done = [process.wait() for process in running]
    assert [each.returncode for each in done] == [0, 0], done[0].stderr + done[1].stderr
    return [json.loads(each.stdout.splitlines()[-1]) for each in done]


def test_addressable_shards_in_each_process(pair: list[dict[str, Any]]) -> None:
    whole = torch.arange(32.0).reshape(4, 8)
    for name in ("rows", "columns", "both", "everywhere"):
        seen = torch.zeros(4, 8)
        devices = []
        for found in pair:
            for index, device, replica, data in found[name]:
                at = tuple(slice(*each) for each in index)
                assert torch.equal(torch.tensor(data), whole[at])
                seen[at] += replica == 0
                devices.append(device)
        assert devices == [0, 1, 2, 3]
        assert torch.equal(seen, torch.ones(4, 8)), f"{name}: each element has one replica 0."
    assert [device for _, device, *_ in pair[1]["rows"]] == [2, 3]


def test_broadcast_of_sharded_array_raises(pair: list[dict[str, Any]]) -> None:
    for found in pair:
        for name in ("rows", "columns", "both"):
            said = found["sent " + name]
            assert "broadcast_one_to_all was given float32[4,8] that is spread over" in said
            assert "Hint: use xf.distributed.process_allgather" in said
        assert found["sent everywhere"] == torch.arange(32.0).reshape(4, 8).tolist()
