"""Checkpoints that are refused: what cannot be saved, targets that differ, saves that fail."""

import errno

import pytest
import torch

import xfunc as xf
from tests.support.checkpoints import SHAPE, check
from xfunc.sharding import (
    AbstractMesh,
    NamedSharding,
    P,
    device_put,
    load_checkpoint,
    save_checkpoint,
)


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
