"""JAX runs the StableHLO of exported programs, without xfunc.

There is no public way to give JAX a StableHLO artifact, but there is one to give it an exported
function: a trivial one, whose artifact and types are replaced.
"""

from __future__ import annotations

import dataclasses
import json
import math
import zipfile
from collections.abc import Sequence
from typing import IO, Any

import jax
import numpy as np
from jax import core, experimental, export

_place: Any = jax if hasattr(jax, "enable_x64") else experimental  # in JAX 0.7
enable_x64 = _place.enable_x64
SIZES = [2, 5, 8, 9, 20]  # that a program of a range of shapes is called with
Dtypes = Sequence[tuple[Sequence[int], str]]


def inputs(shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """The same numbers as `inputs` of test_export.py."""
    return [np.cos(np.arange(math.prod(s)), dtype="float32").reshape(s) for s in shapes]


def run(artifact: bytes, arrays: Sequence[np.ndarray], outputs: Dtypes) -> list[np.ndarray]:
    """What a program computes on the CPU; `outputs` are the shapes and dtypes of its results."""
    exported: Any = export.export(jax.jit(lambda x: [x]), platforms=["cpu"])(
        jax.ShapeDtypeStruct((), bool)
    )
    n, m = len(arrays), len(outputs)
    changes: dict[str, object] = {
        "in_tree": jax.tree.structure((tuple(arrays), {})),
        "in_avals": tuple([core.ShapedArray(x.shape, x.dtype) for x in arrays]),
        "in_shardings_hlo": (None,) * n,
        "_in_named_shardings": (None,) * n,
        "out_tree": jax.tree.structure([None] * m, is_leaf=lambda x: x is None),
        "out_avals": tuple(
            [core.ShapedArray(tuple(s), np.dtype(d.removeprefix("torch."))) for s, d in outputs]
        ),
        "out_shardings_hlo": (None,) * m,
        "_out_named_shardings": (None,) * m,
        "module_kept_var_idx": tuple(range(n)),
        "mlir_module_serialized": artifact,
    }
    known = {f.name for f in dataclasses.fields(exported)}  # newer JAX has more
    program = dataclasses.replace(exported, **{k: v for k, v in changes.items() if k in known})
    cpu = jax.devices("cpu")[0]
    given = [jax.device_put(x, cpu) for x in arrays]
    return [*map(np.asarray, jax.jit(program.call)(*given))]


def run_file(file: IO[bytes]) -> list[list[Any]]:
    """The results of an exported program on `inputs`, as flat lists; of a range, at all `SIZES`."""
    with enable_x64(True), zipfile.ZipFile(file) as archive:  # actual sizes have 64 bits
        header = json.loads(archive.read("header.json"))
        if "buckets" in header:
            return _of_range(archive, header)
        given = inputs([shape for shape, _ in header["input_avals"]])
        artifact = archive.read("program.stablehlo")
        return [x.ravel().tolist() for x in run(artifact, given, header["output_avals"])]


def _size(written: Any, env: dict[str, int]) -> int:
    """A size in a header: a number, or terms of a polynomial."""
    if isinstance(written, int):
        return written
    return sum(n * math.prod(env[s] ** p for s, p in m.items()) // d for n, d, m in written)


def _of_range(archive: zipfile.ZipFile, header: dict[str, Any]) -> list[list[Any]]:
    """The results of a program of a range of shapes, one after the other; NaN in the padding."""
    found: list[list[Any]] = []
    for n in SIZES:
        env = {"S": n}
        k, bucket = next((k, b) for k, b in enumerate(header["buckets"]) if b["S"] >= n)
        leaves = []
        exact = inputs([[_size(d, env) for d in dims] for dims, _ in header["input_avals"]])
        for x, (dims, _) in zip(exact, header["input_avals"], strict=True):
            wide = np.full([_size(d, bucket) for d in dims], np.nan, x.dtype)
            wide[tuple(map(slice, x.shape))] = x
            leaves.append(wide)
        given = [*leaves, *(np.asarray(env[name], np.int64) for name, *_ in header["symbols"])]
        avals = [([_size(d, bucket) for d in dims], t) for dims, t in header["output_avals"]]
        outputs = run(archive.read(f"program-{k}.stablehlo"), given, avals)
        for x, (dims, _) in zip(outputs, header["output_avals"], strict=True):
            cut = x[tuple([slice(0, _size(d, env)) for d in dims])]
            found.append(cut.ravel().tolist())
    return found
