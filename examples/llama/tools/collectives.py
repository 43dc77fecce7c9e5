"""What chips send each other in one run of a compiled program, according to its HLO text.

NOTE [one channel, one collective]: libtpu cuts a collective in pieces that other work runs
between: a fusion that starts it, some that carry it on, perhaps within a loop, one that ends it.
Each piece holds the whole instruction again, but all have the same channel, and the last in the
text is not in that loop. Outside of fusions, one channel twice is two collectives: those of the
first step of a loop, say, that was taken out of it.
"""

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from .hlo_text import computations, runs

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind: how many run, and the bytes that each chip receives by them."""

    runs: int
    bytes: float


class _Collective(NamedTuple):
    kind: str
    asynchronous: bool
    shape: str  # of the result, as HLO text writes it
    attributes: str


_COLLECTIVE = re.compile(rf" = (.*?) ({'|'.join(KINDS)})(-start)?\((.*)")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+)\w*\[([\d,]*)\]")


def traffic(text: str) -> dict[str, Traffic]:
    """The collectives of one run by kind; a collective in a loop counts for each of its steps.

    Those in a branch do not count: experts send the tokens beyond the room of their buffers in
    further rounds, which hardly ever run.
    """
    every = computations(text)
    often = runs(every, branches=False)
    fusions = set(re.findall(r" fusion\(.*calls=(%[\w.-]+)", text))
    found: dict[tuple[str, str, str], tuple[int, float]] = {}
    for name, lines in every.items():
        if not often[name]:
            continue
        where = "" if name in fusions else name  # See NOTE [one channel, one collective].
        scattered = name.startswith("%all-reduce-scatter")  # An all-reduce, each chip keeps a part.
        for i in filter(None, map(_collective, lines)):
            channel = re.search(r"channel_id=(\d+)", i.attributes)
            if channel:
                kind = "reduce-scatter" if scattered else i.kind
                found[kind, channel[1], where] = often[name], _received(i, scattered)
    return {
        kind: Traffic(sum(n for n, _ in sent), sum(n * size for n, size in sent))
        for kind in KINDS
        if (sent := [x for (k, *_), x in found.items() if k == kind])
    }


def _collective(line: str) -> _Collective | None:
    found = _COLLECTIVE.search(line)
    return found and _Collective(found[2], found[3] is not None, found[1], found[4])


def _received(i: _Collective, scattered: bool) -> float:
    """The bytes that one chip of a group receives, if nothing comes twice."""
    sizes = [_size(*array) for array in _ARRAY.findall(i.shape)]
    if i.kind == "collective-permute":
        return sizes[0]
    n = _group(i.attributes)
    if i.kind == "all-gather" and i.asynchronous:  # The shape is that of operand and result.
        sizes = sizes[len(sizes) // 2 :]
    whole = sum(sizes) * (n if i.kind == "reduce-scatter" else 1)
    twice = i.kind == "all-reduce" and not scattered  # It scatters the sums, then gathers them.
    return whole * (n - 1) / n * (2 if twice else 1)


def _size(dtype: str, dims: str) -> float:
    bits = int(re.sub(r"\D", "", dtype) or 8)
    return math.prod(map(int, filter(None, dims.split(",")))) * bits / 8


def _group(attributes: str) -> int:
    """The chips of a group.

    Groups are written as ``{{0,2},{1,3}}``, as ``[64,4]<=[256]``, or as axes of a mesh, or parts of
    them: ``mesh['a'=64,'b'=8] {'a','b':(2)4}``.
    """
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", attributes)
    if listed:
        return len(listed[1].split(","))
    counted = re.search(r"replica_groups=\[\d+,(\d+)\]", attributes)
    if counted:
        return int(counted[1])
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", attributes)
    if mesh is None:
        return 1
    sizes = {name: int(size) for name, size in re.findall(r"('[^']*')=(\d+)", mesh[1])}
    axes = re.findall(r"('[^']*')(?::\(\d+\)(\d+))?", mesh[2])
    return math.prod(int(part) if part else sizes[name] for name, part in axes)
