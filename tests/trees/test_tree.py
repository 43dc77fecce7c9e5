"""Trees: dataclasses as nodes, as JAX registers them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick


@xf.tree.register_dataclass
@dataclasses.dataclass
class Layer:
    w: torch.Tensor
    act: str = dataclasses.field(metadata={"static": True}, default="tanh")
    power: int = dataclasses.field(metadata={"static": True}, default=2)
    scale: float = dataclasses.field(metadata={"static": False}, default=1.0)


def test_register_dataclass_static_metadata() -> None:
    def f(layer: Layer, x: torch.Tensor) -> torch.Tensor:
        return getattr(torch, layer.act)(x @ layer.w) ** layer.power * layer.scale

    jitted, x, w = xf.jit(f), torch.rand(3), torch.rand(3, 2)
    for layer in (Layer(w), Layer(w, "sin"), Layer(w, "sin", 3), Layer(w, "sin", 3, 2.0)):
        torch.testing.assert_close(xf.device_get(jitted(layer, x)), f(layer, x))
    assert xf.trace_count(jitted) == 3  # A float is data.
    assert len(xf.tree.leaves(Layer(w))) == 2
    grads = xf.grad(lambda layer: f(layer, x).sum())(Layer(w, "cos"))
    assert (grads.act, grads.power) == ("cos", 2)


def test_register_dataclass_data_fields_override_metadata() -> None:
    @dataclasses.dataclass
    class Pair:
        a: object
        b: object = dataclasses.field(metadata={"static": True})

    xf.tree.register_dataclass(Pair, data_fields=("a", "b"))
    assert xf.tree.leaves(Pair(1, 2)) == [1, 2]


def test_partition_and_combine():
    tree = {"a": [1, "x", None], "b": (2.5, {"c": "y"})}
    numbers, rest = xf.tree.partition(tree, lambda x: not isinstance(x, str))
    assert numbers == {"a": [1, None, None], "b": (2.5, {"c": None})}
    assert rest == {"a": [None, "x", None], "b": (None, {"c": "y"})}
    assert xf.tree.combine(numbers, rest) == xf.tree.combine(rest, numbers) == tree
    lists = xf.tree.partition([[1], [2, 3]], lambda x: len(x) == 1, lambda x: x != [[1], [2, 3]])
    assert lists == ([[1], None], [None, [2, 3]])
    assert xf.tree.combine((None, 1), (None, 2)) == (None, 1)


def test_combine_of_trees_that_differ():
    with pytest.raises(xf.errors.TreeMismatchError, match="tree 2 differs from the first tree"):
        xf.tree.combine({"a": 1}, {"b": None})
