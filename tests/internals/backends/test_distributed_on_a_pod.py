"""Processes that torch_xla's own runtime connects; what it says of a pod is stood in for."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore

import xfunc as xf
from tests.support.fresh import Server
from tests.support.processes import free_port, raised
from xfunc.backends import active, processes

pytestmark = pytest.mark.torch_xla


def write() -> None:
    """Be one of the processes, in a group of torch's, and write what it found."""
    folder, k = Path(sys.argv[1]), int(sys.argv[2])
    torch.distributed.init_process_group("gloo", rank=k, world_size=2)
    where: Any = active.use("torch_xla")
    where.process_count, where.process_index = lambda: 2, lambda: k
    where.platform = lambda: "tpu"
    # Each believes to be on a host of its own, where the first one's address is not its own.
    connects: list[str] = []
    socket.gethostbyname = lambda hostname: f"127.0.0.{k + 1}"
    processes.TCPStore = lambda host, *given, **named: (  # pyright: ignore[reportAttributeAccessIssue]
        connects.append(host) or TCPStore(host, *given, **named)
    )
    xf.distributed.initialize()
    found: dict[str, Any] = {"selected": active.selected(), "connects": connects}
    found["twice"] = raised(xf.distributed.initialize)
    gather, one_to_all = xf.distributed.process_allgather, xf.distributed.broadcast_one_to_all
    own = {"a": torch.tensor([k, 10 * k]), "b": torch.tensor(k + 0.5, dtype=torch.bfloat16)}
    found["stacked"] = [t.tolist() for t in xf.tree.leaves(gather(own))]
    found["tiled"] = gather(own, tiled=True)["a"].tolist()
    found["unlike"] = raised(lambda: gather(torch.ones(k + 1)))
    found["first"] = one_to_all(own)["a"].tolist()
    found["second"] = one_to_all(own, is_source=k == 1)["b"].item()
    found["no source"] = raised(lambda: one_to_all(k, is_source=False))
    xf.distributed.sync_global_devices("here")
    found["places"] = raised(lambda: xf.distributed.sync_global_devices(f"at {k}"))

    state = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3), "step": 7}
    xf.sharding.save_checkpoint(folder / "saved", state, {"at": [1, 2]})
    empty = {"w": torch.zeros(2, 3), "n": torch.tensor(0), "step": 0}
    loaded = xf.sharding.load_checkpoint(folder / "saved", empty)
    found["loaded"] = [torch.as_tensor(x).tolist() for x in xf.tree.leaves(loaded)]
    found["extra"] = xf.sharding.load_extra(folder / "saved")
    other = {"w": torch.zeros(2 + k)}
    found["other tree"] = raised(lambda: xf.sharding.save_checkpoint(folder / "other", other))
    unseen = [folder / "saved", folder / "nowhere"][k]
    found["unseen"] = raised(lambda: xf.sharding.load_checkpoint(unseen, empty))
    Path(folder, f"{k}.json").write_text(json.dumps(found))
    xf.distributed.shutdown()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, fresh: Server) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("pod")
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "XFUNC_BACKEND": ""}
    code = "from tests.internals.backends import test_distributed_on_a_pod as pod; pod.write()"
    running = [fresh.start(code, folder, k, env=env) for k in range(2)]
    for done in [process.wait() for process in running]:
        assert done.returncode == 0, done.stdout + done.stderr
    return folder, [json.loads((folder / f"{k}.json").read_text()) for k in range(2)]


def test_pod_stays_with_torch_xla(pair: tuple[Path, list[Any]]) -> None:
    for f in pair[1]:
        assert f["selected"] == "torch_xla"
        assert f["twice"].startswith("RuntimeError: xf.distributed.initialize was called before")


def test_pod_watch_connects_to_first_host(pair: tuple[Path, list[Any]]) -> None:
    assert [f["connects"] for f in pair[1]] == [["127.0.0.1"]] * 2


def test_pod_allgather_and_broadcast_values(pair: tuple[Path, list[Any]]) -> None:
    for f in pair[1]:
        assert f["stacked"] == [[[0, 0], [1, 10]], [0.5, 1.5]]
        assert f["tiled"] == [0, 0, 1, 10]
        assert f["first"] == [0, 0]
        assert f["second"] == 1.5


def test_pod_errors(pair: tuple[Path, list[Any]]) -> None:
    for f in pair[1]:
        assert f["unlike"].startswith("TreeMismatchError: process_allgather was given")
        assert f["no source"].startswith("ValueError: broadcast_one_to_all: the processes []")
        assert "['at 0', 'at 1']" in f["places"]
        assert f["other tree"].startswith("TreeMismatchError: save_checkpoint was given ")
    problem, (first, second) = (
        "FileNotFoundError: there is no check",
        (f["unseen"] for f in pair[1]),
    )
    assert first.startswith(f"RuntimeError: load_checkpoint failed in process 1: {problem}")
    assert second.startswith(problem)


def test_pod_checkpoints_of_host_tensors(pair: tuple[Path, list[Any]]) -> None:
    folder, found = pair
    w = torch.arange(6.0).reshape(2, 3)
    for f in found:
        assert f["loaded"] == [3, 7, w.tolist()]
        assert f["extra"] == {"at": [1, 2]}
    target = {"w": torch.zeros(2, 3), "n": torch.tensor(0), "step": 0}
    assert torch.equal(xf.sharding.load_checkpoint(folder / "saved", target)["w"].cpu(), w)
    assert not (folder / "other").exists()
