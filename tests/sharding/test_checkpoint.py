"""Checkpoints: written on one mesh, read on another, on one device, or by torch alone."""

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import pickle
import random
import resource
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

import xfunc as xf
from xfunc.sharding import (
    AbstractMesh,
    NamedSharding,
    P,
    device_put,
    load_checkpoint,
    load_extra,
    make_mesh,
    save_checkpoint,
    save_checkpoint_async,
    sharding_of,
    storage,
    use_mesh,
)

SHAPE = xf.ShapeDtypeStruct
QUIETLY = pytest.mark.filterwarnings("ignore::UserWarning")  # torch warns of a single process
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.int8,
    torch.uint8, torch.int32, torch.int64, torch.complex64,
]  # fmt: skip
FIRST = [P(), P("x"), P("y"), P("x", "y"), P(None, "x"), P(("y", "x")), P(None, ("x", "y"))]
SECOND = [P(), P("a"), P("c", "b"), P(None, ("b", "a")), P(("c", "a"), "b")]


@pytest.fixture
def mesh():
    return make_mesh((4, 2), ("x", "y"))


@pytest.fixture
def other():
    return make_mesh((2, 2, 2), ("a", "b", "c"))


@xf.tree.register_dataclass
@dataclasses.dataclass
class Layer:
    w: Any
    bias: Any


def check(found, expected):
    """Whether two trees are equal, in values, dtypes and types of numbers."""
    pairs = zip(xf.tree.leaves(found), xf.tree.leaves(expected), strict=True)
    assert xf.tree.structure(found) == xf.tree.structure(expected)
    for a, b in pairs:
        if isinstance(b, torch.Tensor):
            assert isinstance(a, torch.Tensor)
            assert a.dtype == b.dtype
            assert torch.equal(a.cpu(), b.cpu())
        else:
            assert type(a) is type(b)
            assert a == b


def stored(folder):
    """For each name, where its parts start."""
    found = {}
    for index in dcp.FileSystemReader(folder).read_metadata().storage_data:
        found.setdefault(index.fqn, []).append(tuple(index.offset))
    return {name: sorted(starts) for name, starts in found.items()}


def test_from_every_spec_to_every_spec_of_another_mesh(tmp_path, mesh, other):
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
def test_dtypes(tmp_path, mesh, other, dtype):
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
def test_shapes(tmp_path, mesh, shape, spec):
    value = torch.randn(shape)
    save_checkpoint(tmp_path / "step", device_put(value, NamedSharding(mesh, spec)))
    check(load_checkpoint(tmp_path / "step", value), value)
    wanted = NamedSharding(mesh, spec)
    check(load_checkpoint(tmp_path / "step", SHAPE(shape, value.dtype, wanted)), value)


def test_trees(tmp_path, mesh):
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


def test_each_part_is_written_once(tmp_path, mesh):
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


def test_results_of_a_program(tmp_path, mesh):
    x = torch.randn(8, 8, dtype=torch.float64)
    step = xf.jit(lambda a, b: (a @ b, a + b), donate_argnums=0)
    with use_mesh(mesh):
        a, b = device_put(x, P("x", "y")), device_put(x, P("y", "x"))
    out = step(a, b)
    save_checkpoint(tmp_path / "step", out)
    check(load_checkpoint(tmp_path / "step", out), out)
    torch.testing.assert_close(out[0].cpu(), x @ x)


def test_lazy_tensors_and_padding_of_torch_xla(tmp_path, mesh):
    from torch_xla.distributed import spmd

    theirs = spmd.Mesh(list(range(8)), (4, 2), ("x", "y"))
    value = torch.arange(30.0).reshape(10, 3)
    padded = spmd.mark_sharding(value.to("xla"), theirs, ("x", "y")).global_tensor
    save_checkpoint(tmp_path / "step", [padded, padded * 2])
    check(load_checkpoint(tmp_path / "step", [value, value]), [value, value * 2])
    check(load_checkpoint(tmp_path / "step", [padded, padded]), [value, value * 2])


@QUIETLY
def test_readable_by_torch(tmp_path, mesh):
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
def test_written_by_torch(tmp_path, mesh):
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


