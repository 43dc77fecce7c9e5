"""`python -m tests.sweep`: what it reads from its parts, and that a later run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import sweep

PYTEST = """
FAILED tests/cache/test_again.py::test_a - assert 1 == 2
ERROR tests/cache/test_again.py::test_b - KeyError
2 failed, 30 passed, 3 deselected, 1 error in 90.50s (0:01:30)
"""
OPERATIONS = """
{"name": "sin", "status": "wrong"}
| right of all | `float64` |
In all, 8614 right, 1 wrong, 0 ends the process, 2 another error, 438 refused.
"""
PROGRAMS = """
# program 0/7: differs in y
x1 = torch.ones(2)
2 differs: y
{'same': 98, 'differs': 2} 12 s
"""
DAMAGES = """
17 it ends the process (-6)
2000 tried, 1 findings
"""


@pytest.mark.quick
@pytest.mark.parametrize(
    ("part", "text", "counts", "failures"),
    [
        ("suite", PYTEST, {"failed": 2, "passed": 30, "error": 1}, 2),
        ("suite", "", {}, 0),
        (
            "operations",
            OPERATIONS,
            {"right": 8614, "wrong": 1, "crash": 0, "error": 2, "refused": 438},
            1,
        ),
        ("programs", PROGRAMS, {"same": 98, "differs": 2}, 1),
        ("mutations", DAMAGES, {"tried": 2000, "findings": 1}, 1),
    ],
)
def test_part_reads_counts_and_failures(
    part: str, text: str, counts: dict[str, int], failures: int
) -> None:
    found, lines = sweep.PARTS[part].read(text)
    assert found == counts
    assert len(lines) == failures


@pytest.mark.quick
def test_run_counts_a_process_that_dies_silently_as_a_crash() -> None:
    result = sweep.run("mutations", "x", ["-c", "import os; os.abort()"], 3, "rev")
    assert result.counts == {"crash": 1}
    assert result.failures[0].startswith("status -6")


@pytest.mark.quick
def test_main_goes_on_where_the_record_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def chunks(seed: int) -> dict[str, list[str]]:
        code = "print('1 tried, 0 findings')"
        return {f"chunk {seed + k}": ["-c", code] for k in range(3)}

    part = sweep.Part("counts", chunks, sweep.read_damages)
    monkeypatch.setattr(sweep, "PARTS", {"counts": part})
    monkeypatch.setattr(sweep, "revision", lambda: "abc")
    record = tmp_path / "folder" / "record.jsonl"
    args = ["--record", str(record), "--seed", "5", "--jobs", "1"]
    assert sweep.main(args) == 0
    lines = record.read_text().splitlines()
    assert [json.loads(line)["chunk"] for line in lines] == ["chunk 5", "chunk 6", "chunk 7"]
    assert "seed 5, revision abc" in capsys.readouterr().out

    record.write_text("\n".join(lines[:2]) + "\n")
    assert sweep.main(args) == 0
    printed = capsys.readouterr().out
    assert "counts chunk 7" in printed
    assert "counts chunk 6" not in printed
    last = printed.strip().splitlines()[-1].split()
    assert last[:3] + last[5:] == "counts 3 chunks 3 tried".split()

    failed = json.loads(lines[0]) | {"counts": {"findings": 1}, "failures": ["it ended"]}
    record.write_text(json.dumps(failed) + "\n" + "\n".join(lines[1:]) + "\n")
    assert sweep.main(args) == 1
    assert "chunk 5: it ended" in capsys.readouterr().out
    monkeypatch.setattr(sweep, "revision", lambda: "def")
    assert sweep.main([*args, "counts"]) == 0  # another revision begins anew


@pytest.mark.quick
def test_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        sweep.main(["nothing"])
    assert "no part is called nothing: suite" in capsys.readouterr().err


@pytest.mark.quick
def test_suite_names_every_folder_of_tests_but_the_extras() -> None:
    folders = set(sweep.PARTS["suite"].chunks(0))
    assert {"sharding", "internals/hlo", "llama"} <= folders
    assert "llama/extras" not in folders
