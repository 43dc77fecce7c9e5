"""HLO text of a compiled program, taken apart; and the matrix products in it."""

import collections
import math
import re

_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|\w+_computations?)=\{?(%[^,})]+(?:, %[^,})]+)*)"
)
_PRODUCT = re.compile(r" (?:convolution|dot)\(")  # libtpu makes convolutions of all.


def computations(text: str) -> dict[str, list[str]]:
    """The lines of each computation, callees before their callers."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")):
            found[line.removeprefix("ENTRY ").split(" ", 1)[0]] = lines = []
        elif line.startswith("  "):
            lines.append(line)
    return found


def runs(every: dict[str, list[str]], branches: bool = True) -> dict[str, int]:
    """How often each computation runs. The last is the entry.

    Args:
        every: the computations.
        branches: whether all branches of a conditional count as run, or none.
    """
    found = collections.Counter([*every][-1:])
    for name in reversed(every):
        for line in every[name]:
            if not branches and " conditional(" in line:
                continue
            for called in _CALLED.findall(line):
                for callee in called.split(", "):
                    found[callee] += found[name] * _steps(line, every[name], every)
    return found


def _steps(line: str, around: list[str], every: dict[str, list[str]]) -> int:
    """How often a line runs what it calls: for a loop with a counter, its number of steps.

    Args:
        line: an instruction.
        around: the computation that it is in.
        every: all of them.
    """
    loop = re.search(r" while\(.*?(%[\w.-]+)\), condition=(%[\w.-]+), body=(%[\w.-]+)", line)
    if loop is None:
        return 1
    here, condition, body = map(named, (around, every[loop[2]], every[loop[3]]))
    try:
        counter, bound = operands(condition["ROOT"])[:2]
        place = int(re.findall(r"index=(\d+)", condition[counter])[-1])  # in what a step gets
        step = operands(body[operands(body["ROOT"])[place]])[1]
        first = _constant(here, operands(here[loop[1]])[place])
        return math.ceil((_constant(condition, bound) - first) / _constant(body, step))
    except (IndexError, KeyError):  # It counts in another way, or does not count.
        return 1


def named(lines: list[str]) -> dict[str, str]:
    """The instructions of a computation by name, and its result as "ROOT"."""
    found = {}
    for line in lines:
        for root, name in re.findall(r"^ +(ROOT )?(%\S+) = ", line):
            found[name] = line
            if root:
                found["ROOT"] = line
    return found


def operands(line: str) -> list[str]:
    """An instruction's operands, and the other names that follow them."""
    return re.findall(r"%[\w.-]+", re.split(r" [a-z][\w-]*\(", line, maxsplit=1)[1])


def _constant(named: dict[str, str], name: str) -> int:
    line = named[name]
    while " copy(" in line:
        line = named[operands(line)[0]]
    return int(re.findall(r" constant\((\d+)\)", line)[0])


def products(text: str) -> dict[str, int]:
    """How many products of which dtypes one run computes, such as `{"bf16, bf16": 8}`.

    Those within kernels are not counted.

    Args:
        text: the HLO text of the program.
    """
    every = computations(text)
    often, found = runs(every), collections.Counter[str]()
    for name, lines in every.items():
        here = named(lines)
        for line in filter(_PRODUCT.search, lines):
            dtypes = [_dtype(here[operand]) for operand in operands(line)[:2]]
            found[", ".join(dtypes)] += often[name]
    return {dtypes: n for dtypes, n in sorted(found.items()) if n}


def _dtype(line: str) -> str:
    return re.findall(r" = (\w+)\[", line)[0]
