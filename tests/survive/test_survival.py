"""Hostile functions, all in one process: each gets its named error, and the next call is right."""

# Misuse is the subject here.
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportUnusedExpression=false, reportGeneralTypeIssues=false
from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.functions import vector
from tests.survive.hostile_functions import (
    OTHERS,
    PURE,
    PURITY,
    READ,
    READING,
    UNSUPPORTED,
    assert_names_the_line,
    jitted_recursive,
)
from xfunc.errors import LeakError

pytestmark = pytest.mark.usefixtures("alive_afterwards")

# The user's lines are in this file and in that of the tables.
HERE = r"test_survival\.py|hostile_functions\.py"
HOSTILE = READING | PURITY | OTHERS
MARKS = {"sync": pytest.mark.torch_xla}


@pytest.mark.sample(3, seed=0)
@pytest.mark.quick(8, seed=0)
@pytest.mark.parametrize("name", [pytest.param(n, marks=MARKS.get(n, ())) for n in HOSTILE])
def test_hostile_function(name: str) -> None:
    case = HOSTILE[name]
    with pytest.raises(case.error, match=case.says) as caught:
        xf.jit(case.fun)(case.argument())
    message = str(caught.value)
    if case.names_line:
        assert_names_the_line(message, HERE)
    assert "Traceback" not in message


OTHER_TRANSFORMS = (
    "value_and_grad", "vmap", "checkpoint", "eval_shape", "scan", "cond", "switch in vmap",
    "while_loop", "while_loop condition", "fori_loop", "map", "map in batches", "associative_scan",
    "custom_vjp", "custom_vjp forward rule", "custom_vjp backward rule", "custom_jvp rule",
    "linearize",
)  # fmt: skip


@pytest.mark.sample(36, seed=0)
@pytest.mark.parametrize("transform", OTHER_TRANSFORMS)
@pytest.mark.parametrize("name", ["float", "nonzero", "mask", "add_", "rand", "recursion", "leak"])
def test_hostile_function_under_other_transforms(name: str, transform: str) -> None:
    bodies: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
        "float": (lambda x: x.sum() * float(x.sum()), READ),
        "nonzero": (lambda x: torch.nonzero(x).sum() * x.sum(), UNSUPPORTED),
        "mask": (lambda x: x[x > 1].sum(), UNSUPPORTED),
        "add_": (lambda x: x.add_(1).sum(), PURE),
        "rand": (lambda x: (x * torch.rand(3)).sum(), PURE),
        "recursion": (lambda x: jitted_recursive(x).sum(), RecursionError),
        "leak": (lambda x: [kept.append(x * 2), x.sum()][1], LeakError),
    }
    kept: list[torch.Tensor] = []
    fun, error = bodies[name]

    def same(x: torch.Tensor) -> torch.Tensor:
        return x + 0 * fun(x)

    def ruled(fwd: Any, bwd: Any) -> Any:
        f = xf.custom_vjp(lambda x: x * 1)
        f.defvjp(fwd, bwd)
        return xf.grad(lambda x: f(x).sum())(vector())

    def pushed() -> Any:
        f = xf.custom_jvp(lambda x: x * 1)
        f.defjvp(lambda p, t: (p[0] * 1, same(t[0])))
        return xf.grad(lambda x: f(x).sum())(vector())

    stack = torch.stack([vector(), vector()])
    calls: dict[str, Callable[[], Any]] = {
        "value_and_grad": lambda: xf.value_and_grad(fun)(vector()),
        "vmap": lambda: xf.vmap(fun)(stack),
        "checkpoint": lambda: xf.grad(xf.checkpoint(fun))(vector()),
        "eval_shape": lambda: xf.eval_shape(fun, vector()),
        "scan": lambda: xf.scan(lambda c, x: (c + fun(x), None), torch.zeros(()), stack),
        "cond": lambda: xf.cond(True, fun, lambda x: x.sum(), vector()),
        "switch in vmap": lambda: xf.vmap(lambda i, x: xf.switch(i, [fun, lambda y: y.sum()], x))(
            torch.tensor([0, 1]), stack
        ),
        "while_loop": lambda: xf.while_loop(lambda x: x.sum() < 9, same, vector()),
        "while_loop condition": lambda: xf.while_loop(lambda x: fun(x) < 9, torch.sin, vector()),
        "fori_loop": lambda: xf.fori_loop(0, 3, lambda i, x: same(x), vector()),
        "map": lambda: xf.map(fun, stack),
        "map in batches": lambda: xf.map(fun, torch.cat([stack, stack]), batch_size=2),
        "associative_scan": lambda: xf.associative_scan(lambda a, b: a + b * fun(b[0]), stack),
        "custom_vjp": lambda: ruled(lambda x: (x * 1, fun(x)), lambda r, ct: (ct * r,)),
        "custom_vjp forward rule": lambda: ruled(lambda x: (same(x), None), lambda _, ct: (ct,)),
        "custom_vjp backward rule": lambda: ruled(lambda x: (x * 1, x), lambda r, ct: (same(ct),)),
        "custom_jvp rule": pushed,
        "linearize": lambda: xf.linearize(fun, vector()),
    }
    with pytest.raises(error, match=HERE) as caught:
        calls[transform]()
    assert_names_the_line(str(caught.value), HERE)
    with contextlib.suppress(LeakError):
        kept.clear()
    assert xf.grad(lambda x: x.sin().sum())(vector()).shape == (3,)
