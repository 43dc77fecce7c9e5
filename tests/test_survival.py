"""Hostile functions, all in one process: each gets its named error, and the next call is right.

An error names the user's own file and line. Here that line is a lambda of the table, or it ends in
`# bad`.
"""

# Misuse is the subject here.
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportUnusedExpression=false, reportGeneralTypeIssues=false
from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import io
import itertools
import linecache
import math
import operator
import os
import pickle
import queue
import random
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from tests.support.fresh import Server
from xfunc.errors import (
    ConcretizationError,
    LeakError,
    PurityError,
    TreeMismatchError,
    UnsupportedOpError,
)

HERE = "test_survival.py"
_sizes = itertools.count(5)


def assert_alive() -> None:
    """An ordinary call, of a function and a shape never seen before, and a synchronisation."""
    import torch_xla

    n = next(_sizes)
    x = torch.arange(n, dtype=torch.float32)
    assert xf.jit(lambda x, k=n: x * 2 + k)(x).tolist() == (x * 2 + n).tolist()
    lazy = x.to(torch_xla.device()) + 1
    torch_xla.sync()
    assert lazy.tolist() == (x + 1).tolist()


@pytest.fixture(autouse=True)
def _alive_afterwards() -> Iterator[None]:
    yield
    assert_alive()


def assert_names_this_file(message: str) -> None:
    places = re.findall(rf"{HERE}:(\d+)", message)
    assert places, f"no line of the user's in: {message}"
    text = linecache.getline(__file__, int(places[0]))
    assert "lambda" in text or "# bad" in text, f"{message}\nnames the line: {text}"
    assert "Hint: " in message


def vector() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0])


def matrix() -> torch.Tensor:
    return torch.tensor([[4.0, 1.0], [1.0, 3.0]])


# ------------------------------------------------------------------------- functions of the table


