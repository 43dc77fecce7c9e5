"""Trees: dataclasses as nodes, as JAX registers them."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import optree
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


class Reduction(enum.Enum):
    SUM = "sum"
    MEAN = "mean"


@xf.tree.register_dataclass
@dataclasses.dataclass
class Loss:
    """A class with a text and an enum, which are static fields."""

    w: torch.Tensor
    norm: str = dataclasses.field(metadata={"static": True}, default="abs")
    reduction: Reduction = dataclasses.field(metadata={"static": True}, default=Reduction.SUM)

    def __call__(self) -> torch.Tensor:
        return getattr(getattr(torch, self.norm)(self.w), self.reduction.value)()


def test_static_fields_in_every_transform() -> None:
    loss, mean = Loss(torch.tensor([3.0, -4.0])), Reduction.MEAN
    program: Any = xf.jit(lambda loss: loss())
    assert (program(loss), program(Loss(loss.w, "square", mean))) == (7.0, 12.5)
    assert xf.grad(Loss.__call__)(loss).w.tolist() == [1.0, -1.0]
    assert xf.vmap(Loss.__call__)(loss).tolist() == [3.0, 4.0]
    halved, sums = xf.scan(lambda c, _: (Loss(c.w / 2), c()), loss, length=2)
    assert (halved.norm, sums.tolist()) == ("abs", [7.0, 3.5])
    chosen = xf.cond(torch.tensor(False), lambda c: c, lambda c: Loss(-c.w), loss)
    assert chosen.w.tolist() == [-3.0, 4.0]
    with pytest.raises(xf.errors.TreeMismatchError, match="MEAN"):
        xf.scan(lambda c, _: (Loss(c.w, "abs", mean), None), loss, length=2)


CONFIG = {"w": torch.ones(2), "kind": "sin"}
WITH_TEXT: dict[str, tuple[Any, str]] = {
    "jit": (lambda: xf.jit(lambda c: c["w"])(CONFIG), r"as c\['kind'\]"),
    "grad": (lambda: xf.grad(lambda c: c["w"].sum())(CONFIG), r"c\['kind'\], which is 'sin'"),
    "vmap": (lambda: xf.vmap(lambda c: c["w"])(CONFIG), r"at c\['kind'\]"),
    "scan": (lambda: xf.scan(lambda c, _: (c, None), CONFIG, length=2), r"at init\['kind'\]"),
    "cond": (
        lambda: xf.cond(torch.tensor(True), lambda c: c, lambda c: c, CONFIG),
        r"at operands\[0\]\['kind'\]",
    ),
    "device_put": (lambda: xf.device_put(CONFIG), r"as x\['kind'\]"),
}


@pytest.mark.parametrize("name", WITH_TEXT)
def test_text_in_a_tree_is_an_error_that_says_where_it_goes(name: str) -> None:
    call, place = WITH_TEXT[name]
    hint = r"Hint: .*close over anything else \(xf.tree.partition.*meta_fields"
    with pytest.raises(TypeError, match=rf"{place}(.|\n)*{hint}"):
        call()
    arrays, rest = xf.tree.partition(CONFIG, torch.is_tensor)
    fun: Any = xf.jit(lambda arrays: getattr(torch, rest["kind"])(arrays["w"]))
    torch.testing.assert_close(fun(arrays).cpu(), torch.ones(2).sin())


class Point:
    def __init__(self, x: object, y: object):
        self.x, self.y = x, y


def test_register_with_names_shows_attributes_in_paths() -> None:
    xf.tree.register(
        Point, lambda p: ((p.x, p.y), None), lambda _, xy: Point(*xy), names=("x", "y")
    )
    tree = {"a": [Point(1, (2, 3))]}
    paths = ["['a'][0].x", "['a'][0].y[0]", "['a'][0].y[1]"]
    assert xf.tree.leaves_with_path(tree) == list(zip(paths, (1, 2, 3), strict=True))
    doubled: Any = xf.jit(lambda p: xf.tree.map(lambda x: 2 * x, p))(Point(1, 2))
    assert (doubled.x, doubled.y) == (2, 4)
    with pytest.raises(TypeError, match=r"as p\.y"):
        xf.jit(lambda p: p.x)(Point(1, "text"))


def test_partial_of_optree_is_a_tree() -> None:
    """Its arguments are traced, and its function counts as part of the structure."""
    of_two = optree.functools.partial(torch.mul, torch.tensor([2.0, 3.0]))
    fun: Any = xf.jit(lambda f, x: f(x))
    assert fun(of_two, 2.0).tolist() == [4.0, 6.0]
    assert fun(optree.functools.partial(torch.mul, torch.ones(2)), 2.0).tolist() == [2.0, 2.0]
    assert xf.trace_count(fun) == 1
    assert fun(optree.functools.partial(torch.add, torch.ones(2)), 2.0).tolist() == [3.0, 3.0]
    assert xf.trace_count(fun) == 2
    slope: Any = xf.grad(lambda f: f(torch.tensor(5.0)).sum())(of_two)
    assert slope.args[0].tolist() == [5.0, 5.0]


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
