"""Checkpoints: written on one mesh, read on another, on one device, or by torch alone."""

import dataclasses
import os
import pathlib
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import xfunc as xf
from tests.support.checkpoints import QUIETLY, SHAPE, check
from xfunc.sharding import (
    NamedSharding,
    P,
    device_put,
    load_checkpoint,
    load_extra,
    make_mesh,
    save_checkpoint,
    save_checkpoint_async,
    sharding_of,
    use_mesh,
)

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.int8,
    torch.uint8, torch.int32, torch.int64, torch.complex64, torch.complex128,
]  # fmt: skip
FIRST = [P(), P("x"), P("y"), P("x", "y"), P(None, "x"), P(("y", "x")), P(None, ("x", "y"))]
SECOND = [P(), P("a"), P("c", "b"), P(None, ("b", "a")), P(("c", "a"), "b")]


@pytest.fixture
def other():
    return make_mesh((2, 2, 2), ("a", "b", "c"))


@xf.tree.register_dataclass
@dataclasses.dataclass
class Layer:
    w: Any
    bias: Any


def stored(folder):
    """For each name, where its parts start."""
    found = {}
    for index in dcp.FileSystemReader(folder).read_metadata().storage_data:
        found.setdefault(index.fqn, []).append(tuple(index.offset))
    return {name: sorted(starts) for name, starts in found.items()}


def test_load_checkpoint_on_another_mesh(tmp_path, mesh, other):
    value = torch.arange(128, dtype=torch.float64).reshape(8, 16)
    saved = [device_put(value, NamedSharding(mesh, spec)) for spec in FIRST]
    save_checkpoint(tmp_path / "step", saved)
    for spec in SECOND:
        wanted = NamedSharding(other, spec)
        found = load_checkpoint(tmp_path / "step", [SHAPE((8, 16), value.dtype, wanted)] * 7)
        check(found, [value] * 7)
        assert [sharding_of(t) for t in found] == [wanted] * 7
        check([t + 1 for t in found], [value + 1] * 7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_save_and_load_checkpoint_dtypes(tmp_path, mesh, other, dtype):
    value = torch.arange(32).reshape(8, 4).sub(5).to(dtype)
    saved = [value, device_put(value), device_put(value, NamedSharding(mesh, P("x", "y")))]
    save_checkpoint(tmp_path / "step", saved)
    check(load_checkpoint(tmp_path / "step", saved), saved)
    wanted = SHAPE((8, 4), dtype, NamedSharding(other, P("c", ("b", "a"))))
    check(load_checkpoint(tmp_path / "step", [wanted] * 3), saved)


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((), P()),
        ((0,), P("x")),
        ((0, 8), P("x", "y")),
        ((8, 0, 4), P("y", None, "x")),
        ((8, 1, 2, 1, 2, 4), P("y", None, None, None, None, "x")),
    ],
)
def test_save_and_load_checkpoint_shapes(tmp_path, mesh, shape, spec):
    value = torch.randn(shape)
    save_checkpoint(tmp_path / "step", device_put(value, NamedSharding(mesh, spec)))
    check(load_checkpoint(tmp_path / "step", value), value)
    wanted = NamedSharding(mesh, spec)
    check(load_checkpoint(tmp_path / "step", SHAPE(shape, value.dtype, wanted)), value)


def test_save_and_load_checkpoint_of_a_tree(tmp_path, mesh):
    w = torch.randn(8, 4)
    whole = {
        "layers": [Layer(w, None), Layer(w + 1, torch.randn(4))],
        "pair": (torch.arange(3), {"a.b": torch.tensor(True)}),
        "step": 2**62 + 1,
        "rate": 0.1,
        "done": False,
        "z": 1 + 2j,
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "none": None,
    }
    sharded = {**whole, "layers": device_put(whole["layers"], NamedSharding(mesh, P()))}
    sharded["layers"][0].w = device_put(w, NamedSharding(mesh, P("x", "y")))
    save_checkpoint(str(tmp_path / "step"), sharded)

    whole["parameter"] = torch.ones(2)
    found = load_checkpoint(str(tmp_path / "step"), {**sharded, "parameter": torch.zeros(2)})
    check(found, whole)
    assert sharding_of(found["layers"][0].w) == NamedSharding(mesh, P("x", "y"))
    on_host = load_checkpoint(tmp_path / "step", whole)
    check(on_host, whole)
    assert on_host["layers"][0].w.device.type == "cpu"


@pytest.mark.parametrize("keys", [("",), ("", "w"), ("w", "")])
def test_save_checkpoint_dict_with_empty_key(tmp_path, keys):
    x = {key: torch.full((3,), float(i)) for i, key in enumerate(keys)}
    save_checkpoint(tmp_path / "plain", x)
    check(load_checkpoint(tmp_path / "plain", x), x)
    nested = {"a": x, "": {"": torch.ones(2)}}
    save_checkpoint(tmp_path / "nested", nested)
    check(load_checkpoint(tmp_path / "nested", nested), nested)


