"""Tables of hostile functions, and what a call of one leaves to be checked.

An error names the user's own file and line: a line that is a lambda of a table, or that ends in
`# bad`.
"""

# Misuse is the subject here.
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportUnusedExpression=false, reportGeneralTypeIssues=false
from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import linecache
import math
import operator
import pickle
import queue
import random
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import xfunc as xf
from tests.support.functions import vector
from xfunc.errors import ConcretizationError, PurityError, TreeMismatchError, UnsupportedOpError

READ, PURE, UNSUPPORTED = ConcretizationError, PurityError, UnsupportedOpError
GRAD, VMAP = xf.grad, xf.vmap

_sizes = itertools.count(5)


@dataclasses.dataclass(frozen=True)
class Hostile:
    """Calling ``jit(fun)(argument())`` raises `error`, whose message holds `says`."""

    fun: Callable[..., Any]
    error: type[Exception] | tuple[type[Exception], ...]
    says: str
    argument: Callable[[], torch.Tensor] = vector
    names_line: bool = True


def no_line(fun: Any, error: Any, says: str) -> Hostile:
    return Hostile(fun, error, says, names_line=False)


def matrix() -> torch.Tensor:
    return torch.tensor([[4.0, 1.0], [1.0, 3.0]])


def assert_alive() -> None:
    """An ordinary call, of a function and a shape never seen before, and a synchronisation."""
    n = next(_sizes)
    x = torch.arange(n, dtype=torch.float32)
    assert xf.jit(lambda x, k=n: x * 2 + k)(x).tolist() == (x * 2 + n).tolist()
    if "torch_xla" not in sys.modules:
        return
    import torch_xla  # pyright: ignore[reportMissingImports]

    lazy = x.to(torch_xla.device()) + 1
    torch_xla.sync()
    assert lazy.tolist() == (x + 1).tolist()


def assert_names_the_line(message: str, files: str) -> None:
    """The first line in a file of this pattern that an error names is a bad one."""
    places = re.findall(rf"(/[^:\n]*(?:{files})):(\d+)", message)
    assert places, f"no line of the user's in: {message}"
    text = linecache.getline(places[0][0], int(places[0][1]))
    assert "lambda" in text or "# bad" in text, f"{message}\nnames the line: {text}"
    assert "Hint: " in message


# -- reading traced values, or shapes that depend on them -----------------------------------------


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


def _read_in_scan(x: torch.Tensor) -> Any:
    def body(c: torch.Tensor, y: torch.Tensor) -> Any:
        return (c + y if y > 0 else c), None  # bad

    return xf.scan(body, x.sum(), x)


def _read_in_all(x: torch.Tensor) -> Any:
    def body(c: torch.Tensor, y: torch.Tensor) -> Any:
        return c * float(y), None  # bad

    return xf.vmap(xf.grad(lambda a: xf.scan(body, a, x)[0]))(x)


READING: dict[str, Hostile] = {
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
    "equal": Hostile(lambda x: torch.equal(x, x + 1), READ, "equal"),
    "allclose": Hostile(lambda x: torch.allclose(x, x), READ, "allclose"),
    "assert_close": no_line(  # torch wraps the error in one of its own.
        lambda x: torch.testing.assert_close(x, x), (READ, RuntimeError), "reads a traced|Comparing"
    ),
    "is_nonzero": Hostile(lambda x: x.sum().is_nonzero(), READ, "is_nonzero"),
    "cpu": Hostile(lambda x: x.cpu(), READ, "cpu"),
    "to cpu": Hostile(lambda x: x.to("cpu"), READ, "Tensor.to"),
    "to cpu and dtype": Hostile(lambda x: x.to("cpu", torch.float64), READ, "Tensor.to"),
    "to other": Hostile(lambda x: x.to(torch.zeros(1, device="cpu")), READ, "Tensor.to"),
    "literal to cpu": Hostile(lambda x: torch.tensor(x, device="cpu"), READ, "torch.tensor"),
    "sequence to cpu": Hostile(
        lambda x: torch.as_tensor([x.sum()], device="cpu"), READ, "use torch.stack"
    ),
    "as_tensor to cpu": Hostile(lambda x: torch.as_tensor(x, device="cpu"), READ, "as_tensor"),
    "to meta": Hostile(
        lambda x: x.to("meta"), UNSUPPORTED, "a result .* on the meta device", names_line=False
    ),
    "beside meta": Hostile(
        lambda x: x + torch.ones(3, device="meta"),
        UNSUPPORTED,
        "made in traced code is on the meta device",
    ),
    "copy into cpu": Hostile(lambda x: torch.empty(3, device="cpu").copy_(x), READ, "copy_"),
    "data_ptr": Hostile(lambda x: x.data_ptr(), READ, "data_ptr"),
    "storage": Hostile(lambda x: x.storage(), READ, "storage"),
    "untyped_storage": Hostile(lambda x: x.untyped_storage(), READ, "untyped_storage"),
    "dlpack": Hostile(lambda x: x.__dlpack__(), READ, "__dlpack__"),
    "from_dlpack": Hostile(lambda x: torch.from_dlpack(x), READ, "__dlpack_device__"),
    "to_dlpack": Hostile(lambda x: torch.utils.dlpack.to_dlpack(x), UNSUPPORTED, "DLPack"),
    "pickle": Hostile(lambda x: pickle.dumps(x), READ, "__reduce_ex__"),
    "torch.save": Hostile(lambda x: torch.save(x, io.BytesIO()), READ, "__reduce_ex__"),
    "share_memory": Hostile(lambda x: x.share_memory_(), READ, "share_memory_"),
    "floats": Hostile(_floats, READ, "__float__"),
    "math.sin": Hostile(lambda x: math.sin(x.sum()), READ, "__float__"),
    "math.isnan": Hostile(lambda x: math.isnan(x.sum()), READ, "__float__"),
    "sorted": Hostile(lambda x: sorted([x[0], x[1]]), READ, "__bool__"),
    "max": Hostile(lambda x: max(x[0], x[1]), READ, "__bool__"),
    "any": Hostile(lambda x: any(x), READ, "__bool__"),
    "choices": Hostile(
        lambda x: random.choices("abc", weights=x), PurityError, "random.choices is called"
    ),
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
}


# -- changing arguments or captured tensors, drawing random numbers, other effects ----------------


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


def _backward(x: torch.Tensor) -> torch.Tensor:
    w = x.detach().requires_grad_()
    (w * w).sum().backward()  # bad
    return x


def _sync(x: torch.Tensor) -> torch.Tensor:
    import torch_xla  # pyright: ignore[reportMissingImports]

    torch_xla.sync()  # bad
    return x


PURITY: dict[str, Hostile] = {
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
}


# -- returning no arrays, endless recursion, wrong use of a transform -----------------------------


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
}
