"""torch_xla as a tracer: its lazy tensors record what is done with placeholders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from xfunc.backends.torch_xla import runtime, strangers, uploads
from xfunc.backends.tracer import Leftovers, Tracer
from xfunc.core.avals import Aval
from xfunc.torchlib import functorch

_HELD = {
    "pred": torch.bool, "s8": torch.int8, "s16": torch.int16, "s32": torch.int32,
    "s64": torch.int64, "u8": torch.uint8, "f16": torch.float16, "bf16": torch.bfloat16,
    "f32": torch.float32, "f64": torch.float64, "c64": torch.complex64, "c128": torch.complex128,
    **{kind: dtype for dtype, kind in runtime.FLOAT8.items()},
}  # fmt: skip


class LazyTensors:
    """See `xfunc.backends.tracer.Tracer`."""

    has_started = staticmethod(runtime.has_started)
    environment = staticmethod(runtime.environment)
    at_start = staticmethod(runtime.at_start)
    device = staticmethod(runtime.device)
    placeholder = staticmethod(runtime.placeholder)
    computation = staticmethod(runtime.computation)
    apply = staticmethod(runtime.user_computation)
    custom_call = staticmethod(runtime.custom_call)
    to_device = staticmethod(uploads.to_device)

    def upload(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """See `xfunc.backends.tracer.Tracer.upload`."""
        return uploads.uploaded(tensor) if uploads.is_data(tensor) else None

    @contextlib.contextmanager
    def recording(self) -> Iterator[Leftovers]:
        """See `xfunc.backends.tracer.Tracer.recording`: torch_xla's switches, of all threads."""
        X, device = runtime.xla(), str(runtime.device())
        if strangers.defuse():
            strangers.run_pending()
            X._clear_pending_irs(device)  # of strangers that Python does not know
        try:
            X._xla_sync_live_tensors(device, [], False)
        except RuntimeError:  # A tensor that lost its computation to a failure is still alive.
            strangers.run_pending()
        leftovers = Leftovers()
        try:
            with (
                runtime.switched("allow_execution", False),
                runtime.switched("use_eager_mode", False),
                self.numbers_as_constants(),
            ):
                yield leftovers
        finally:
            if leftovers.any:
                X._clear_pending_irs(device)

    def numbers_as_constants(self) -> contextlib.AbstractContextManager[None]:
        """Turn Python numbers into constants of the HLO, not transfers to the device."""
        return runtime.switched("xla_all_numbers_special_scalars", True)

    def recorded(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        names: bool = False,
    ) -> tuple[bytes, list[int | torch.Tensor]]:
        """See `xfunc.backends.tracer.Tracer.recorded`."""
        with runtime.switched("ir_debug", True) if names else contextlib.nullcontext():
            context = runtime.xla().lowering.LoweringContext(name)
            context.build(list(outputs))
            found: dict[int, int | torch.Tensor] = dict(
                context.device_parameter_id_tensor_mapping()
            )
            for i, tensor in enumerate(inputs):
                k = context.tensor_parameter_id(tensor)
                if k >= 0:
                    found[k] = i
            return context.hlo(), [found[k] for k in range(len(found))]

    def number_of(self, tensor: torch.Tensor) -> int:
        """torch_xla's number of an unwrapped tensor."""
        # Reading the number updates views, by operations that must not be transformed.
        with functorch.bottom_level():
            return runtime.xla()._xla_get_tensor_id(tensor)

    def stamper(self) -> Callable[[torch.Tensor, str, int], None]:
        """A function that prefixes the name of the operation that produced a tensor."""
        return runtime.xla()._set_xla_custom_op_name_prefix

    def as_said(self, tensor: torch.Tensor) -> torch.Tensor:
        """A plain traced tensor, converted if torch_xla stores it in another dtype than its own."""
        with torch._C.DisableTorchFunction():
            if tensor.device.type != "xla":
                return tensor
            said = tensor.dtype
            held = _HELD.get(runtime.xla()._get_xla_tensor_shape_type(tensor), said)
            return tensor if held == said else tensor.to(held).to(said)

    def is_recorded(self, tensors: Sequence[torch.Tensor]) -> bool:
        """See `xfunc.backends.tracer.Tracer.is_recorded`."""
        return any(runtime.xla()._check_tensor_need_materialization(list(tensors)))

    def refill(self, tensor: torch.Tensor) -> None:
        """Give a leaked tensor placeholder data.

        A tensor whose reading was refused half-way has neither data nor a computation: any later
        synchronisation would fail on it.
        """
        with torch._C.DisableTorchFunction(), functorch.bottom_level():
            while functorch.is_wrapped(tensor):
                tensor = functorch.unwrapped(tensor)
            if tensor.device.type == "xla":
                # Any shape will do: nothing will read it, and a broken tensor has lost its own.
                new = runtime.placeholder(Aval((), tensor.dtype))
                runtime.xla()._replace_xla_tensor(tensor, new)


TRACER: Tracer = LazyTensors()
