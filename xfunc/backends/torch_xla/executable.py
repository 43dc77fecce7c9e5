"""`Executable`: a program that XLA has compiled once from its HLO, to be run many times."""

from __future__ import annotations

import collections
import functools
import os
import re
from collections.abc import Sequence

import torch

from xfunc.backends import donated
from xfunc.backends.analysis import CompilerOutput
from xfunc.backends.errors import compile_error
from xfunc.backends.host_calls import failures
from xfunc.backends.memory import check_results
from xfunc.backends.memory_maps import check_maps
from xfunc.backends.target_passes import UNUSED
from xfunc.backends.torch_xla import analysis
from xfunc.backends.torch_xla.runtime import (
    block,
    device_count,
    materialize,
    placeholder,
    settle_all,
    switched,
    user_computation,
    wait,
    xla,
)
from xfunc.backends.torch_xla.uploads import to_device
from xfunc.core.avals import Aval
from xfunc.errors import CompileError, UnsupportedOpError, fail


class Executable:
    """A compiled program.

    Args:
        name: shown by profilers.
        computation: torch_xla's handle to the HLO.
        avals: of the module's parameters, in order.
        donated: parameters with buffers that the program may reuse.
        shardings: the placement of each parameter on the devices, as torch_xla's ``OpSharding``;
            needed if there are several.
        calls_host: whether it calls Python functions, and has the output that
            `xfunc.backends.host_calls` adds to such programs.

    Attributes:
        order: the order in which the compiled program takes the parameters.
        graph: the name under which XLA knows the compiled program.
        inputs: `order` in the caller's own numbering of the parameters.
    """

    inputs: tuple[int, ...] = ()
    rejects_aliased_donation = False

    def __init__(
        self,
        name: str,
        computation: object,
        avals: Sequence[Aval],
        donated: Sequence[int],
        shardings: Sequence[object] = (),
        calls_host: bool = False,
    ):
        self._name, self._computation, self._calls_host = name, computation, calls_host
        self._avals, self._donated = tuple(avals), frozenset(donated)
        self._shardings = tuple(shardings)
        self._compile()

    def _compile(self) -> None:
        X = xla()
        if os.environ["PJRT_DEVICE"] == "CPU":
            size = os.environ["XLA_COMPILATION_CACHE_SIZE"]
            check_maps(
                self._name,
                "set the environment variable XLA_COMPILATION_CACHE_SIZE (now "
                f"{size}) before the first trace",
            )
        from torch_xla.utils.buffer_donor_context import (  # pyright: ignore[reportMissingImports]
            alias_with_buffer_donor_config,
        )

        bare = [placeholder(a) for a in self._avals]
        for i in self._donated:
            X._set_buffer_donation(bare[i], True)
        holders = bare
        if device_count() > 1:
            holders = [_placed(*x) for x in zip(bare, self._shardings, strict=True)]
        with alias_with_buffer_donor_config(bool(self._donated)):
            outputs = user_computation(self._name, holders, self._computation)
            self._hash = X._get_graph_hash(outputs)
            try:
                if os.environ["PJRT_DEVICE"] == "CPU":
                    check_results(self._name, outputs)
                if self._hash not in _graphs:
                    _graphs[self._hash] = _unused_name(self._name)
                self.graph = _graphs[self._hash]
                with switched("current_graph_name", self.graph):
                    X._xla_warm_up_cache(outputs, [])
            except Exception as error:  # torch_xla raises whatever XLA's status code maps to.
                # The traceback keeps this frame; placeholders in it would break the next trace.
                outputs.clear()
                holders.clear()
                bare.clear()
                if isinstance(error, CompileError):
                    raise
                raise compile_error(self._name, str(error)) from error
        ids, _ = X._get_tensors_xla_device_data_node(outputs)
        places = [X._get_tensors_xla_device_data_node([h])[0][0] for h in bare]
        self.order = tuple(places.index(i) for i in ids)
        self._launch = X._run_cached_graph if device_count() == 1 else _run_alone
        if self._calls_host:
            self._launch = _run_to_its_end

    mark_donated = staticmethod(donated.mark_donated)

    def optimised(self) -> CompilerOutput | None:
        """XLA's analysis of the program; None if the device's client does not provide it."""
        return analysis.optimised(self.graph)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on tensors of the device: the parameters, in the order that `order` lists them."""
        inputs = inputs or _unused()
        if self._donated:
            settle_all()
        try:
            return self._launch(self._hash, inputs)
        except RuntimeError as error:
            return self._retry(inputs, error, 3)

    def _retry(
        self, inputs: Sequence[torch.Tensor], error: RuntimeError, times: int
    ) -> list[torch.Tensor]:
        message = str(error)
        if "pending ir" in message:  # Inputs made by lazy torch_xla operations.
            materialize(inputs)
        elif "HasValue()" in message:
            fail(
                UnsupportedOpError,
                f"{self._name} was given a tensor without data: a placeholder of torch_xla, or "
                "what was computed from one in a trace that has ended",
                "compute it anew, outside of that trace.",
            )
        elif "computation by hash" in message:  # Evicted from torch_xla's own cache.
            order = self.order
            self._compile()
            assert self.order == order
        elif "RESOURCE_EXHAUSTED" in message or "Out of memory" in message:
            raise compile_error(self._name, message) from error
        else:
            raise error
        try:
            return self._launch(self._hash, inputs)
        except RuntimeError as again:  # Computing pending inputs may itself evict the program.
            if times == 0:
                raise
            return self._retry(inputs, again, times - 1)


@functools.cache
def _unused() -> list[torch.Tensor]:
    """The argument of a program without arguments, which torch_xla cannot run."""
    return [to_device(torch.zeros((), dtype=UNUSED.dtype))]


def _run_alone(graph: bytes, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a program once the previous one has ended; see NOTE [virtual devices]."""
    wait()
    return xla()._run_cached_graph(graph, inputs)


def _run_to_its_end(graph: bytes, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a program that calls functions; see NOTE [host calls and the interpreter's lock]."""
    failures.clear()
    outputs: list[torch.Tensor] = []
    try:
        *outputs, end = _run_alone(graph, inputs)
        if device_count() == 1:
            block()  # Faster than reading: nothing is passed to another thread.
        else:
            xla()._xla_get_cpu_tensors([end])
    except RuntimeError:
        if not failures:
            raise
    if failures:
        raise failures[0]
    return outputs


def _placed(holder: torch.Tensor, sharding: object) -> torch.Tensor:
    """A placeholder for the same data, which a program takes as an input with this placement.

    Also for replicated inputs: XLA chooses a sharding for inputs without one.

    torch_xla 2.9 refuses to mark a placeholder. But a sharding survives the replacement of its data
    in place, and passes to the new data when torch_xla is next asked for it.
    """
    X = xla()
    marked = placeholder(Aval(tuple(holder.shape), holder.dtype))
    X._xla_annotate_custom_sharding(marked, sharding)
    marked.copy_(holder)
    X._get_xla_sharding_spec(marked)
    return marked


_graphs: dict[bytes, str] = {}  # Equal programs are compiled once, under the name of the first.
_names: collections.Counter[str] = collections.Counter()


def _unused_name(name: str) -> str:
    plain = re.sub(r"\W", "_", name)
    _names[plain] += 1
    return plain if _names[plain] == 1 else f"{plain}_{_names[plain]}"