def _if(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:  # bad
        return x
    return -x


def _if_equal(x: torch.Tensor) -> torch.Tensor:
    if x[0] == 1.0:  # bad
        return x
    return -x


def _while(x: torch.Tensor) -> torch.Tensor:
    while x.sum() < 10:  # bad
        x = x * 2
    return x


def _assert(x: torch.Tensor) -> torch.Tensor:
    assert x.sum() > 0  # bad
    return x


def _floats(x: torch.Tensor) -> float:
    return sum(float(v) for v in x)  # bad


def _set_item(x: torch.Tensor) -> torch.Tensor:
    x[0] = 1.0  # bad
    return x


def _augmented(x: torch.Tensor) -> torch.Tensor:
    x += 1  # bad
    return x


def _set_data(x: torch.Tensor) -> torch.Tensor:
    x.data = torch.zeros_like(x)  # bad
    return x


def _in_scan(x: torch.Tensor) -> Any:
    def body(c: torch.Tensor, y: torch.Tensor) -> Any:
        c.add_(y)  # bad
        return c, y

    return xf.scan(body, x.sum(), x)


def _read_in_scan(x: torch.Tensor) -> Any:
    def body(c: torch.Tensor, y: torch.Tensor) -> Any:
        return (c + y if y > 0 else c), None  # bad

    return xf.scan(body, x.sum(), x)


def _read_in_all(x: torch.Tensor) -> Any:
    def body(c: torch.Tensor, y: torch.Tensor) -> Any:
        return c * float(y), None  # bad

    return xf.vmap(xf.grad(lambda a: xf.scan(body, a, x)[0]))(x)


def _mutate_capture(x: torch.Tensor) -> Any:
    def inner(y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)  # bad
        return (x * y).sum()

    return xf.grad(inner)(x * 1)


_counter_on_host = torch.zeros(3)
_counter_on_device = functools.cache(lambda: xf.device_put(torch.zeros(3)))


def _count_on_host(x: torch.Tensor) -> torch.Tensor:
    _counter_on_host.add_(1)  # bad
    return x + _counter_on_host


def _count_on_device(x: torch.Tensor) -> torch.Tensor:
    _counter_on_device().add_(1)  # bad
    return x + 1


def _recursive(x: torch.Tensor) -> torch.Tensor:
    return _jitted_recursive(x) + 1  # bad


_jitted_recursive = xf.jit(_recursive)


def _ping(x: torch.Tensor) -> torch.Tensor:
    return _jitted_pong(x) + 1  # bad


def _pong(x: torch.Tensor) -> torch.Tensor:
    return _jitted_ping(x) + 1  # bad


_jitted_ping, _jitted_pong = xf.jit(_ping), xf.jit(_pong)


def _backward(x: torch.Tensor) -> torch.Tensor:
    w = x.detach().requires_grad_()
    (w * w).sum().backward()  # bad
    return x


def _sync(x: torch.Tensor) -> torch.Tensor:
    import torch_xla

    torch_xla.sync()  # bad
    return x


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


READ, PURE, UNSUPPORTED = ConcretizationError, PurityError, UnsupportedOpError
GRAD, VMAP = xf.grad, xf.vmap


@dataclasses.dataclass(frozen=True)
class Hostile:
    """Calling ``jit(fun)(argument())`` raises `error`, whose message holds `says`."""

    fun: Callable[..., Any]
    error: type[Exception] | tuple[type[Exception], ...]
    says: str
    argument: Callable[[], torch.Tensor] = vector
    names_line: bool = True


def _no_line(fun: Any, error: Any, says: str) -> Hostile:
    return Hostile(fun, error, says, names_line=False)


HOSTILE: dict[str, Hostile] = {
    # Reading a value, in every way that Python offers.
    "float": Hostile(lambda x: float(x.sum()), READ, "__float__"),
    "int": Hostile(lambda x: int(x.sum()), READ, "__int__"),
    "bool": Hostile(lambda x: bool(x.sum()), READ, "__bool__"),
    "complex": Hostile(lambda x: complex(x.sum()), READ, "__complex__"),
    "round": Hostile(lambda x: round(float(x.sum())), READ, "__float__"),
    "if": Hostile(_if, READ, "__bool__"),
    "if ==": Hostile(_if_equal, READ, "__bool__"),
    "while": Hostile(_while, READ, "__bool__"),
    "assert": Hostile(_assert, READ, "__bool__"),
    "and": Hostile(lambda x: x.sum() and x, READ, "__bool__"),
    "not": Hostile(lambda x: not x.sum(), READ, "__bool__"),
    "chained comparison": Hostile(lambda x: 0 < x.sum() < 1, READ, "__bool__"),
    "item": Hostile(lambda x: x.sum().item(), READ, "item"),
    "tolist": Hostile(lambda x: x.tolist(), READ, "tolist"),
    "numpy": Hostile(lambda x: x.numpy(), READ, "numpy"),
    "detach numpy": Hostile(lambda x: x.detach().numpy(), READ, "numpy"),
    "asarray": Hostile(lambda x: np.asarray(x), READ, "__array__"),
    "np.sin": Hostile(lambda x: np.sin(x), READ, "__array__"),
    "index": Hostile(lambda x: operator.index(x.sum().long()), READ, "__index__"),
    "range": Hostile(lambda x: range(x.sum().long()), READ, "__index__"),
    "list index": Hostile(lambda x: [1, 2, 3][x[0].long()], READ, "__index__"),
    "slice": Hostile(
        lambda x: x[: x[0].long()], (READ, UNSUPPORTED), "traced value|depends on data"
    ),
    "shape": Hostile(
        lambda x: torch.zeros(x[0].long()), (READ, UNSUPPORTED), "traced value|depends on data"
    ),
    "reshape": Hostile(
        lambda x: x.reshape(x[0].long(), 3), (READ, UNSUPPORTED), "traced value|depends on data"
    ),
    "contains": Hostile(lambda x: 1.0 in x, READ, "__contains__"),
    "format": Hostile(lambda x: f"{x.sum():.2f}", READ, "formatting"),
    "str.format": Hostile(lambda x: f"{x.sum():5}", READ, "formatting"),
    "percent": Hostile(lambda x: "%.2f" % x.sum(), READ, "__float__"),  # noqa: UP031
    "equal": Hostile(lambda x: torch.equal(x, x), READ, "equal"),
    "allclose": Hostile(lambda x: torch.allclose(x, x), READ, "allclose"),
    "assert_close": _no_line(  # torch wraps the error in one of its own.
        lambda x: torch.testing.assert_close(x, x), (READ, RuntimeError), "reads a traced|Comparing"
    ),
    "is_nonzero": Hostile(lambda x: x.sum().is_nonzero(), READ, "is_nonzero"),
    "cpu": Hostile(lambda x: x.cpu(), READ, "cpu"),
    "cuda": Hostile(lambda x: x.cuda(), READ, "cuda"),
    "to cpu": Hostile(lambda x: x.to("cpu"), READ, "Tensor.to"),
    "to cpu and dtype": Hostile(lambda x: x.to("cpu", torch.float64), READ, "Tensor.to"),
    "to other": Hostile(lambda x: x.to(torch.zeros(1, device="cpu")), READ, "Tensor.to"),
    "copy into cpu": Hostile(lambda x: torch.empty(3, device="cpu").copy_(x), READ, "copy_"),
    "data_ptr": Hostile(lambda x: x.data_ptr(), READ, "data_ptr"),
    "storage": Hostile(lambda x: x.storage(), READ, "storage"),
    "untyped_storage": Hostile(lambda x: x.untyped_storage(), READ, "untyped_storage"),
    "dlpack": Hostile(lambda x: x.__dlpack__(), READ, "__dlpack__"),
    "to_dlpack": _no_line(
        lambda x: torch.utils.dlpack.to_dlpack(x), (READ, BufferError), "dlpack|xla"
    ),
    "pickle": Hostile(lambda x: pickle.dumps(x), READ, "__reduce_ex__"),
    "torch.save": Hostile(lambda x: torch.save(x, io.BytesIO()), READ, "__reduce_ex__"),
    "share_memory": Hostile(lambda x: x.share_memory_(), READ, "share_memory_"),
    "floats": Hostile(_floats, READ, "__float__"),
    "math.sin": Hostile(lambda x: math.sin(x.sum()), READ, "__float__"),
    "math.isnan": Hostile(lambda x: math.isnan(x.sum()), READ, "__float__"),
    "sorted": Hostile(lambda x: sorted([x[0], x[1]]), READ, "__bool__"),
    "max": Hostile(lambda x: max(x[0], x[1]), READ, "__bool__"),
    "any": Hostile(lambda x: any(x), READ, "__bool__"),
    "choices": Hostile(lambda x: random.choices("abc", weights=x), READ, "__bool__|__float__"),
    "bytes": Hostile(lambda x: bytes(range(x.sum().long())), READ, "__index__"),
    "repeat": Hostile(lambda x: "a" * x.sum().long(), READ, "__index__"),
    "in list": Hostile(lambda x: x[0] in [1.0, 2.0], READ, "__bool__"),
    "tensor of": Hostile(lambda x: torch.tensor([x[0], 1.0]), READ, "torch.stack"),
    "as_tensor of": Hostile(lambda x: torch.as_tensor([x[0], x[1]]), READ, "torch.stack"),
    "item by func": Hostile(lambda x: torch.Tensor.item(x.sum()), READ, "item"),
    "item by op": Hostile(lambda x: torch.ops.aten.item(x.sum()), (READ, UNSUPPORTED), "item"),
    "local_scalar": Hostile(
        lambda x: torch.ops.aten._local_scalar_dense(x.sum()), (READ, UNSUPPORTED), "_scalar"
    ),
    "arange": Hostile(
        lambda x: torch.arange(x[0]), (READ, UNSUPPORTED), "traced value|depends on data"
    ),
    "full of": Hostile(lambda x: torch.full((2,), x[0].item()), READ, "item"),
    "linspace": Hostile(lambda x: torch.linspace(0, x[0].item(), 3), READ, "item"),
    "read in grad": Hostile(GRAD(lambda x: x.sum() * float(x[0])), READ, "__float__"),
    "read in vmap": Hostile(VMAP(lambda x: x * float(x)), READ, "__float__"),
    "item in vmap": Hostile(VMAP(lambda x: x.item() * x), READ, "item"),
    "read in scan": Hostile(_read_in_scan, READ, "__bool__"),
    "read in scan in grad in vmap": Hostile(_read_in_all, READ, "__float__"),
    # Shapes that depend on data.
    "nonzero": Hostile(lambda x: x.nonzero(), UNSUPPORTED, "nonzero"),
    "where": Hostile(lambda x: torch.where(x > 1), UNSUPPORTED, "where"),
    "unique": Hostile(lambda x: torch.unique(x), UNSUPPORTED, "unique"),
    "unique_consecutive": Hostile(lambda x: x.unique_consecutive(), UNSUPPORTED, "unique_cons"),
    "masked_select": Hostile(lambda x: x.masked_select(x > 1), UNSUPPORTED, "masked_select"),
    "mask": Hostile(lambda x: x[x > 1], UNSUPPORTED, "boolean mask"),
    "bincount": Hostile(lambda x: x.long().bincount(), UNSUPPORTED, "bincount"),
    "repeat_interleave": Hostile(
        lambda x: torch.repeat_interleave(x, x.long()), UNSUPPORTED, "repeat_interleave"
    ),
    # Operations that torch_xla does on the host.
    "hash_tensor": Hostile(lambda x: torch.hash_tensor(x), UNSUPPORTED, "hash_tensor"),
    # Mutation.
    "add_": Hostile(lambda x: x.add_(1), PURE, "Tensor.add_ changes x"),
    "x[0] = 1": Hostile(_set_item, PURE, "changes x"),
    "x += 1": Hostile(_augmented, PURE, "changes x"),
    "view": Hostile(lambda x: x[1:].mul_(2), PURE, "changes x"),
    "transposed": Hostile(lambda x: x.t().mul_(2), PURE, "changes x", matrix),
    "detached": Hostile(lambda x: x.detach().mul_(2), PURE, "changes x"),
    "data": Hostile(_set_data, PURE, "x"),
    "data.mul_": Hostile(lambda x: x.data.mul_(2), PURE, "changes x"),
    "out": Hostile(lambda x: torch.add(x, 1, out=x), PURE, "changes x"),
    "out tuple": Hostile(
        lambda x: torch.sort(x, out=(x, torch.zeros_like(x).long())), PURE, "changes x"
    ),
    "init": Hostile(lambda x: torch.nn.init.zeros_(x), PURE, "changes x", matrix),
    "init normal": Hostile(lambda x: torch.nn.init.normal_(x), PURE, "random generator", matrix),
    "inplace relu": Hostile(lambda x: F.relu(x, inplace=True), PURE, "changes x"),
    "op": Hostile(lambda x: torch.ops.aten.add_(x, 1), PURE, "changes x"),
    "foreach": Hostile(lambda x: torch._foreach_add_([x], 1.0), PURE, "changes x"),
    "in grad": Hostile(GRAD(lambda x: x.mul_(2).sum()), PURE, "changes x"),
    "in vmap": Hostile(VMAP(lambda x: x.mul_(2)), PURE, "changes x"),
    "in scan": Hostile(_in_scan, PURE, "changes"),
    "outer value": Hostile(_mutate_capture, PURE, "changes"),
    "capture on host": Hostile(_count_on_host, PURE, "changes a captured tensor"),
    "capture on device": Hostile(
        _count_on_device, PURE, "changes a captured tensor", lambda: _counter_on_device() + 1
    ),
    # The global random generator, and other side effects.
    "rand": Hostile(lambda x: x + torch.rand(3), PURE, "random generator"),
    "randn_like": Hostile(lambda x: torch.randn_like(x), PURE, "random generator"),
    "randperm": Hostile(lambda x: x[torch.randperm(3)], PURE, "random generator"),
    "dropout": Hostile(lambda x: F.dropout(x), PURE, "random generator"),
    "Dropout": Hostile(lambda x: torch.nn.Dropout()(x), PURE, "random generator"),
    "bernoulli_": Hostile(lambda x: torch.zeros_like(x).bernoulli_(), PURE, "random generator"),
    "multinomial": Hostile(lambda x: torch.multinomial(x, 1), PURE, "random generator"),
    "attention": Hostile(
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), PURE, "random", matrix
    ),
    "rand in scan": Hostile(
        lambda x: xf.scan(lambda c, y: (c + torch.rand(()), y), x[0], x), PURE, "random generator"
    ),
    "backward": Hostile(_backward, PURE, "xf.grad"),
    "sync": Hostile(_sync, Exception, "torch_xla.sync|reads a traced value"),
    # Results that are no arrays.
    "string": _no_line(_returns(lambda: "text"), TypeError, r"'text' .*output\[1\]"),
    "object": _no_line(_returns(object), TypeError, r"output\[1\]"),
    "set": _no_line(_returns(lambda: {1, 2}), TypeError, r"\{1, 2\} .*output\[1\]"),
    "set of tracers": _no_line(lambda x: {x}, TypeError, "set"),
    "function": _no_line(_returns(lambda: len), TypeError, r"output\[1\]"),
    "module": _no_line(_returns(lambda: torch), TypeError, r"output\[1\]"),
    "huge int": _no_line(_returns(lambda: 2**70), (TypeError, OverflowError), "int|overflow"),
    "generator": _no_line(_generator, TypeError, "generator"),
    "async generator": _no_line(_async_generator, TypeError, "async_generator"),
    "class": _no_line(dict, TypeError, "dict|iter"),
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
    "thread in trace": _no_line(_in_thread, RuntimeError, "waiting for"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_function(name: str) -> None:
    case = HOSTILE[name]
    with pytest.raises(case.error, match=case.says) as caught:
        xf.jit(case.fun)(case.argument())
    message = str(caught.value)
    if case.names_line:
        assert_names_this_file(message)
    assert "Traceback" not in message


OTHER_TRANSFORMS = (
    "value_and_grad", "vmap", "checkpoint", "eval_shape", "scan", "cond", "switch in vmap",
    "while_loop", "while_loop condition", "fori_loop", "map", "map in batches", "associative_scan",
    "custom_vjp", "custom_vjp forward rule", "custom_vjp backward rule", "custom_jvp rule",
    "linearize",
)  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("transform", OTHER_TRANSFORMS)
@pytest.mark.parametrize("name", ["float", "nonzero", "mask", "add_", "rand", "recursion", "leak"])
def test_hostile_function_under_other_transforms(name: str, transform: str) -> None:
    bodies: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
        "float": (lambda x: x.sum() * float(x.sum()), READ),
        "nonzero": (lambda x: torch.nonzero(x).sum() * x.sum(), UNSUPPORTED),
        "mask": (lambda x: x[x > 1].sum(), UNSUPPORTED),
        "add_": (lambda x: x.add_(1).sum(), PURE),
        "rand": (lambda x: (x * torch.rand(3)).sum(), PURE),
        "recursion": (lambda x: _jitted_recursive(x).sum(), RecursionError),
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
    assert_names_this_file(str(caught.value))
    with contextlib.suppress(LeakError):
        kept.clear()
    assert xf.grad(lambda x: x.sin().sum())(vector()).shape == (3,)


# ---------------------------------------------------------------------------------- what is allowed


def _printing(x: torch.Tensor) -> torch.Tensor:
    print(x)
    print(repr(x), str(x), f"{x}", f"{x!r}", f"{x.sum()}")
    return x


def _with_mode(mode: Any) -> Callable[..., Any]:
    def fun(x: torch.Tensor) -> torch.Tensor:
        with mode:
            return x * 2

    return fun


class _Callable:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


_host = torch.tensor([1.0, float("nan"), 3.0])
_nan, _infinity = float("nan"), float("inf")
_linear = torch.nn.Linear(3, 2)

ALLOWED: dict[str, Callable[..., Any]] = {
    "print": _printing,
    "deepcopy": lambda x: copy.deepcopy(x) * 2,
    "deepcopy of a tree": lambda x: copy.deepcopy({"a": [x, 1]}),
    "len and shape": lambda x: x * len(x) * x.shape[0] * x.numel() * x.dim(),
    "hash": lambda x: {x: x * 2}[x],
    "identity": lambda x: x,
    "twice": lambda x: (x, x),
    "made twice": lambda x: (lambda y: [y, y, x])(x * 2),
    "capture": lambda x: _host,
    "capture and argument": lambda x: (_host, x, _host + x),
    "host tensor": lambda x: torch.tensor([1.0, 2.0], device="cpu") * 2,
    "host arange": lambda x: torch.arange(3, device="cpu") + torch.from_numpy(np.arange(3)),
    "numbers": lambda x: (1, 2.5, True, 1j, x),
    "None": lambda x: None,
    "nested None": lambda x: {"a": None, "b": [None, x]},
    "empty": lambda x: ((), [], {}),
    "numpy scalar": lambda x: x * np.float32(2),
    "nan": lambda x: (x * _nan, x * _infinity, _nan),
    "literal": lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
    "cpu literal": lambda x: x + torch.tensor([1.0, 2.0, 3.0], device="cpu"),
    "from_numpy": lambda x: x + torch.from_numpy(np.ones(3, np.float32)),
    "as_tensor": lambda x: x + torch.as_tensor(np.ones(3, np.float32)),
    "arange": lambda x: x + torch.arange(3),
    "index with literal": lambda x: x[torch.tensor([0, 2])] + x[[0, 1]],
    "index with tensor": lambda x: x[x.long() - 1],
    "closure literal": lambda x: torch.where(x > 1, x, torch.tensor(0.0)),
    "no dropout": lambda x: F.dropout(x, training=False) + F.dropout(x, p=0.0),
    "eval dropout": lambda x: torch.nn.Dropout().eval()(x),
    "no_grad": _with_mode(torch.no_grad()),
    "inference_mode": _with_mode(torch.inference_mode()),
    "enable_grad": _with_mode(torch.enable_grad()),
    "mutating a local": lambda x: (x * 1).add_(1).mul_(2),
    "mutating a view of a local": lambda x: (lambda y: (y[1:].zero_(), y)[1])(x * 1),
    "mutating zeros": lambda x: torch.zeros(3).copy_(x).add_(x),
    "out of a local": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
    "mask assignment": lambda x: (lambda y: (y.__setitem__(y > 1, 0.0), y)[1])(x * 1),
    "module": lambda x: _linear(x),
    "huge int": lambda x: x * 2**40,
    "iteration": lambda x: sum(v * 2 for v in x),
    "unpacking": lambda x: (lambda a, b, c: a * b + c)(*x),
    "data": lambda x: x.data * 2,
    "detach": lambda x: x.detach() * 2,
    "builtin": torch.sin,
    "method": torch.Tensor.sin,
    "callable object": _Callable(),
    "partial": functools.partial(torch.mul, 2.0),
    "star": lambda *args, **kwargs: args[0] * 2 + len(kwargs),
    "float64": lambda x: x.double() + 1e-12,
    "type": lambda x: x.type(torch.float64),
    "int8": lambda x: x.to(torch.int8) + x.to(torch.uint8),
    "dtype dispatch": lambda x: x * 2 if x.dtype.is_floating_point else x,
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_function(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    fun = ALLOWED[name]
    got = xf.device_get(xf.jit(fun)(vector()))
    printed = capsys.readouterr().out
    want = fun(vector())
    assert xf.tree.structure(got) == xf.tree.structure(want)
    for g, w in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        w = w if isinstance(w, torch.Tensor) else torch.tensor(w)
        torch.testing.assert_close(g, w.detach(), equal_nan=True)
    if name == "print":
        assert "Traced<float32[3]>" in printed


def test_arguments_of_every_kind() -> None:
    double = xf.jit(lambda x: x + x)
    for x in (torch.zeros(0), torch.zeros(2, 0, 3), torch.tensor(2.0), torch.tensor(True)):
        torch.testing.assert_close(xf.device_get(double(x)), x + x)
    parameter = torch.nn.Parameter(vector())
    with torch.no_grad():
        torch.testing.assert_close(xf.device_get(double(parameter)), parameter.detach() * 2)
    assert double(vector().expand(2, 3).t()).tolist() == [[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]]


class _Subclass(torch.Tensor):
    """Adds nothing."""


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.zeros(3, device="meta"), "meta"),
        (lambda: torch.zeros(3).to_sparse(), "sparse"),
        (lambda: torch.zeros(3).to(torch.float8_e5m2fnuz), "float8_e5m2fnuz"),
        (lambda: torch.zeros(3, dtype=torch.uint16), "uint16"),
        (lambda: torch.zeros(3, dtype=torch.uint32), "uint32"),
        (lambda: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8), "qint8"),
        (lambda: torch.nested.nested_tensor([torch.zeros(2)], layout=torch.jagged), "jagged|nest"),
    ],
    ids="meta sparse float8 uint16 uint32 quantized nested".split(),
)
def test_arguments_that_are_no_arrays_of_xla(make: Callable[[], Any], says: str) -> None:
    x = make()
    with pytest.raises(UnsupportedOpError, match=rf"\bx\b.*({says})"):
        xf.jit(lambda x: x)(x)  # bad
    with pytest.raises(UnsupportedOpError, match=says):
        xf.jit(lambda y: (y, x)[0] + x)(vector())  # bad


