"""The program of a bucket: made from traces, for all sizes in the bucket.

NOTE [what is compared]: the HLO at the probes shows whether a function is one program for all
sizes. Its HLO at the bucket's own sizes, and at the smallest that use the bucket, must be that
program as well; otherwise the probes are chosen among the bucket's sizes. So a function that takes
another path from some size on is noticed, wherever that size is. A function that differs at a
single size in between is not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from xfunc import tree
from xfunc.backends.devices import device_count
from xfunc.core import ambient
from xfunc.core.avals import Aval, AvalKey
from xfunc.hlo import Instruction, Module
from xfunc.hlo.module import Computation
from xfunc.stages.entry import Entry
from xfunc.stages.options import Options
from xfunc.stages.staging import Staged
from xfunc.symbolic.binding import Declared, sizes_at
from xfunc.core.locations import raised_at
from xfunc.symbolic.box import Box
from xfunc.symbolic.cut import narrowed
from xfunc.symbolic.fit import NoFit, SymbolicModule, at_one_size, fit
from xfunc.symbolic.padding.control import padded
from xfunc.symbolic.padding.values import Inexact
from xfunc.symbolic.polynomial import Env, Polynomial, Size, value
from xfunc.trace import scopes
from xfunc.trace.lowering import Lowering

Ends = Mapping[str, tuple[int, int]]  # the smallest and the largest sizes of a bucket


@dataclasses.dataclass(frozen=True, eq=False)
class Bucket:
    """How calls with sizes of a bucket are run.

    Attributes:
        source: the entry at the bucket's own shape.
        entry: runs all shapes, given the actual sizes as well; None if each has its own program.
        outputs: the exact sizes of the results.
        masks: how many selects mask padding.
        why: why each shape has its own program.
        per_bucket: whether the program is for this bucket only, not for all sizes.
    """

    source: Entry | None
    entry: Entry | None
    outputs: tuple[tuple[Size, ...], ...] = ()
    masks: int = 0
    why: str = ""
    per_bucket: bool = False

    def is_watched(self, held: Sequence[torch.Tensor]) -> bool:
        """Whether autograd watches a tensor that the function holds.

        Args:
            held: those that the program is not tied to.
        """
        if not torch.is_grad_enabled():
            return False
        captures = self.source.captures if self.source is not None else ()
        own = (c for c in captures if isinstance(c, torch.Tensor))
        return any(t.requires_grad for t in (*held, *own))

    @functools.cached_property
    def _varying(self) -> list[int]:
        """The results whose shapes vary."""
        return [
            k for k, dims in enumerate(self.outputs) if any(isinstance(s, Polynomial) for s in dims)
        ]

    def cut(self, outs: Sequence[torch.Tensor], env: Env) -> list[torch.Tensor]:
        """The results of a run without their padding."""
        found = list(outs)
        for k in self._varying:
            found[k] = narrowed(found[k], tuple(value(s, env) for s in self.outputs[k]))
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
    """The part of a program that an `Entry` needs to run it."""

    name: str
    lowering: Lowering
    outputs: tuple[Any, ...]


class Maker:
    """Makes the buckets for calls of one kind.

    Args:
        staged: the function.
        declared: which dimensions of its arguments vary.
        structure: of the arguments.
        avals: of the arguments, at any sizes.
        options: how it is traced.
    """

    def __init__(
        self,
        staged: Staged,
        declared: Declared,
        structure: tree.Structure,
        avals: tuple[AvalKey, ...],
        options: Options,
    ) -> None:
        self._staged, self._declared = staged, declared
        self._structure, self._avals = structure, avals
        self._options = options._replace(effects_allowed=True)
        self._all: SymbolicModule | NoFit | None = None  # for all sizes
        self._first: Entry | None = None  # which all others must match

    def entry(self, env: Env) -> tuple[Entry, list[torch.Tensor]]:
        """The entry at given sizes, traced if needed, and the tensors that the function holds."""
        shapes = zip(self._declared.dims, self._avals, strict=True)
        avals = tuple((sizes_at(dims, shape, env), dtype) for dims, (shape, dtype) in shapes)
        return self._staged.find(self._structure, avals, None, self._options)

    def bucket(self, ends: Ends) -> Bucket:
        """The bucket between given sizes."""
        source, held = self.entry({n: high for n, (_, high) in ends.items()})
        try:
            return self._made(source, held, ends)
        except (NoFit, Inexact) as error:
            return Bucket(source, None, why=explained(error))

    def _made(self, source: Entry, held: list[torch.Tensor], ends: Ends) -> Bucket:
        ranges = self._declared.box.ranges
        whole = self._declared.box
        if all(low == high for low, high in ends.values()):
            env = {n: high for n, (_, high) in ends.items()}
            found = padded(at_one_size(self._module(env), env, whole.within(**ends)))
            return Bucket(source, _entry(source, found.module, len(held), len(ends)), found.outputs)
        symbolic, per_bucket = self.all_sizes(), False
        if isinstance(symbolic, SymbolicModule):
            try:
                symbolic = self._checked(symbolic, ends)
            except NoFit as error:
                symbolic = error
        if isinstance(symbolic, NoFit):
            symbolic, per_bucket = self._fitted(whole.within(**ends)), True
            if isinstance(symbolic, NoFit):
                raise symbolic
            symbolic = self._checked(symbolic, ends)
        sizes = whole.within(**{n: (ranges[n].min, high) for n, (_, high) in ends.items()})
        symbolic = dataclasses.replace(symbolic, box=sizes)
        self._check_held(source, symbolic)
        found = padded(symbolic)
        entry = _entry(source, found.module, len(held), len(ends))
        return Bucket(source, entry, found.outputs, found.masks, "", per_bucket)

    def all_sizes(self) -> SymbolicModule | NoFit:
        """The program for all sizes, or the reason why there is none."""
        if self._all is None:
            self._all = self._fitted(self._declared.box)
        return self._all

    def _fitted(self, box: Box) -> SymbolicModule | NoFit:
        try:
            return fit(self._module, box)
        except NoFit as error:
            return error

    def _checked(self, symbolic: SymbolicModule, ends: Ends) -> SymbolicModule:
        """The program at the bucket's sizes, once it agrees at the smallest sizes as well."""
        low = {n: low for n, (low, _) in ends.items()}
        high = {n: high for n, (_, high) in ends.items()}
        # Where a dimension is 0 or 1, torch takes other paths, with the same results.
        while low != high and not symbolic.is_plain(low):
            low = {n: min(s + self._declared.box.ranges[n].step, high[n]) for n, s in low.items()}
        symbolic.at(low, self._module(low))
        return symbolic.at(high, self._module(high))

    def _module(self, env: Env) -> Module:
        """The HLO at given sizes."""
        try:
            probing = ambient.probing() if device_count() > 1 else contextlib.nullcontext()
            with probing, self._staged.cache.uncounted():
                entry, _ = self.entry(env)
        except Exception as error:
            raise NoFit(untraceable({n: (s, s) for n, s in env.items()}, error)) from error
        lowering = entry.program.lowering
        if not lowering.outputs:
            raise NoFit("it returns no arrays")
        first = self._first = self._first or entry
        if entry.out_tree != first.out_tree:
            raise NoFit("the tree of its results is another for other sizes")
        consts = zip(lowering.consts, first.program.lowering.consts, strict=False)
        captures = zip(entry.captures, first.captures, strict=False)
        same = len(lowering.consts) == len(first.program.lowering.consts)
        same = same and len(entry.captures) == len(first.captures)
        same = same and all(a is b or (isinstance(a, int) and a == b) for a, b in captures)
        # Not torch.equal: here NaN equals NaN.
        same = same and all(a is b or _is_equal(a.cpu(), b.cpu()) for a, b in consts)
        if not same:
            raise NoFit("it uses another tensor from outside for other sizes")
        return lowering.module

    def _check_held(self, source: Entry, symbolic: SymbolicModule) -> None:
        """Refuse tensors from outside whose sizes vary: nothing pads them."""
        inputs, n = source.program.lowering.inputs, len(self._avals)
        for p in symbolic.module.entry.parameters:
            varies = any(isinstance(s, Polynomial) for s in symbolic.dims(p))
            if varies and inputs[p.parameter_number] >= n:
                raise Inexact("a tensor from outside whose size varies", p)


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    same = a.dtype == b.dtype and a.shape == b.shape
    return same and bool(((a == b) | ((a != a) & (b != b))).all())


