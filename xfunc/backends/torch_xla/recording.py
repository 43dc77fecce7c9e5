"""torch_xla records what is done with placeholders: its switches, and what it keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from xfunc.backends.torch_xla import runtime


@contextlib.contextmanager
def tracing_switches() -> Iterator[None]:
    """torch_xla's process-wide switches, as tracing needs them."""
    X = runtime.xla()
    allowed, eager = X._get_allow_execution(), X._get_use_eager_mode()
    X._set_allow_execution(False)
    X._set_use_eager_mode(False)
    try:
        with numbers_as_constants():
            yield
    finally:
        X._set_allow_execution(allowed)
        X._set_use_eager_mode(eager)


def flush_user_work() -> None:
    """Let the user's own pending lazy tensors compute: NOTE [defusing what leaks]."""
    # It fails on a tensor that lost its computation to a refused read and is still held somewhere.
    with contextlib.suppress(RuntimeError):
        runtime.xla()._xla_sync_live_tensors(str(runtime.device()), [], False)


def forget_user_work() -> None:
    """Forget what was recorded and not computed."""
    runtime.xla()._clear_pending_irs(str(runtime.device()))


@contextlib.contextmanager
def numbers_as_constants() -> Iterator[None]:
    """Let Python numbers become constants of the HLO, and not transfers to the device."""
    X = runtime.xla()
    before = X._get_xla_all_numbers_special_scalars()
    X._set_xla_all_numbers_special_scalars(True)
    try:
        yield
    finally:
        X._set_xla_all_numbers_special_scalars(before)


def stamper() -> Callable[[torch.Tensor, str, int], None]:
    """What puts a prefix before the name of the operation that made a tensor."""
    return runtime.xla()._set_xla_custom_op_name_prefix


@contextlib.contextmanager
def names_written() -> Iterator[None]:
    """Write the names of operations into the HLO."""
    X = runtime.xla()
    before = X._get_ir_debug()
    X._set_ir_debug(True)
    try:
        yield
    finally:
        X._set_ir_debug(before)


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
