"""Every block of Python in README.md and docs/ runs, and every relative link leads somewhere.

The blocks of one file, or the cells of a notebook, run in order, as one module, in a
process of their own. What follows `python` on a fence changes that:

    ```python no-run              is not run
    ```python raises=ErrorName    must raise that error; where the next block is a `text` block, its
                                  text must occur in the error as printed; `...` stands for anything
"""

import builtins
import dataclasses
import itertools
import os
import re
import sys
import traceback
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from docs import conf
from tests.support.fresh import Server

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
UNBROKEN = ["docs/errors.md"]  # it is written by `tests.errors.page`
LLAMA = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("examples/llama/*.md"))
LINKED = [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md", *LLAMA]


@dataclasses.dataclass(frozen=True)
class Block:
    """A Python block: the line its code starts on, and what is expected of it."""

    line: int
    code: str
    raises: str | None = None
    report: str | None = None


def parse(page: str) -> list[Token]:
    """The page as Markdown tokens."""
    return MarkdownIt("commonmark").parse((ROOT / page).read_text(encoding="utf-8"))


def blocks(page: str) -> Iterator[Block]:
    """The Python blocks of a page that are to run."""
    fences = [token for token in parse(page) if token.type == "fence"]
    for token, following in itertools.zip_longest(fences, fences[1:]):
        language, *words = token.info.split() or [""]
        if language == "{code-cell}":  # of a notebook, where a kernel follows
            language, words = "python", []
        if language != "python" or words == ["no-run"]:
            continue
        assert token.map is not None
        line = token.map[0] + 2
        match words:
            case []:
                yield Block(line, token.content)
            case [word] if word.startswith("raises="):
                report = None
                if following is not None and following.info.strip() == "text":
                    report = following.content
                yield Block(line, token.content, word.removeprefix("raises="), report)
            case _:
                raise ValueError(f"{page}:{line - 1}: unknown words on a fence: {token.info!r}")


def run(page: str) -> str | None:
    """Run the blocks of a page; the first fault and its line, or None."""
    # A module of their own, so that classes and functions of the page know where they belong.
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    for block in blocks(page):
        fault = try_block(page, block, vars(module))
        if fault is not None:
            return f"{page}:{block.line}: {fault}"
    return None


def try_block(page: str, block: Block, namespace: dict[str, Any]) -> str | None:
    """Run one block; what is wrong with how it ended, or None."""
    try:
        # Under the page's own name and line numbers: tracebacks then show lines of the page.
        code = "\n" * (block.line - 1) + block.code
        exec(compile(code, page, "exec", dont_inherit=True), namespace)
    except Exception as error:
        if block.raises is None:
            traceback.print_exc()
            return f"this block raised {type(error).__name__}"
        import xfunc.errors

        expected = getattr(xfunc.errors, block.raises, getattr(builtins, block.raises, None))
        if expected is None:
            return f"no error of xfunc and no builtin is called {block.raises}"
        if not isinstance(error, expected):
            traceback.print_exc()
            return f"expected {block.raises}, got {type(error).__name__}"
        printed = "".join(traceback.format_exception_only(error))
        if block.report is not None and not occurs(block.report, printed):
            return f"the page shows the error as\n\n{block.report}\nbut it prints\n\n{printed}"
        return None
    return block.raises and f"this block should raise {block.raises}, and did not"


def occurs(shown: str, printed: str) -> bool:
    """Whether `shown` occurs in `printed`, however white space runs, with `...` for any text."""
    pieces = (r"\s+".join(map(re.escape, piece.split())) for piece in shown.split("..."))
    return re.search(r"[\s\S]*?".join(pieces), printed) is not None


def links(page: str) -> Iterator[tuple[int, str]]:
    """The line and target of each link and image of a page."""
    for token in parse(page):
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if target and token.map:
                yield token.map[0] + 1, str(target)


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, made as GitHub makes them."""
    tokens = parse(page)
    titles = [b.content for a, b in itertools.pairwise(tokens) if a.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.quick
def test_readme_python_blocks_run(tmp_path: Path, fresh: Server) -> None:
    assert any(blocks(PAGES[0]))
    run_page(PAGES[0], tmp_path, fresh)


@pytest.mark.parametrize("page", PAGES[1:])
def test_page_python_blocks_run(page: str, tmp_path: Path, fresh: Server) -> None:
    if any(blocks(page)):
        run_page(page, tmp_path, fresh)


def run_page(page: str, tmp_path: Path, fresh: Server) -> None:
    """Run a page's blocks in a process of their own."""
    code = f"import sys; from tests.docs import test_docs; sys.exit(test_docs.run({page!r}))"
    done = fresh.run(code, cwd=tmp_path)
    if done.returncode:
        pytest.fail(f"{page}: {done.stdout}{done.stderr}", pytrace=False)


@pytest.mark.parametrize("page", LINKED)
def test_page_relative_links(page):
    faults = [
        f"{page}:{line}: {target}: {fault}"
        for line, target in links(page)
        if (fault := try_link(page, target))
    ]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.mark.parametrize("page", [page for page in LINKED if page not in UNBROKEN])
def test_page_lines_of_at_most_100_columns(page):
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    kept = {n for f in parse(page) if f.type == "fence" and f.info == "text" for n in rows(f)}
    long = {n: line for n, line in enumerate(lines, 1) if len(line) > 100 and n not in kept}
    # A row of a table cannot be broken, nor can a word.
    assert [n for n, line in long.items() if not re.match(r"\||\s*\S+$", line)] == []


def rows(token: Token) -> range:
    """The numbers of the lines of a block."""
    assert token.map is not None
    return range(token.map[0] + 1, token.map[1] + 1)


def test_index_each_page_in_one_group():
    grouped = Counter(os.path.normpath(f"docs/{path}") for _, path in listed())
    guides = {page for page in PAGES if not page.startswith("docs/reference/")}
    assert guides - {"docs/index.md"} <= grouped.keys()
    assert {page: n for page, n in grouped.items() if n > 1} == {}


def test_index_title_is_that_of_the_page():
    titles = {path: title for title, path in listed() if not path.startswith("../")}
    found = {path: (ROOT / "docs" / path).read_text(encoding="utf-8") for path in titles}
    assert titles == {
        path: re.findall("^# (.*)", text, re.MULTILINE)[0] for path, text in found.items()
    }


def listed() -> list[tuple[str, str]]:
    """The titles and paths in the groups of the landing page."""
    groups = conf.groups((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    return [page for pages in groups.values() for page in pages]


def try_link(page: str, target: str) -> str | None:
    """What is wrong with a relative link, or None."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return None
    path = (ROOT / page).parent / unquote(parts.path) if parts.path else ROOT / page
    if not path.exists():
        return "no such file"
    in_page = parts.fragment and path.suffix == ".md"
    if in_page and parts.fragment not in anchors(str(path.resolve().relative_to(ROOT))):
        return "no such heading"
    return None
