"""What XLA's two partitioners make of a program, on the backend ``"pjrt"``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

import xfunc as xf
from xfunc.backends import active
from xfunc.hlo import opcodes

NAMES = {"GSPMD": False, "Shardy": True}


class Partitioned(NamedTuple):
    """A program of several devices.

    Attributes:
        leaves: of its result.
        shapes: what each device has of them.
        collectives: how many instructions of each kind one device runs.
    """

    leaves: list[torch.Tensor]
    shapes: list[tuple[int, ...]]
    collectives: Counter[str]

    def communication(self) -> str:
        """The collectives, as a table has them."""
        found = (f"{n} {kind}" for kind, n in sorted(self.collectives.items()))
        return ", ".join(found) or "none"

    def parts(self) -> str:
        """The shapes, as a table has them."""
        found = dict.fromkeys("x".join(map(str, s)) or "()" for s in self.shapes)
        return ", ".join(found)


@contextmanager
def pjrt(partitioner: str = "Shardy") -> Iterator[None]:
    """Run and partition programs in this way in a block."""
    before = active.runtime().name, xf.config.use_shardy_partitioner
    xf.config.set_backend("pjrt")
    xf.config.use_shardy_partitioner = NAMES[partitioner]
    try:
        yield
    finally:
        xf.config.set_backend(before[0])
        xf.config.use_shardy_partitioner = before[1]


def partitioned(f: Callable[..., Any], *args: Any) -> dict[str, Partitioned]:
    """The program of a function, by each of the partitioners."""
    found: dict[str, Partitioned] = {}
    with pjrt():
        lowered = xf.jit(f).lower(*args)
    for name in NAMES:
        with pjrt(name):
            compiled = lowered.compile()
            leaves = xf.tree.leaves(compiled(*args))
            shapes = [tuple(x.shape) for x in leaves]
            for k, x in enumerate(leaves):
                if sharding := xf.sharding_of(x):
                    shapes[k] = sharding.shard_shape(shapes[k])
            found[name] = Partitioned(
                [x.cpu() for x in leaves], shapes, _collectives(compiled.as_text() or "")
            )
    return found


def _collectives(text: str) -> Counter[str]:
    return Counter(re.findall(rf" ({'|'.join(sorted(opcodes.COLLECTIVES))})(?:-start)?\(", text))
