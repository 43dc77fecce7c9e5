"""How checkpoints are written: what lies beside the tree, in a thread, and safely on the disk."""

import contextlib
import errno
import os
import pathlib
import resource
import subprocess
import threading

import pytest
import torch

import xfunc as xf
from tests.support.checkpoints import check
from xfunc.sharding import (
    NamedSharding,
    P,
    device_put,
    load_checkpoint,
    load_extra,
    save_checkpoint,
    save_checkpoint_async,
)

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
        line = (
            r"3 could not be written: .*\n  at .*test_checkpoint_writing\.py:\d+ in "
            r"test_full_disk: "
        )
        with pytest.raises(xf.errors.CheckpointWriteError, match=line):
            pending.result()
        save_checkpoint_async(tmp_path / "4", small + 1).result()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "4"]
        check(load_checkpoint(tmp_path / "1", small), small)
        check(load_checkpoint(tmp_path / "4", small), small + 1)
