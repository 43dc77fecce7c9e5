"""Checkpoints that are refused: values that cannot be saved, other targets, damage, full disks."""

import contextlib
import errno
import json
import os
import pathlib
import pickle
import random
import resource
import subprocess

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

import xfunc as xf
from tests.support.checkpoints import QUIETLY, SHAPE, check
from xfunc.sharding import (
    AbstractMesh,
    NamedSharding,
    P,
    device_put,
    load_checkpoint,
    load_extra,
    save_checkpoint,
    save_checkpoint_async,
)

# -- what is refused --------------------------------------------------------------------------


def test_load_checkpoint_lists_all_tree_differences(tmp_path):
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
def test_save_checkpoint_unsupported_leaf_raises(tmp_path, tree, error, message):
    with pytest.raises(error, match=message):
        save_checkpoint(tmp_path / "step", tree)
    assert not [*tmp_path.iterdir()]


def test_load_checkpoint_invalid_target_raises(tmp_path, mesh):
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


def test_save_and_load_checkpoint_inside_transform_raise(tmp_path):
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


def test_save_checkpoint_donated_tensor_raises(tmp_path, mesh):
    x = device_put(torch.ones(8), NamedSharding(mesh, P("x")))
    xf.jit(lambda a: a + 1, donate_argnums=0)(x)
    with pytest.raises(RuntimeError, match="was donated to a jitted function"):
        save_checkpoint(tmp_path / "step", [torch.ones(2), x])
    assert not [*tmp_path.iterdir()]


def test_save_checkpoint_existing_folder_raises(tmp_path):
    save_checkpoint(tmp_path / "step", torch.ones(2))
    with pytest.raises(FileExistsError, match=r"step already exists"):
        save_checkpoint(tmp_path / "step", torch.zeros(2))
    check(load_checkpoint(tmp_path / "step", torch.zeros(2)), torch.ones(2))
    with pytest.raises(ValueError, match="'gs://bucket/step' is not a folder"):
        save_checkpoint("gs://bucket/step", torch.ones(2))


def test_save_and_load_checkpoint_after_killed_save(tmp_path):
    (tmp_path / "step.partial").mkdir()
    (tmp_path / "step.partial" / "__0_0.distcp").write_bytes(b"half of it")
    with pytest.raises(FileNotFoundError, match=r"step\.partial is of a save that did not end"):
        load_checkpoint(tmp_path / "step", torch.ones(2))
    save_checkpoint(tmp_path / "step", torch.ones(2))
    assert [p.name for p in tmp_path.iterdir()] == ["step"]
    check(load_checkpoint(tmp_path / "step", torch.zeros(2)), torch.ones(2))


# -- full disks -------------------------------------------------------------------------------


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
def test_save_checkpoint_full_disk(tmp_path, kind, number, text):
    with full_disk(tmp_path, kind):
        small, large = torch.ones(1000), torch.ones(300, 1000)
        save_checkpoint(tmp_path / "1", small)
        with pytest.raises(xf.errors.CheckpointWriteError, match=text) as raised:
            save_checkpoint(tmp_path / "2", large)
        assert raised.value.errno == number
        assert isinstance(raised.value, OSError)

        pending = save_checkpoint_async(tmp_path / "3", [small, large])
        line = (
            r"3 could not be written: .*\n  at .*test_checkpoint_errors\.py:\d+ in "
            r"test_save_checkpoint_full_disk: "
        )
        with pytest.raises(xf.errors.CheckpointWriteError, match=line):
            pending.result()
        save_checkpoint_async(tmp_path / "4", small + 1).result()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "4"]
        check(load_checkpoint(tmp_path / "1", small), small)
        check(load_checkpoint(tmp_path / "4", small), small + 1)


# -- damaged files ----------------------------------------------------------------------------


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


def test_save_checkpoint_manifest(good):
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
def test_load_checkpoint_damaged_file_raises(good, name, change, message):
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


def test_load_checkpoint_flipped_bit(good):
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
def test_load_checkpoint_does_not_run_code_in_metadata(tmp_path, monkeypatch, has_manifest):
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


def test_load_checkpoint_metadata_of_another_type_raises(tmp_path):
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    message = r"\.metadata cannot be read \('dict' object has no attribute"
    with pytest.raises(xf.errors.DamagedCheckpointError, match=message):
        load_checkpoint(tmp_path, torch.ones(2))


@QUIETLY
def test_load_checkpoint_damaged_torch_files_raise(tmp_path):
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


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch, once in a process
def test_load_checkpoint_missing_chunks_raise(tmp_path):
    with pytest.warns(UserWarning, match=r"torch\.distributed is disabled"):
        dcp.save({"value": torch.ones(2)}, checkpoint_id=tmp_path / "step")
    metadata = dcp.FileSystemReader(tmp_path / "step").read_metadata()
    value = metadata.state_dict_metadata["value"]
    assert isinstance(value, TensorStorageMetadata)
    value.chunks.pop()
    (tmp_path / "step" / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(xf.errors.DamagedCheckpointError, match="lacks parts of value"):
        load_checkpoint(tmp_path / "step", torch.ones(2))
