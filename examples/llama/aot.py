"""Memory and cost of a training step on TPUs, found by compiling it without them.

    python -m examples.llama aot --config llama3.1-405b-v6e-256 --topology v6e-256

compiles the step that `fit` would run with the same settings on these chips, and reports memory,
arithmetic and communication per chip. With `--plan` it looks for the largest batch that fits.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import xfunc as xf
from xfunc.stages import Compiled, Lowered

from . import config, model, options, train
from .config import Run
from .model import parameters
from .model.plan import ATTENTION, POLICIES
from .parallel.sharding import parse_mesh
from .tools import planner, report
from .tools.footprint import Case, footprint

Compiler = Callable[[Lowered], Compiled]

# The settings for a model that is given by its name alone: weights of two bytes, so that figures
# of one model can be compared.
_BARE = ("train.optimizer=adafactor", "train.precision=bfloat16", "data.seq=8192")


def main(argv: Sequence[str] | None = None) -> int:
    """Compile and report; the exit status is 1 if nothing fits."""
    parser = _parser()
    args = parser.parse_intermixed_args(argv)
    try:
        pairs = _pairs(args)
        case = Case(_run(args, pairs), args.topology, args.what)
        if not args.plan:
            case.run.check_shares(case.chips.devices)
        if not args.plan or _sets(pairs, "mesh"):
            _ = case.recipe
        _ = case.chips
    except ValueError as error:
        parser.error(str(error))
    if args.plan and (_sets(pairs, "data.batch") or args.json):
        parser.error("--plan finds the batch and prints a table: omit --batch and --json")
    if not args.plan and _is_bare(args) and not _sets(pairs, "data.batch"):
        parser.error("give --batch, or --plan to find the largest")
    os.environ.setdefault("PJRT_DEVICE", "CPU")  # A local TPU is not needed.
    width = None if sys.stdout.isatty() else 1000  # A file has room for names and lines.
    console = Console(highlight=False, markup=False, soft_wrap=True, width=width)

    def compiled(lowered: Lowered) -> Compiled:
        target = f"tpu:{case.topology}"
        return lowered.compile(target, dict(args.compiler_option), args.timeout)

    with _shard_as(args.shard_as):
        try:
            if not args.plan:
                return _report(console, case, compiled, as_json=args.json)
            return _plan(console, args, case, compiled, pairs)
        except xf.errors.XfuncError as error:
            print(error, file=sys.stderr)
            return 1


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
        f"stands for {', '.join(_BARE)}",
    )
    add("--topology", required=True, metavar="NAME", help="such as v6e-256, or v6e:16x16")
    add("settings", nargs="*", metavar="key=value", help="settings that differ: see fit --help")
    add("--plan", action="store_true", help="find the largest batch that fits")
    add("--json", action="store_true", help="print the figures as JSON")
    add = parser.add_argument_group("short for settings").add_argument
    add("--mesh", metavar="AXIS=N,...", help="such as fsdp=64,tensor=4: sets mesh")
    add("--batch", dest="data.batch", metavar="ROWS", help="on all chips together: sets data.batch")
    add("--seq", dest="data.seq", metavar="TOKENS", help="of a row: sets data.seq")
    add(
        "--policy",
        dest="train.plan.policy",
        choices=POLICIES,
        help="sets train.plan.policy (of a model alone: offload from 7 billion parameters on)",
    )
    key = "train.plan.attention"
    add("--attention", dest=key, choices=ATTENTION, help=f"sets {key}")
    key = "train.plan.loss_chunk"
    add("--loss-chunk", dest=key, metavar="TOKENS", help=f"sets {key}")
    key = "train.optimizer"
    add("--optimizer", dest=key, choices=train.OPTIMIZERS, help=f"sets {key}")
    add = parser.add_argument_group("compiling").add_argument
    add("--what", choices=("train", "grad"), default="train", help="the step, or gradients alone")
    add("--no-shard-as", dest="shard_as", action="store_false", help="omit the ties of scans")
    add(
        "--compiler-option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of libtpu",
    )
    add("--timeout", type=float, metavar="SECONDS", help="after which libtpu is ended")
    return parser


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


# -- settings -----------------------------------------------------------------------------------


def _pairs(args: argparse.Namespace) -> list[str]:
    """What the command line sets, as `key=value`."""
    mesh = parse_mesh(args.mesh).items() if args.mesh else ()
    flags = [(key, value) for key, value in vars(args).items() if "." in key]
    return [
        *(f"mesh.{axis}={size}" for axis, size in mesh),
        *(f"{key}={value}" for key, value in flags if value is not None),
        *args.settings,
    ]


def _sets(pairs: Sequence[str], key: str) -> bool:
    return any(pair.startswith((f"{key}.", f"{key}=")) for pair in pairs)


def _is_bare(args: argparse.Namespace) -> bool:
    """Whether a model is named, but nothing that `fit` would read."""
    name = args.config
    return name in model.CONFIGS and name not in config.presets() and not Path(name).exists()


def _run(args: argparse.Namespace, pairs: Sequence[str]) -> Run:
    """The settings, read in the same way as by `fit`."""
    if not _is_bare(args):
        return config.read(args.config, pairs)
    policy = "offload" if _is_large(args.config) else "full"
    bare = f"train.model={args.config}", f"train.plan.policy={policy}", *_BARE
    return config.read(pairs=(*bare, *pairs))


def _is_large(name: str) -> bool:
    return parameters.count(model.CONFIGS[name]) >= 7e9


@contextlib.contextmanager
def _shard_as(on: bool) -> Iterator[None]:
    before, xf.config.shard_as_in_scan = xf.config.shard_as_in_scan, on
    try:
        yield
    finally:
        xf.config.shard_as_in_scan = before


# -- what is done -------------------------------------------------------------------------------


def _report(console: Console, case: Case, compiled: Compiler, *, as_json: bool) -> int:
    # Not measured: the shapes of the arguments, whose trace starts torch_xla.
    _ = case.arguments
    start, memory = time.perf_counter(), _resident()
    lowered = case.lower()
    seconds = time.perf_counter() - start
    staging = report.Staging(seconds, len(lowered.module.to_bytes()), _resident() - memory)
    plain = {"topology": case.topology, "what": case.what, "run": options.plain(case.run)}
    try:
        program = compiled(lowered)
    except xf.errors.OutOfMemoryError as error:
        if as_json:
            sizes = {"required": error.required_bytes, "limit": error.limit_bytes}
            print(json.dumps({"case": plain, "out_of_memory": sizes}))
        else:
            report.out_of_memory(console, case, error)
        return 1
    found, buffers = footprint(case, program), program.largest_buffers() or []
    if as_json:
        parts = {"staging": staging, "footprint": found}
        figures: dict[str, Any] = {k: dataclasses.asdict(v) for k, v in parts.items()}
        figures["case"] = plain
        figures["footprint"] |= {"hbm": found.hbm, "limit": case.chips.memory}
        figures["largest_buffers"] = [dataclasses.asdict(b) for b in buffers]
        print(json.dumps(figures))
    else:
        report.report(console, case, staging, found, buffers)
    return 0


def _resident() -> int:
    """The most memory that this process has used, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _plan(
    console: Console,
    args: argparse.Namespace,
    case: Case,
    compiled: Compiler,
    pairs: Sequence[str],
) -> int:
    run, chips = case.run, case.chips
    if chips.memory is None:
        console.print(f"The memory of a {chips.kind} is not known: plan for another TPU.")
        return 1
    meshes = planner.meshes(run.train.model, chips.devices)
    if _sets(pairs, "mesh"):
        meshes = [run.mesh.sized(chips.devices)]
    policies = [run.train.plan.policy] if _sets(pairs, "train.plan.policy") else planner.FROM_SMALL
    parts = run.train.plan.microbatches  # The planner's batches are the parts of one.

    def tried(mesh: config.Mesh, policy: str, batch: int) -> Case:
        plan = dataclasses.replace(run.train.plan, policy=policy)
        changed = dataclasses.replace(
            run,
            train=dataclasses.replace(run.train, plan=plan),
            data=dataclasses.replace(run.data, batch=batch * parts),
            mesh=mesh,
        )
        return dataclasses.replace(case, run=changed)

    compiled_any = False

    def measure(mesh: config.Mesh, policy: str, batch: int) -> planner.Trial:
        nonlocal compiled_any
        trial = planner.Trial(mesh, policy, batch, fits=False)
        try:
            each = tried(mesh, policy, batch)
            program = compiled(each.lower())
        except xf.errors.OutOfMemoryError as error:
            compiled_any = True
            return trial._replace(hbm=error.required_bytes)
        except xf.errors.CompileError:
            if not compiled_any:
                raise  # libtpu may be missing.
            return trial  # It crashes on some programs that are far too large.
        compiled_any = True
        found = footprint(each, program)
        return trial._replace(fits=True, hbm=found.hbm, host=found.host, mfu_bound=found.mfu_bound)

    trials = list(planner.search(meshes, policies, measure, chips.memory))
    report.trials(console, [t._replace(batch=t.batch * parts) for t in trials], chips)
    best = planner.best(trials)
    if best is None:
        console.print("Nothing fits: take more chips, a shorter sequence, or another mesh.")
        return 1
    source = None if _is_bare(args) else args.config
    report.command(console, source, tried(best.mesh, best.policy, best.batch).run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
