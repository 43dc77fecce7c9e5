"""HLO text with symbols in place of sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from xfunc.hlo import Instruction
from xfunc.symbolic.polynomial import Size
from xfunc.symbolic.shapes import SymbolicShape

if TYPE_CHECKING:
    from xfunc.symbolic.interpolation import SymbolicModule

_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")


def text_of(symbolic: SymbolicModule) -> str:
    """The text of a module as XLA prints it, except for numbers that depend on sizes."""
    module = symbolic.module
    by_name = {i.name: i for c in module.computations for i in c.instructions}
    computations = {c.name: c for c in module.computations}
    lines = []
    for line in str(module).splitlines():
        if (found := _INSTRUCTION.match(line)) and found[1] in by_name:
            lines.append(_instruction(symbolic, by_name[found[1]], line))
            continue
        c = module.entry if line.startswith(("HloModule", "ENTRY")) else None
        if c is None and (found := _COMPUTATION.match(line)):
            c = computations.get(found[1])
        if c is not None:
            shapes = [symbolic.shape(p) for p in c.parameters]
            line = _shaped(line, [*shapes, symbolic.shape(c.root)])
        lines.append(line)
    return "\n".join(lines)


def _instruction(symbolic: SymbolicModule, i: Instruction, line: str) -> str:
    line = _shaped(line, [symbolic.shape(i), *map(symbolic.shape, i.operands)])
    literal = symbolic.literal(i)
    if literal is not None and not isinstance(literal, (int, float)):
        line = re.sub(r"constant\([^)]*\)", f"constant({literal})", line, count=1)
    steps = symbolic.sizes(i, "progression")
    if any(not isinstance(s, int) for s in (*steps, *(symbolic.dims(i) if steps else ()))):
        start, step = steps
        line = re.sub(r"constant\([^)]*\)", f"constant({{{start}, + {step}, ...}})", line, count=1)
    if numbers := symbolic.sizes(i, "slice"):
        parts = (f"[{a}:{b}]" if c == 1 else f"[{a}:{b}:{c}]" for a, b, c in _by(numbers, 3))
        line = re.sub(r"slice=\{[^}]*\}", f"slice={{{', '.join(parts)}}}", line)
    if numbers := symbolic.sizes(i, "sizes"):
        line = re.sub(r"slice_sizes=\{[^}]*\}", f"slice_sizes={{{_joined(numbers, ',')}}}", line)
    if numbers := symbolic.sizes(i, "window"):
        windows = _by(numbers, 7)
        line = re.sub(r"size=[\dx]+", f"size={_joined((w[0] for w in windows), 'x')}", line)
        edges = "x".join(f"{w[2]}_{w[3]}" for w in windows)
        line = re.sub(r"pad=[-\d_x]+", f"pad={edges}", line)
    if numbers := symbolic.sizes(i, "padding"):
        edges = "x".join(f"{a}_{b}" if c == 0 else f"{a}_{b}_{c}" for a, b, c in _by(numbers, 3))
        line = re.sub(r"padding=[-\d_x]+", f"padding={edges}", line)
    return line


def _shaped(line: str, shapes: Sequence[SymbolicShape]) -> str:
    """The line with its first shapes replaced by these, in order."""
    left = _arrays(shapes)

    def put(found: re.Match[str]) -> str:
        shape = next(left, None)
        return found[0] if shape is None else str(shape)

    return _SHAPE.sub(put, line)


def _arrays(shapes: Iterable[SymbolicShape]) -> Iterator[SymbolicShape]:
    for s in shapes:
        if s.is_tuple:
            yield from _arrays(s.elements)
        else:
            yield s


def _by(numbers: Sequence[Size], n: int) -> list[Sequence[Size]]:
    return [numbers[k : k + n] for k in range(0, len(numbers), n)]


def _joined(numbers: Iterable[object], by: str) -> str:
    return by.join(map(str, numbers))
