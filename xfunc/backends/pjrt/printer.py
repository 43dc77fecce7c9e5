"""HLO in the forms that jaxlib writes: XLA's own text, and StableHLO."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any

from xfunc.backends.pjrt import client
from xfunc.errors import UnsupportedOpError, format_error
from xfunc.hlo import Module
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.spmd.collectives import list_groups


@functools.cache
def _hlo_module() -> Any:
    """jaxlib's class of HLO modules, which newer releases keep elsewhere."""
    client.jax()
    for place in ("jaxlib._hlo", "jaxlib._jax"):
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module(place).HloModule
    from jaxlib import xla_client

    bindings: Any = xla_client._xla
    return bindings.HloModule


def _stablehlo(module: Module) -> bytes:
    client.jax()
    from jax.extend import mlir

    try:
        return mlir.hlo_to_stablehlo(module.to_bytes())
    except (RuntimeError, ValueError) as error:
        raise UnsupportedOpError(
            format_error(
                f"{module.name} has no form in StableHLO: {str(error).splitlines()[0]}",
                "rewrite the operation that it names.",
            )
        ) from error


def hlo_text(module: Module) -> str:
    """A module as XLA prints it, whether or not it passes our own checks."""
    read = _hlo_module().from_serialized_hlo_module_proto
    text = read(module.to_bytes()).to_string()
    if "replica_groups={}" in text:  # newer jaxlib loses their compact form
        listed = pb.HloModuleProto.FromString(module.to_bytes())
        list_groups(listed)
        text = read(listed.SerializeToString()).to_string()
    return text


def stablehlo_text(module: Module) -> str:
    """A module as StableHLO text."""
    data = _stablehlo(module)
    from jax.extend.mlir import ir
    from jax.interpreters import mlir

    with mlir.make_ir_context():
        return str(ir.Module.parse(data))


def stablehlo_bytecode(module: Module) -> bytes:
    """A module as a portable StableHLO artifact."""
    data = _stablehlo(module)
    from jax.extend import mlir
    from jax.extend.mlir.dialects import stablehlo

    dialect: Any = stablehlo  # JAX's own types leave this out.
    return mlir.serialize_portable_artifact(data, dialect.get_current_version())
