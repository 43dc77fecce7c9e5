"""What `aot` prints."""

import dataclasses
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from xfunc.aot import Buffer, Topology
from xfunc.errors import OutOfMemoryError

from .. import config, options
from ..config import Mesh, Run
from ..model.precision import LOSSY
from .footprint import Case, Footprint
from .planner import Trial


@dataclass(frozen=True)
class Staging:
    """The cost of tracing and lowering the step.

    Attributes:
        seconds: the time for both.
        hlo_bytes: the size of the program.
        growth_bytes: how much this process grew.
    """

    seconds: float
    hlo_bytes: int
    growth_bytes: int


def report(
    console: Console,
    case: Case,
    staging: Staging,
    found: Footprint,
    buffers: Sequence[Buffer],
) -> None:
    """Everything known about one step."""
    _heading(console, case)
    console.print(
        f"trace + lower: {staging.seconds:.2f} s, {staging.hlo_bytes / 1e6:.2f} MB of HLO; "
        f"this process grew by {staging.growth_bytes / 1e6:.0f} MB\n"
        f"compiled by {found.compiler}\n"
    )
    console.print(f"HBM per chip: {_gib(found.hbm)} GiB")
    if case.chips.memory is not None:
        console.print(f"limit per chip: {_gib(case.chips.memory)} GiB")
    console.print(f"host per chip: {_gib(found.host)} GiB")
    kinds = _table("of a chip's HBM", "GiB")
    kinds.add_row("parameters", _gib(found.parameters))
    kinds.add_row("optimizer state", _gib(found.optimizer))
    kinds.add_row("batch", _gib(found.batch))
    kinds.add_row("padding of these", _gib(found.padding))
    kinds.add_row("temporaries", _gib(found.temporaries))
    kinds.add_row("and results beside arguments", _gib(found.results))
    console.print("", kinds, "", sep="\n")
    largest = _table("largest buffers", "GiB")
    largest.add_column(overflow="fold")
    largest.add_column(overflow="fold")
    for b in buffers:
        where = f"{os.path.relpath(b.file)}:{b.line}" if b.file else ""
        made = "" if b.kind == "argument" else b.op_name
        largest.add_row(f"{b.kind} {b.shape}", _gib(b.bytes), where, made)
    console.print(largest, "", sep="\n")
    _work(console, found)


def _work(console: Console, found: Footprint) -> None:
    if found.traffic is not None:
        sent = _table("collectives of a step", "GiB to each chip", "number")
        for kind, traffic in found.traffic.items():
            sent.add_row(kind, _gib(traffic.bytes), f"{traffic.runs:,}")
        console.print(sent, "", sep="\n")
    if found.products is not None:
        made = _table("products of a step, by their operands", "number")
        for dtypes, number in found.products.items():
            made.add_row(dtypes, f"{number:,}")
        console.print(made, "", sep="\n")
    console.print(
        f"FLOPs per step, by formula: {found.flops:.3e}; with recomputation: {found.executed:.3e}"
    )
    if found.mfu_bound is not None and found.arithmetic_seconds is not None:
        links = "" if found.link_seconds is None else f", links {found.link_seconds:.3g} s"
        console.print(
            f"MFU at most {found.mfu_bound:.0%}: at their peak, arithmetic takes "
            f"{found.arithmetic_seconds:.3g} s per step{links}\n"
            "(an upper bound, not a forecast: as if both overlapped fully and HBM took no time)"
        )


def out_of_memory(console: Console, case: Case, error: OutOfMemoryError) -> None:
    """Why a step does not fit."""
    _heading(console, case)
    for name, size in (("required", error.required_bytes), ("limit", error.limit_bytes)):
        if size is not None:
            console.print(f"{name} per chip: {_gib(size)} GiB")
    console.print(f"\n{error}")


def trials(console: Console, found: Iterable[Trial], chips: Topology) -> None:
    """All that a search for the largest batch compiled."""
    columns = "rows", "a chip", "HBM, GiB", "host, GiB", "MFU at most"
    table = _table("mesh", "policy", *columns)
    table.columns[1].justify = "left"
    table.add_column()
    for t in found:
        table.add_row(
            _mesh(t.mesh),
            t.policy,
            str(t.batch),
            f"{t.batch / chips.devices:g}",
            "?" if t.hbm is None else _gib(t.hbm),
            _gib(t.host) if t.fits else "",
            "" if t.mfu_bound is None else f"{t.mfu_bound:.0%}",
            "" if t.fits else "does not fit",
        )
    console.print(table, "", sep="\n")
    if chips.memory is not None:
        console.print(f"limit per chip: {_gib(chips.memory)} GiB")


def command(console: Console, source: str | None, run: Run) -> None:
    """The command to train with what a search found."""
    given = [] if source is None else ["--config", source]
    text = shlex.join([*given, *config.differing(run, source)])
    if run.train.precision == "bfloat16":
        console.print(LOSSY)
    console.print(f"python -m examples.llama fit {text}")


def _heading(console: Console, case: Case) -> None:
    run, recipe = case.run, case.recipe
    name = options.name_of(recipe.model) or "a model"
    what = f"a step with {recipe.optimizer}" if case.what == "train" else "gradients"
    mesh = _mesh(run.mesh.sized(case.chips.devices))
    parts = recipe.plan.microbatches
    console.print(
        f"{name}, {what} in {recipe.precision}, on {case.topology} as {mesh}: "
        f"{run.data.batch} rows of {run.data.seq}{f' in {parts} parts' if parts > 1 else ''}, "
        f"{recipe.plan.policy}, {recipe.plan.attention}"
    )
    if recipe.precision == "bfloat16":
        console.print(f"({LOSSY})")


def _mesh(mesh: Mesh) -> str:
    sizes = [f"{axis}={n}" for axis, n in dataclasses.asdict(mesh).items() if n > 1]
    return ",".join(sizes) or "one chip"


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for name in numbers:  # Columns that cannot wrap are narrowed last.
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}"
