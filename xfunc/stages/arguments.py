"""Arguments and results of traced functions, leaf by leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from xfunc import tree
from xfunc.backends import active
from xfunc.core import device
from xfunc.core.avals import NUMBERS, Aval, AvalKey, ShapeDtypeStruct, aval_of, dtype_of
from xfunc.errors import fail, hint_for, kind_of, short_repr
from xfunc.stages.checks import no_result
from xfunc.torchlib import values
from xfunc.torchlib.arrays import from_numpy
from xfunc.torchlib.storageless import check_surroundings
from xfunc.trace import recorder, tracing
from xfunc.trace.literals import literal
from xfunc.tree import Leaf

if TYPE_CHECKING:
    from xfunc.core.types import Shaped
    from xfunc.stages.options import Fixed
    from xfunc.stages.staging import Staged


def prepare(
    staged: Staged, leaves: list[Leaf], structure: tree.Structure
) -> tuple[list[torch.Tensor], Fixed]:
    """Argument leaves as tensors that a program can take, and the leaves that are not arrays."""
    trace = tracing.current()
    made: list[torch.Tensor] = []
    fixed: list[tuple[int, object]] = []
    static_scalars = (
        staged.static_scalars(structure) if staged.static_scalars else (False,) * len(leaves)
    )
    for i, x in enumerate(leaves):
        if isinstance(x, (np.ndarray, np.generic)):
            x = from_numpy(x)
            if trace is not None and isinstance(x, torch.Tensor):
                made.append(literal(x))
                continue
        if static_scalars[i] and type(x) in NUMBERS:
            fixed.append((i, x))
        elif type(x) in NUMBERS:
            dtype = dtype_of(type(cast(complex, x)))
            if type(x) is int and not -(2**63) <= x < 2**63:
                fail(
                    OverflowError,
                    f"{staged.labels(structure)[i]} of {staged.name} is {x}, too large for an "
                    "int64",
                    "make the argument static.",
                )
            if trace is None:
                made.append(active.runtime().to_device(torch.tensor(x, dtype=dtype, device="cpu")))
            else:
                made.append(torch.full((), x, dtype=dtype, device=recorder.device()))
        elif isinstance(x, torch.Tensor):
            if trace is not None:
                made.append(trace.lift(x))
            else:
                where = active.runtime()
                is_held = type(x) is where.kind and where.holds(x)
                if not is_held and values.why_no_array(x) is not None:
                    values.check_array(x, staged.name, staged.labels(structure)[i])
                made.append(where.to_device(x))
        elif staged.arrays_only:
            label = staged.labels(structure)[i]
            fail(
                TypeError,
                f"{staged.name} was given {short_repr(x)} ({kind_of(x)}) as {label}",
                hint_for(x, label, tracing.static_option([label])),
            )
        else:
            fixed.append((i, x))
    return made, tuple(fixed)


def as_outputs(name: str, outs: Sequence[object], structure: tree.Structure) -> list[torch.Tensor]:
    """The leaves that a function returned, as tensors: of the trace, if there is one."""
    result: list[torch.Tensor] = []
    trace = tracing.current()
    for i, o in enumerate(outs):
        if isinstance(o, torch.Tensor):
            if trace is not None:
                o = trace.lift(o)
                if o.device.type != device.TYPE:
                    values.check_array(o, name, "a result")
                    o = literal(o)
            result.append(o)
        elif isinstance(o := from_numpy(o), torch.Tensor):
            result.append(o if trace is None else literal(o))
        elif type(o) in NUMBERS and not (type(o) is int and abs(o) >= 2**63):
            where = None if trace is None else recorder.device()
            dtype = dtype_of(type(cast(complex, o)))
            result.append(torch.full((), o, dtype=dtype, device=where))
        else:
            no_result(name, o, structure.accessors()[i].codify("output"))
    return result


def avals_of(leaves: Sequence[Shaped]) -> tuple[AvalKey, ...]:
    """Abstract arguments, as part of a key."""
    return tuple([(x.shape, x.dtype) for x in map(aval_of, leaves)])


def arguments_of(
    staged: Staged, leaves: list[object], structure: tree.Structure
) -> tuple[list[torch.Tensor | Aval], Fixed]:
    """Tensors or avals of the leaves, and those leaves that are neither, by position."""
    check_surroundings(staged.name)
    abstract = [
        Aval((), dtype_of(type(x))) if type(x) in NUMBERS else from_numpy(x) for x in leaves
    ]
    fixed = tuple(
        (i, x)
        for i, x in enumerate(abstract)
        if not isinstance(x, (torch.Tensor, ShapeDtypeStruct))
    )
    if fixed and staged.arrays_only:
        prepare(staged, leaves, structure)  # Raises, naming the leaf.
    skip = {i for i, _ in fixed}
    return [x for i, x in enumerate(abstract) if i not in skip], fixed
