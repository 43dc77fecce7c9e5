"""Programs for elsewhere: as one HLO module that needs nothing else, and as StableHLO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from xfunc import runtime
from xfunc.avals import Aval, aval_of, hlo_shape
from xfunc.errors import UnsupportedOpError, report
from xfunc.finish import finished
from xfunc.hlo import Builder, Module
from xfunc.hlo.annotations import constrain
from xfunc.hlo.tiles import Tiles
from xfunc.host_calls import refuse_host_calls
from xfunc.locations import user_location
from xfunc.lock import lock
from xfunc.lowering import UNUSED, Lowering


def whole(
    lowering: Lowering,
    held: Mapping[int, torch.Tensor],
    lines: bool = True,
    tiles: Sequence[Tiles | None] = (),
) -> Module:
    """A module of all flat inputs of a program, in order, used or not.

    Those in `held` are constants of the module; what else the program holds comes as last inputs.
    A program without inputs gets one that is not used, a boolean. If `lines`, instructions tell the
    user's files and lines. `tiles` says how the flat inputs are divided, if any is.
    """
    avals = [*lowering.avals, *(aval_of(t) for t in lowering.consts)]
    b = Builder(lowering.name)
    body = b.computation(lowering.name)
    values = {
        i: body.literal(held[i].detach().cpu()) if i in held else body.parameter(hlo_shape(a))
        for i, a in enumerate(avals)
    }
    if len(held) == len(avals):
        body.parameter(UNUSED)
    if not lowering.outputs:
        return b.build(body.build(body.tuple([])))
    operands = [
        body.constant(False, torch.bool) if lowering.is_unused(i) else values[i]
        for i in lowering.inputs
    ]
    divided = [tiles[i] for i in lowering.inputs] if tiles else []
    operands = [
        # Attributes of parameters get lost on the way to StableHLO.
        x if t is None else constrain(body, x, t.to_proto())
        for x, t in zip(operands, divided or [None] * len(operands), strict=True)
    ]
    module = finished(lowering.module, lines, divided)
    refuse_host_calls(module.proto, lowering.name, "in a program for elsewhere")
    found = body.call(b.embed(module), operands)
    outputs = [body.get_tuple_element(found, k) for k in range(len(lowering.outputs))]
    return b.build(body.build(body.tuple(outputs)))


def stablehlo(module: Module) -> str:
    """A module as StableHLO text."""
    return _convert(module, bytecode=False).decode()


def stablehlo_bytecode(module: Module) -> bytes:
    """A module as a portable artifact of StableHLO, which other versions and systems read too."""
    return _convert(module, bytecode=True)


def _convert(module: Module, bytecode: bool) -> bytes:
    if not module.entry.root.operands:  # torch_xla converts no functions without results.
        return b"" if bytecode else b"module {\n}\n"
    X = runtime.xla()
    shapes = [p.shape for p in reversed(module.entry.parameters)]
    # torch_xla converts the graph of lazy tensors, and numbers inputs as it meets them: the last
    # operand first.
    b = Builder(module.name)
    body = b.computation(module.name)
    parameters = [body.parameter(s) for s in shapes]
    result = body.call(b.embed(module), parameters[::-1])
    outputs = [body.get_tuple_element(result, k) for k in range(len(result.shape.elements))]
    backwards = b.build(body.build(body.tuple(outputs)))
    with lock:
        handle = runtime.builder().computation_from_module_proto(module.name, backwards.to_bytes())
        holders = [runtime.placeholder(Aval(s.dims, s.dtype)) for s in shapes]
        lazy = runtime.user_computation(module.name, holders, handle)
        met, _ = X._get_tensors_xla_device_data_node(lazy)
        ids = [X._get_tensors_xla_device_data_node([h])[0][0] for h in holders]
        assert met == ids[::-1], "torch_xla numbers the inputs of StableHLO otherwise"
        where = str(runtime.device())
        try:
            return X._get_stablehlo(lazy, where, [where], bytecode)
        except RuntimeError as error:
            raise UnsupportedOpError(
                report(
                    f"{module.name} has no form in StableHLO: {str(error).splitlines()[0]}",
                    "write the operation it names differently.",
                    at=user_location(),
                )
            ) from error
