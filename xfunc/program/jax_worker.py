"""The process that `xfunc.program.foreign` starts: it lowers a function of JAX to HLO.

Run as a script, so that it loads neither torch nor xfunc. It reads a request from its input and
writes an answer to its output: the avals of the results as a line of JSON, then the HLO.
"""

import importlib
import json
import os
import sys
from typing import Any, TypeAlias

Aval: TypeAlias = list[object]  # shape and dtype, as JSON has them


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What the function prints is no part of it.
    # See NOTE [JAX lowers in a process of its own].
    sys.modules["libtpu"] = None  # pyright: ignore[reportArgumentType]
    try:
        outputs, hlo = _lowered(**request)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
    with answer:
        answer.write(json.dumps(outputs).encode() + b"\n" + hlo)


def _lowered(
    fun: str, args: list[Aval | None], platform: str, static: dict[str, object]
) -> tuple[list[Aval], bytes]:
    import jax as untyped
    from jax import export

    jax: Any = untyped  # JAX's own types leave out what is used of them here.

    module, _, name = fun.partition(":")
    target = getattr(importlib.import_module(module), name)
    structs = [a and jax.ShapeDtypeStruct(*a) for a in args]

    def fixed(*xs: object) -> tuple[object, ...]:
        return tuple(target(*xs, **static))

    call = jax.jit(fixed, keep_unused=True)
    if platform == "tpu":
        # Exported first: only then do Pallas kernels have a form that libtpu 0.0.21 reads, which
        # is older than JAX 0.7.1 and belongs to the same torch_xla.
        exported: Any = export.export(call, platforms=[platform])(*structs)
        call = jax.jit(exported.call)
    lowered = call.trace(*structs).lower(lowering_platforms=(platform,))
    hlo = lowered.compiler_ir("hlo")
    outputs: list[Aval] = [[a.shape, str(a.dtype)] for a in jax.tree.leaves(lowered.out_info)]
    return outputs, hlo.as_serialized_hlo_module_proto()


if __name__ == "__main__":
    main()