@pytest.mark.parametrize("value", ["text", object(), {1}, np.array(["a"]), b"x", len, 2**70])
def test_arguments_that_are_no_tensors(value: Any) -> None:
    with pytest.raises((TypeError, OverflowError), match=rf"\bx\b(.|\n)*{HERE}(.|\n)*Hint"):
        xf.jit(lambda x: x)(value)


def test_subclass_arguments() -> None:
    x = vector().as_subclass(_Subclass)
    assert xf.jit(lambda x: x * 2)(x).tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("value", [3, "text", None, torch.zeros(3)])
@pytest.mark.parametrize("transform", [xf.jit, xf.grad, xf.vmap, xf.checkpoint])
def test_transforms_of_what_is_no_function(transform: Any, value: Any) -> None:
    if value is None and transform is xf.jit:
        return  # A decorator with arguments.
    with pytest.raises(TypeError, match="not callable"):
        transform(value)


def test_wrong_axes_and_differentiation_at_top_level() -> None:
    with pytest.raises(TypeError, match="floating"):
        xf.grad(lambda x: x.sum() * 1.0)(torch.arange(3))
    with pytest.raises(TypeError, match="floating"):
        xf.grad(lambda x: x * 1.0)(3)
    with pytest.raises(TypeError, match="scalar"):
        xf.grad(lambda x: x * 2)(vector())
    with pytest.raises(TypeError, match="axis 5"):
        xf.vmap(torch.sin, in_axes=5)(vector())
    with pytest.raises((TypeError, ValueError), match=r"axis|axes"):
        xf.vmap(torch.sin, out_axes=5)(vector())
    with pytest.raises(TypeError, match="differ in size"):
        xf.vmap(torch.add)(vector(), torch.zeros(2))


