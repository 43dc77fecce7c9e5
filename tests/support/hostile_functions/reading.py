"""Functions that read traced values, or whose shapes depend on them."""

# Misuse is the subject here.
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportUnusedExpression=false, reportGeneralTypeIssues=false
from __future__ import annotations

import io
import math
import operator
import pickle
import random
from typing import Any

import numpy as np
import torch

import xfunc as xf
from tests.support.hostile_functions.case import GRAD, READ, UNSUPPORTED, VMAP, Hostile, no_line


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
    "equal": Hostile(lambda x: torch.equal(x, x), READ, "equal"),
    "allclose": Hostile(lambda x: torch.allclose(x, x), READ, "allclose"),
    "assert_close": no_line(  # torch wraps the error in one of its own.
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
    "to_dlpack": no_line(
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
}