def test_on_one_device(tmp_path, mesh):
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


def test_several_processes_share_the_work(tmp_path):
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


# -- refusals ---------------------------------------------------------------------------------


def test_differences_are_all_listed(tmp_path):
    save_checkpoint(tmp_path / "step", {"a": torch.ones(2), "b": torch.ones(3), "c": 1})
    target = {"a": SHAPE((3,), torch.float32), "b": SHAPE((3,), torch.int32), "d": 1.0}
    with pytest.raises(xf.errors.TreeMismatchError, match="does not fit the target:") as raised:
        load_checkpoint(tmp_path / "step", target)
    assert str(raised.value).splitlines()[1:5] == [
        "  target['d']: not in the checkpoint",
        "  c: in the checkpoint only",
        "  target['a']: float32[2] in the checkpoint, float32[3] in the target",
        "  target['b']: float32[3] in the checkpoint, int32[3] in the target",
    ]


@pytest.mark.parametrize(
    ("tree", "error", "message"),
    [
        ({"a": [1, "text"]}, TypeError, r"x\['a'\]\[1\] is 'text' \(a str\), which cannot be"),
        ({"a": 2**63}, ValueError, "9223372036854775808, which does not fit into 64 bits"),
        ({"a": {"b": 1}, "a.b": 2}, ValueError, r"x\['a'\]\['b'\] and x\['a.b'\] would both be"),
        (torch.ones(2).to_sparse(), NotImplementedError, "its layout torch.sparse_coo is not"),
        (torch.ones(2, device="meta"), NotImplementedError, "it is on the meta device"),
        (
            torch.ones(2).to(torch.float8_e5m2fnuz),
            NotImplementedError,
            "float8_e5m2fnuz is not supported",
        ),
    ],
)
def test_what_cannot_be_saved(tmp_path, tree, error, message):
    with pytest.raises(error, match=message):
        save_checkpoint(tmp_path / "step", tree)
    assert not [*tmp_path.iterdir()]


def test_targets_that_say_nothing(tmp_path, mesh):
    save_checkpoint(tmp_path / "step", torch.ones(6))
    with pytest.raises(TypeError, match=r"target is 'x' \(a str\), which has no shape"):
        load_checkpoint(tmp_path / "step", "x")
    with pytest.raises(xf.errors.ShardingError, match=r"target is P\('x'\), but no mesh is in use"):
        load_checkpoint(tmp_path / "step", SHAPE((6,), torch.float32, P("x")))
    with pytest.raises(xf.errors.ShardingError, match="0 is 6, which is not a multiple of"):
        load_checkpoint(tmp_path / "step", SHAPE((6,), torch.float32, NamedSharding(mesh, P("x"))))
    far = NamedSharding(AbstractMesh((2,), "x"), P("x"))
    with pytest.raises(xf.errors.ShardingError, match="has 2 of 8 devices"):
        load_checkpoint(tmp_path / "step", SHAPE((6,), torch.float32, far))


def test_inside_of_a_transform(tmp_path):
    def save(x):
        save_checkpoint(tmp_path / "step", x)
        return x.sum()

    def load(x):
        return load_checkpoint(tmp_path / "step", x).sum()

    for f, name in ((save, "save_checkpoint"), (load, "load_checkpoint")):
        with pytest.raises(xf.errors.PurityError, match=f"{name} was called inside"):
            xf.jit(f)(torch.ones(3))
        with xf.disable_jit(), pytest.raises(xf.errors.PurityError, match=f"{name} was called"):
            xf.grad(f)(torch.ones(3))
    assert not [*tmp_path.iterdir()]


def test_donated(tmp_path, mesh):
    x = device_put(torch.ones(8), NamedSharding(mesh, P("x")))
    xf.jit(lambda a: a + 1, donate_argnums=0)(x)
    with pytest.raises(RuntimeError, match="was donated to a jitted function"):
        save_checkpoint(tmp_path / "step", [torch.ones(2), x])
    assert not [*tmp_path.iterdir()]


