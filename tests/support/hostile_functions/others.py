"""Functions that return no arrays, call themselves, or use a transform wrongly."""

# Misuse is the subject here.
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportUnusedExpression=false, reportGeneralTypeIssues=false
from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

import xfunc as xf
from tests.support.functions import vector
from tests.support.hostile_functions.case import GRAD, VMAP, Hostile, no_line
from xfunc.errors import TreeMismatchError


def _recursive(x: torch.Tensor) -> torch.Tensor:
    return jitted_recursive(x) + 1  # bad


jitted_recursive = xf.jit(_recursive)


def _ping(x: torch.Tensor) -> torch.Tensor:
    return _jitted_pong(x) + 1  # bad


def _pong(x: torch.Tensor) -> torch.Tensor:
    return _jitted_ping(x) + 1  # bad


_jitted_ping, _jitted_pong = xf.jit(_ping), xf.jit(_pong)


async def _async_generator(x: torch.Tensor) -> Any:  # bad
    yield x


def _generator(x: torch.Tensor) -> Any:  # bad
    yield x


def _returns(value: Callable[[], Any]) -> Callable[..., Any]:
    return lambda x: (x, value())


def _in_thread(x: torch.Tensor) -> torch.Tensor:
    errors: queue.Queue[BaseException] = queue.Queue()

    def work() -> None:
        try:
            xf.jit(lambda y: y + 1)(vector())
        except BaseException as error:
            errors.put(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()  # bad
    raise errors.get(timeout=1)


OTHERS: dict[str, Hostile] = {
    # Results that are no arrays.
    "string": no_line(_returns(lambda: "text"), TypeError, r"'text' .*output\[1\]"),
    "object": no_line(_returns(object), TypeError, r"output\[1\]"),
    "set": no_line(_returns(lambda: {1, 2}), TypeError, r"\{1, 2\} .*output\[1\]"),
    "set of tracers": no_line(lambda x: {x}, TypeError, "set"),
    "function": no_line(_returns(lambda: len), TypeError, r"output\[1\]"),
    "module": no_line(_returns(lambda: torch), TypeError, r"output\[1\]"),
    "huge int": no_line(_returns(lambda: 2**70), (TypeError, OverflowError), "int|overflow"),
    "generator": no_line(_generator, TypeError, "generator"),
    "async generator": no_line(_async_generator, TypeError, "async_generator"),
    "class": no_line(dict, TypeError, "dict|iter"),
    # Endless recursion.
    "recursion": Hostile(_recursive, RecursionError, "calls itself"),
    "mutual recursion": Hostile(_ping, RecursionError, "calls itself"),
    # A wrong use of a transform.
    "grad of int": Hostile(lambda x: GRAD(lambda y: y.sum())(x.long()), TypeError, "floating"),
    "grad of vector": Hostile(lambda x: GRAD(lambda y: y * 2)(x), TypeError, "scalar"),
    "vmap axis": Hostile(lambda x: VMAP(torch.sin, in_axes=3)(x), TypeError, "axis 3"),
    "vmap sizes": Hostile(lambda x: VMAP(torch.add)(x, x[:2]), TypeError, "differ in size"),
    "vmap axes tree": Hostile(
        lambda x: VMAP(torch.add, in_axes=(0,))(x, x), TypeError, "1 in_axes"
    ),
    "scan carry": Hostile(
        lambda x: xf.scan(lambda c, y: (torch.stack([c, y]), y), x[0], x),
        TreeMismatchError,
        "carry",
    ),
    "thread in trace": no_line(_in_thread, RuntimeError, "waiting for"),
}
