"""The stages of a jitted function as plain objects: traced, lowered, compiled."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from xfunc import tree
from xfunc.avals import NUMBERS, Aval, ShapeDtypeStruct
from xfunc.errors import TreeMismatchError, report
from xfunc.hlo import Module
from xfunc.locations import user_location
from xfunc.staging import Entry, Staged, avals_of, prepare, run_staged


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """A function traced for given arguments.

    Attributes:
        in_tree: structure of ``(args, kwargs)``.
        in_avals: of its leaves.
        out_tree: structure of the result.
    """

    in_tree: tree.Structure
    in_avals: tuple[Aval, ...]
    _staged: Staged
    _entry: Entry
    _options: dict[str, Any]

    @property
    def out_tree(self) -> tree.Structure:
        return self._entry.out_tree

    @property
    def out_info(self) -> Any:
        """The result as a tree of `ShapeDtypeStruct`."""
        return tree.unflatten(self.out_tree, self._entry.program.outputs)

    def lower(self) -> Lowered:
        """The HLO of the function."""
        return Lowered(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Lowered:
    """A function as HLO."""

    traced: Traced

    @property
    def module(self) -> Module:
        """The HLO as data."""
        return self.traced._entry.program.lowering.module

    def as_text(self, dialect: str = "hlo") -> str:
        """The HLO as XLA prints it."""
        if dialect != "hlo":
            raise ValueError(
                report(f"unknown dialect {dialect!r}", "use 'hlo'.", at=user_location())
            )
        return str(self.module)

    def compile(self) -> Compiled:
        """Compile for the running device; runs nothing."""
        entry = self.traced._entry
        if entry.program.lowering.outputs:
            entry.program.lowering.executable(entry.donated)
        return Compiled(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled function: takes exactly the arguments that it was compiled for."""

    lowered: Lowered

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        traced = self.lowered.traced
        for where, *_ in traced._options.get("static") or ():
            if isinstance(where, int):  # Static arguments are part of the program.
                args = (*args[:where], None, *args[where:])
        leaves, structure = tree.flatten((args, kwargs))
        given = _avals(traced._staged, leaves, structure)
        if structure != traced.in_tree or given != avals_of(traced.in_avals):
            raise TreeMismatchError(
                report(
                    f"{traced._staged.name} was compiled for other arguments: "
                    f"{_show(traced.in_tree, traced.in_avals)}, not "
                    f"{_show(structure, [Aval(*a) for a in given])}",
                    "call the jitted function itself, which compiles for each kind of arguments.",
                    at=user_location(),
                )
            )
        return run_staged(traced._staged, args, kwargs, **traced._options)


def _show(structure: tree.Structure, avals: Any) -> str:
    args, kwargs = tree.unflatten(structure, [str(a) for a in avals])
    return f"{args} {kwargs}" if kwargs else f"{args}"


def _avals(staged: Staged, leaves: list[Any], structure: tree.Structure) -> tuple[Any, ...]:
    abstract = [Aval((), NUMBERS[type(x)]) if type(x) in NUMBERS else x for x in leaves]
    others = [x for x in abstract if not isinstance(x, (torch.Tensor, ShapeDtypeStruct))]
    if others:
        prepare(staged, leaves, structure)  # Raises, and says which.
    return avals_of(abstract)


def trace(staged: Staged, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> Traced:
    """Trace a staged function for tensors, numbers or `ShapeDtypeStruct`s."""
    leaves, structure = tree.flatten((args, kwargs))
    avals = _avals(staged, leaves, structure)
    entry, _ = staged.find(structure, avals, None, **options)
    return Traced(structure, tuple(Aval(*a) for a in avals), staged, entry, options)
