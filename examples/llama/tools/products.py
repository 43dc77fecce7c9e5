"""The matrix products that a compiled program computes, by the dtypes of their operands."""

import collections
import re

from .hlo_text import computations, named, operands, runs

_PRODUCT = re.compile(r" (?:convolution|dot)\(")  # libtpu makes convolutions of all.


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