def _entry(source: Entry, module: Module, held: int, symbols: int) -> Entry:
    """The entry of a padded module: after the tensors `source` holds, it takes the actual sizes."""
    lowering = source.program.lowering
    n = len(lowering.avals)
    inputs = [i if i < n else i + symbols for i in lowering.inputs]
    padded_lowering = Lowering(
        lowering.name,
        module,
        (*inputs, *range(n, n + symbols)),
        (*lowering.avals, *[Aval((), torch.int64)] * symbols),
        lowering.consts,
        lowering.outputs,
    )
    program: Any = _Program(source.program.name, padded_lowering, lowering.outputs)
    return Entry(
        program,
        source.call,
        source.out_tree,
        (*source.captures, *range(held, held + symbols)),
        source.donated,
        source.effects,
    )


def untraceable(ends: Ends, error: Exception) -> str:
    """Why there is no program at the largest sizes of a bucket."""
    at = ", ".join(f"{n}={high}" for n, (_, high) in ends.items())
    line = raised_at(error)
    where = "" if line is None else f", at {line.file}:{line.line} in {line.function}"
    return f"it cannot be traced at {at}: {str(error).partition(chr(10))[0]}{where}"


def explained(error: NoFit | Inexact) -> str:
    """The reason, with the user's line."""
    line = location(error.instruction)
    return error.reason if line is None else f"{error.reason}, at {line}"


def location(i: Instruction | None) -> str | None:
    """The user's line that an instruction comes from, or else that of the first that uses it."""
    if i is None:
        return None
    module = scopes.resolve(i.computation.module)
    todo = [module.instruction(i.id)]
    for found in todo:  # Constants that were tensors have no lines.
        if (metadata := found.proto.metadata).source_file:
            return f"{metadata.source_file}:{metadata.source_line}"
        users = found.users if found.users else _callers(found.computation)
        todo += [user for user in users if user not in todo]
    return None


def _callers(computation: Computation) -> list[Instruction]:
    everything = (i for c in computation.module.computations for i in c.instructions)
    return [i for i in everything if computation.proto.id in i.proto.called_computation_ids]
