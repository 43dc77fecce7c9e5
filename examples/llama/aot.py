"""What a training step takes on TPUs, found by compiling it without them.

    python -m examples.llama.aot --config llama3.1-405b --topology v6e-256 \\
        --mesh fsdp=64,tensor=4 --batch 256

compiles the step for 256 chips, and says what it takes of each: memory, arithmetic and messages.
With `--plan` it looks for the largest batch that fits.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

import xfunc as xf
from xfunc.aot import Topology, topology_of

from . import model, planner, show, train
from .footprint import Case, footprint
from .plan import ATTENTION, POLICIES, Plan
from .sharding import parse_mesh


def main(argv: Sequence[str] | None = None) -> int:
    """Compile and report; the exit status is 1 if nothing fits."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        topology = topology_of(args.topology)
        mesh = args.mesh and planner.Mesh(**parse_mesh(args.mesh))
    except ValueError as error:
        parser.error(str(error))
    if mesh and math.prod(mesh) != topology.devices:
        parser.error(f"--mesh {args.mesh}: {topology.name} has {topology.devices} chips")
    os.environ.setdefault("PJRT_DEVICE", "CPU")  # A TPU that is here is not needed.
    width = None if sys.stdout.isatty() else 160  # A file has room for names and lines.
    console = Console(highlight=False, markup=False, soft_wrap=True, width=width)
    if args.plan and (args.batch is not None or args.json):
        parser.error("--plan finds the batch and prints a table: no --batch, no --json")
    if not args.plan and (not mesh or args.batch is None):
        parser.error("give --mesh and --batch, or --plan to look for them")
    options = dict(args.compiler_option)
    with _shard_as(args.shard_as):
        try:
            if mesh and args.batch:
                policy = args.policy or ("offload" if _is_large(args.config) else "full")
                case = _case(args, mesh, policy, args.batch)
                return _report(console, case, options, as_json=args.json)
            return _plan(console, args, topology, mesh, options)
        except xf.errors.XfuncError as error:
            print(error, file=sys.stderr)
            return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.llama.aot",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", required=True, choices=model.CONFIGS, metavar="NAME", help="which model")
    add("--topology", required=True, metavar="NAME", help="such as v6e-256, or v6e:16x16")
    add("--mesh", metavar="AXIS=N,...", help="such as fsdp=64,tensor=4")
    add("--batch", type=_count, metavar="ROWS", help="on all chips together")
    add("--seq", type=_count, default=8192, metavar="TOKENS", help="of a row (default: 8192)")
    add("--policy", choices=POLICIES, help="default: offload from 7 billion parameters on, or full")
    add("--attention", choices=ATTENTION, default=Plan.attention)
    add("--loss-chunk", type=_count, default=Plan.loss_chunk, metavar="TOKENS")
    add("--optimizer", choices=train.OPTIMIZERS, default="adafactor")
    add("--what", choices=("train", "grad"), default="train", help="the step, or gradients alone")
    add("--no-shard-as", dest="shard_as", action="store_false", help="leave gradients to XLA")
    add(
        "--compiler-option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of libtpu",
    )
    add("--json", action="store_true", help="print the figures as JSON")
    add("--plan", action="store_true", help="find the largest batch that fits")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _case(args: argparse.Namespace, mesh: planner.Mesh, policy: str, batch: int) -> Case:
    return Case(
        config=args.config,
        topology=args.topology,
        mesh=mesh._asdict(),
        batch=batch,
        seq=args.seq,
        policy=policy,
        attention=args.attention,
        loss_chunk=args.loss_chunk,
        optimizer=args.optimizer,
        what=args.what,
    )


def _is_large(config: str) -> bool:
    shapes = xf.tree.leaves(model.shapes(model.CONFIGS[config]))
    return sum(math.prod(leaf.shape) for leaf in shapes) >= 7e9


@contextlib.contextmanager
def _shard_as(on: bool) -> Iterator[None]:
    before, xf.config.shard_as_in_scan = xf.config.shard_as_in_scan, on
    try:
        yield
    finally:
        xf.config.shard_as_in_scan = before


def _report(console: Console, case: Case, options: dict[str, str], *, as_json: bool) -> int:
    # Not measured: the shapes of the arguments, whose trace starts torch_xla.
    _ = case.arguments
    start, memory = time.perf_counter(), _resident()
    lowered = case.lower()
    seconds = time.perf_counter() - start
    staging = show.Staging(seconds, len(lowered.module.to_bytes()), _resident() - memory)
    try:
        compiled = lowered.compile(f"tpu:{case.topology}", options)
    except xf.errors.OutOfMemoryError as error:
        if as_json:
            sizes = {"required": error.required_bytes, "limit": error.limit_bytes}
            print(json.dumps({"case": dataclasses.asdict(case), "out_of_memory": sizes}))
        else:
            show.out_of_memory(console, case, error)
        return 1
    found, buffers = footprint(case, compiled), compiled.largest_buffers()
    if as_json:
        parts = {"case": case, "staging": staging, "footprint": found}
        figures: dict[str, Any] = {k: dataclasses.asdict(v) for k, v in parts.items()}
        figures["footprint"]["hbm"] = found.hbm
        figures["largest_buffers"] = [dataclasses.asdict(b) for b in buffers]
        print(json.dumps(figures))
    else:
        show.report(console, case, staging, found, buffers)
    return 0


def _resident() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _plan(
    console: Console,
    args: argparse.Namespace,
    topology: Topology,
    mesh: planner.Mesh | None,
    options: dict[str, str],
) -> int:
    if topology.memory is None:
        console.print(f"The memory of a {topology.kind} is not known: plan for another TPU.")
        return 1
    meshes = [mesh] if mesh else planner.meshes(model.CONFIGS[args.config], topology.devices)
    policies = [args.policy] if args.policy else planner.FROM_SMALL

    compiled_any = False

    def measure(mesh: planner.Mesh, policy: str, batch: int) -> planner.Trial:
        nonlocal compiled_any
        trial = planner.Trial(mesh, policy, batch, fits=False)
        case = _case(args, mesh, policy, batch)
        try:
            compiled = case.lower().compile(f"tpu:{topology.name}", options)
        except xf.errors.OutOfMemoryError as error:
            compiled_any = True
            return trial._replace(hbm=error.required_bytes)
        except xf.errors.CompileError:
            if not compiled_any:
                raise  # libtpu may be missing.
            return trial  # It crashes on some programs that are far too large.
        compiled_any = True
        found = footprint(case, compiled)
        return trial._replace(fits=True, hbm=found.hbm, host=found.host, mfu_bound=found.mfu_bound)

    trials = list(planner.search(meshes, policies, measure, topology.memory))
    show.trials(console, trials, topology.devices)
    best = planner.best(trials)
    if best is None:
        console.print("Nothing fits: take more chips, a shorter sequence, or another mesh.")
        return 1
    show.command(console, _case(args, best.mesh, best.policy, best.batch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
