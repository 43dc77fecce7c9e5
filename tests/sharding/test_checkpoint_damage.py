"""Checkpoints that are damaged: the file is named, and nothing is loaded wrongly."""

import json
import os
import pathlib
import pickle
import random

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

import xfunc as xf
from tests.support.checkpoints import QUIETLY, check
from xfunc.sharding import (
    NamedSharding,
    P,
    device_put,
    load_checkpoint,
    load_extra,
    save_checkpoint,
    storage,
)


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