def test_save_checkpoint_writes_each_part_once(tmp_path, mesh):
    value = torch.randn(8, 4)
    specs = {"both": P("x", "y"), "rows": P("x"), "columns": P(None, "y"), "whole": P()}
    save_checkpoint(
        tmp_path / "step", {k: device_put(value, NamedSharding(mesh, s)) for k, s in specs.items()}
    )
    assert stored(tmp_path / "step") == {
        "both": [(r, c) for r in (0, 2, 4, 6) for c in (0, 2)],
        "rows": [(0, 0), (2, 0), (4, 0), (6, 0)],
        "columns": [(0, 0), (0, 2)],
        "whole": [(0, 0)],
    }


def test_save_and_load_checkpoint_of_jit_results(tmp_path, mesh):
    x = torch.randn(8, 8, dtype=torch.float64)
    step = xf.jit(lambda a, b: (a @ b, a + b), donate_argnums=0)
    with use_mesh(mesh):
        a, b = device_put(x, P("x", "y")), device_put(x, P("y", "x"))
    out = step(a, b)
    save_checkpoint(tmp_path / "step", out)
    check(load_checkpoint(tmp_path / "step", out), out)
    torch.testing.assert_close(out[0].cpu(), x @ x)


@pytest.mark.torch_xla
def test_save_and_load_checkpoint_of_torch_xla_tensors(tmp_path, mesh):
    from torch_xla.distributed import spmd  # pyright: ignore[reportMissingImports]

    theirs = spmd.Mesh(list(range(8)), (4, 2), ("x", "y"))
    value = torch.arange(30.0).reshape(10, 3)
    padded = spmd.mark_sharding(value.to("xla"), theirs, ("x", "y")).global_tensor
    save_checkpoint(tmp_path / "step", [padded, padded * 2])
    check(load_checkpoint(tmp_path / "step", [value, value]), [value, value * 2])
    check(load_checkpoint(tmp_path / "step", [padded, padded]), [value, value * 2])


@QUIETLY
def test_save_checkpoint_is_readable_by_torch(tmp_path, mesh):
    value = torch.randn(8, 4)
    layer = Layer(device_put(value, NamedSharding(mesh, P("y"))), None)
    save_checkpoint(tmp_path / "step", {"layers": [layer], "n": 3, "by number": {7: 1}})

    state = {"layers": [{"w": torch.zeros(8, 4)}]}
    dcp.load(state, checkpoint_id=tmp_path / "step")
    check(state, {"layers": [{"w": value}]})

    dcp_to_torch_save(tmp_path / "step", tmp_path / "one.pt")
    expected = {"n": torch.tensor(3), "by number": {"7": torch.tensor(1)}, **state}
    check(torch.load(tmp_path / "one.pt"), expected)


@QUIETLY
def test_load_checkpoint_written_by_torch(tmp_path, mesh):
    value = torch.randn(8, 4)
    dcp.save({"model": {"w": value}, "note": "text"}, checkpoint_id=tmp_path / "step")
    wanted = SHAPE((8, 4), value.dtype, NamedSharding(mesh, P("x", "y")))
    with pytest.raises(xf.errors.TreeMismatchError, match="note: in the checkpoint only"):
        load_checkpoint(tmp_path / "step", {"model": {"w": wanted}})
    with pytest.raises(xf.errors.TreeMismatchError, match=r"'note'\]: a Python object in the"):
        load_checkpoint(tmp_path / "step", {"model": {"w": wanted}, "note": value})
    os.remove(tmp_path / "step" / ".metadata")
    dcp.save({"model": {"w": value}}, checkpoint_id=tmp_path / "step")
    check(load_checkpoint(tmp_path / "step", {"model": {"w": wanted}}), {"model": {"w": value}})


def in_processes(code, folder, devices, n=1):
    """Run a script in new processes."""
    env = os.environ | {"CPU_NUM_DEVICES": str(devices)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder), str(i)], env=env, stderr=subprocess.PIPE
        )
        for i in range(n)
    ]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()


def test_load_checkpoint_on_one_device(tmp_path, mesh):
    value = torch.arange(32.0).reshape(8, 4)
    save_checkpoint(tmp_path / "step", device_put(value, NamedSharding(mesh, P("x", "y"))))
    code = """
import sys, torch, xfunc as xf
from xfunc.sharding import *
wanted = xf.ShapeDtypeStruct((8, 4), torch.float32)
for sharding in (None, NamedSharding(make_mesh((1,), "x"), P("x"))):
    wanted = xf.ShapeDtypeStruct((8, 4), torch.float32, sharding)
    found = load_checkpoint(sys.argv[1] + "/step", wanted)
    assert torch.equal(found.cpu(), torch.arange(32.0).reshape(8, 4))
save_checkpoint_async(sys.argv[1] + "/again", found, "at the end nobody waits")
"""
    in_processes(code, tmp_path, 1)
    check(load_checkpoint(tmp_path / "again", value), value)
    assert load_extra(tmp_path / "again") == "at the end nobody waits"


