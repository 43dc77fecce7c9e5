"""HLO in the forms that torch_xla writes: XLA's own text, and StableHLO."""

from __future__ import annotations

from xfunc.backends.lock import lock
from xfunc.backends.torch_xla import runtime
from xfunc.backends.tracer import Printer
from xfunc.core.avals import Aval
from xfunc.errors import UnsupportedOpError, report
from xfunc.hlo import Builder, Module


def _convert(module: Module, portable: bool) -> bytes:
    if not module.entry.root.operands:  # torch_xla cannot convert functions without results.
        return b"" if portable else b"module {\n}\n"
    X = runtime.xla()
    shapes = [p.shape for p in reversed(module.entry.parameters)]
    # torch_xla converts the graph of lazy tensors, and numbers inputs as it traverses it: the last
    # operand first.
    b = Builder(module.name)
    body = b.computation(module.name)
    parameters = [body.parameter(s) for s in shapes]
    result = body.call(b.embed(module), parameters[::-1])
    outputs = [body.get_tuple_element(result, k) for k in range(len(result.shape.elements))]
    backwards = b.build(body.build(body.tuple(outputs)))
    with lock:
        handle = runtime.computation(module.name, backwards.to_bytes())
        holders = [runtime.placeholder(Aval(s.dims, s.dtype)) for s in shapes]
        lazy = runtime.user_computation(module.name, holders, handle)
        met, _ = X._get_tensors_xla_device_data_node(lazy)
        ids = [X._get_tensors_xla_device_data_node([h])[0][0] for h in holders]
        assert met == ids[::-1], "torch_xla numbers the inputs of StableHLO otherwise"
        where = str(runtime.device())
        try:
            return X._get_stablehlo(lazy, where, [where], portable)
        except RuntimeError as error:
            raise UnsupportedOpError(
                report(
                    f"{module.name} has no form in StableHLO: {str(error).splitlines()[0]}",
                    "rewrite the operation that it names.",
                )
            ) from error


class XLAPrinter:
    """See `xfunc.backends.tracer.Printer`."""

    def hlo_text(self, module: Module) -> str:
        """A module as XLA prints it, whether or not it passes our own checks."""
        handle = runtime.computation(module.name, module.to_bytes())
        return runtime.builder().get_computation_hlo(handle)

    def stablehlo_text(self, module: Module) -> str:
        """A module as StableHLO text."""
        return _convert(module, portable=False).decode()

    def stablehlo_bytecode(self, module: Module) -> bytes:
        """A module as a portable StableHLO artifact."""
        return _convert(module, portable=True)


PRINTER: Printer = XLAPrinter()
