"""How checkpoints are written: order, failures and files, seen from inside of the writer."""

import errno
import threading
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.checkpoints import check
from xfunc.sharding import (
    NamedSharding,
    P,
    checkpoint,
    device_put,
    load_checkpoint,
    load_extra,
    make_mesh,
    save_checkpoint,
    save_checkpoint_async,
    storage,
)


@pytest.fixture
def mesh():
    return make_mesh((4, 2), ("x", "y"))


def test_save_checkpoint_async_ignores_later_changes(tmp_path, mesh, monkeypatch):
    """The thread starts to write when every tensor has been changed or donated."""

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


def test_save_checkpoint_async_one_at_a_time(tmp_path, monkeypatch):
    """The first save ends only if the second waits for it; nothing is copied before."""
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


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EIO, "no answer"), xf.errors.CheckpointWriteError),
        (KeyboardInterrupt("no answer"), KeyboardInterrupt),
    ],
)
def test_save_checkpoint_failure_leaves_no_files(tmp_path, monkeypatch, error, kind):
    def fail(*_):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "fetch", fail)
        with pytest.raises(kind, match="no answer"):
            save_checkpoint(tmp_path / "step", torch.ones(2))
    assert not [*tmp_path.iterdir()]


def test_load_checkpoint_partial_skips_other_files(tmp_path, mesh, monkeypatch):
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


def test_save_checkpoint_describes_parts_that_are_alike_once(tmp_path, mesh):
    """Equal descriptions are one object, which is small in the file and quick to read."""
    where = NamedSharding(mesh, P("x", "y"))
    tree = {f"w{k}": device_put(torch.full((8, 4), float(k)), where) for k in range(3)}
    save_checkpoint(tmp_path / "step", tree)
    found: Any = storage.Stored(tmp_path / "step").read_metadata().state_dict_metadata
    chunks = [found[name].chunks for name in tree]
    assert len(chunks[0]) == 8
    for others in chunks[1:]:
        assert all(a is b for a, b in zip(chunks[0], others, strict=True))
    check(
        load_checkpoint(tmp_path / "step", tree),
        {f"w{k}": torch.full((8, 4), float(k)) for k in range(3)},
    )