def test_save_checkpoint_in_several_processes(tmp_path):
    code = """
import sys, torch
from torch import distributed
from xfunc.errors import DamagedCheckpointError
from xfunc.sharding import *
folder, rank = sys.argv[1], int(sys.argv[2])
distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2)
value = torch.arange(32.0).reshape(8, 4)
x = device_put(value, NamedSharding(make_mesh((4, 2), ("x", "y")), P("x")))
save_checkpoint(f"{folder}/step", x, f"of {rank}")
for i in range(3):
    last = save_checkpoint_async(f"{folder}/{i}", x)
    distributed.barrier()
last.result()
for name in ("step", 0, 1, 2):
    assert torch.equal(load_checkpoint(f"{folder}/{name}", x).cpu(), value)
if rank == 1:
    with open(f"{folder}/2/__1_0.distcp", "r+b") as file:
        file.seek(-1, 2), file.write(b"!")
distributed.barrier()
try:
    load_checkpoint(f"{folder}/2", x)
except DamagedCheckpointError as error:
    assert error.file.name == "__1_0.distcp"
else:
    raise AssertionError("it was read")
distributed.destroy_process_group()
"""
    in_processes(code, tmp_path, 8, n=2)
    for name in ("step", "0", "1", "2"):
        folder = tmp_path / name
        assert stored(folder) == {"value": [(0, 0), (2, 0), (4, 0), (6, 0)]}
        files = dcp.FileSystemReader(folder).read_metadata().storage_data.values()
        assert sorted(f.relative_path for f in files) == ["__0_0.distcp"] * 2 + ["__1_0.distcp"] * 2
    assert load_extra(tmp_path / "step") == "of 0"


def test_save_checkpoint_extra(tmp_path):
    extra = {"seed": 2**100, "rate": 0.1, "names": ["a", None, True], "text": "\u00e9\n"}
    save_checkpoint(tmp_path / "step", torch.ones(2), extra)
    assert load_extra(tmp_path / "step") == extra
    save_checkpoint(tmp_path / "none", torch.ones(2))
    assert load_extra(tmp_path / "none") is None
    with pytest.raises(TypeError, match="extra cannot be written as JSON: Object of type Tensor"):
        save_checkpoint(tmp_path / "more", torch.ones(2), {"x": torch.ones(2)})
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint at .*more"):
        load_extra(tmp_path / "more")


def test_save_checkpoint_syncs_before_rename(tmp_path, monkeypatch):
    happened = []
    fsync, rename = os.fsync, pathlib.Path.rename

    def logged_fsync(handle):
        happened.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def logged_rename(path, to):
        happened.append(f"{path} -> {to}")
        return rename(path, to)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(pathlib.Path, "rename", logged_rename)
    save_checkpoint(tmp_path / "step", {"a": torch.ones(2)})
    part = tmp_path / "step.partial"
    assert happened == [
        f"{part}/__0_0.distcp",
        f"{part}/.metadata.tmp",
        f"{part}/.metadata.tmp -> {part}/.metadata",
        f"{part}/extra.json",
        f"{part}/manifest.json",
        f"{part}",
        f"{part} -> {tmp_path}/step",
        f"{tmp_path}",
    ]


@pytest.mark.parametrize("save", [save_checkpoint, save_checkpoint_async])
def test_save_checkpoint_threads_with_one_path(tmp_path, save):
    """One wins, and the others find its folder."""
    trees = [{"x": torch.full((1000,), float(i))} for i in range(4)]
    start, failures, winners = threading.Barrier(4), [], []

    def run(i):
        start.wait(60)
        try:
            pending = save(tmp_path / "step", trees[i])
            if pending is not None:
                pending.result()
            winners.append(i)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert [type(e) for e in failures] == [FileExistsError] * 3
    check(load_checkpoint(tmp_path / "step", trees[0]), trees[winners[0]])
    assert os.listdir(tmp_path) == ["step"]


def test_load_of_many_small_leaves(
    mesh: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch reads one part of each shape and dtype, which takes long: the others are alike."""
    base = torch.arange(64.0).reshape(8, 8)
    sharding = NamedSharding(mesh, P("x", "y"))
    dtypes = [torch.float32, torch.int32, torch.float16, torch.int16]
    x = {f"{i} {d}": device_put((base + i).to(d), sharding) for i in range(5) for d in dtypes}
    small = torch.arange(6.0)
    x |= {"across": small.reshape(2, 3).T, "along": small.reshape(3, 2), "more": 2 * small}
    save_checkpoint(tmp_path / "c", x)
    loads: list[object] = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **k: (loads.append(a), load(*a, **k))[1])
    found = load_checkpoint(tmp_path / "c", x)
    assert len(loads) == len(dtypes) + 3
    for name, t in x.items():
        assert torch.equal(found[name].cpu(), t.cpu()), name
        assert found[name].dtype == t.dtype
    other = {name: xf.ShapeDtypeStruct(tuple(t.shape), t.dtype) for name, t in x.items()}
    for name, t in load_checkpoint(tmp_path / "c", other).items():
        assert torch.equal(t.cpu(), x[name].cpu()), name
