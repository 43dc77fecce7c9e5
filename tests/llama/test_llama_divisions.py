"""Eight devices give the same bits, however they are divided among processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.llama.several_processes import curve, ends, settings, started

COMMANDS = "tests.llama.several_processes"


@pytest.mark.slow
def test_fit_four_processes_equal_one_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In runs of their own, and where the four go on with what the one has begun."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    fits = {
        name: ["fit", *settings(tmp_path, f"folder={tmp_path / name}", "keep=9")]
        for name in ("by one", "by four", "by both")
    }
    with started(
        1, 8, *fits["by one"], "+", "stop-at", "5", *fits["by both"], module=COMMANDS
    ) as p:
        ((status, said),) = ends(p)
    assert status == 0, said
    assert f"stop-at ends with {os.EX_TEMPFAIL}" in said
    assert [line["step"] for line in curve(tmp_path / "by both") if "loss" in line][-1] == 5

    with started(4, 2, *fits["by four"], "+", *fits["by both"], module=COMMANDS) as p:
        found = ends(p)
    assert [status for status, _ in found] == [0] * 4, found
    assert "5 of 12 steps are done" in found[0][1]
    alone = curve(tmp_path / "by one")
    assert [line["step"] for line in alone if "loss" in line] == [*range(1, 13)]
    assert curve(tmp_path / "by four") == alone
    assert curve(tmp_path / "by both") == alone
