"""What chips send each other in one run of a compiled program, read from its HLO text.

NOTE [one channel, one collective]: libtpu cuts a collective in pieces that other work runs
between: a fusion that starts it, some that carry it on, one that ends it. Each piece holds the
whole instruction again, but all have the same channel.
"""

import collections
import math
import re
from dataclasses import dataclass
from typing import NamedTuple

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
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|\w+_computations?)=\{?(%[^,})]+(?:, %[^,})]+)*)"
)


def traffic(text: str) -> dict[str, Traffic]:
    """The collectives of one run by kind; a collective in a loop counts for each of its steps."""
    computations = _computations(text)
    runs = _runs(computations)
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for name, lines in computations.items():
        if not runs[name]:
            continue
        scattered = name.startswith("%all-reduce-scatter")  # An all-reduce, each chip keeps a part.
        for i in filter(None, map(_collective, lines)):
            channel = re.search(r"channel_id=(\d+)", i.attributes)
            if channel:  # See NOTE [one channel, one collective].
                kind = "reduce-scatter" if scattered else i.kind
                found[kind, channel[1]] = runs[name], _received(i, scattered)
    return {
        kind: Traffic(sum(n for n, _ in every), sum(n * size for n, size in every))
        for kind in KINDS
        if (every := [x for (k, _), x in found.items() if k == kind])
    }


def _computations(text: str) -> dict[str, list[str]]:
    """The lines of each computation, callees before their callers."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")):
            found[line.removeprefix("ENTRY ").split(" ", 1)[0]] = lines = []
        elif line.startswith("  "):
            lines.append(line)
    return found


def _runs(computations: dict[str, list[str]]) -> dict[str, int]:
    """How often each computation runs. The last is the entry."""
    runs = collections.Counter([*computations][-1:])
    for name in reversed(computations):
        for line in computations[name]:
            for called in _CALLED.findall(line):
                for callee in called.split(", "):
                    runs[callee] += runs[name] * _steps(line, computations)
    return runs


def _steps(line: str, computations: dict[str, list[str]]) -> int:
    """How often a line runs what it calls: a loop from zero to a constant, so many times."""
    condition = re.search(r" while\(.*condition=(%[^,]+)", line)
    lines = computations[condition[1]] if condition else []
    bounds = re.findall(r"s32\[\]\S* constant\((\d+)\)", "\n".join(lines))
    return max(map(int, bounds), default=1)


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
    """The chips of a group, of groups such as ``{{0,2},{1,3}}`` or ``[64,4]<=[256]``."""
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", attributes)
    if listed:
        return len(listed[1].split(","))
    counted = re.search(r"replica_groups=\[\d+,(\d+)\]", attributes)
    return int(counted[1]) if counted else 1
