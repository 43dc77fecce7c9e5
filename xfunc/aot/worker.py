"""Compiles one program with libtpu: a standalone script that imports neither xfunc nor torch.

    python -P worker.py FOLDER

reads ``request.json`` and ``module.pb`` in the folder, and writes ``result.zip`` there. The process
ends when its standard input does, so that it does not outlive its client.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import threading
import zipfile
from collections.abc import Mapping
from typing import Any


def main(folder: str) -> None:
    """Answer the request in a folder."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    with open(os.path.join(folder, "request.json")) as file:
        request = json.load(file)
    with open(os.path.join(folder, "module.pb"), "rb") as file:
        module = file.read()
    dump = os.path.join(folder, "dump")
    report: dict[str, object] = {}
    executable = b""
    # This takes a while, so the standard input must be watched already.
    from jax.errors import JaxRuntimeError

    try:
        devices = _devices(request["topology"], request["topology_options"])
    except JaxRuntimeError as error:
        report["unknown_topology"] = str(error)
    else:
        try:
            compiled = _compile(module, devices, request, dump)
        except JaxRuntimeError as error:
            report["refusal"] = str(error)
        else:
            report["memory"] = _numbers(compiled.get_compiled_memory_stats())
            report["cost"] = compiled.cost_analysis()
            executable = compiled.serialize()
    parts = {"executable": executable, **_descriptions(dump)}
    _write(os.path.join(folder, "result.zip"), report, parts)


def _end_with_input() -> None:
    os.read(0, 1)  # Not sys.stdin, which Python locks at exit.
    os._exit(1)


def _devices(name: str, options: Mapping[str, object]) -> list[object]:
    from jax.experimental import topologies

    return topologies.get_topology_desc(name, "tpu", **options).devices


def _compile(module: bytes, devices: list[Any], request: Mapping[str, Any], dump: str) -> Any:
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters.mlir import make_ir_context
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    n = len(devices)
    # The only way to see how libtpu lays out memory, even for a program that is too large.
    dumps = {"xla_dump_to": dump, "xla_dump_hlo_as_proto": True, "xla_dump_hlo_as_text": True}
    given = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=n,
        device_assignment=np.arange(n).reshape(1, n),
        env_options_overrides={**request["options"], **dumps},
    )
    build = given.executable_build_options
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = request["shardy"]
    build.allow_spmd_sharding_propagation_to_output = [True]
    computation = xla_client.XlaComputation(module)
    text = xla_client._xla.mlir.xla_computation_to_mlir_module(computation)
    with make_ir_context():
        parsed = ir.Module.parse(text)
        _donate(parsed, request["donated"], ir)
        return compiler.backend_compile_and_load(
            devices[0].client, parsed, xla_client.DeviceList(tuple(devices)), given, []
        )


def _donate(module: Any, donated: list[int], ir: Any) -> None:
    """Let the program take over the buffers of parameters; conversion to MLIR drops this."""
    main = next(op for op in module.body.operations if op.sym_name.value == "main")
    attributes = list(main.arg_attrs)
    for k in donated:
        known = {a.name: a.attr for a in attributes[k]}
        attributes[k] = ir.DictAttr.get({**known, "jax.buffer_donor": ir.BoolAttr.get(True)})
    main.arg_attrs = ir.ArrayAttr.get(attributes)


def _numbers(stats: object) -> dict[str, int]:
    names = (name for name in dir(stats) if name.endswith("_in_bytes"))
    return {name: getattr(stats, name) for name in names}


def _descriptions(dump: str) -> dict[str, bytes]:
    """The optimised program and its buffers as an ``HloProto``, and the program as text.

    Both are empty if there is none. The text is libtpu's own: jaxlib's XLA may be too old to read
    the program.
    """
    parts = {}
    for part, suffix in (("hlo.pb", ".hlo.pb"), ("hlo.txt", ".txt")):
        found = glob.glob(os.path.join(glob.escape(dump), f"*.after_optimizations{suffix}"))
        parts[part] = b""
        if found:
            with open(max(found), "rb") as file:  # libtpu tries several times if it is too large
                parts[part] = file.read()
    return parts


def _write(path: str, report: Mapping[str, object], parts: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("report.json", json.dumps(report))
        for name, content in parts.items():
            archive.writestr(name, content)


if __name__ == "__main__":
    main(sys.argv[1])
