"""torch_xla records what is done with placeholders: its switches, and what it keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from xfunc.backends.torch_xla import runtime


@contextlib.contextmanager
def tracing_switches() -> Iterator[None]:
    """torch_xla's process-wide switches, as tracing needs them."""
    with (
        runtime.switched("allow_execution", False),
        runtime.switched("use_eager_mode", False),
        numbers_as_constants(),
    ):
        yield


def flush_user_work() -> None:
    """Let the user's own pending lazy tensors compute: NOTE [defusing what leaks]."""
    # It fails on a tensor that lost its computation to a refused read and is still held somewhere.
    with contextlib.suppress(RuntimeError):
        runtime.xla()._xla_sync_live_tensors(str(runtime.device()), [], False)


def forget_user_work() -> None:
    """Forget what was recorded and not computed."""
    runtime.xla()._clear_pending_irs(str(runtime.device()))


def numbers_as_constants() -> contextlib.AbstractContextManager[None]:
    """Let Python numbers become constants of the HLO, and not transfers to the device."""
    return runtime.switched("xla_all_numbers_special_scalars", True)


def stamper() -> Callable[[torch.Tensor, str, int], None]:
    """What puts a prefix before the name of the operation that made a tensor."""
    return runtime.xla()._set_xla_custom_op_name_prefix


def names_written() -> contextlib.AbstractContextManager[None]:
    """Write the names of operations into the HLO."""
    return runtime.switched("ir_debug", True)


def recorded(
    name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> tuple[bytes, list[int | torch.Tensor]]:
    """What was recorded between placeholders and outputs, as HLO.

    Returns:
        The serialised module; and of each of its parameters, which input it is, or the tensor of
        the device that it stands for.
    """
    context = runtime.xla().lowering.LoweringContext(name)
    context.build(list(outputs))
    found: dict[int, int | torch.Tensor] = dict(context.device_parameter_id_tensor_mapping())
    for i, tensor in enumerate(inputs):
        k = context.tensor_parameter_id(tensor)
        if k >= 0:
            found[k] = i
    return context.hlo(), [found[k] for k in range(len(found))]