# ------------------------------------------------------------------------------------------- leaks

_kept: list[Any] = []


class _Holder:
    value: Any = None


class _CarriesTensor(Exception):
    pass


def _leak_list(x: torch.Tensor) -> Any:
    _kept.append(x * 2)  # bad
    return x


def _leak_argument(x: torch.Tensor) -> Any:
    _kept.append(x)
    return x * 1


def _leak_view(x: torch.Tensor) -> Any:
    _kept.append((x * 2)[1:].t())  # bad
    return x


def _leak_closure(x: torch.Tensor) -> Any:
    y = x * 2  # bad
    _kept.append(lambda: y + 1)
    return x


def _leak_attribute(x: torch.Tensor) -> Any:
    _kept.append(_Holder())
    _kept[-1].value = {"deep": [x * 2]}  # bad
    return x


def _leak_generator(x: torch.Tensor) -> Any:
    def numbers() -> Iterator[torch.Tensor]:
        y = x * 2  # bad
        yield y
        yield y + 1

    g = numbers()
    next(g)
    _kept.append(g)
    return x


def _default(x: torch.Tensor, memory: list[Any] = _kept) -> Any:
    memory.append(x.sin())  # bad
    return x


@functools.lru_cache
def _remembered(n: int) -> torch.Tensor:
    return torch.zeros(n) + 1  # bad


