"""`tests.support.tiers`: which tests a tier selects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiers

pytestmark = pytest.mark.quick

SOURCE = """
import pytest

@pytest.mark.quick
def test_fast(): pass

def test_plain(): pass

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.sample(5, seed=0)
@pytest.mark.parametrize("x", range(20))
def test_sampled(x): pass

@pytest.mark.quick(10, seed=0)
@pytest.mark.parametrize("x", range(20))
def test_partly_quick(x): pass

@pytest.mark.quick
@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_slow_case(x): pass
"""


class _Collected:
    """A pytest plugin: the items it has seen."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.items = [*items]


@pytest.fixture
def items(tmp_path: Path) -> list[pytest.Item]:
    file = tmp_path / "test_all.py"
    file.write_text(SOURCE)
    plugin = _Collected()
    args = ["--collect-only", "-p", "no:cacheprovider", "-W", "ignore", "--import-mode=importlib"]
    assert pytest.main([*args, f"--rootdir={tmp_path}", str(file)], plugins=[plugin]) == 0
    return plugin.items


def counts(items: list[pytest.Item], tier: str) -> dict[str, int]:
    names = [item.name.partition("[")[0] for item in tiers.select(items, tier)]
    return {name: names.count(name) for name in names}


def test_select_takes_the_marked_part_of_each_tier(items: list[pytest.Item]) -> None:
    assert counts(items, "quick") == {"test_fast": 1, "test_partly_quick": 2, "test_slow_case": 1}
    assert counts(items, "test") == {
        "test_fast": 1, "test_plain": 1, "test_sampled": 4, "test_partly_quick": 20,
        "test_slow_case": 1,
    }  # fmt: skip
    assert len(tiers.select(items, "sweep")) == len(items) == 45


def test_each_tier_is_part_of_the_next(items: list[pytest.Item]) -> None:
    quick, test, sweep = ({i.nodeid for i in tiers.select(items, t)} for t in tiers.TIERS)
    assert quick < test < sweep


def test_draw_is_the_same_for_a_seed_and_takes_at_least_one() -> None:
    names = [f"case {n}" for n in range(100)]
    drawn = tiers.draw(names, 4, seed=1)
    assert len(drawn) == 25
    assert drawn == tiers.draw(reversed(names), 4, seed=1) != tiers.draw(names, 4, seed=2)
    assert len(drawn & tiers.draw([*names, "one more"], 4, seed=1)) >= 24
    assert tiers.draw(["only"], 9, seed=0) == {"only"}


def test_may_be_quick_reads_the_source_only(tmp_path: Path) -> None:
    for name, source in {"a.py": "raise\n@pytest.mark.quick", "b.py": "pytest.mark.slow"}.items():
        (tmp_path / name).write_text(source)
    assert tiers.may_be_quick(tmp_path / "a.py")
    assert not tiers.may_be_quick(tmp_path / "b.py")
