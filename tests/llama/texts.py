"""Texts for the tests of the data."""

import json
from pathlib import Path
from typing import Any


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_lines(path: Path, *rows: Any) -> Path:
    """JSON lines; a text is a line as it is."""
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def documents_of(count: int, start: int = 0) -> list[dict[str, str]]:
    return [{"text": f"document {i} has a few words, " * 4} for i in range(start, start + count)]


SENTENCES = ["the quick brown fox\n" * 20, "jumps over the lazy dog with thinking whiskers\n" * 9]