def _leak_lru_cache(x: torch.Tensor) -> Any:
    _kept.append(_remembered)
    return x + _remembered(3)


def _leak_func_vjp(x: torch.Tensor) -> Any:
    out, pullback = torch.func.vjp(torch.sin, x)  # bad
    _kept.append(pullback)
    return out


def _leak_vjp(x: torch.Tensor) -> Any:
    out, pullback = xf.vjp(torch.sin, x)  # bad
    _kept.append(pullback)
    return out


def _leak_from_grad(x: torch.Tensor) -> Any:
    def inner(y: torch.Tensor) -> torch.Tensor:
        _kept.append(y * 2)  # bad
        return y.sum()

    return xf.grad(inner)(x)


def _leak_from_vmap(x: torch.Tensor) -> Any:
    return xf.vmap(lambda y: (_kept.append(y * 2), y)[1])(x)


def _leak_from_scan(x: torch.Tensor) -> Any:
    def body(c: torch.Tensor, y: torch.Tensor) -> Any:
        _kept.append(c + y)  # bad
        return c, y

    return xf.scan(body, x[0], x)


USES: dict[str, Callable[[Any], Any]] = {
    "_leak_list": lambda k: k + 1,
    "_leak_argument": lambda k: k.tolist(),
    "_leak_view": lambda k: k.sum(),
    "_leak_closure": lambda k: k(),
    "_leak_attribute": lambda k: float(k.value["deep"][0].sum()),
    "_leak_generator": lambda k: next(k),
    "_default": lambda k: torch.stack([k, k]),
    "_leak_lru_cache": lambda k: k(3) + 1,
    "_leak_func_vjp": lambda k: k(torch.ones(3)),
    "_leak_vjp": lambda k: k(torch.ones(3)),
    "_leak_from_grad": lambda k: k + 1,
    "_leak_from_vmap": lambda k: k + 1,
    "_leak_from_scan": lambda k: xf.jit(lambda x: x + k)(torch.ones(())),
}


