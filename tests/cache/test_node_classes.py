"""Methods of the classes in arguments' trees, and functions there, are part of what is traced."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

RATE = 2.0


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * RATE


class Named(typing.NamedTuple):
    """A tree without being registered."""

    w: torch.Tensor

    def __call__(self) -> torch.Tensor:
        return self.w * RATE


class Derived(Named):
    """The method is that of a base class."""


class Registered:
    def __init__(self, w: torch.Tensor):
        self.w = w

    def __call__(self) -> torch.Tensor:
        return helper(self.w)


xf.tree.register(Registered, lambda x: ((x.w,), None), lambda _, xs: Registered(*xs))


@functools.partial(xf.tree.register_dataclass, meta_fields=("act",))
@dataclasses.dataclass
class Layer:
    """With a function that is part of the structure."""

    w: torch.Tensor
    act: Callable[[torch.Tensor], torch.Tensor] = helper

    def __call__(self) -> torch.Tensor:
        return self.act(self.w)


NODES = [Named, Derived, Registered, Layer]


def called(node: Callable[[], torch.Tensor]) -> torch.Tensor:
    return node()


WAYS: dict[str, Callable[[Any], torch.Tensor]] = {
    "jit": xf.jit(called),
    "in a dict": lambda node: xf.jit(lambda d: d["a"][0]())({"a": [node]}),
    "vmap": lambda node: xf.vmap(called)(xf.tree.map(lambda x: x[None], node))[0],
    "scan": lambda node: xf.scan(lambda c, _: (c, called(c)), node, length=1)[1][0],
    "grad": lambda node: xf.grad(lambda n: called(n).square().sum() / 2)(node).w,
    "nested": lambda node: xf.jit(lambda n: xf.jit(called)(n) + 0)(node),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("cls", NODES)
def test_transforms_global_of_node_class_changed(
    cls: type, way: Callable[[Any], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    power = 2 if way is WAYS["grad"] else 1

    def check(rate: float) -> None:
        monkeypatch.setitem(globals(), "RATE", rate)
        for _ in range(3):  # The third time, what it depends on is being watched.
            found = way(cls(torch.ones(2)))
            assert xf.device_get(found).tolist() == [rate**power] * 2

    check(2.0)
    check(5.0)
    check(2.0)


@pytest.mark.parametrize("cls", NODES)
def test_jit_method_of_node_class_replaced(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    f = xf.jit(lambda node: node())
    owner = Named if cls is Derived else cls
    node, traced = cls(torch.ones(2)), xf.trace_count(f)  # All such lambdas share programs.
    assert f(node).tolist() == [2, 2]
    with monkeypatch.context() as patch:
        patch.setattr(owner, "__call__", lambda self: self.w * 7)
        assert f(node).tolist() == [7, 7]
    assert f(node).tolist() == [2, 2]
    assert xf.trace_count(f) == traced + 2
