"""Several processes: two with two devices each, run once for all tests here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import xfunc as xf
from tests.processes import distributed_program as processes
from tests.support.fresh import Server
from tests.support.processes import free_port

Found = tuple[Path, list[dict[str, Any]]]


def start(fresh: Server, folder: Path) -> list[dict[str, Any]]:
    """What each of two processes found."""
    count = 2
    env = {
        "CPU_NUM_DEVICES": "2",
        "JAX_PLATFORMS": "cpu",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(count),
    }
    code = "import os; os.environ.pop('NPROC', None); "
    code += "from tests.processes import distributed_program; distributed_program.write()"
    running = [
        fresh.start(code, folder, "torchrun", k, count, env={**env, "RANK": str(k)})
        for k in range(count)
    ]
    for done in [process.wait() for process in running]:
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(f"the sum is {processes.rows().sum().item():.4f}") == 2
    return [json.loads((folder / f"{k}.json").read_text()) for k in range(count)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, fresh: Server) -> Found:
    folder = tmp_path_factory.mktemp("pair")
    xf.sharding.save_checkpoint(folder / "before", {"x": processes.rows()})
    return folder, start(fresh, folder)


def test_initialize_process_and_device_counts(pair: Found) -> None:
    assert [f["counts"] for f in pair[1]] == [[2, k, 4, "cpu"] for k in range(2)]
    for f in pair[1]:
        assert f["twice"].startswith("RuntimeError: xf.distributed.initialize was called before")
        assert "Hint: call it once" in f["twice"]


def test_jit_on_devices_of_all_processes(pair: Found) -> None:
    w, x = processes.weights(), processes.rows()
    grad, loss = torch.func.grad_and_value(processes.loss)(w, x)
    for f in pair[1]:
        assert f["shape"] == [16, 8]
        assert f["spec"] == "NamedSharding(Mesh(data=2, tensor=2), P('data'))"
        torch.testing.assert_close(torch.tensor(f["loss"]), loss)
        torch.testing.assert_close(torch.tensor(f["grad"]), grad)
        torch.testing.assert_close(torch.tensor(f["psum"]), x[:8] + x[8:])
    assert pair[1][0]["grad"] == pair[1][1]["grad"]


def test_process_local_indices(pair: Found) -> None:
    for k, f in enumerate(pair[1]):
        (rows, all_columns), (all_rows, columns) = f["indices"]
        assert rows == [*range(8 * k, 8 * k + 8)]
        assert columns == [*range(4 * k, 4 * k + 4)]
        assert all_columns == [*range(8)]
        assert all_rows == [*range(16)]


def test_device_get_of_remote_shards_raises(pair: Found) -> None:
    for f in pair[1]:
        assert f["read"].startswith("ShardingError: a tensor of shape (16, 8) was read")
        assert "process_allgather" in f["read"]
        assert f["shown"] == "tensor(<parts in several processes>, size=(16, 8))"


def test_process_allgather_and_broadcast_values(pair: Found) -> None:
    for f in pair[1]:
        assert f["stacked"] == [[[0, 0], [1, 10]], [[0.5], [1.5]]]
        assert f["tiled"] == [[0, 0, 1, 10], [0.5, 1.5]]
        assert f["first"] == [True, True]
        assert f["last"] == 1.0


def test_callbacks_in_several_processes(pair: Found) -> None:
    for f in pair[1]:
        total, shapes = f["called"]
        assert total == pytest.approx(processes.rows().sum().item(), abs=1e-4)
        assert shapes == [[16, 8]] * 2  # whole, once for each of its devices
        doubled, shapes = f["called in parts"]
        torch.testing.assert_close(torch.tensor(doubled), 2 * processes.rows())
        assert f["noted"] == [[[16, 8]], []][f["counts"][1]]  # by the first device, in its process
        assert shapes == [[8, 8]] * 2


def test_callback_failing_in_one_process(pair: Found) -> None:
    for key, failing in ("failing effect", 0), ("failing call", 1):
        own, other = pair[1][failing][key], pair[1][1 - failing][key]
        assert own.startswith("ValueError: no more rows")
        assert other.startswith("RuntimeError: ")
        assert f"<lambda> failed in process {failing}: ValueError: no more rows" in other
    assert pair[1][0]["after it"] == pair[1][1]["after it"] == pair[1][0]["called"][0]


def test_distributed_errors(pair: Found) -> None:
    for f in pair[1]:
        assert f["unlike"].startswith("TreeMismatchError: process_allgather was given")
        assert f["no source"].startswith("ValueError: broadcast_one_to_all: the processes []")
        assert "['at 0', 'at 1']" in f["places"]
        assert (
            "of an array of shape (16, 8), and the devices of this process hold (8, 8)"
            in (f["wrong part"])
        )


def test_process_allgather_unlike_arguments_raise(pair: Found) -> None:
    for f in pair[1]:
        for key, said in (
            ("unlike on devices", "float32[8] in 2 parts"),
            ("unlike dtypes", "int32[4] in 2 parts"),
            ("here and there", "float32[4] on the host"),
            ("unlike shardings", "float32[8] in 4 parts"),
            ("unlike orders", "float32[8] in 2 parts on the devices [2, 3, 0, 1]"),
        ):
            assert f[key].startswith("TreeMismatchError: process_allgather was given")
            assert said in f[key]


def test_distributed_error_in_one_process_raises_in_all(pair: Found) -> None:
    for key, name in (
        ("no tensor", "process_allgather"),
        ("no tensor to send", "broadcast_one_to_all"),
    ):
        other, own = (f[key] for f in pair[1])
        problem = f"TypeError: {name} was given 'abc' (a str), which cannot be made a tensor"
        assert own.startswith(problem)
        assert other.startswith(f"RuntimeError: {name} failed in process 1: {problem}")
    other, own = (f["no flag"] for f in pair[1])
    assert own.startswith("RuntimeError: Boolean value of Tensor")
    assert other.startswith("RuntimeError: broadcast_one_to_all failed in process 1: RuntimeError")


def test_checkpoint_across_process_counts(pair: Found) -> None:
    """By the same two, by one process; and those of one by two."""
    folder, found = pair
    for f in found:
        torch.testing.assert_close(torch.tensor(f["loaded"]), processes.rows())
        torch.testing.assert_close(torch.tensor(f["before"]), processes.rows())
    target = {"w": processes.weights(), "x": processes.rows(), "n": torch.tensor(0)}
    loaded = xf.sharding.load_checkpoint(folder / "step", target)
    assert torch.equal(loaded["w"], target["w"])
    assert torch.equal(loaded["x"], target["x"])
    assert loaded["n"].item() == 3
    assert xf.sharding.load_extra(folder / "step") == {"at": [1, 2]}


def test_checkpoint_errors_in_some_processes(pair: Found) -> None:
    """What one of them does not see, or has otherwise, is an error in all of them."""
    for f in pair[1]:
        assert f["other tree"].startswith("TreeMismatchError: save_checkpoint was given ")
        assert "{'the path'" not in f["other tree"], "Only what differs is shown."
        assert "n: int64[] on the host" in f["other tree"]
        assert re.search("no n(,| in) ", f["other tree"])
        assert f["other place"].startswith("TreeMismatchError: save_checkpoint_async was given the")
        assert "Hint: pass the same structures" in f["other place"]
    problem = "FileNotFoundError: there is no checkpoint at "
    first, second = (f["unseen"] for f in pair[1])
    assert first.startswith(f"RuntimeError: load_checkpoint failed in process 1: {problem}")
    assert second.startswith(problem)
    assert [f["own disks"].split(":")[0] for f in pair[1]] == ["CheckpointWriteError"] * 2
    assert "what another process wrote is not on the disk of process 0" in pair[1][0]["own disks"]
    assert [f["left on its disk"] for f in pair[1]] == [[], []]


@pytest.mark.one_device
def test_distributed_functions_in_one_process() -> None:
    x = {"a": torch.arange(3), "b": 2.0}
    assert not xf.distributed.is_initialized()
    assert xf.distributed.process_allgather(x)["a"].tolist() == [[0, 1, 2]]
    assert xf.distributed.process_allgather(x, tiled=True)["a"].tolist() == [0, 1, 2]
    assert xf.distributed.broadcast_one_to_all(x)["b"].item() == 2.0
    xf.distributed.sync_global_devices("here")
    with pytest.raises(ValueError, match=r"\[\] say that they are the source(.|\n)*Hint"):
        xf.distributed.broadcast_one_to_all(x, is_source=False)
    mesh = xf.make_mesh((1,), ("data",))
    spec = xf.NamedSharding(mesh, xf.P("data"))
    made = xf.make_array_from_process_local_data(spec, torch.ones(4, 2))
    assert made.cpu().tolist() == torch.ones(4, 2).tolist()
    assert xf.sharding_of(made) == spec
    places = xf.sharding.process_local_indices(spec, (4, 2))
    assert [each.tolist() for each in places] == [[0, 1, 2, 3], [0, 1]]
    with pytest.raises(xf.errors.ShardingError, match="process_local_indices is 'data'"):
        xf.sharding.process_local_indices("data", (4, 2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(xf.errors.ShardingError, match=r"given \(3, 2\) of an array of shape \(4"):
        xf.make_array_from_process_local_data(spec, torch.ones(3, 2), (4, 2))
    for shape in ((8, 2), 8, ("a",)):
        with pytest.raises(
            xf.errors.ShardingError, match=r"given \(8,\) of an array of the global"
        ):
            xf.make_array_from_process_local_data(spec, torch.ones(8), cast("Any", shape))
    with pytest.raises(TypeError, match=r"'abc' \(a str\), which cannot be made a tensor"):
        xf.make_array_from_process_local_data(spec, "abc")
    with pytest.raises(xf.errors.ShardingError, match="the array to make has 0 dimensions"):
        xf.make_array_from_process_local_data(spec, 1.0)
    xf.distributed.shutdown()


def test_distributed_invalid_values_are_refused() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(TypeError, match=r"broadcast_one_to_all was .* \(3,\) that is quantized"):
        xf.distributed.broadcast_one_to_all({"a": quantized})
    with pytest.raises(TypeError, match=r"process_allgather was .* of layout torch\.sparse_coo"):
        xf.distributed.process_allgather(torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match=r"sync_global_devices was given \['a'\] as name"):
        xf.distributed.sync_global_devices(cast("Any", ["a"]))
