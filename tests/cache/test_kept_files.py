"""The files of traced programs: damaged ones, folders that cannot be written, other processes."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server
from tests.support.kept_program import SOURCE, W, X, by_torch, equal, run
from tests.support.kept_program import load as load


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "another"])
def test_a_damaged_file_is_replaced(load: Any, damage: str, tmp_path: Path) -> None:
    run(load().f)
    (file,) = (tmp_path / "traces").iterdir()
    data = whole = file.read_bytes()
    if damage == "another":
        run(load().constant)
        (data,) = [p.read_bytes() for p in file.parent.iterdir() if p != file]
    at = len(whole) // 2
    flipped = whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :]
    file.write_bytes({"cut": whole[:at], "flipped": flipped, "empty": b"", "another": data}[damage])
    traces, found = run(load().f)
    assert traces == 1
    equal(found, by_torch(load().f))
    assert run(load().f)[0] == 0


def test_a_folder_that_cannot_be_written(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    xf.config.set_trace_cache_dir(tmp_path / "file")
    with pytest.warns(UserWarning, match="traced programs cannot be kept in .*file"):
        equal(run(load().f)[1], by_torch(load().f))

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    xf.config.set_trace_cache_dir(tmp_path / "full")
    monkeypatch.setattr(tempfile, "mkstemp", full)
    with pytest.warns(UserWarning, match="traced programs cannot be kept in .*No space left"):
        equal(run(load().f)[1], by_torch(load().f))


def test_a_folder_without_permission_is_said_once(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: Path) -> object:
        raise PermissionError(13, "Permission denied", f"{folder}/tmp{next(numbers)}")

    numbers = iter(range(9))
    monkeypatch.setattr(tempfile, "mkstemp", lambda dir: refused(dir))
    xf.config.set_trace_cache_dir(tmp_path / "refused")
    with pytest.warns(UserWarning, match="cannot be kept in .*refused: Permission denied$"):
        run(load().f)
    run(load().constant)  # Warnings are errors.
    assert next(numbers) == 2


@pytest.mark.parametrize("folder", [b"/tmp", 5, [], False, "a\0b"])
@pytest.mark.parametrize("setting", ["set_trace_cache_dir", "set_compilation_cache_dir"])
def test_what_is_no_folder(setting: str, folder: Any) -> None:
    kind = ValueError if isinstance(folder, str) else TypeError
    with pytest.raises(kind, match=rf"^config\.{setting} was given .*, which is no path"):
        getattr(xf.config, setting)(folder)


def test_a_folder_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, load: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    xf.config.set_trace_cache_dir("~/at home")
    run(load().f)
    assert [p.suffix for p in (tmp_path / "at home").iterdir()] == [".trace"]


SCRIPT = """if True:
    import json, sys
    import torch, xfunc as xf

    xf.config.set_trace_cache_dir(sys.argv[1])
    sys.path.insert(0, sys.argv[2])
    import kept_program

    jitted = xf.jit(kept_program.f)
    w, x = torch.load(sys.argv[3])
    loss, grad = xf.device_get(jitted(w, x))
    loaded = "torch_xla" in sys.modules
    print(json.dumps([xf.trace_count(jitted), loaded, loss.item(), grad.tolist()]))
"""


def test_other_processes(fresh: Server, tmp_path: Path) -> None:
    """Two at once, and one after them, which neither traces nor loads torch_xla."""
    (tmp_path / "kept_program.py").write_text(SOURCE)
    torch.save((W, X), tmp_path / "inputs")
    args = tmp_path / "traces", tmp_path, tmp_path / "inputs"
    env = {"XFUNC_BACKEND": "pjrt", "CPU_NUM_DEVICES": "1"}
    both = [fresh.start(SCRIPT, *args, env=env) for _ in range(2)]
    done = [*(p.wait() for p in both), fresh.run(SCRIPT, *args, env=env)]
    for one, wanted in zip(done, [(1, True), (1, True), (0, False)], strict=True):
        assert one.returncode == 0, one.stderr
        traces, loaded, *found = json.loads(one.stdout.splitlines()[-1])
        assert (traces, loaded) == wanted
        assert found == json.loads(done[0].stdout.splitlines()[-1])[2:]
    assert [p.suffix for p in (tmp_path / "traces").iterdir()] == [".trace"]
