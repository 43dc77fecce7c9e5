"""Runs exported programs in JAX, and writes down what comes out; the tests need no JAX.

With PYTHONPATH=. these write tests/data/export/*.xfunc, and, by a Python
with jax==0.7.1, results.json:

python tests/export/test_export.py
python tests/dynamic_shapes/test_exported.py
python tests/record/export_in_jax.py
"""

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src.interpreters import mlir
from jax._src.lib.mlir import dialects

hlo: Any = dialects.hlo  # whose stubs lack what is used of it
DATA = Path(__file__).parents[1] / "data" / "export"


def inputs(shapes):
    """The same numbers as `inputs` of test_export.py."""
    return [np.cos(np.arange(np.prod(s, dtype=int)), dtype="float32").reshape(s) for s in shapes]


SIZES = [2, 5, 8, 9, 20]  # that a program of a range of shapes is called with


def size(written, env):
    """A size in a header: a number, or terms of a polynomial."""
    if isinstance(written, int):
        return written
    return sum(n * math.prod(env[s] ** p for s, p in m.items()) // d for n, d, m in written)


def compiled(client, artifact):
    with mlir.make_ir_context() as context:
        module = hlo.deserialize_portable_artifact(context, artifact)
        return client.compile_and_load(str(module).encode(), client.devices()[:1])


def of_range(client, archive, header):
    """The results of a program of a range of shapes, one after the other; NaN in the padding."""
    found = []
    for n in SIZES:
        env = {"S": n}
        k, bucket = next((k, b) for k, b in enumerate(header["buckets"]) if b["S"] >= n)
        leaves = []
        exact = inputs([[size(d, env) for d in dims] for dims, _ in header["input_avals"]])
        for x, (dims, _) in zip(exact, header["input_avals"], strict=True):
            wide = np.full([size(d, bucket) for d in dims], np.nan, x.dtype)
            wide[tuple(map(slice, x.shape))] = x
            leaves.append(wide)
        program = compiled(client, archive.read(f"program-{k}.stablehlo"))
        given = [*leaves, *(np.int64(env[name]) for name, *_ in header["symbols"])]
        outputs = program.execute([client.buffer_from_pyval(x) for x in given])
        for x, (dims, _) in zip(outputs, header["output_avals"], strict=True):
            cut = np.asarray(x)[tuple(slice(0, size(d, env)) for d in dims)]
            found.append(cut.ravel().tolist())
    return found


def main():
    """Run each file."""
    jax.config.update("jax_enable_x64", True)  # The actual sizes are 64-bit numbers.
    client = jax.devices("cpu")[0].client
    results = {}
    for file in sorted(DATA.glob("*.xfunc")):
        with zipfile.ZipFile(file) as archive:
            header = json.loads(archive.read("header.json"))
            if "buckets" in header:
                results[file.stem] = of_range(client, archive, header)
                continue
            artifact = archive.read("program.stablehlo")
        program = compiled(client, artifact)
        shapes = [shape for shape, _ in header["input_avals"]]
        outputs = program.execute([client.buffer_from_pyval(x) for x in inputs(shapes)])
        results[file.stem] = [np.asarray(x).ravel().tolist() for x in outputs]
    (DATA / "results.json").write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