@pytest.mark.parametrize("name", USES)
def test_leak_is_found_and_harmless(name: str) -> None:
    import torch_xla

    fun, use = globals()[name], USES[name]
    _kept.clear()
    try:
        with pytest.raises(LeakError, match="outlived") as caught:
            xf.jit(fun)(vector())
        assert re.search(rf"{HERE}:\d+(.|\n)*Hint: ", str(caught.value))
        torch_xla.sync()
        with pytest.raises((LeakError, RuntimeError), match=r"outlived|outside|traced"):
            use(_kept[-1])
        torch_xla.sync()
        if name != "_leak_generator":  # The error above has ended it.
            with pytest.raises((LeakError, RuntimeError), match=r"outlived|outside|traced"):
                xf.jit(lambda x: (use(_kept[-1]), x)[1])(vector())
        repr(_kept[-1])
    finally:
        _kept.clear()
        _remembered.cache_clear()


def test_leak_in_an_exception() -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        raise _CarriesTensor(x * 2)

    with pytest.raises(_CarriesTensor, match=r"traced|Traced|outlived") as caught:
        xf.jit(fun)(vector())
    assert_alive()
    with pytest.raises(LeakError, match="outlived"):
        caught.value.args[0] + 1


def test_leak_between_traces() -> None:
    """A value of one trace used in the next, while an outer one is open."""
    kept: list[torch.Tensor] = []

    def outer(x: torch.Tensor) -> torch.Tensor:
        xf.jit(lambda y: (kept.append(y * 2), y)[1])(x)
        return x + kept[0]

    with pytest.raises(LeakError, match="outlived"):
        xf.jit(outer)(vector())


