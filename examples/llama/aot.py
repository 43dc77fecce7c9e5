"""Memory of a training step on TPUs, found by compiling it without them.

    python -m examples.llama aot --config llama3.1-405b-v6e-256 --topology v6e-256

compiles the step that `fit` would run with the same settings on these chips, and reports what it
takes of each: memory, the largest buffers, and arithmetic.
"""

import argparse
import functools
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import xfunc as xf
from xfunc.aot import Topology, topology_of
from xfunc.stages import Compiled, Lowered

from . import config, model, options, train
from .config import Run
from .model import flops, parameters
from .train.train_config import Recipe

# The settings for a model that is given by its name alone: weights of two bytes, so that figures
# of one model can be compared.
_BARE = ("train.optimizer=adafactor", "train.precision=bfloat16", "data.seq=8192")
# Short for settings.
_FLAGS = {
    "--batch": "data.batch",
    "--seq": "data.seq",
    "--policy": "train.plan.policy",
    "--attention": "train.plan.attention",
    "--loss-chunk": "train.plan.loss_chunk",
    "--optimizer": "train.optimizer",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Compile and report; the exit status is 1 if the step does not fit."""
    parser = _parser()
    args = parser.parse_intermixed_args(argv)
    try:
        case = Case(_run(args), args.topology)
        case.run.check_shares(case.chips.devices)
        _ = case.recipe
    except ValueError as error:
        parser.error(str(error))
    os.environ.setdefault("PJRT_DEVICE", "CPU")  # A local TPU is not needed.
    width = None if sys.stdout.isatty() else 1000  # A file has room for names and lines.
    console = Console(highlight=False, markup=False, soft_wrap=True, width=width)
    try:
        target, compiler_options = f"tpu:{case.topology}", dict(args.compiler_option)
        compiled = case.lower().compile(target, compiler_options, args.timeout)
    except xf.errors.OutOfMemoryError as error:
        console.print(f"{case}\ndoes not fit")
        for name, size in (("required", error.required_bytes), ("limit", error.limit_bytes)):
            if size is not None:
                console.print(f"{name} per chip: {_gib(size)} GiB")
        console.print(f"\n{error}")
        return 1
    except xf.errors.XfuncError as error:
        print(error, file=sys.stderr)
        return 1
    _report(console, case, compiled)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.llama aot",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    presets, models = ", ".join(config.presets()), ", ".join(model.CONFIGS)
    add = parser.add_argument
    add(
        "--config",
        required=True,
        metavar="FILE",
        help=f"settings in YAML, or one of {presets}; or a model alone, one of {models}, which "
        f"stands for {', '.join(_BARE)}, and from 7 billion parameters on for the policy offload",
    )
    add("--topology", required=True, metavar="NAME", help="such as v6e-256, or v6e:16x16")
    add("settings", nargs="*", metavar="key=value", help="settings that differ: see fit --help")
    add("--timeout", type=float, metavar="SECONDS", help="after which libtpu is ended")
    how: dict[str, Any] = {"type": _option, "action": "append", "default": []}
    add("--compiler-option", metavar="NAME=VALUE", help="of libtpu", **how)
    add = parser.add_argument_group("short for settings").add_argument
    add("--mesh", metavar="AXIS=N,...", help="such as fsdp=64,tensor=4: sets mesh")
    for flag, key in _FLAGS.items():
        add(flag, dest=key, metavar="VALUE", help=f"sets {key}")
    return parser


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _run(args: argparse.Namespace) -> Run:
    """The settings, read in the same way as by `fit` unless a model alone is named."""
    flags = ((key, getattr(args, key)) for key in _FLAGS.values())
    pairs = [
        *(f"mesh.{part.strip()}" for part in (args.mesh or "").split(",") if part),
        *(f"{key}={value}" for key, value in flags if value is not None),
        *args.settings,
    ]
    name = args.config
    if name not in model.CONFIGS or name in config.presets() or Path(name).exists():
        return config.read(name, pairs)
    if not any(pair.startswith("data.batch=") for pair in pairs):
        raise options.SettingError("a model alone has no batch: give --batch")
    policy = "offload" if parameters.count(model.CONFIGS[name]) >= 7e9 else "full"
    bare = f"train.model={name}", f"train.plan.policy={policy}", *_BARE
    return config.read(pairs=(*bare, *pairs))


@dataclass(frozen=True)
class Case:
    """A step of a run, to be compiled for chips that need not be present."""

    run: Run
    topology: str  # such as v6e-256 or v6e:16x16

    def __str__(self) -> str:
        recipe, data = self.recipe, self.run.data
        axes = self.run.mesh.axes(self.chips.devices)
        mesh = ",".join(f"{axis}={n}" for axis, n in axes.items() if n > 1) or "one chip"
        parts = recipe.plan.microbatches
        return (
            f"{options.name_of(recipe.model) or 'a model'}, a step with {recipe.optimizer} in "
            f"{recipe.precision}, on {self.topology} as {mesh}: {data.batch} rows of {data.seq}"
            f"{f' in {parts} parts' if parts > 1 else ''}, {recipe.plan.policy}, "
            f"{recipe.plan.attention}"
        )

    @functools.cached_property
    def chips(self) -> Topology:
        """The chips that the topology names."""
        return topology_of(self.topology)

    @functools.cached_property
    def recipe(self) -> Recipe:
        """The recipe that `fit` would compile on these chips."""
        return self.run.recipe(self.chips.devices, abstract=True)

    @functools.cached_property
    def arguments(self) -> tuple[train.State, model.Batch, model.Params | None]:
        """State, batch and base of a step of `fit`, as shapes with shardings."""
        recipe, data = self.recipe, self.run.data
        batch = train.abstract_batch(recipe, data.batch, data.seq, packed=True)
        return train.abstract_state(recipe), batch, train.abstract_base(recipe)

    def lower(self) -> Lowered:
        """The program, lowered from shapes alone."""
        return train.train_step.lower(*self.arguments, recipe=self.recipe)


def sizes(case: Case, compiled: Compiled) -> dict[str, int]:
    """The bytes that one step takes of a chip's memory, by kind."""
    memory, (state, batch, base) = compiled.memory_analysis(), case.arguments
    parts = {
        "parameters": _bytes((state.params, base)),
        "optimizer state": _bytes(state._replace(params=None)),
        "batch": _bytes(batch),
    }
    padding = (memory.argument_size_in_bytes or 0) - sum(parts.values())
    return parts | {"padding of these": padding, "temporaries": memory.temp_size_in_bytes or 0}


def _bytes(tree: Any) -> int:
    """The size of one chip's part of a tree of shapes with shardings."""
    return sum(
        math.prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in xf.tree.leaves(tree)
    )


def _report(console: Console, case: Case, compiled: Compiled) -> None:
    """Print what one step takes."""
    found, kinds = sizes(case, compiled), _table("of a chip's HBM", "GiB")
    for name, size in found.items():
        kinds.add_row(name, _gib(size))
    console.print(f"{case}\ncompiled by {compiled.compiler}\n")
    console.print(f"HBM per chip: {_gib(sum(found.values()))} GiB")
    if case.chips.memory is not None:
        console.print(f"limit per chip: {_gib(case.chips.memory)} GiB")
    host = compiled.memory_analysis().host_temp_size_in_bytes or 0
    console.print(f"host per chip: {_gib(host)} GiB")
    largest = _table("largest buffers", "GiB")
    largest.add_column(overflow="fold")
    largest.add_column(overflow="fold")
    for b in compiled.largest_buffers() or []:
        where = f"{os.path.relpath(b.file)}:{b.line}" if b.file else ""
        made = "" if b.kind == "argument" else b.op_name
        largest.add_row(f"{b.kind} {b.shape}", _gib(b.bytes), where, made)
    console.print("", kinds, "", largest, "", sep="\n")
    recipe, seq = case.recipe, case.run.data.seq
    tokens = case.run.data.batch * seq
    operations = tokens * flops.per_token(recipe.model, seq, recipe.extent)
    console.print(f"FLOPs per step, by formula: {operations:.3e}")
    if recipe.model.experts is not None:
        padded = flops.padded(recipe.model, recipe.plan, tokens // case.chips.devices)
        console.print(f"padding among the rows of experts: {padded:.0%}, if loads are even")


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(heads[0], overflow="fold")
    for name in heads[1:]:  # Columns that cannot wrap are narrowed last.
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}"


if __name__ == "__main__":
    sys.exit(main())
