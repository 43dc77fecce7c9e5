"""The program of a bucket: made from traces, for all sizes in the bucket.

NOTE [compared sizes]: the HLO at the probes shows whether a function is one program for all sizes.
Its HLO at the bucket's own sizes, and at the smallest that use the bucket, must be that program as
well; otherwise the probes are chosen among the bucket's sizes. So a function that takes another
path from some size on is detected for every such size. A function that differs at a single size in
between is not.

NOTE [small sizes]: where a dimension would be 0 or 1, functions and torch itself take other paths:
they squeeze, broadcast, clip a slice, or refuse. So each size is compared up to the first at which
all dimensions are larger and the program agrees. Smaller sizes of a symbol that do not agree have
programs of their own: a program for that one size of the symbol, and all sizes of the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from xfunc import tree
from xfunc.backends.devices import device_count
from xfunc.core import ambient
from xfunc.core.avals import Aval, AvalKey
from xfunc.core.locations import raised_at
from xfunc.core.size_questions import Questions
from xfunc.hlo import Instruction, Module
from xfunc.hlo.module import Computation
from xfunc.stages.entry import Entry
from xfunc.stages.options import Options
from xfunc.stages.staging import Staged
from xfunc.symbolic.binding import Declared, sizes_at
from xfunc.symbolic.folded_cumulative import folded, unfolded
from xfunc.symbolic.interpolation import NoFit, SymbolicModule, at_one_size, fit
from xfunc.symbolic.pad import unpad
from xfunc.symbolic.padding.control import Padded, padded
from xfunc.symbolic.padding.values import Inexact
from xfunc.symbolic.polynomial import Env, Polynomial, Size, value
from xfunc.symbolic.questions import Path, Undecided, paths
from xfunc.symbolic.shape_domain import ShapeDomain
from xfunc.trace import scopes
from xfunc.trace.lowering import HloProgram

Ends = Mapping[str, tuple[int, int]]  # the smallest and the largest sizes of a bucket

_MOST_SMALL = 8  # sizes of a symbol to compare below the sizes that surely agree
_MOST_OTHER = 4  # sizes without small dimensions that may differ before the others agree


class Unsure(NamedTuple):
    """That the paths of a function at the sizes of a bucket are not known.

    Attributes:
        why: with the user's line.
        is_read: whether only numbers that code may compare unseen are the reason.
        differs: says why the function is another program at given sizes, if it is.
    """

    why: str
    is_read: bool
    differs: Callable[[Env], str]


class Served(NamedTuple):
    """The sizes of a bucket that its program serves.

    Attributes:
        first: the smallest size of each symbol.
        why_small: why smaller sizes have programs of their own.
        apart: larger sizes that have, which take another path, and why.
        unsure: if not None, others may have: each is traced when it is called.
    """

    first: Env = MappingProxyType({})
    why_small: str = ""
    apart: tuple[tuple[Path, str], ...] = ()
    unsure: Unsure | None = None


_ALL = Served()


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
        served: the sizes that the program serves.
        ends: the sizes that were compared.
    """

    source: Entry | None
    entry: Entry | None
    outputs: tuple[tuple[Size, ...], ...] = ()
    masks: int = 0
    why: str = ""
    per_bucket: bool = False
    served: Served = _ALL
    ends: Ends = dataclasses.field(default_factory=dict)

    def holds(self, ends: Ends) -> bool:
        """Whether the results of the comparison hold for a bucket between given sizes."""
        if self.entry is None or self.ends == ends:
            return self.ends == ends
        return all(
            self.ends[n][0] <= low and self.ends[n][1] == high for n, (low, high) in ends.items()
        )

    def part(self, env: Env) -> tuple[Ends, str] | None:
        """The sizes that share a program with these, and why; None: all that this one serves."""
        alone = {n: (size, size) for n, size in env.items()}
        for path, why in self.served.apart:
            if env in path:
                return alone, why
        firsts, unsure = self.served.first.items(), self.served.unsure
        if all(env[n] >= first for n, first in firsts):
            why = unsure.differs(env) if unsure else ""
            return (alone, why) if why else None
        part = {
            n: (env[n], env[n]) if env[n] < first else (first, self.ends[n][1])
            for n, first in firsts
        }
        return part, self.served.why_small

    def why_no_range(self) -> str | None:
        """Why its program alone does not serve all sizes but the smallest; None: it does."""
        unsure = self.served.unsure
        if self.entry is None:
            return self.why
        if self.served.apart:
            return self.served.apart[0][1]
        return unsure.why if unsure is not None and not unsure.is_read else None

    def is_watched(self, held: Sequence[torch.Tensor]) -> bool:
        """Whether a tensor in the function's closure requires a gradient.

        Args:
            held: the tensors that are no fixed part of the program.
        """
        if not torch.is_grad_enabled():
            return False
        captures = self.source.captures if self.source is not None else ()
        own = (c for c in captures if isinstance(c, torch.Tensor))
        return any(t.requires_grad for t in (*held, *own))

    @functools.cached_property
    def _varying(self) -> list[int]:
        """The results with varying shapes."""
        return [
            k for k, dims in enumerate(self.outputs) if any(isinstance(s, Polynomial) for s in dims)
        ]

    def cut(self, outs: Sequence[torch.Tensor], env: Env) -> list[torch.Tensor]:
        """The results of a run without their padding."""
        result = list(outs)
        for k in self._varying:
            result[k] = unpad(result[k], tuple(value(s, env) for s in self.outputs[k]))
        return result


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
    """The part of a program that an `Entry` needs to run it."""

    name: str
    lowering: HloProgram
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
        self._buckets: dict[tuple[int, ...], Bucket] = {}  # those of `_all`, by largest sizes
        self._first: Entry | None = None  # which all others must match

    def entry(self, env: Env) -> tuple[Entry, list[torch.Tensor]]:
        """The entry at given sizes, traced if needed, and the tensors that the function holds."""
        shapes = zip(self._declared.dims, self._avals, strict=True)
        avals = tuple((sizes_at(dims, shape, env), dtype) for dims, (shape, dtype) in shapes)
        with ambient.asking_sizes():
            return self._staged.find(self._structure, avals, None, self._options)

    def bucket(self, ends: Ends) -> Bucket:
        """The bucket between given sizes."""
        source, held = self.entry({n: high for n, (_, high) in ends.items()})
        try:
            return self._made(source, held, ends)
        except (NoFit, Inexact) as error:
            return Bucket(source, None, why=explained(error), ends=ends)

    def _made(self, source: Entry, held: list[torch.Tensor], ends: Ends) -> Bucket:
        ranges = self._declared.box.ranges
        whole = self._declared.box
        if all(low == high for low, high in ends.values()):
            env = {n: high for n, (_, high) in ends.items()}
            found = padded(at_one_size(self._module(env), env, whole.within(**ends)))
            entry = _entry(source, found, len(held), len(ends))
            return Bucket(source, entry, found.outputs, ends=ends)
        symbolic, served, per_bucket = self._fitted_to(ends)
        top = tuple(high for _, high in ends.values())
        known = self._buckets.get(top)
        if known is not None and known.source is source and not per_bucket:
            return dataclasses.replace(known, served=served, ends=ends)
        sizes = whole.within(**{n: (ranges[n].min, high) for n, (_, high) in ends.items()})
        symbolic = dataclasses.replace(symbolic, box=sizes)
        self._check_held(source, symbolic)
        found = padded(symbolic)
        entry = _entry(source, found, len(held), len(ends))
        bucket = Bucket(source, entry, found.outputs, found.masks, "", per_bucket, served, ends)
        if not per_bucket:
            self._buckets[top] = bucket
        return bucket

    def _fitted_to(self, ends: Ends) -> tuple[SymbolicModule, Served, bool]:
        """The program for a bucket, the result of `_checked`, and whether it is for this bucket
        only.
        """
        high = {n: high for n, (_, high) in ends.items()}
        error: NoFit | None = None
        for sizes in (None, ends, self._upper(ends)):
            symbolic = (
                self.all_sizes(high)
                if sizes is None
                else self._fitted(self._declared.box.within(**sizes), high)
            )
            try:
                if isinstance(symbolic, NoFit):
                    raise symbolic
                return *self._checked(symbolic, ends), sizes is not None
            except NoFit as found:
                told = sizes is ends and found.instruction is not None
                error = found if error is None or told else error
        assert error is not None
        raise error

    def _upper(self, ends: Ends) -> Ends:
        """The upper half of a bucket, where the function may be one program with small sizes that
        have their own.
        """
        return {
            n: (-(-((low + high) // 2) // self.step(n)) * self.step(n), high)
            for n, (low, high) in ends.items()
        }

    def all_sizes(self, known: Env | None = None) -> SymbolicModule | NoFit:
        """The program for all sizes, or the reason why there is none.

        Args:
            known: sizes at which the function has been traced.
        """
        if self._all is None:
            self._all = self._fitted(self._declared.box, known)
        return self._all

    def _fitted(self, box: ShapeDomain, known: Env | None = None) -> SymbolicModule | NoFit:
        try:
            return fit(self._module, box, known, self._asked)
        except NoFit as error:
            return error

    def _checked(self, symbolic: SymbolicModule, ends: Ends) -> tuple[SymbolicModule, Served]:
        """The program at the bucket's sizes, and the sizes that it serves.

        Raises:
            NoFit: it does not agree at sizes that are not small.
        """
        high = {n: high for n, (_, high) in ends.items()}
        found = symbolic.at(high, self._module(high))
        small = _Small(self, found, ends)
        first, why = small.first()
        box = self._declared.box.within(**{n: (first[n], high[n]) for n in ends})
        if (error := self.leaves(found, high)) is not None:
            raise error
        try:
            _, *others = paths(found.asked, box, [high, first])
        except Undecided as undecided:
            return found, Served(first, why, (), self._unsure(found, str(undecided), False))
        apart = []
        for path in others:
            if (error := self.leaves(found, path.env)) is not None:
                assert path.asked is not None
                compared = f"as compared at {path.asked.place}"
                apart.append((path, f"{explained_at(path.env, error)}, {compared}"))
        unsure, read = None, next((q for q in found.asked if q.is_read and q.symbols), None)
        if read is not None:
            called = f"it calls {read.form[0].__name__} of a size, at {read.place}"
            unsure = self._unsure(found, called, True)
        return found, Served(first, why, tuple(apart), unsure)

    def _unsure(self, symbolic: SymbolicModule, why: str, is_read: bool) -> Unsure:
        @functools.cache
        def differs(**env: int) -> str:
            error = self.leaves(symbolic, env)
            return "" if error is None else f"{explained_at(env, error)}, and {why}"

        return Unsure(why, is_read, lambda env: differs(**env))

    def differs(self, symbolic: SymbolicModule, env: Env) -> NoFit | None:
        """Why a program is not that of the function at given sizes, if it is not."""
        try:
            module = self._module(env)
        except NoFit as error:
            return error
        try:
            symbolic.at(env, module)
        except NoFit as error:
            return None if symbolic.is_same(env, module) else error
        return None

    def leaves(self, symbolic: SymbolicModule, env: Env) -> NoFit | None:
        """Why a program does not stand for the path that the function takes at given sizes."""
        error = self.differs(symbolic, env)
        if error is None and {q.at(env) for q in symbolic.asked} != set(self._asked(env)):
            error = NoFit("it compares other sizes")
        return error

    def _asked(self, env: Env) -> Questions:
        """What the function asks about sizes at given ones."""
        return self._probe(env).questions

    def _probe(self, env: Env) -> Entry:
        """The entry at sizes that a mesh need not divide."""
        probing = ambient.probing() if device_count() > 1 else contextlib.nullcontext()
        with probing, self._staged.cache.uncounted():
            return self.entry(env)[0]

    def step(self, name: str) -> int:
        """The difference between neighbouring sizes of a symbol."""
        return self._declared.box.ranges[name].step

    def _module(self, env: Env) -> Module:
        """The HLO at given sizes."""
        try:
            entry = self._probe(env)
        except Exception as error:
            raise NoFit(untraceable({n: (s, s) for n, s in env.items()}, error)) from error
        lowering = entry.program.lowering
        if not lowering.outputs:
            raise NoFit("it returns no arrays")
        first = self._first = self._first or entry
        if entry.out_tree != first.out_tree:
            raise NoFit("the tree of its results is another for other sizes")
        if lowering.inputs != first.program.lowering.inputs:
            raise NoFit("it uses other arguments for other sizes")
        captures = zip(entry.captures, first.captures, strict=False)
        same = len(entry.captures) == len(first.captures)
        same = same and all(a is b or (isinstance(a, int) and a == b) for a, b in captures)
        if not same:
            raise NoFit("it uses another tensor from outside for other sizes")
        return folded(lowering.module)

    def _check_held(self, source: Entry, symbolic: SymbolicModule) -> None:
        """Refuse captured tensors with varying sizes: nothing pads them."""
        inputs, n = source.program.lowering.inputs, len(self._avals)
        for p in symbolic.module.entry.parameters:
            varies = any(isinstance(s, Polynomial) for s in symbolic.dims(p))
            if varies and inputs[p.parameter_number] >= n:
                raise Inexact("a tensor from outside whose size varies", p)


class _Small:
    """Compares a program with the function at the smallest sizes of a bucket.

    Args:
        maker: traces the function.
        symbolic: the program, at the bucket's own sizes, where it agrees.
        ends: of the bucket.
    """

    def __init__(self, maker: Maker, symbolic: SymbolicModule, ends: Ends) -> None:
        self._maker, self._symbolic, self._ends = maker, symbolic, ends
        self._high = {n: high for n, (_, high) in ends.items()}
        self._known: dict[tuple[int, ...], NoFit | None] = {}

    def first(self) -> tuple[Env, str]:
        """The smallest size of each symbol from which on the program serves all sizes, and why
        there are smaller ones.

        Raises:
            NoFit: the program does not agree at sizes that are not small.
        """
        start = self._plain()
        if self._differs(start) is not None:
            start = {n: self._start(n, size) for n, size in start.items()}
            if (error := self._differs(start)) is not None:
                raise error
        for env in self._corners(start):  # Where one symbol exceeds another, say.
            if (error := self._differs(env)) is not None:
                raise NoFit(explained_at(env, error))
        small = {n: self._below(n, size) for n, size in start.items()}
        first = {n: min([*sizes, start[n]]) for n, sizes in small.items()}
        skipped = (n for n, size in first.items() if size > self._ends[n][0])
        why = "".join(f"smaller {n} were not compared" for n in itertools.islice(skipped, 1))
        wrong: list[dict[str, int]] = []  # the small sizes in parts that do not agree
        names = list(first)
        for part in itertools.product(*[[*small[n], start[n]] for n in names]):
            low = dict(zip(names, part, strict=True))
            fixed = {n: s for n, s in low.items() if s < start[n]}
            if not fixed:
                continue
            for env in (low, {**self._high, **fixed}):
                if (error := self._differs(env)) is not None:
                    wrong.append(fixed)
                    why = why or explained_at(env, error)
                    break
        while wrong:  # A part is left out by the symbol that leaves out most others, too.
            n, size = max(
                ((n, s) for fixed in wrong for n, s in fixed.items()),
                key=lambda at: sum(fixed.get(at[0], at[1] + 1) <= at[1] for fixed in wrong),
            )
            first[n] = max(first[n], size + self._maker.step(n))
            wrong = [fixed for fixed in wrong if fixed.get(n, first[n]) >= first[n]]
        return first, why

    def _corners(self, low: Env) -> Iterator[Env]:
        """The sizes of which one is the smallest or the largest, and all others are not."""
        for n in low:
            yield {**low, n: self._high[n]}
            yield {**self._high, n: low[n]}

    def _plain(self) -> dict[str, int]:
        """The smallest sizes at which all dimensions are larger than 1, if there are such."""
        result = {n: low for n, (low, _) in self._ends.items()}
        while names := {n for n in self._symbolic.small_at(result) if result[n] < self._high[n]}:
            for n in names:
                result[n] = min(result[n] + self._maker.step(n), self._high[n])
        return result

    def _start(self, name: str, plain: int) -> int:
        """The first size of a symbol at which the program agrees, with the largest of others."""
        last = min(plain + _MOST_OTHER * self._maker.step(name), self._high[name])
        error: NoFit | None = None
        for size in range(plain, last + 1, self._maker.step(name)):
            error = self._differs({**self._high, name: size})
            if error is None:
                return size
        assert error is not None
        raise error

    def _below(self, name: str, start: int) -> list[int]:
        """The smaller sizes of a symbol that are compared; those left out have own programs."""
        sizes = range(self._ends[name][0], start, self._maker.step(name))
        return list(sizes) if len(sizes) <= _MOST_SMALL else []

    def _differs(self, env: Env) -> NoFit | None:
        key = tuple(env[n] for n in self._ends)
        if key not in self._known:
            self._known[key] = self._maker.differs(self._symbolic, env)
        return self._known[key]


def _entry(source: Entry, found: Padded, held: int, symbols: int) -> Entry:
    """The entry of a padded module: after the tensors `source` holds, it takes the actual sizes."""
    lowering = source.program.lowering
    n = len(lowering.avals)
    inputs = [i if i < n else i + symbols for i in lowering.inputs]
    padded_lowering = HloProgram(
        lowering.name,
        unfolded(found.module, lowering.module),
        (*inputs, *range(n, n + symbols)),
        (*lowering.avals, *[Aval((), torch.int64)] * symbols),
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
    """Why there is no program at the largest sizes of a bucket, with the user's line."""
    at = ", ".join(f"{n}={high}" for n, (_, high) in ends.items())
    line = raised_at(error)
    where = "" if line is None else f", at {line.file}:{line.line} in {line.function}"
    return f"it cannot be traced at {at}: {str(error).partition(chr(10))[0]}{where}"


def explained(error: NoFit | Inexact) -> str:
    """The reason, with the user's line."""
    line = location(error.instruction)
    return error.reason if line is None else f"{error.reason}, at {line}"


def explained_at(env: Env, error: NoFit | Inexact) -> str:
    """The same for a reason at given sizes."""
    return f"at {', '.join(f'{n}={s}' for n, s in env.items())}, {explained(error)}"


def location(i: Instruction | None) -> str | None:
    """The user's line that an instruction comes from, or else that of the first that uses it."""
    if i is None:
        return None
    todo = [i]
    for found in todo:  # Constants that were tensors have no lines.
        of = found.proto.metadata
        said = scopes.meaning(of.op_name)
        file, line = (of.source_file, of.source_line) if said is None else said[1:]
        if file:
            return f"{file}:{line}"
        users = found.users if found.users else _callers(found.computation)
        todo += [user for user in users if user not in todo]
    return None


def _callers(computation: Computation) -> list[Instruction]:
    everything = (i for c in computation.module.computations for i in c.instructions)
    return [i for i in everything if computation.proto.id in i.proto.called_computation_ids]