def test_existing_folder(tmp_path):
    save_checkpoint(tmp_path / "step", torch.ones(2))
    with pytest.raises(FileExistsError, match=r"step already exists"):
        save_checkpoint(tmp_path / "step", torch.zeros(2))
    check(load_checkpoint(tmp_path / "step", torch.zeros(2)), torch.ones(2))
    with pytest.raises(ValueError, match="'gs://bucket/step' is not a folder"):
        save_checkpoint("gs://bucket/step", torch.ones(2))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EIO, "no answer"), xf.errors.CheckpointWriteError),
        (KeyboardInterrupt("no answer"), KeyboardInterrupt),
    ],
)
def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch, error, kind):
    from xfunc.sharding import checkpoint

    def fail(*_):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "fetch", fail)
        with pytest.raises(kind, match="no answer"):
            save_checkpoint(tmp_path / "step", torch.ones(2))
    assert not [*tmp_path.iterdir()]


def test_a_save_that_was_killed(tmp_path):
    (tmp_path / "step.partial").mkdir()
    (tmp_path / "step.partial" / "__0_0.distcp").write_bytes(b"half of it")
    with pytest.raises(FileNotFoundError, match=r"step\.partial is of a save that did not end"):
        load_checkpoint(tmp_path / "step", torch.ones(2))
    save_checkpoint(tmp_path / "step", torch.ones(2))
    assert [p.name for p in tmp_path.iterdir()] == ["step"]
    check(load_checkpoint(tmp_path / "step", torch.zeros(2)), torch.ones(2))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch, once in a process
def test_parts_that_nobody_wrote(tmp_path):
    with pytest.warns(UserWarning, match=r"torch\.distributed is disabled"):
        dcp.save({"value": torch.ones(2)}, checkpoint_id=tmp_path / "step")
    metadata = dcp.FileSystemReader(tmp_path / "step").read_metadata()
    value = metadata.state_dict_metadata["value"]
    assert isinstance(value, TensorStorageMetadata)
    value.chunks.pop()
    (tmp_path / "step" / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(xf.errors.DamagedCheckpointError, match="lacks parts of value"):
        load_checkpoint(tmp_path / "step", torch.ones(2))


# -- beside the tree --------------------------------------------------------------------------


def test_extra(tmp_path):
    extra = {"seed": 2**100, "rate": 0.1, "names": ["a", None, True], "text": "\u00e9\n"}
    save_checkpoint(tmp_path / "step", torch.ones(2), extra)
    assert load_extra(tmp_path / "step") == extra
    save_checkpoint(tmp_path / "none", torch.ones(2))
    assert load_extra(tmp_path / "none") is None
    with pytest.raises(TypeError, match="extra cannot be written as JSON: Object of type Tensor"):
        save_checkpoint(tmp_path / "more", torch.ones(2), {"x": torch.ones(2)})
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint at .*more"):
        load_extra(tmp_path / "more")


# -- in a thread ------------------------------------------------------------------------------


def test_what_comes_after_does_not_matter(tmp_path, mesh, monkeypatch):
    """The thread starts to write when every tensor has been changed or donated."""
    from xfunc.sharding import storage

    go, write = threading.Event(), storage.write

    def late(*args):
        assert go.wait(60)
        write(*args)

    monkeypatch.setattr(storage, "write", late)
    x = torch.randn(8, 4)
    state = {
        "host": x.clone(),
        "view": x.clone().T[1:],
        "whole": device_put(x),
        "divided": device_put(x, NamedSharding(mesh, P("x"))),
        "step": 3,
    }
    pending = save_checkpoint_async(tmp_path / "step", state, {"a": 1})
    state["host"].zero_()
    state["view"].zero_()
    donate = xf.jit(lambda a, b: (a + 1, b + 1), donate_argnums=(0, 1))
    for _ in range(3):
        state["whole"], state["divided"] = donate(state["whole"], state["divided"])
    assert not pending.done()
    go.set()
    assert pending.result() is None
    found = load_checkpoint(tmp_path / "step", state)
    check(found, {"host": x, "view": x.T[1:], "whole": x, "divided": x, "step": 3})
    assert load_extra(tmp_path / "step") == {"a": 1}


def test_one_at_a_time(tmp_path, monkeypatch):
    """The first save ends only if the second waits for it; nothing is copied before."""
    from xfunc.sharding import checkpoint, storage

    go, happened = threading.Event(), []
    copy, write, wait = checkpoint.copy, storage.write, checkpoint.concurrent.futures.wait

    def gated_write(folder, *args):
        happened.append(f"write {folder.stem}")
        assert go.wait(60)
        write(folder, *args)
        happened.append(f"wrote {folder.stem}")

    def logged_copy(*args):
        happened.append("copy")
        return copy(*args)

    def wait_and_go(futures):
        go.set()
        return wait(futures)

    monkeypatch.setattr(storage, "write", gated_write)
    monkeypatch.setattr(checkpoint, "copy", logged_copy)
    monkeypatch.setattr(checkpoint.concurrent.futures, "wait", wait_and_go)
    monkeypatch.setattr(checkpoint, "_pending", None)
    save_checkpoint_async(tmp_path / "a", torch.ones(2))
    last = save_checkpoint_async(tmp_path / "b", torch.ones(2))
    last.result()
    assert happened == ["copy", "write a", "wrote a", "copy", "write b", "wrote b"]
    with pytest.raises(FileExistsError, match=r"b already exists"):
        save_checkpoint_async(tmp_path / "b", torch.ones(2))


# -- on the disk ------------------------------------------------------------------------------


def test_all_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
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


@contextlib.contextmanager
def full_disk(folder, kind):
    """A folder where 1 MiB fits into a file, or into all of them."""
    if kind == "disk":
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("mounting is not allowed here")
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    else:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [
        ("disk", errno.ENOSPC, "No space left on device"),
        ("limit", errno.EFBIG, "File too large"),
    ],
)
def test_full_disk(tmp_path, kind, number, text):
    with full_disk(tmp_path, kind):
        small, large = torch.ones(1000), torch.ones(300, 1000)
        save_checkpoint(tmp_path / "1", small)
        with pytest.raises(xf.errors.CheckpointWriteError, match=text) as raised:
            save_checkpoint(tmp_path / "2", large)
        assert raised.value.errno == number
        assert isinstance(raised.value, OSError)

        pending = save_checkpoint_async(tmp_path / "3", [small, large])
        line = r"3 could not be written: .*\n  at .*test_checkpoint\.py:\d+ in test_full_disk: "
        with pytest.raises(xf.errors.CheckpointWriteError, match=line):
            pending.result()
        save_checkpoint_async(tmp_path / "4", small + 1).result()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "4"]
        check(load_checkpoint(tmp_path / "1", small), small)
        check(load_checkpoint(tmp_path / "4", small), small + 1)


