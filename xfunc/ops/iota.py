"""``torch.arange`` as one instruction, however long it is.

torch_xla 2.9 writes all numbers into the program: for a vocabulary of 128,256 words, 0.4 MB, which
every pass over the program then reads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xfunc.hlo import ComputationBuilder, Value
from xfunc.ops.emit import instruction
from xfunc.ops.registry import above, bare, theirs

_DTYPES = (torch.int64, torch.int32)


@bare("arange.start_step")
def arange(start: object, end: object, step: object = 1, **options: object) -> Tensor:
    dtype = options.get("dtype") or torch.int64
    if isinstance(start, int) and isinstance(end, int) and isinstance(step, int):
        n = len(range(start, end, step)) if step else 0
        if not n:
            torch.arange(start, end, step, device="meta")  # Raises what torch does.
        elif dtype in _DTYPES:
            return above(_counted, n, start, step, dtype, options.get("device"))
    return theirs("arange.start_step", start, end, step, **options)


def _counted(n: int, start: int, step: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    some = torch.zeros((), dtype=dtype, device=device)  # A computation needs a parameter.
    places = instruction(_iota, some, n=n)
    scaled = places if step == 1 else places * step
    return scaled if start == 0 else scaled + start


def _iota(body: ComputationBuilder, some: Value, n: int) -> Value:
    return body.iota(n, some.shape.dtype)
