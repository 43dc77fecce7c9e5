"""Exported operations, run by the other backend and judged as on a GPU."""

import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import operations as gpu
from benchmarks.operations import Finding, Unit, entries

pytestmark = pytest.mark.usefixtures("pjrt")


def judged(programs: list[gpu.Program], name: str) -> list[Finding]:
    unit = Unit(name, "float32", tuple(t for p in programs for t in p.transforms), 1)
    return gpu.examine(programs, entries()[name], unit)


def test_what_a_run_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["", "run", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match=r"none has no programs of demo: export .*none demo"):
        command.main()
    for name in ("demo.xz", "operations.xz"):
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "argv", ["", "run", str(tmp_path), "demo", "operations"])
    with pytest.raises(SystemExit, match="demo: torch finds no GPU here; only operations"):
        command.main()
    assert command.missing(tmp_path, ["operations"]) is None


def test_right_wrong_refused_and_other_samples(tmp_path: Path) -> None:
    gpu.export(tmp_path, ["maximum", "minimum", "nonzero"])
    kept = gpu.read(tmp_path)
    one, other, found = (kept[n, "float32"] for n in ("maximum", "minimum", "nonzero"))
    assert [(f.transform, f.status) for f in judged(one, "maximum")] == [
        (t, "right") for t in gpu.UNDER
    ]
    assert {f.status for f in judged(found, "nonzero")} == {"refused"}
    one[0].made = other[0].made
    assert {f.status for f in judged(one, "maximum")} == {"wrong"}
    one[0].sample = ""
    assert {f.detail for f in judged(one, "maximum")} == {
        "this release of torch draws another sample"
    }
