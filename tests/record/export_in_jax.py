"""Runs exported programs in JAX, and writes down what comes out; the tests need no JAX.

PYTHONPATH=. python tests/test_export.py      # writes tests/data/export/*.xfunc
python tests/record/export_in_jax.py          # a Python with jax==0.7.1: writes results.json
"""

import json
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


def main():
    """Run each file."""
    client = jax.devices("cpu")[0].client
    results = {}
    for file in sorted(DATA.glob("*.xfunc")):
        with zipfile.ZipFile(file) as archive:
            header = json.loads(archive.read("header.json"))
            artifact = archive.read("program.stablehlo")
        with mlir.make_ir_context() as context:
            module = hlo.deserialize_portable_artifact(context, artifact)
            program = client.compile_and_load(str(module).encode(), client.devices()[:1])
        shapes = [shape for shape, _ in header["input_avals"]]
        outputs = program.execute([client.buffer_from_pyval(x) for x in inputs(shapes)])
        results[file.stem] = [np.asarray(x).ravel().tolist() for x in outputs]
    (DATA / "results.json").write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
