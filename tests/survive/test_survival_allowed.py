"""Functions and arguments that look hostile and are allowed, and arguments that are not."""

# Misuse is the subject here.
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportUnusedExpression=false, reportGeneralTypeIssues=false
from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from tests.support.functions import vector
from xfunc.errors import UnsupportedOpError

pytestmark = pytest.mark.usefixtures("alive_afterwards")


HERE = "test_survival_allowed.py"


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


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("name", ALLOWED)
def test_jit_allowed_function(name: str, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_jit_argument_of_unusual_shape_or_kind() -> None:
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
def test_jit_argument_of_unsupported_layout_is_refused(make: Callable[[], Any], says: str) -> None:
    x = make()
    with pytest.raises(UnsupportedOpError, match=rf"\bx\b.*({says})"):
        xf.jit(lambda x: x)(x)  # bad
    with pytest.raises(UnsupportedOpError, match=says):
        xf.jit(lambda y: (y, x)[0] + x)(vector())  # bad


@pytest.mark.parametrize("value", ["text", object(), {1}, np.array(["a"]), b"x", len, 2**70])
def test_jit_argument_that_is_no_tensor_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, OverflowError), match=rf"\bx\b(.|\n)*{HERE}(.|\n)*Hint"):
        xf.jit(lambda x: x)(value)


def test_jit_argument_of_tensor_subclass() -> None:
    x = vector().as_subclass(_Subclass)
    assert xf.jit(lambda x: x * 2)(x).tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("value", [3, "text", None, torch.zeros(3)])
@pytest.mark.parametrize("transform", [xf.jit, xf.grad, xf.vmap, xf.checkpoint])
def test_transform_of_non_callable_raises(transform: Any, value: Any) -> None:
    if value is None and transform is xf.jit:
        return  # A decorator with arguments.
    with pytest.raises(TypeError, match="not callable"):
        transform(value)


def test_grad_and_vmap_wrong_arguments_raise() -> None:
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
