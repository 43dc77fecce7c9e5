"""What a training step takes of each chip, found by compiling it: memory, arithmetic, traffic."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import xfunc as xf
from xfunc.aot import CHIPS, Topology, topology_of
from xfunc.stages import Compiled, Lowered

from .. import train
from ..config import Run
from ..model import Batch, Params, flops
from ..train.train_config import Recipe
from .collectives import Traffic, traffic
from .hlo_text import products


@dataclass(frozen=True)
class Case:
    """A step of a run, to be compiled for chips that need not be present.

    Attributes:
        run: the settings, as `fit` has them.
        topology: a name such as `v6e-256` or `v6e:16x16`.
        what: `train`, the whole step, or `grad`, whose results are the loss and the gradients.
    """

    run: Run
    topology: str
    what: str = "train"

    @functools.cached_property
    def chips(self) -> Topology:
        """The chips that the topology names."""
        return topology_of(self.topology)

    @functools.cached_property
    def recipe(self) -> Recipe:
        """What `fit` would compile on these chips."""
        return self.run.recipe(self.chips.devices, abstract=True)

    @functools.cached_property
    def arguments(self) -> tuple[train.State, Batch, Params | None]:
        """State, batch and base of a step of `fit`, as shapes with shardings."""
        recipe, data = self.recipe, self.run.data
        batch = train.abstract_batch(recipe, data.batch, data.seq, packed=True)
        return train.abstract_state(recipe), batch, train.abstract_base(recipe)

    def lower(self) -> Lowered:
        """The program, lowered from shapes alone."""
        recipe, (state, batch, base) = self.recipe, self.arguments
        if self.what == "train":
            return train.train_step.lower(state, batch, base, recipe=recipe)

        @xf.jit
        def gradient(params: Params, batch: Batch, base: Any, scaling: Any) -> Any:
            return train.gradient(params, batch, recipe, base, scaling)

        return gradient.lower(state.params, batch, base, state.scaling)


@dataclass(frozen=True)
class Footprint:
    """What one step takes; sizes in bytes on each chip.

    Attributes:
        parameters: the weights, including those that are not trained.
        optimizer: its state, and whatever else a step keeps besides the weights.
        batch: the tokens and targets.
        padding: what layouts add to these.
        temporaries: what lives only while the step runs.
        results: those that do not reuse the memory of an argument.
        host: what is kept in host memory.
        traffic: the collectives of a step by kind; None if the compiler does not show its program.
        products: the number of matrix products in a step by the dtypes of their operands; None as
            above.
        flops: model operations of a step on all chips, see `flops.per_token`.
        executed: the same, plus what is recomputed.
        arithmetic_seconds: for `executed`, at the peak of the chips; None if that is unknown.
        link_seconds: for `traffic`, at the peak of a chip's links; None as above.
        mfu_bound: the fraction of the chips' peak that the step could use if arithmetic and traffic
            overlapped, both at their peak, and nothing waited for HBM: no run will reach it. None
            as above.
        compiler: what compiled it.
    """

    parameters: int
    optimizer: int
    batch: int
    padding: int
    temporaries: int
    results: int
    host: int
    traffic: dict[str, Traffic] | None
    products: dict[str, int] | None
    flops: float
    executed: float
    arithmetic_seconds: float | None
    link_seconds: float | None
    mfu_bound: float | None
    compiler: str

    @property
    def hbm(self) -> int:
        """Arguments and temporaries."""
        return self.parameters + self.optimizer + self.batch + self.padding + self.temporaries


def footprint(case: Case, compiled: Compiled) -> Footprint:
    """Read what a case takes from its compiled program."""
    memory, (state, batch, base) = compiled.memory_analysis(), case.arguments
    given = [_bytes((state.params, base)), 0, _bytes(batch)]
    if case.what == "train":
        given[1] = _bytes(state._replace(params=None))
    text = compiled.as_text()
    sent = None if text is None else traffic(text)
    return Footprint(
        *given,
        padding=(memory.argument_size_in_bytes or 0) - sum(given),
        temporaries=memory.temp_size_in_bytes or 0,
        results=(memory.output_size_in_bytes or 0) - (memory.alias_size_in_bytes or 0),
        host=memory.host_temp_size_in_bytes or 0,
        traffic=sent,
        products=None if text is None else products(text),
        **_work(case, sent),
        compiler=compiled.compiler,
    )


def _work(case: Case, sent: dict[str, Traffic] | None) -> dict[str, Any]:
    recipe, seq = case.recipe, case.run.data.seq
    tokens = case.run.data.batch * seq
    model = tokens * flops.per_token(recipe.model, seq, recipe.extent)
    executed = tokens * flops.executed_per_token(recipe.model, seq, recipe.plan, recipe.extent)
    chip, chips = case.chips.kind, case.chips.devices
    arithmetic = links = bound = None
    if chip in flops.LINKS:
        peak = chips * CHIPS[chip].flops
        arithmetic = executed / peak
        if sent is not None:
            links = sum(t.bytes for t in sent.values()) / flops.LINKS[chip]
        bound = model / peak / max(arithmetic, links or 0.0)
    return {
        "flops": model,
        "executed": executed,
        "arithmetic_seconds": arithmetic,
        "link_seconds": links,
        "mfu_bound": bound,
    }


def _bytes(tree: Any) -> int:
    """The size of one chip's part of a tree of shapes with shardings."""
    return sum(
        math.prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in xf.tree.leaves(tree)
    )
