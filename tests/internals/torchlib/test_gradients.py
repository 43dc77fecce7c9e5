"""`xfunc.torchlib.gradients` against ``torch.autograd.grad``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xfunc.torchlib.gradients import gradients

pytestmark = pytest.mark.quick

Args = tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]


def made() -> Args:
    """Results, and what they are computed from; nothing depends on the last one."""
    x, y, unused = (torch.arange(1.0, 4.0, requires_grad=True) for _ in range(3))
    return ((x * y).sin(), (x**3).sum()), (x, y, unused)


def of_each(call: Callable[..., Any], cts: Any, **options: Any) -> list[list[float] | None]:
    outs, ins = made()
    found = call(outs, ins, grad_outputs=cts, **options)
    return [None if g is None else g.tolist() for g in found]


CTS = torch.tensor([1.0, -2.0, 3.0]), torch.tensor(0.5)


@pytest.mark.parametrize(
    ("cts", "options"),
    [
        (CTS, {"allow_unused": True}),
        (list(CTS), {"allow_unused": True, "retain_graph": True}),
        (CTS, {"allow_unused": True, "create_graph": True}),
        (CTS, {"materialize_grads": True}),
        ((CTS[0], None), {"allow_unused": True}),
        (
            tuple(torch.stack([c, 2 * c]) for c in CTS),
            {"allow_unused": True, "is_grads_batched": True},
        ),
    ],
)
def test_gradients_equals_autograd_grad(cts: Any, options: dict[str, Any]) -> None:
    assert of_each(gradients, cts, **options) == of_each(torch.autograd.grad, cts, **options)


@pytest.mark.parametrize(
    ("cts", "problem"),
    [
        (CTS, "appears to not have been used in the graph"),
        ((torch.ones(2), CTS[1]), "Mismatch in shape: grad_output"),
        ((CTS[0].to(torch.complex64), CTS[1]), "are required to have the same dtype"),
        (None, "implicitly created only for scalar outputs"),
    ],
)
def test_gradients_errors_equal_autograd_grad(cts: Any, problem: str) -> None:
    for call in (gradients, torch.autograd.grad):
        with pytest.raises(RuntimeError, match=problem):
            of_each(call, cts)


@pytest.mark.parametrize("option", ["retain_graph", "create_graph"])
def test_gradients_keep_graph_if_requested(option: str) -> None:
    outs, ins = made()
    first = gradients(outs, ins, CTS, allow_unused=True, **{option: True})
    assert first[0] is not None
    assert first[0].requires_grad == (option == "create_graph")
    gradients(outs, ins, CTS, allow_unused=True)


def test_gradients_free_graph_by_default() -> None:
    outs, ins = made()
    first = gradients(outs, ins, CTS, allow_unused=True)
    assert first[0] is not None
    assert not first[0].requires_grad
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        gradients(outs, ins, CTS, allow_unused=True)
