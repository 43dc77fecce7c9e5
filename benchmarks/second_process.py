"""A second process: the time to its first result, with and without files on disk.

The loss and gradient of the 12-layer Llama of `trace`, from the start of the process to numbers,
each in its own process:

- ``jit``: the Python code is traced and compiled;
- ``exported``: a file of `xfunc.export` is loaded and compiled;
- ``cached``: as ``jit``, with torch_xla's persistent cache full.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import xfunc as xf
from benchmarks import llama
from xfunc.backends.torch_xla import runtime

ROUNDS = 3


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program"
        cache = Path(folder) / "cache"
        run("write", file)
        run("jit", file, cache)
        plain, loaded, cached = (
            min((run(how, file, where) for _ in range(ROUNDS)), key=lambda r: sum(r.values()))
            for how, where in (("jit", None), ("exported", None), ("jit", cache))
        )
        sizes = file.stat().st_size, sum(f.stat().st_size for f in cache.iterdir())
    print("## second process: seconds to the first result\n")
    print("| | import | trace or load | compile and run | together |")
    print("|---|---|---|---|---|")
    for name, found in (("jit", plain), ("exported", loaded), ("cached", cached)):
        cells = " | ".join(f"{t:.2f}" for t in (*found.values(), sum(found.values())))
        print(f"| {name} | {cells} |")
    print(f"\nThe file has {sizes[0] / 1e6:.2f} MB, the persistent cache {sizes[1] / 1e6:.2f} MB.")


def run(how: str, file: Path, cache: Path | None = None) -> dict[str, float]:
    """The measurements of a fresh process."""
    environment = dict(os.environ)
    environment.pop("XLA_PERSISTENT_CACHE_PATH", None)
    if cache is not None:
        environment["XLA_PERSISTENT_CACHE_PATH"] = str(cache)
    begin = time.time()
    command = [sys.executable, "-m", "benchmarks.second_process", how, str(file), str(begin)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{how} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def child(how: str, file: str, begin: float) -> None:
    """Run one case in this process, and print how long it took."""
    runtime.xla()
    c = llama.Config()

    def build(leaf: Any) -> Any:
        return xf.tree.map(leaf, llama.shapes(c), is_leaf=lambda x: isinstance(x, tuple))

    def loss(params: dict[str, Any], tokens: torch.Tensor) -> torch.Tensor:
        return llama.loss(params, tokens, c)

    shapes = build(lambda s: xf.ShapeDtypeStruct(s, torch.float32))
    tokens = xf.ShapeDtypeStruct((c.batch, c.seq + 1), torch.int64)
    imported = time.time()
    if how == "exported":
        step: Any = xf.export.deserialize(Path(file).read_bytes())
    else:
        step = xf.jit(xf.value_and_grad(loss))
        lowered = step.lower(shapes, tokens)
        if how == "write":
            Path(file).write_bytes(xf.export.serialize(lowered))
    ready = time.time()
    args = build(lambda s: torch.full(s, 0.01)), torch.ones(tokens.shape, dtype=tokens.dtype)
    xf.device_get(step(*args))
    times = {"import": imported - begin, "ready": ready - imported, "run": time.time() - ready}
    print(json.dumps(times))


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2], float(sys.argv[3]))
