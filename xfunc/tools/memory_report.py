"""`memory_report`: a gradient's kept and recomputed values and its peak memory, by policy.

Nothing is compiled and nothing runs. The numbers are read from the HLO of the forward and the
backward pass together: bytes kept from the residuals of the joint program, operations from
`xfunc.hlo.estimate.cost`, the peak from `xfunc.hlo.estimate.liveness`, and the share of each chip
of a mesh from `xfunc.hlo.spmd.shard`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xfunc import checkpoint_policies as cp
from xfunc import tree
from xfunc.backends.lock import lock
from xfunc.core import ambient
from xfunc.core.avals import Aval, short
from xfunc.core.locations import function_name
from xfunc.core.sizes import size
from xfunc.core.wrappers import Part
from xfunc.errors import fail, kind_of, short_repr
from xfunc.hlo import Module
from xfunc.hlo.estimate.cost import cost
from xfunc.hlo.estimate.liveness import Held, Peak, peak
from xfunc.hlo.flat import flattened
from xfunc.hlo.passes.offload import is_on_host, without_offload
from xfunc.hlo.spmd.shard import per_chip
from xfunc.hlo.spmd.tiles import HloSharding
from xfunc.program.program import Joint, differentiable
from xfunc.remat.policies import Policy, everything_saveable
from xfunc.stages import stages
from xfunc.stages.staging import Staged
from xfunc.tools import memory_picture
from xfunc.tools.memory_picture import ARGUMENTS, shown_line
from xfunc.trace.finished import finalize
from xfunc.trace.lowering import HloProgram
from xfunc.transforms.checkpoint import checkpoint
from xfunc.transforms.inspect import without_options

AS_WRITTEN = "as written"
DEFAULT: dict[str, Policy] = {
    "everything": cp.everything_saveable,
    "nothing": cp.nothing_saveable,
    "dots_with_no_batch_dims": cp.dots_with_no_batch_dims_saveable,
    "dots": cp.dots_saveable,
    "min_cut()": cp.min_cut(),
}
_SHOWN = 4  # the number of lines, of those with arrays at the peak
_ARGUMENT = ("parameter", "xla__device_data")


@dataclasses.dataclass(frozen=True)
class Row:
    """One policy.

    Attributes:
        policy: its name; "as written" for the function's own checkpoints and scans.
        kept_bytes: bytes kept for the backward pass, excluding the arguments.
        host_bytes: bytes kept in host memory; `peak` includes them.
        recomputed_flops: operations in addition to those of a gradient that keeps everything.
        peak: the memory of value and gradient together, arguments included.
        kept_bytes_per_chip: per chip of a mesh; None if no argument is on a mesh.
        peak_per_chip: the peak of one chip; None likewise.
    """

    policy: str
    kept_bytes: int
    host_bytes: int
    recomputed_flops: int
    peak: Peak
    kept_bytes_per_chip: int | None = None
    peak_per_chip: Peak | None = None

    @property
    def peak_bytes(self) -> int:
        """The peak in bytes."""
        return self.peak.bytes

    @property
    def peak_bytes_per_chip(self) -> int | None:
        """The peak of one chip of the mesh in bytes."""
        return None if self.peak_per_chip is None else self.peak_per_chip.bytes


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """The result of `memory_report`: ``print`` shows a table.

    Attributes:
        name: the function's name.
        rows: one for each policy.
    """

    name: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        names, *numbers = (
            [c.rjust(max(map(len, column))) for c in column] for column in _columns(self.rows)
        )
        names = [n.strip().ljust(len(n)) for n in names]
        lines = [f"value and gradient of {self.name}, estimated"]
        lines += ["  ".join(cells) for cells in zip(names, *numbers, strict=True)]
        for row in self.rows:
            found = row.peak_per_chip or row.peak
            where = "at the peak" if row.peak_per_chip is None else "on a chip at its peak"
            lines += ["", f"{row.policy}, {where}:"]
            lines += _largest(found.largest)
        return "\n".join(lines)

    def save_picture(self, path: str | Path) -> None:
        """Write a PNG of the memory in use at each step of the program, by the user's line.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: the name does not end in ``.png``.
        """
        memory_picture.save(self, path)


def memory_report(f: Callable[..., object], *args: object, policies: object = None) -> MemoryReport:
    """Report the kept and recomputed values and the peak memory of a gradient, by policy.

    The first row is the unmodified function. In the others, every `checkpoint` and `scan` in it
    gets the policy of that row; a function that has neither is wrapped in ``checkpoint(f,
    policy)``. Nothing is compiled, no data is needed, and nothing runs: options
    of a compiler do not count.

    Args:
        f: returns a real floating scalar; differentiated with respect to its first argument.
        args: trees of tensors, numbers or `ShapeDtypeStruct`. If some are on a mesh, or have a
            sharding, the report also covers each chip.
        policies: a dictionary or a list of policies (see `xfunc.checkpoint_policies`); None: the
            common ones.

    Returns:
        A `MemoryReport`, which ``print`` shows as a table; its ``rows`` have the numbers of each
        policy.

    Raises:
        TypeError: the result is not such a scalar, the first argument has leaves that are not
            floating, or a policy is not a policy.
    """
    chosen = _named(policies)
    if not callable(f):
        problem = f"memory_report was given {short_repr(f)}, which is not callable"
        hint = "pass the function, then its arguments: memory_report(loss, params, batch)."
        fail(TypeError, problem, hint)
    f = without_options(f)
    with lock:
        written = _Gradient.of(f, f, args)
        least = _under(f, args, everything_saveable)
        rows = [written.row(AS_WRITTEN, least.flops)]
        for name, policy in chosen.items():
            found = least if policy is everything_saveable else _under(f, args, policy)
            rows.append(found.row(name, least.flops))
    return MemoryReport(function_name(f), tuple(rows))


def _named(policies: object) -> dict[str, Policy]:
    """The policies by name."""
    if policies is None:
        return DEFAULT
    if isinstance(policies, Mapping):
        result: dict[Any, Any] = dict(policies)
    elif isinstance(policies, Sequence) and not isinstance(policies, str):
        names = {policy: name for name, policy in DEFAULT.items()}
        result = {names.get(p) or _name_of(p): p for p in policies}
    else:
        result = {"policies": policies}
    for name, policy in result.items():
        if not isinstance(name, str) or not callable(policy) or policy is policies:
            problem = f"memory_report was given {short_repr(policy)} as policy {short_repr(name)}"
            hint = (
                "give a dictionary or a list of policies, such as "
                "[xf.checkpoint_policies.dots_saveable]."
            )
            fail(TypeError, problem, hint)
    return result


def _name_of(policy: object) -> str:
    """The name to show for a policy without one, such as `min_cut(1000)`."""
    return getattr(policy, "__name__", None) or str(policy)


def _under(f: Callable[..., object], args: tuple[object, ...], policy: Policy) -> _Gradient:
    """The gradient with one policy for every checkpoint and scan."""
    override = ambient.Override(policy)
    with ambient.overridden(override):
        found = _Gradient.of(f, f, args)
        return found if override.asked else _Gradient.of(f, checkpoint(f, policy), args)


@dataclasses.dataclass(frozen=True, eq=False)
class _Gradient:
    """Value and gradient of a function, as HLO.

    Attributes:
        joint: the function's joint program.
        tiles: the sharding of each of its flat inputs; () if none has one.
        module: the HLO, flat.
    """

    joint: Joint
    tiles: tuple[HloSharding | None, ...]
    module: Module

    @classmethod
    def of(
        cls, f: Callable[..., object], run: Callable[..., object], args: tuple[object, ...]
    ) -> _Gradient:
        """The gradient of `run`, which computes the same as `f`."""
        if not args:
            problem = f"memory_report was given no arguments for {function_name(f)}"
            hint = "pass them, as tensors or xf.ShapeDtypeStruct; the first is differentiated."
            fail(TypeError, problem, hint)
        traced = stages.trace(Staged(run, Part(run, "report"), arrays_only=True), args, {})
        n = tree.structure(args[0]).num_leaves
        _check(f, traced, n)
        wrt = tuple(k < n for k in range(len(traced.in_avals)))
        joint = traced.parts.entry.program.joint(wrt, frozenset(range(n)))
        tiles = traced.parts.tiles[: joint.n_inputs]
        return cls(joint, tiles, _flat(joint.lowering, tiles))

    @property
    def flops(self) -> int:
        found = cost(self.module)
        return found.flops + found.transcendentals

    def row(self, name: str, flops: int) -> Row:
        n = len(self.joint.outputs)
        forward = _flat(self.joint.split(everything_saveable).forward, self.tiles)
        kept = forward.entry.root.operands[n:]
        away = [is_on_host(r) for r in kept]
        on_chip = None
        if any(self.tiles):
            of_one = per_chip(forward).entry.root.operands[n:]
            on_chip = sum(r.bytes for r, w in zip(of_one, away, strict=True) if not w)
        return Row(
            name,
            sum(r.bytes for r, w in zip(kept, away, strict=True) if not w),
            sum(r.bytes for r, w in zip(kept, away, strict=True) if w),
            max(0, self.flops - flops),
            peak(without_offload(self.module)),
            on_chip,
            peak(per_chip(without_offload(self.module))) if any(self.tiles) else None,
        )


def _check(f: Callable[..., object], traced: stages.Traced, n: int) -> None:
    """Raise unless the result is a scalar and the first argument can be differentiated."""
    name = function_name(f)
    for k, aval in enumerate(traced.in_avals[:n]):
        if not differentiable(aval):
            label = traced.parts.staged.labels(traced.in_tree)[k]
            problem = (
                f"memory_report differentiates {name} with respect to {label}, which is "
                f"{short(aval)}, not floating"
            )
            hint = "put what is differentiated first, and everything else behind it."
            fail(TypeError, problem, hint)
    if not n:
        problem = f"the first argument of {name} has no leaves to differentiate by"
        hint = "put what is differentiated first: memory_report(loss, params, batch)."
        fail(TypeError, problem, hint)
    out = traced.out_info
    if not isinstance(out, Aval) or out.shape or not out.dtype.is_floating_point:
        what = short(out) if isinstance(out, Aval) else kind_of(out)
        problem = (
            f"memory_report needs a function that returns a real floating scalar, but {name} "
            f"returned {what}"
        )
        hint = "reduce it with .sum() or .mean(); of a pair (loss, aux), return the loss."
        fail(TypeError, problem, hint)


def _flat(lowering: HloProgram, tiles: Sequence[HloSharding | None]) -> Module:
    """The module as it is compiled, with calls inlined."""
    said = [tiles[k] if k < len(tiles) else None for k in lowering.inputs]
    whole = finalize(lowering.graph, tiles=said)
    return flattened(whole)


# -- the table ------------------------------------------------------------------------------------


def _columns(rows: Sequence[Row]) -> list[list[str]]:
    result = [
        ["policy", *(r.policy for r in rows)],
        ["kept", *(size(r.kept_bytes) for r in rows)],
        ["recomputed FLOPs", *(f"{r.recomputed_flops:.3g}" for r in rows)],
        ["peak", *(size(r.peak_bytes) for r in rows)],
    ]
    if any(r.host_bytes for r in rows):
        result.insert(2, ["on the host", *(size(r.host_bytes) for r in rows)])
    if any(r.peak_per_chip for r in rows):
        result.append(["kept per chip", *(size(r.kept_bytes_per_chip or 0) for r in rows)])
        result.append(["peak per chip", *(size(r.peak_bytes_per_chip or 0) for r in rows)])
    return result


def _largest(held: Sequence[Held]) -> list[str]:
    """The lines with the largest arrays."""
    sums: dict[str, int] = {}
    for h in held:
        what = ARGUMENTS if h.name in _ARGUMENT else shown_line(h.line) or h.name
        sums[what] = sums.get(what, 0) + h.bytes
    most = sorted(sums.items(), key=lambda item: -item[1])[:_SHOWN]
    return [f"  {size(n).rjust(10)}  {what}" for what, n in most]
