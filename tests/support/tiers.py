"""Which tests belong to `make quick`, `make test` and `make sweep`.

Each tier is part of the next one. Marks say where a test belongs:

- no mark: in `test` and `sweep`;
- ``slow``: in `sweep` only;
- ``sample(n, seed=s)``: one case in n, drawn with the seed, is as if without the mark, and the
  others are slow;
- ``quick``, ``quick(n, seed=s)``: also in `quick`, all cases or one in n.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

TIERS = ("quick", "test", "sweep")


def draw(names: Iterable[str], one_in: int, seed: int) -> set[str]:
    """One name in ``one_in``, at least one; for a seed the same, wherever the names stand."""
    ranked = sorted(names, key=lambda name: (zlib.crc32(f"{seed} {name}".encode()), name))
    return set(ranked[: -(-len(ranked) // one_in)])


def _drawn(cases: Sequence[pytest.Item], mark: pytest.Mark | None) -> set[str]:
    if mark is None or not mark.args:
        return {case.name for case in cases}
    return draw((case.name for case in cases), mark.args[0], mark.kwargs["seed"])


def select(items: Sequence[pytest.Item], tier: str, also: str | None = None) -> list[pytest.Item]:
    """The tests of a tier, in their order. Those with the mark `also` are quick, too."""
    if tier == "sweep":
        return [*items]
    selected: list[pytest.Item] = []
    for _, group in itertools.groupby(items, lambda item: item.nodeid.partition("[")[0]):
        cases = [*group]
        names = _drawn(cases, cases[0].get_closest_marker("sample"))
        kept = [c for c in cases if c.name in names and c.get_closest_marker("slow") is None]
        if tier == "quick":
            marked = [c for c in kept if c.get_closest_marker("quick")]
            names = _drawn(marked, marked[0].get_closest_marker("quick")) if marked else set()
            kept = [c for c in kept if c.name in names or (also and c.get_closest_marker(also))]
        selected += kept
    return selected


def may_be_quick(file: Path, also: str | None = None) -> bool:
    """Whether a file may hold quick tests, without the time that importing it takes."""
    text = file.read_text(encoding="utf-8")
    return any(f"mark.{name}" in text for name in ("quick", also) if name)
