"""The contributors' pages agree with the code: imports picture, version notes, paths, lengths."""

import re
from pathlib import Path

import pytest

from docs.scripts import imports, version_notes

ROOT = Path(__file__).parents[2]
FOLDERS = "benchmarks docs examples sharding tests transforms xfunc".split()
PAGES = "CONTRIBUTING.md docs/architecture.md docs/extending.md docs/upgrading.md".split()


def test_imports_picture_is_current() -> None:
    drawn = (ROOT / "docs" / "images" / "imports.svg").read_text(encoding="utf-8")
    assert drawn == imports.picture(imports.arrows()), (
        "the imports between folders have changed: "
        "python -m docs.scripts.imports > docs/images/imports.svg"
    )


def test_imports_picture_has_no_upward_arrow() -> None:
    graph = imports.arrows()
    level = {box: i for i, row in enumerate(imports.rows(graph)) for box in row}
    assert all(level[a] > level[b] for a, b in graph.edges)
    assert {"hlo", "backends", "transforms"} <= {name for box in graph for name in box}


SOURCE = '''
"""What this is.

It goes around torch_xla 2.9. This sentence names none.
"""

# Some words.
# In torch 2.9 it fails. They go on.

def f():
    # An unrelated comment.
    x = 1  # libtpu 0.0.21 wants it
    return "torch_xla 2.9 in a message"
'''


def test_version_notes_in_docstrings_and_comments() -> None:
    assert version_notes.notes_of(SOURCE) == [
        "It goes around torch_xla 2.9.",
        "In torch 2.9 it fails.",
        "`f`: libtpu 0.0.21 wants it",
    ]


@pytest.mark.slow
def test_version_notes_are_complete() -> None:
    notes = version_notes.notes()
    files = {
        str(path.relative_to(ROOT))
        for folder in version_notes.FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"^\s*#.*torch(_xla)? 2\.\d", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert files
    assert files <= notes.keys()
    assert "<!-- the list -->" in (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_page_paths_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|md|toml))`", text))
    assert paths
    roots = ROOT, ROOT / "xfunc"
    assert [p for p in paths if not any((root / p).exists() for root in roots)] == []


def test_file_length_limit() -> None:
    said = re.search(r"none over (\d+)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert said
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert Path(__file__) in paths
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert {path: n for path, n in lengths.items() if n > int(said[1])} == {}
