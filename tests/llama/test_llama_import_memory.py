"""Importing a model takes little memory beside the model itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.hub import hf

ROOT = Path(__file__).parents[2]
CONFIG = model.Config(1024, 512, 1536, layers=12, heads=8, kv_heads=2)
LAYER = (3 * 512 * 1536 + 512 * 1280 + 2 * 512) * 4
PROGRAMS = 48 << 20  # what XLA takes for compiling them, however large the model is
CODE = """
import json, re, sys
from pathlib import Path
import torch
import xfunc as xf
from examples.llama import model
from examples.llama.hub import hf
from examples.llama.parallel.sharding import Sharding

def status(key):
    return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

sharding = Sharding.of({})
def load(folder):
    places = sharding.params(model.weights(hf.load_config(folder)))
    return xf.block_until_ready(hf.load(folder, shardings=places)[1])

load(sys.argv[2])  # So that all libraries are in memory.
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # The peak counts from here.
params = load(sys.argv[1])
print(json.dumps(status("VmHWM") - before))
torch.save(xf.device_get(params), sys.argv[3])
"""


def random_params(config: model.Config) -> model.Params:
    generator = torch.Generator().manual_seed(0)
    return xf.tree.map(lambda s: torch.randn(s.shape, generator=generator), model.shapes(config))


@pytest.mark.slow
def test_load_additional_memory_is_below_one_layer(tmp_path: Path) -> None:
    """A file, a stack of all layers, or the whole model would be more."""
    params, tiny = random_params(CONFIG), model.TINY["tiny"]
    hf.save(tmp_path / "large", CONFIG, params, max_shard_size=60_000_000)
    hf.save(tmp_path / "tiny", tiny, random_params(tiny))
    folders = [str(tmp_path / name) for name in ("large", "tiny", "found.pt")]
    made = subprocess.run(
        [sys.executable, "-c", CODE, *folders],
        env=os.environ | {"PYTHONPATH": str(ROOT), "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    size = sum(4 * leaf.numel() for leaf in xf.tree.leaves(params))
    largest = max(path.stat().st_size for path in (tmp_path / "large").glob("*.safetensors"))
    beside = json.loads(made.stdout) - size
    assert size > 2 * largest > 4 * LAYER
    assert beside < LAYER + PROGRAMS
    found = torch.load(tmp_path / "found.pt")
    xf.tree.map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), found, params)
