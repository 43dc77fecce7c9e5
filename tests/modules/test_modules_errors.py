"""Modules, arguments and results that `xf.functional` refuses."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import xfunc as xf
from tests.modules.common import assert_close, rand

pytestmark = [pytest.mark.usefixtures("seeded"), pytest.mark.quick]


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.UninitializedParameter()


@pytest.mark.parametrize(
    ("make", "problem", "hint"),
    [
        (
            lambda: nn.Linear(2, 2, device="meta"),
            "weight of Linear is on the meta device, and has no data",
            r"load it first, or make it with module.to_empty\(device='cpu'\) and initialise it",
        ),
        (
            Lazy,
            "weight of Lazy is not initialised yet",
            "call the module once on an example before xf.functional",
        ),
        (
            lambda: nn.Sequential(nn.DataParallel(nn.Linear(2, 2))),
            "Sequential holds a DataParallel, whose Python code cannot be traced",
            r"pass the module inside \(.module\)",
        ),
        (
            lambda: torch.jit.script(nn.Linear(2, 2)),
            "RecursiveScriptModule, whose Python code cannot be traced",
            "pass the module that it was made from",
        ),
        (
            lambda: torch.compile(nn.Linear(2, 2)),
            "OptimizedModule, whose Python code cannot be traced",
            r"pass the module inside \(._orig_mod\)",
        ),
    ],
)
def test_functional_unusable_module_is_refused(make: Any, problem: str, hint: str) -> None:
    module = make()
    with pytest.raises(xf.errors.UnsupportedOpError, match=problem + r"\n.*\nHint: " + hint):
        xf.functional(module)


def test_functional_of_non_module_raises() -> None:
    with pytest.raises(
        TypeError, match=r"was given 3, which is not a torch module\n.*\nHint: pass an"
    ):
        xf.functional(3)  # pyright: ignore[reportArgumentType]


def test_functional_wrong_parameter_names_raise() -> None:
    apply, params, buffers = xf.functional(nn.BatchNorm1d(2))
    with pytest.raises(
        xf.errors.TreeMismatchError,
        match=r"the parameters given to functional\(BatchNorm1d\) are not those of the module\n"
        r"  missing: bias\n  unknown: b\n.*\nHint: pass dicts with the names",
    ):
        xf.jit(apply)({"weight": params["weight"], "b": params["bias"]}, buffers, rand(2, 2))
    with pytest.raises(xf.errors.TreeMismatchError, match=r"the parameters given"):
        apply(buffers, params, rand(2, 2))
    with pytest.raises(xf.errors.TreeMismatchError, match=r"the buffers given[\s\S]*running_mean"):
        apply(params, {}, rand(2, 2))


def test_functional_output_no_array_raises() -> None:
    class Net(nn.Linear):
        def forward(self, input: Tensor) -> Any:
            return {"y": super().forward(input), "name": {1, 2}}

    apply, params, buffers = xf.functional(Net(2, 2))
    with pytest.raises(
        TypeError,
        match=r"functional\(Net\) returned \{1, 2\} at output\['name'\][\s\S]*Hint: reg",
    ):
        xf.jit(apply)(params, buffers, rand(2, 2))


def test_functional_dropout_in_training_needs_key() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    apply, params, buffers = xf.functional(module)
    with pytest.raises(
        xf.errors.PurityError, match="dropout draws from the global random generator"
    ):
        xf.jit(apply)(params, buffers, rand(2, 2))
    module.eval()
    assert_close(xf.jit(apply)(params, buffers, rand(2, 2))[0], module(rand(2, 2)).detach())
