"""Texts for the tests of the data."""

import json
from typing import Any


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


SENTENCES = ["the quick brown fox\n" * 20, "jumps over the lazy dog with thinking whiskers\n" * 9]
