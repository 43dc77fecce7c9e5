"""Run recorded programs with xfunc, and compare.

Reals may differ by `TOLERANCE` times the largest entry of their array, or times 1 if that is more;
everything else is equal, dtypes included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import xfunc as xf

from . import vocabulary_xfunc as words
from .measure import Recorded, measurement, split

TOLERANCE = 1e-4


def run(programs: Sequence[Recorded]) -> list[dict[str, list[torch.Tensor]]]:
    """What xfunc gives, for all of them as one compiled function."""
    measures = [
        measurement(p.source, words, reversible=p.reversible, pushable=p.pushable) for p in programs
    ]

    def together(inputs: list[Any]) -> list[Any]:
        return [m(*i) for m, i in zip(measures, inputs, strict=True)]

    return xf.device_get(xf.jit(together)([split(p.inputs, words.array) for p in programs]))


def differences(got: dict[str, list[torch.Tensor]], program: Recorded) -> list[str]:
    """What is not as JAX has it; one line for each array that differs."""
    lines = []
    for part, arrays in program.want.items():
        if len(got[part]) != len(arrays):
            lines.append(f"{part}: {len(got[part])} arrays instead of {len(arrays)}")
            continue
        for i, (x, want) in enumerate(zip(got[part], arrays, strict=True)):
            y = torch.tensor(want)
            y = y.to(torch.int32) if y.dtype == torch.int64 else y
            if x.dtype != y.dtype or x.shape != y.shape:
                lines.append(f"{part}[{i}]: {_shown(x)} instead of {_shown(y)}")
                continue
            real = y.is_floating_point()
            scale = max(1.0, y.abs().max().item()) if real else 0.0
            worst = (x.double() - y.double()).abs().max().item()
            if not worst <= TOLERANCE * scale:
                lines.append(f"{part}[{i}]: off by {worst:.2g}: {_shown(x)} instead of {_shown(y)}")
    return lines


def _shown(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} {x.tolist()}"