# ---------------------------------------------------------------------------- exceptions, threads


class _Mine(Exception):
    """An exception of the user's."""


@pytest.mark.parametrize("kind", [_Mine, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
@pytest.mark.parametrize("where", ["jit", "grad", "scan in grad", "vmap", "vjp", "nested jit"])
def test_an_exception_comes_through_unchanged(where: str, kind: type[BaseException]) -> None:
    raised = kind("mine")

    def stop(x: torch.Tensor) -> torch.Tensor:
        keep = x * 2
        raise raised if keep is not x else keep

    calls: dict[str, Callable[[], Any]] = {
        "jit": lambda: xf.jit(stop)(vector()),
        "grad": lambda: xf.grad(stop)(vector()),
        "scan in grad": lambda: xf.grad(
            lambda x: xf.scan(lambda c, y: (stop(c), y), x.sum(), x)[0]
        )(vector()),
        "vmap": lambda: xf.jit(xf.vmap(stop))(vector()),
        "vjp": lambda: xf.jit(lambda x: xf.vjp(stop, x)[0])(vector()),
        "nested jit": lambda: xf.jit(lambda x: xf.jit(stop)(x))(vector()),
    }
    with pytest.raises(kind, match="mine") as caught:
        calls[where]()
    assert caught.value is raised


def test_caught_errors_leave_the_trace_usable() -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        for attempt in (float, np.asarray, torch.nonzero, pickle.dumps):
            with pytest.raises((TypeError, NotImplementedError), match=HERE):
                attempt(x.sum())  # bad
        with pytest.raises(_Mine, match="inner"):
            xf.jit(_raise)(x)
        return x * 2

    def _raise(x: torch.Tensor) -> torch.Tensor:
        raise _Mine("inner")

    assert xf.jit(fun)(vector()).tolist() == [2.0, 4.0, 6.0]


def _run_threads(works: list[Callable[[], Any]], timeout: float = 120) -> list[Any]:
    results: list[Any] = [None] * len(works)

    def run(i: int) -> None:
        try:
            results[i] = works[i]()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(works))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout)
    assert not any(t.is_alive() for t in threads), "a thread hangs"
    return results


