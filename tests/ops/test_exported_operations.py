"""Exported operations, run by the other backend and judged as on a GPU."""

from pathlib import Path

import pytest

from benchmarks.gpu import operations as gpu
from benchmarks.operations import Finding, Unit, entries

pytestmark = pytest.mark.usefixtures("pjrt")


def judged(programs: list[gpu.Program], name: str) -> list[Finding]:
    unit = Unit(name, "float32", tuple(t for p in programs for t in p.transforms), 1)
    return gpu.examine(programs, entries()[name], unit)


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