# -- damage -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A checkpoint, its tree, and its files."""
    folder = tmp_path_factory.mktemp("good") / "step"
    tree = {"w": torch.randn(16, 16), "b": torch.randn(7).bfloat16(), "step": 5}
    save_checkpoint(folder, tree, {"a": [1, 2]})
    return folder, tree, {path.name: path.read_bytes() for path in folder.iterdir()}


FILES = ["__0_0.distcp", ".metadata", "extra.json", "manifest.json"]


def load_all(folder, tree):
    return load_checkpoint(folder, tree), load_extra(folder)


def test_files(good):
    _, _, files = good
    assert sorted(files) == sorted(FILES)
    named = json.loads(files["manifest.json"])["files"]
    assert sorted(named) == sorted({*FILES} - {"manifest.json"})
    for name, known in named.items():
        assert known["size"] == len(files[name])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "is missing"),
        (lambda data: data[: len(data) // 2], r"has \d+ bytes, and was written with \d+"),
        (lambda data: b"", "has 0 bytes, and was written with"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "was changed: its checksum is not"),
    ],
    ids=["missing", "truncated", "empty", "one bit"],
)
def test_a_damaged_file_is_named(good, name, change, message):
    folder, tree, files = good
    path = folder / name
    path.unlink()
    try:
        if change is not None:
            path.write_bytes(change(files[name]))
        if change is not None and name == "manifest.json":
            message = r"was changed \(JSONDecodeError\)"
        with pytest.raises(xf.errors.DamagedCheckpointError, match=message) as raised:
            load_all(folder, tree)
    finally:
        path.write_bytes(files[name])
    assert raised.value.file == path
    assert f"the checkpoint at {folder} is damaged: {name} " in str(raised.value)
    assert str(raised.value).endswith("Hint: use an older checkpoint, or a copy of this one.")
    assert isinstance(raised.value, ValueError)
    loaded, extra = load_all(folder, tree)
    check(loaded, tree)
    assert extra == {"a": [1, 2]}