@pytest.mark.parametrize("n", [2, 4])
def test_threads_that_trace_at_once(n: int) -> None:
    def work(k: int) -> list[list[float]]:
        out = []
        for i in range(5):
            f = xf.jit(xf.grad(lambda x, i=i: (x**2).sum() * k + i * x.sum()))
            out.append(f(vector()).tolist())
        return out

    want = [[[2 * v * k + i for v in (1.0, 2.0, 3.0)] for i in range(5)] for k in range(n)]
    assert _run_threads([functools.partial(work, k) for k in range(n)]) == want


def test_threads_share_one_jitted_function() -> None:
    f = xf.jit(lambda x: (x * 3).cos())
    works = [lambda k=k: f(torch.full((3,), float(k))).tolist() for k in range(4)]
    want = [torch.full((3,), 3.0 * k).cos().tolist() for k in range(4)]
    for got, w in zip(_run_threads(works), want, strict=True):
        assert got == pytest.approx(w)


# What has killed the process; each in one of its own, lest it take the other tests along.
FATAL = {
    "autograd node of a traced value": """
kept = []
def leak(x):
    w = x.detach().requires_grad_()
    kept.append((w * w).grad_fn)
    return x
xf.jit(leak)(x)
assert kept == [None]  # The graph of a trace is not shown.
""",
}


@pytest.mark.parametrize("name", FATAL)
def test_what_has_killed_the_process(name: str, fresh: Server) -> None:
    start = "import faulthandler, torch, torch_xla, xfunc as xf\nfaulthandler.enable()\n"
    start += "x = torch.tensor([1.0, 2.0, 3.0])\n"
    end = "torch_xla.sync()\nassert xf.jit(lambda x: x * 2)(x).sum().item() == 12\nprint('alive')\n"
    done = fresh.run(start + FATAL[name] + end)
    assert done.stdout.endswith("alive\n"), f"{done.returncode}: {done.stdout}{done.stderr}"


def test_a_coroutine_may_call() -> None:
    async def call(k: float) -> list[float]:
        await asyncio.sleep(0)
        return xf.jit(lambda x: x * k)(vector()).tolist()

    async def both() -> list[list[float]]:
        return list(await asyncio.gather(call(1.0), call(2.0)))

    assert asyncio.run(both()) == [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_tracing_and_calling_inside_a_grad_mode(mode: Any) -> None:
    f = xf.jit(xf.grad(lambda x: (x**3).sum()))
    for _ in range(2):
        with mode():
            assert f(vector()).tolist() == [3.0, 12.0, 27.0]
        assert f(vector()).tolist() == [3.0, 12.0, 27.0]


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_inside_works_or_is_refused() -> None:
    try:
        got = xf.jit(lambda x: torch.compile(lambda y: y * 2, backend="eager")(x))(vector())
    except UnsupportedOpError as error:
        assert_names_this_file(str(error))
    else:
        assert got.tolist() == [2.0, 4.0, 6.0]


def test_transforms_of_torch_func_around_and_inside() -> None:
    f = xf.jit(lambda x: (x**3).sum())
    x = vector()
    assert torch.func.grad(f)(xf.device_put(x)).tolist() == [3.0, 12.0, 27.0]
    assert xf.jit(lambda x: torch.func.grad(f)(x))(x).tolist() == [3.0, 12.0, 27.0]
    assert xf.jit(torch.func.vmap(lambda v: v * 2))(x).tolist() == [2.0, 4.0, 6.0]


def test_many_programs_do_not_use_up_the_memory_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a bound the process would end with SIGSEGV after some thousand programs."""
    from xfunc.backends import active, maps

    xf.jit(torch.sin)(vector())
    limit = maps.map_limit()
    assert int(os.environ["XLA_COMPILATION_CACHE_SIZE"]) <= limit // 100

    def compile_many() -> None:
        for n in range(17):
            xf.jit(lambda x, n=n: x + n)(vector())

    compile_many()
    monkeypatch.setattr(maps, "map_limit", lambda: 100)
    xf.clear_caches()
    repair = "clear_caches" if active.runtime().name == "pjrt" else "CACHE_SIZE"
    with pytest.raises(xf.errors.CompileError, match=rf"(?s)holds \d+ memory maps.*{repair}"):
        compile_many()
    monkeypatch.undo()
    assert xf.jit(lambda x: x + 100)(vector()).shape == (3,)
