"""`python -m tests`: two runs of pytest, one answer; and which tests are due on a day."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import __main__ as runner
from tests.support import day

CLOSING = {
    "1": "2 failed, 30 passed, 3 deselected, 1 warning in 90.50s (0:01:30)",
    "8": "1 error, 12 passed in 10.25s",
}


def test_one_closing_line() -> None:
    want = "2 failed, 1 error, 42 passed, 3 deselected, 1 warning in 100.75s"
    assert runner.together([*CLOSING.values()]) == want
    assert runner.together(["", "no tests ran in 0.01s"]) == "no tests ran in 0.01s"


@pytest.mark.parametrize(
    ("statuses", "want"),
    [
        ((0, 0), 0),
        ((1, 0), 1),
        ((0, 1), 1),
        ((5, 0), 0),  # what is asked for is all of one kind
        ((0, 5), 0),
        ((5, 1), 1),
        ((5, 5), 5),
        ((2, None), 2),  # interrupted: the second does not start
        ((0, 3), 3),
    ],
)
def test_it_fails_if_either_fails(
    statuses: tuple[int | None, ...],
    want: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {}

    def run(devices: str, args: list[str]) -> tuple[int, str]:
        given[devices] = args
        status = statuses[len(given) - 1]
        assert status is not None
        return status, CLOSING[devices]

    monkeypatch.setattr(runner, "run", run)
    assert runner.main(["-k", "vmap"]) == want
    assert given == {d: ["-k", "vmap"] for d in ("1", "8")[: 2 - (None in statuses)]}
    lines = capsys.readouterr().out.strip().splitlines()
    assert f"on 1 device: {CLOSING['1']}" in lines
    assert lines[-1].strip("= ").endswith("s")


def test_each_case_is_due_once_in_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    due = dict.fromkeys(map(str, range(50)), 0)
    for today in range(740000, 740003):
        monkeypatch.setattr(day, "DAY", today)
        chosen = [name for name in due if day.is_due(name, 3)]
        assert 5 < len(chosen) < 30
        for name in chosen:
            due[name] += 1
    assert set(due.values()) == {1}


def test_each_file_is_due_once_in_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [*Path(__file__).parent.rglob("test_*.py")]
    days: dict[Path, list[int]] = {file: [] for file in files}
    for today in range(740000, 740012):
        monkeypatch.setattr(day, "DAY", today)
        for file in files:
            if day.is_file_due(file, 12, {files[0]}):
                days[file].append(today)
    assert len(days.pop(files[0])) == 12
    assert {len(due) for due in days.values()} == {1}
    assert len({due[0] for due in days.values()}) == 12
    assert all(day.is_file_due(file, 1) for file in files)
