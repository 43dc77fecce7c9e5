"""A program is not used after a change of what its function holds or is called with."""

# Misuse is the subject here.
# pyright: reportFunctionMemberAccess=false, reportReturnType=false
from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.functions import Model, double, power, vector

pytestmark = pytest.mark.usefixtures("cleared")


@dataclasses.dataclass
class Options:
    rate: float
    names: list[str]


def _with_number(k: Any) -> Callable[..., Any]:
    return lambda x: x * k


def _with_tree(p: Any) -> Callable[..., Any]:
    return lambda x: sum(xf.tree.leaves(p)) + x * len(xf.tree.leaves(p))


def _with_options(o: Options) -> Callable[..., Any]:
    return lambda x: x * o.rate + len(o.names)


def _with_inner(k: int) -> Callable[..., Any]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * k

    return lambda x: inner(x) + 1


def _with_inner_of_inner(k: int) -> Callable[..., Any]:
    return (lambda g: lambda x: g(x) + 1)(functools.partial(_with_inner(k)))


def _with_default(k: int) -> Callable[..., Any]:
    return lambda x, k=k: x * k


def _with_keyword_default(k: int) -> Callable[..., Any]:
    def fun(x: torch.Tensor, *, k: int = k) -> torch.Tensor:
        return x * k

    return fun


def _with_attribute(k: int) -> Callable[..., Any]:
    m = Model()
    m.power = k
    return m.apply


def _with_function_attribute(k: int) -> Callable[..., Any]:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return x * fun.k

    fun.k = k
    return fun


def _with_subclass(k: int) -> Callable[..., Any]:
    class Local(Model):
        scale = float(k)

        def apply(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    return Local().apply


def _with_two(pair: tuple[torch.Tensor, torch.Tensor]) -> Callable[..., Any]:
    a, b = pair
    return lambda x: x * a + x.sin() * b


_one, _two = vector(1, 2, 3), vector(4, 5, 6)

# A maker, and values that it gives different functions for. All are called with the same argument.
HELD: dict[str, tuple[Callable[[Any], Callable[..., Any]], list[Any]]] = {
    "number": (_with_number, [2, 3, 2]),
    "type of number": (_with_number, [2, 2.0, True, 1, 1.0, 0.0, -0.0]),
    "dtype of tensor": (_with_number, [_one, _one.double(), _one.int()]),
    "shape of tensor": (_with_number, [_one, _one[:1], _one[0], _one.expand(2, 3)]),
    "value of tensor": (_with_number, [_one, _two, _one + 1]),
    "tensor or number": (_with_number, [torch.tensor(2.0), 2.0, 2]),
    "tree": (_with_tree, [[1, 2], [1, 2, 3], {"a": 1, "b": 2}, [1, 5], [_one, 2], [2, _one]]),
    "order of a dict": (
        lambda d: lambda x: x * next(iter(d.values())),
        [{"a": 2.0, "b": 3.0}, {"b": 3.0, "a": 2.0}],
    ),
    "dataclass": (_with_options, [Options(1.0, []), Options(2.0, []), Options(2.0, ["a"])]),
    "nested function": (_with_inner, [1, 2, 3]),
    "partial of a nested function": (_with_inner_of_inner, [1, 2, 3]),
    "default": (_with_default, [1, 2, 3]),
    "keyword default": (_with_keyword_default, [1, 2, 3]),
    "attribute of self": (_with_attribute, [1, 2, 3]),
    "attribute of the function": (_with_function_attribute, [1, 2, 3]),
    "attribute of the class": (_with_subclass, [1, 2, 3]),
    "partial": (lambda n: functools.partial(power, n=n), [1, 2, 3]),
    "partial of jit": (lambda n: functools.partial(torch.mul, n), [1, 2, 3]),
    "aliases": (_with_two, [(_one, _one), (_one, _two), (_two, _one), (_two, _two)]),
    "string": (lambda s: lambda x: getattr(torch, s)(x), ["sin", "cos", "sin"]),
    "function": (lambda f: lambda x: f(x), [torch.sin, torch.cos, double, Model()]),
    "dtype": (lambda d: lambda x: x.to(d), [torch.float64, torch.bfloat16]),
    "set": (lambda s: lambda x: x * sum(s), [{1, 2}, {1, 3}]),
    "array": (lambda a: lambda x: x * float(a.sum()), [_one.numpy(), _two.numpy()]),
    "None": (lambda n: lambda x: x if n is None else x * n, [None, 2]),
    "bytes": (lambda b: lambda x: x * b[0], [b"a", b"b"]),
}
OUTER: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "jit": xf.jit,
    "vmap": lambda f: xf.vmap(f, in_axes=None, axis_size=2),
    "jit of jit": lambda f: xf.jit(lambda x: xf.jit(f)(x)),
    "jit of vjp": lambda f: xf.jit(lambda x: xf.vjp(f, x)[0]),
    "jit of scan": lambda f: xf.jit(lambda x: xf.scan(lambda c, _: (c, f(x)), x, length=1)[1]),
}


