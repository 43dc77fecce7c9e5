"""What to check when torch, JAX or libtpu change: `python -m docs.scripts.version_notes`.

Prints every comment and docstring in the library that names a version, by file; comments on
workarounds do. The site shows the list on the page about new releases of torch and JAX.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = "xfunc", "transforms", "sharding"
VERSION = re.compile(r"\b(torch_xla|torch|libtpu|XLA|JAX|jaxlib) \d+\.\d+")


def notes() -> dict[str, list[str]]:
    """The texts that name a version, by file."""
    found = {}
    for path in sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")):
        inside = path.relative_to(ROOT)
        if not any((ROOT / parent).is_symlink() for parent in inside.parents):
            texts = notes_of(path.read_text(encoding="utf-8"))
            if texts:
                found[str(inside)] = texts
    return found


def notes_of(source: str) -> list[str]:
    """The texts of a file that name a version, each after the name of the enclosing definition."""
    whole = ast.parse(source)
    kinds = ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef
    scopes = [node for node in ast.walk(whole) if isinstance(node, kinds)]
    found = []
    for line, text in sorted(prose(source, whole)):
        if VERSION.search(text):
            around = [s for s in scopes if s.lineno <= line <= (s.end_lineno or line)]
            innermost = max(around, key=lambda s: s.lineno, default=None)
            where = f"`{innermost.name}`: " if innermost else ""
            found.append(where + _sentences(text))
    return found


def prose(source: str, whole: ast.Module) -> list[tuple[int, str]]:
    """The paragraphs of docstrings and the blocks of comments, with their lines."""
    texts: list[tuple[int, str]] = []
    for node in ast.walk(whole):
        match node:
            case ast.Expr(ast.Constant(str(docstring))):
                texts += [(node.lineno, p) for p in re.split(r"\n\s*\n", docstring)]
    last = (-1, -1)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            text = token.string.lstrip("#").strip()
            if last == (line - 1, column):
                texts[-1] = (texts[-1][0], f"{texts[-1][1]} {text}")
            else:
                texts.append((line, text))
            last = (line, column)
    return texts


def _sentences(text: str) -> str:
    """The sentences of a text that name a version, and those between the first and the last."""
    text = " ".join(text.split())
    parts = re.split(r"(?<=[.:;]) (?=[A-Z`\"]|it |its )", text)
    named = [i for i, part in enumerate(parts) if VERSION.search(part)]
    return " ".join(parts[named[0] : named[-1] + 1 + parts[named[-1]].endswith(":")])


def markdown() -> str:
    """The list, as Markdown."""
    lines = []
    for file, texts in notes().items():
        lines.append(f"\n`{file}`\n")
        lines += [f"- {text}" for text in texts]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(markdown(), end="")