def test_a_flipped_bit_never_loads_wrongly(good):
    """Anywhere: in the manifest some are no damage, such as in white space."""
    folder, tree, files = good
    rng = random.Random(0)
    refused = 0
    for name in FILES * 25:
        data = bytearray(files[name])
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(data)
        try:
            loaded, extra = load_all(folder, tree)
        except xf.errors.DamagedCheckpointError:
            refused += 1
        else:
            assert name == "manifest.json"
            check(loaded, tree)
            assert extra == {"a": [1, 2]}
        finally:
            (folder / name).write_bytes(files[name])
    assert refused >= 90


class Command:
    def __reduce__(self):
        return os.mkdir, ("made by a pickle",)


@pytest.mark.parametrize("has_manifest", [True, False])
def test_code_in_the_metadata_does_not_run(tmp_path, monkeypatch, has_manifest):
    monkeypatch.chdir(tmp_path)
    save_checkpoint("step", torch.ones(2))
    pathlib.Path("step/.metadata").write_bytes(pickle.dumps(Command()))
    message = "was written with"
    if not has_manifest:  # As of torch's own, which have no checksums.
        os.remove("step/manifest.json")
        message = r"\.metadata cannot be read \(it asks for posix\.mkdir\)"
    with pytest.raises(xf.errors.DamagedCheckpointError, match=message):
        load_checkpoint("step", torch.ones(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step"]


def test_metadata_that_is_none(tmp_path):
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    message = r"\.metadata cannot be read \('dict' object has no attribute"
    with pytest.raises(xf.errors.DamagedCheckpointError, match=message):
        load_checkpoint(tmp_path, torch.ones(2))


@QUIETLY
def test_damage_of_what_torch_wrote(tmp_path):
    """There are no checksums, but never an error of another kind."""
    dcp.save({"value": torch.ones(100)}, checkpoint_id=tmp_path)
    path = tmp_path / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(
        xf.errors.DamagedCheckpointError, match="its files cannot be read"
    ) as raised:
        load_checkpoint(tmp_path, torch.ones(100))
    assert raised.value.file == tmp_path
    path.unlink()
    with pytest.raises(
        xf.errors.DamagedCheckpointError, match=r"__0_0\.distcp is missing"
    ) as raised:
        load_checkpoint(tmp_path, torch.ones(100))
    assert raised.value.file == path


def test_a_part_is_read_without_the_rest(tmp_path, mesh, monkeypatch):
    """Large entries at the top lie in files of their own: those of others need not be whole."""
    monkeypatch.setattr(storage, "FULL", 100)
    where = NamedSharding(mesh, P("x", "y"))
    state = {
        "a": {"w": device_put(torch.randn(8, 4), where), "b": torch.randn(30)},
        "b": [torch.randn(30), torch.randn(30)],
        "c": {"x": 1},
        "d": 2.0,
    }
    save_checkpoint(tmp_path / "step", state)
    files = sorted(path.name for path in (tmp_path / "step").glob("*.distcp"))
    assert files == [f"__0_{i}.distcp" for i in range(4)]
    check(load_checkpoint(tmp_path / "step", state), state)
    path = tmp_path / "step" / "__0_1.distcp"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    part = {"a": state["a"], "d": 0.0}
    check(load_checkpoint(tmp_path / "step", part, partial=True), part | {"d": 2.0})
    with pytest.raises(xf.errors.DamagedCheckpointError, match=r"__0_1\.distcp was changed"):
        load_checkpoint(tmp_path / "step", state)
    with pytest.raises(xf.errors.TreeMismatchError, match=r"\['e'\]: not in the checkpoint"):
        load_checkpoint(tmp_path / "step", {"e": 1}, partial=True)