@pytest.mark.sample(9, seed=0)
@pytest.mark.quick(4, seed=0)
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("name", HELD)
def test_jit_closure_value_changed(name: str, outer: str) -> None:
    make, values = HELD[name]
    for value in [*values, *values]:
        got = xf.device_get(OUTER[outer](make(value))(_one))
        want = make(value)(_one)
        if outer == "vmap":
            want = torch.stack([want, want])
        if outer == "jit of scan":
            want = want[None]
        torch.testing.assert_close(got, want)
        assert got.dtype == want.dtype


def test_jit_closure_contents_mutated() -> None:
    numbers, table, options = [1.0, 2.0], {"k": 2}, Options(1.0, [])
    model, count, seen = Model(), 1, {1}

    @xf.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        total = sum(numbers) + table["k"] + options.rate + len(options.names) + count + len(seen)
        return x * total + model.apply(x)

    def check() -> None:
        total = sum(numbers) + table["k"] + options.rate + len(options.names) + count + len(seen)
        want = vector() * total + model.apply(vector())
        for _ in range(2):
            torch.testing.assert_close(xf.device_get(f(vector())), want)

    check()
    numbers.append(3.0)
    check()
    numbers[0] = 7.0
    check()
    table["k"] = 5
    check()
    options.rate = 4.0
    check()
    options.names.append("a")
    check()
    count += 1
    check()
    seen.add(9)
    check()
    model.power = 3
    check()
    model.weight = vector(7, 8, 9)
    check()
    model.weight = vector(7, 8, 9).double()
    check()
    model.weight.mul_(2)
    check()


def test_jit_arguments_of_other_kinds_trace_again() -> None:
    f = xf.jit(lambda t: xf.tree.reduce(torch.add, xf.tree.map(lambda x: x * 2, t)))
    cases: list[Any] = [
        vector(), [vector()], (vector(),), {"a": vector()}, {"b": vector()}, vector().double(),
        vector(1, 2), [vector(), None], [None, vector()], 2.0, 2, True, [vector(), vector()],
    ]  # fmt: skip
    for n, case in enumerate(cases, 1):
        leaves = [
            x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in xf.tree.leaves(case)
        ]
        for _ in range(2):
            torch.testing.assert_close(
                xf.device_get(f(case)), functools.reduce(torch.add, [x * 2 for x in leaves])
            )
        assert xf.trace_count(f) == n


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def test_jit_default_dtype_or_autocast_changed() -> None:
    f = xf.jit(lambda x: x.long() + torch.zeros(3) + 0.5)
    assert f(vector()).dtype == torch.float32
    with _default_dtype(torch.float64):
        assert f(vector()).dtype == torch.float64
        assert "global mode" in f.explain()
    assert f(vector()).dtype == torch.float32
    g = xf.jit(lambda a, b: a @ b)
    a = torch.ones(2, 2)
    assert g(a, a).dtype == torch.float32
    with torch.autocast("xla", dtype=torch.bfloat16):
        assert g(a, a).dtype == torch.bfloat16
    assert g(a, a).dtype == torch.float32


def test_jit_grad_mode_or_requires_grad_changed() -> None:
    f = xf.jit(lambda x, w: (x * w).sum())
    for _ in range(2):
        for rx in (False, True):
            for rw in (False, True):
                for on in (False, True):
                    x = xf.device_put(vector()).requires_grad_(rx)
                    w = xf.device_put(vector(4, 5, 6)).requires_grad_(rw)
                    with torch.set_grad_enabled(on):
                        y = f(x, w)
                    assert y.item() == 32
                    assert y.requires_grad == (on and (rx or rw))
                    if y.requires_grad:
                        y.backward()
                        assert (x.grad.tolist() if rx else None) == ([4, 5, 6] if rx else None)
                        assert (w.grad.tolist() if rw else None) == ([1, 2, 3] if rw else None)
