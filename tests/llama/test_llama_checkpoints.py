"""The Llama example's checkpoints: kept, restored, moved to a mesh, damaged, killed."""

import itertools
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.checkpoint.checkpoints import Checkpoints
from tests.support.fresh import Server
from xfunc.errors import CheckpointWriteError, DamagedCheckpointError


def state_of(step: int) -> dict[str, Any]:
    return {"w": torch.arange(6.0) * step, "step": step}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def saved(folder: Path, *steps: int, keep: int = 3) -> Checkpoints:
    with Checkpoints(folder, keep) as checkpoints:
        for step in steps:
            checkpoints.save(step, state_of(step), {"rows": 8 * step})
    return checkpoints


def test_checkpoints_keep_newest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run", keep=2)
    assert checkpoints.latest() is None
    assert checkpoints.steps() == []
    checkpoints = saved(tmp_path / "run", 9, 10, 100, keep=2)
    assert checkpoints.steps() == [10, 100]
    assert checkpoints.latest() == 100
    assert names(tmp_path / "run") == ["10", "100"]


def test_checkpoints_save_restore_round_trip(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    step, state, extra = checkpoints.restore(state_of(0))
    assert (step, extra, state["step"]) == (2, {"rows": 16}, 2)
    assert torch.equal(state["w"], state_of(2)["w"])
    assert checkpoints.restore(state_of(0), step=1).extra == {"rows": 8}


def test_checkpoints_save_during_donating_steps(tmp_path: Path) -> None:
    step = xf.jit(lambda w: torch.sin(w) + 1, donate_argnums=0)
    w, seen = xf.device_put(torch.ones(100, 100)), []
    with Checkpoints(tmp_path, keep=10) as checkpoints:
        for i in range(1, 6):
            w = step(w)
            checkpoints.save(i, w, {})
            seen.append(w.cpu())
    for i, expected in enumerate(seen, start=1):
        assert torch.equal(checkpoints.restore(w, step=i).state.cpu(), expected)


def test_checkpoints_leftovers_of_killed_runs_are_removed(tmp_path: Path) -> None:
    for name in ("7.partial", "3.removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__0_0.distcp").write_bytes(b"half of it")
    assert Checkpoints(tmp_path).steps() == []
    saved(tmp_path, 5)
    assert names(tmp_path) == ["5"]


def test_checkpoints_step_and_keep_errors(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 5)
    for step in (4, 5):
        with pytest.raises(FileExistsError, match=f"of step 5, and step {step} is not after it"):
            checkpoints.save(step, state_of(step), {})
    with pytest.raises(ValueError, match="keep is 0: keep at least 1"):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint in .*none: give"):
        Checkpoints(tmp_path / "none").restore(state_of(0))
    with pytest.raises(FileNotFoundError, match=r"has no checkpoint of step 7: use one of"):
        checkpoints.restore(state_of(0), step=7)


# -- damage -----------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"__0_0\.distcp has \d+ bytes, and was written with \d+"),
        (flip, r"__0_0\.distcp was changed: its checksum is not that of what was written"),
        (Path.unlink, r"__0_0\.distcp is missing"),
    ],
    ids=["truncated", "flipped", "missing"],
)
def test_checkpoints_restore_skips_damaged(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    saved(tmp_path, 1, 2, 3)
    damage(tmp_path / "3" / "__0_0.distcp")
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(DamagedCheckpointError, match=message):
        checkpoints.restore(state_of(0), step=3)
    with pytest.warns(UserWarning, match=f"step 3 is skipped: .*{message}"):
        found = checkpoints.restore(state_of(0))
    assert (found.step, found.extra) == (2, {"rows": 16})
    assert torch.equal(found.state["w"], state_of(2)["w"])
    assert names(tmp_path) == ["1", "2", "3"]  # Reading changes nothing.
    # The step is made and saved again, and stays.
    with checkpoints:
        for step in (3, 4):
            checkpoints.save(step, state_of(step), {})
    assert names(tmp_path) == ["2", "3", "3.damaged", "4"]
    assert torch.equal(checkpoints.restore(state_of(0), step=3).state["w"], state_of(3)["w"])


def test_checkpoints_restore_skips_empty_folder(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    for file in (tmp_path / "2").iterdir():
        file.unlink()
    with pytest.warns(UserWarning, match=r"step 2 is skipped: there is no checkpoint at .*/2"):
        assert checkpoints.restore(state_of(0)).step == 1
    with checkpoints:
        checkpoints.save(2, state_of(2), {})
    assert names(tmp_path) == ["1", "2", "2.damaged"]


def test_checkpoints_restore_all_damaged_raises(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    for step in (1, 2):
        cut(tmp_path / str(step) / ".metadata")
    with (
        pytest.warns(UserWarning, match="step [12] is skipped"),
        pytest.raises(DamagedCheckpointError, match=r"at .*/2 is damaged: \.metadata has"),
    ):
        checkpoints.restore(state_of(0))


def test_checkpoints_save_on_full_disk(tmp_path: Path) -> None:
    """Training goes on, with the checkpoints there are, and saves again when there is room."""
    checkpoints = saved(tmp_path, 1, 2)
    large = {"w": torch.ones(2**18), "step": 3}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
    try:
        checkpoints.save(3, large, {})
        with pytest.raises(CheckpointWriteError, match=r"/3 could not be written: .*too large"):
            checkpoints.wait()
        assert checkpoints.steps() == [1, 2]
        checkpoints.save(4, large, {})
        with pytest.raises(CheckpointWriteError, match=r"/4 could not be written: .*too large"):
            checkpoints.save(5, large, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["1", "2"]
    with checkpoints:
        checkpoints.save(6, large, {"rows": 48})
    step, state, extra = checkpoints.restore(large)
    assert (step, extra) == (6, {"rows": 48})
    assert torch.equal(state["w"], large["w"])


# -- other processes --------------------------------------------------------------------------

ON_8_DEVICES = """
import dataclasses, sys
import torch
import xfunc as xf
from examples.llama import model, train
from examples.llama.checkpoint.checkpoints import Checkpoints
from examples.llama.model.plan import Plan
from examples.llama.parallel.sharding import Sharding

plan = Plan(sharding=Sharding.of({"fsdp": 4, "tensor": 2}))
recipe = train.Recipe(model.TINY["tiny"], steps=100, plan=plan)
target = train.abstract_state(recipe)
with Checkpoints(sys.argv[1]) as checkpoints:
    step, state, extra = checkpoints.restore(target)
    for leaf, wanted in zip(xf.tree.leaves(state), xf.tree.leaves(target), strict=True):
        assert xf.sharding.sharding_of(leaf) == wanted.sharding
    checkpoints.save(step + 1, state, extra)
"""


def test_checkpoints_between_one_device_and_mesh(tmp_path: Path, fresh: Server) -> None:
    """All of a training state: parameters, optimizer, guard; bit for bit."""
    recipe = train.Recipe(model.TINY["tiny"], steps=100)
    generator = torch.Generator().manual_seed(0)

    def random_bits(leaf: torch.Tensor) -> torch.Tensor:
        if not leaf.is_floating_point():
            return torch.tensor(12345, dtype=leaf.dtype)
        return torch.randn(leaf.shape, generator=generator).to(leaf.dtype)

    state = xf.device_put(xf.tree.map(random_bits, train.init(recipe)))
    extra = {"reader": {"epoch": 1, "row": 77}, "seed": 3}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, state, extra)
    done = fresh.run(ON_8_DEVICES, tmp_path, env={"CPU_NUM_DEVICES": "8"})
    assert done.returncode == 0, done.stderr
    found = checkpoints.restore(state)
    assert (found.step, found.extra) == (5, extra)
    for ours, expected in zip(xf.tree.leaves(found.state), xf.tree.leaves(state), strict=True):
        assert ours.dtype == expected.dtype
        assert torch.equal(ours.cpu(), expected.cpu())


@pytest.mark.slow
def test_checkpoints_survive_repeated_kills(
    tmp_path: Path, pytestconfig: pytest.Config, fresh: Server, seed: int
) -> None:
    """Each life begins with a state of the undisturbed training, and loses no saved step."""
    kills = 20 if pytestconfig.getoption("--tier") == "sweep" else 7
    done = fresh.run(
        "from tests.llama import killed_training as k; k.main()", tmp_path, kills, seed
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    events = [*itertools.chain(*told["lives"])]
    assert [event for event in (*events, *told["whole"]) if event[0] == "failed"] == []
    right = {step: rest for kind, step, *rest in told["whole"] if kind != "saved"}
    assert len(told["lives"]) == kills + 1
    saved = made = 0
    for kind, step, *rest in events:
        if kind == "saved":
            saved = step
            continue
        assert rest == right[step]
        if kind == "began":
            assert saved <= step <= made
        made = max(made, step)
    assert made == max(right) > 3
