"""docs/coming-from-torch-xla.md: the left side of a row and its right side give one value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.docs.coming_from_jax import value_of

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from-torch-xla.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("| torch_xla | xfunc |\n|---|---|\n")[2].partition("\n\n")[0]
ROWS = [line.strip("| ").split(" | ")[0] for line in TABLE.splitlines()]

TORCH_XLA = """
import torch_xla, torch_xla.core.xla_model as xm
from torch_xla.experimental import scan as scans, scan_layers as layers
import torch_xla.utils.checkpoint as checkpoints
d = torch_xla.device()
x, w = x.to(d), w.to(d)
"""
MODEL = """
torch.manual_seed(0)
layers_ = [torch.nn.Linear(3, 3) for _ in range(4)]
"""
XFUNC_LAYERS = """
apply, _, _ = xf.functional(layers_[0])
stacked = xf.tree.map(lambda *p: torch.stack(p), *(dict(l.named_parameters()) for l in layers_))
xf.jit(lambda s, x: xf.scan(lambda h, p: (apply(p, {}, h)[0], None), x, s)[0])(stacked, x).detach()
"""
BODY = "lambda h, y: (torch.tanh(h * y), h.sum())"

# By the beginning of a row: texts for each side, whose last lines are to give one value.
PAIRS = {
    "`torch_xla.sync()`": ("y = x @ w.T\ntorch_xla.sync()\ny", "xf.jit(lambda x: x @ w.T)(x)"),
    "`torch_xla.step()`": (
        "torch_xla.compile(lambda x: x.sin() * 2)(x)",
        "xf.jit(lambda x: x.sin() * 2)(x)",
    ),
    "`xm.wait_device_ops()`": (
        "y = x.exp()\ntorch_xla.sync(wait=True)\nxm.wait_device_ops()\ny",
        "xf.block_until_ready(xf.jit(torch.exp)(x))",
    ),
    "`xm.optimizer_step": (
        "p = torch.nn.Parameter(w)\nopt = torch.optim.SGD([p], lr=0.5)\n"
        "(x @ p).square().sum().backward()\nxm.optimizer_step(opt)\np.detach()",
        "step = lambda w: w - 0.5 * xf.grad(lambda w: (x @ w).square().sum())(w)\nxf.jit(step)(w)",
    ),
    "`loss.backward()`": (
        "p = w.requires_grad_()\nloss = (x @ p).sin().sum()\nloss.backward()\n"
        "(loss.detach(), p.grad)",
        "xf.value_and_grad(lambda w: (x @ w).sin().sum())(w)",
    ),
    '`x.to("xla")`': ('x.cpu().to("xla")', "xf.device_put(x)"),
    "`x.cpu()`": ("[x.cpu(), w.cpu()]", "xf.device_get([xf.device_put(x), xf.device_put(w)])"),
    "`torch_xla.experimental.scan`": (
        f"scans.scan({BODY}, x, w)",
        f"xf.scan({BODY}, x, w)",
    ),
    "`torch_xla.utils.checkpoint`": (
        "p = w.requires_grad_()\n"
        "y = checkpoints.checkpoint(lambda w: (x @ w).sin().exp(), p, use_reentrant=True)\n"
        "y.sum().backward()\np.grad",
        "f = xf.checkpoint(lambda w: (x @ w).sin().exp())\nxf.grad(lambda w: f(w).sum())(w)",
    ),
}
# Said in words, of several devices, or of what is printed or written to disk; and what torch_xla
# cannot do here: assume_pure needs JAX in this process, while_loop takes no constants.
UNTRIED = (
    "`torch_xla.manual_seed", "`xm.add_step_closure", "`xr.use_spmd()`", "`xs.Mesh",
    "`xs.mark_sharding", "`xs.enable_manual", "`SPMDSavePlanner`", "`met.metrics_report()`",
    "`PJRT_DEVICE`", "`xr.initialize_cache", "`torch_xla.experimental.assume_pure`",
    "`torch_xla.experimental.while_loop`",
)  # fmt: skip


def names() -> dict[str, Any]:
    x, w = torch.linspace(-1, 1, 3), torch.linspace(-0.5, 1, 9).reshape(3, 3)
    return {"torch": torch, "xf": xf, "x": x, "w": w}


def close(theirs: str, ours: str) -> None:
    expected = xf.tree.leaves(value_of(TORCH_XLA + theirs, names()))
    found = xf.tree.leaves(value_of(ours, names()))
    torch.testing.assert_close([t.cpu() for t in found], [t.cpu() for t in expected])


def test_torch_xla_page_row_has_snippet() -> None:
    for row in ROWS:
        assert sum(row.startswith(key) for key in (*PAIRS, *UNTRIED)) == 1, row
    for key in (*PAIRS, *UNTRIED):
        assert any(row.startswith(key) for row in ROWS), key


@pytest.mark.sample(2, seed=0)
@pytest.mark.torch_xla
@pytest.mark.filterwarnings("ignore")  # of torch_xla
@pytest.mark.parametrize("key", PAIRS)
def test_torch_xla_row_values_equal(key: str) -> None:
    close(*PAIRS[key])


@pytest.mark.torch_xla
@pytest.mark.filterwarnings("ignore")
def test_torch_xla_scan_layers_equals_scan() -> None:
    theirs = "layers.scan_layers([l.to(d) for l in layers_], x).detach()"
    close(MODEL + theirs, MODEL + XFUNC_LAYERS)


def test_torch_xla_page_names_exist() -> None:
    for name in re.findall(r"\bxf\.([\w.]*\w)", PAGE):
        value = xf
        for part in name.split("."):
            value = getattr(value, part)
