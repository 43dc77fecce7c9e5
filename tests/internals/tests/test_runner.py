"""`python -m tests`: two runs of pytest, one answer."""

from __future__ import annotations

import pytest

from tests import __main__ as runner

pytestmark = pytest.mark.quick

CLOSING = {
    "none": "2 failed, 30 passed, 3 deselected, 1 warning in 90.50s (0:01:30)",
    "only": "1 error, 12 passed in 10.25s",
}


def test_combine_adds_counts_and_seconds() -> None:
    expected = "2 failed, 1 error, 42 passed, 3 deselected, 1 warning in 100.75s"
    assert runner.combine([*CLOSING.values()]) == expected
    assert runner.combine(["", "no tests ran in 0.01s"]) == "no tests ran in 0.01s"


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((0, 0), 0),
        ((1, 0), 1),
        ((0, 1), 1),
        ((5, 0), 0),  # all the named tests are of one kind
        ((0, 5), 0),
        ((5, 1), 1),
        ((5, 5), 5),
        ((2, None), 2),  # interrupted: the second does not start
        ((0, 3), 3),
    ],
)
def test_main_fails_if_either_run_fails(
    statuses: tuple[int | None, ...],
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = {}

    def run(sharded: str, args: list[str]) -> tuple[int, str]:
        arguments[sharded] = args
        status = statuses[len(arguments) - 1]
        assert status is not None
        return status, CLOSING[sharded]

    monkeypatch.setattr(runner, "run", run)
    assert runner.main(["-k", "vmap"]) == expected
    assert arguments == {s: ["-k", "vmap"] for s in ("none", "only")[: 2 - (None in statuses)]}
    lines = capsys.readouterr().out.strip().splitlines()
    assert f"on one device: {CLOSING['none']}" in lines
    assert lines[-1].strip("= ").endswith("s")
