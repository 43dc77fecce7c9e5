"""Smaller forms of a failing program: with lines and results taken away while it fails alike."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .compare import outcome


def minimised(source: str, tries: int = 150) -> str:
    """A program that fails as this one does, from which nothing more can be dropped."""
    want = outcome(source).cause

    def fails(text: str) -> bool:
        found = outcome(text)
        return found.kind == want.split(":")[0] and (found.kind == "differs" or found.cause == want)

    before = ""
    while before != source and tries > 0:
        before = source
        for smaller in _smaller(ast.parse(source)):
            tries -= 1
            if tries < 0:
                break
            if len(smaller) < len(source) and fails(smaller):
                source = smaller
                break
    return source


def _smaller(program: ast.Module) -> Iterator[str]:
    """Texts with one thing less, from the end to the beginning."""
    for node in reversed(list(ast.walk(program))):
        body = getattr(node, "body", None)
        if isinstance(body, list) and len(body) > 1:
            for i in reversed(range(len(body))):
                yield _without(program, i, body)
        if isinstance(node, ast.Tuple) and len(node.elts) > 1:
            for i in range(len(node.elts)):
                yield _without(program, i, node.elts)
        if isinstance(node, ast.Dict) and len(node.keys) > 1:
            for i in range(len(node.keys)):
                yield _without(program, i, node.keys, node.values)


def _without(program: ast.Module, i: int, *lists: list) -> str:
    things = [things.pop(i) for things in lists]
    try:
        return ast.unparse(program) + "\n"
    finally:
        for place, thing in zip(lists, things, strict=True):
            place.insert(i, thing)
