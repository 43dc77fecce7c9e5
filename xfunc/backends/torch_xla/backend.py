"""torch_xla as a runtime: its PJRT client, on the CPU or a TPU."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Collection, Iterator, Sequence

import torch

from xfunc.backends.host_calls import (
    add_end,
    call_once,
    has_host_calls,
    refuse_host_calls,
)
from xfunc.backends.lapack import use_lapack
from xfunc.backends.placement import Placement
from xfunc.backends.protocol import Runtime
from xfunc.backends.target_passes import UNUSED, add_parameter, prepare_to_run
from xfunc.backends.torch_xla import placement, recorder, registry, runtime, uploads
from xfunc.backends.torch_xla.executable import Executable
from xfunc.core.avals import Aval, AvalKey
from xfunc.errors import fail
from xfunc.hlo import Module
from xfunc.hlo.edit import renumber_parameters

_TENSOR = frozenset({torch.Tensor})
_AVAL = operator.attrgetter("shape", "dtype")


class TorchXLA:
    """See `xfunc.backends.protocol.Runtime`."""

    name = "torch_xla"
    kind = torch.Tensor
    holds = staticmethod(operator.attrgetter("is_xla"))
    device_count = staticmethod(runtime.device_count)
    process_count = staticmethod(runtime.process_count)
    process_index = staticmethod(runtime.process_index)
    memory_stats = staticmethod(runtime.memory_stats)
    block = staticmethod(runtime.block)
    to_device = staticmethod(uploads.to_device)
    all_to_device = staticmethod(uploads.all_to_device)
    placements = staticmethod(placement.placements)
    placements_of = staticmethod(placement.placements_of)
    put = staticmethod(placement.put)
    shards_of = staticmethod(placement.shards_of)
    from_shards = staticmethod(placement.from_shards)
    local_devices = staticmethod(runtime.local_devices)
    calls_host = staticmethod(registry.calls_host)
    mark = staticmethod(recorder.mark)

    def avals(self, leaves: Sequence[object]) -> tuple[AvalKey, ...] | None:
        """See `xfunc.backends.protocol.Runtime.avals`."""
        if set(map(type, leaves)) <= _TENSOR and all(map(self.holds, leaves)):
            return tuple(map(_AVAL, leaves))
        return None

    takes: Collection[type] = ()

    def taken(self, x: object) -> None:
        """See `xfunc.backends.protocol.Runtime.taken`."""

    def platform(self) -> str:
        """``"cpu"`` or ``"tpu"``."""
        return "cpu" if runtime.is_cpu() else "tpu"

    @contextlib.contextmanager
    def profile(self, folder: str) -> Iterator[None]:
        """See `xfunc.backends.protocol.Runtime.profile`."""
        session = recorder.session()
        try:
            yield
            self.block()
        finally:
            session.export(session.stop(), folder)

    def load(
        self,
        name: str,
        module: Module,
        inputs: Sequence[int],
        avals: Sequence[Aval],
        donated: frozenset[int],
        placements: Sequence[Placement | None],
        options: Sequence[tuple[str, object]] = (),
        shardy: bool = False,
    ) -> Executable:
        """See `xfunc.backends.protocol.Runtime.load`."""
        del shardy  # torch_xla 2.9 has GSPMD only.
        if options:
            fail(
                ValueError,
                f"torch_xla takes no compiler options for a single program: {dict(options)}",
                "set them for the process, in the environment variable XLA_FLAGS, or use the "
                "backend 'pjrt'.",
            )
        proto = module.proto
        prepare_to_run(name, proto, self.device_count(), runtime.is_cpu())
        if self.calls_host():
            use_lapack(proto)
        if not inputs:
            add_parameter(proto)
        # See NOTE [donated buffers]: the last input comes first.
        numbers = sorted(range(len(inputs)), key=lambda k: -inputs[k])
        if numbers:
            renumber_parameters(proto, numbers)
        calls_host = has_host_calls(proto)
        if calls_host:
            if not self.calls_host():
                refuse_host_calls(proto, name, "on the running device")
            add_end(proto, self.device_count())
            if self.device_count() > 1:
                call_once(proto)
        flat = [inputs[k] for k in numbers]
        result = Executable(
            name,
            runtime.computation(name, Module(proto).to_bytes()),
            [avals[i] for i in flat] or [UNUSED],
            [k for k, i in enumerate(flat) if i in donated],
            [placement.op_sharding(placements[i] if placements else None) for i in flat]
            or [placement.op_sharding(None)],
            calls_host,
        )
        result.inputs = tuple(flat[k] for k in result.order) if flat else ()
        return result


# NOTE [donated buffers]
# XLA pairs donated parameters with results by size, in the order of both. If new weights and
# moments are returned in the order in which the old ones were given, each takes the memory of its
# predecessor; otherwise all of them would be copied at each step. torch_xla numbers the parameters
# of a compiled program from the last operand of a computation to the first.


_BACKEND: Runtime = TorchXLA()


def make_runtime() -> Runtime:
    """The runtime of this process."""
    return _BACKEND
