"""Changes of what a function holds are seen; those that it makes itself trace nothing again."""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.cache.stale import PREAMBLE, X, module

pytestmark = [pytest.mark.usefixtures("of_the_user"), pytest.mark.quick]


def _scaled(x: Any, k: float = 2.0, ks: Any = ()) -> Any:
    return x * (ks[0] if ks else k)


def test_jit_held_partial_keywords_changed() -> None:
    p: Any = functools.partial(_scaled, k=2.0)
    f = xf.jit(lambda x: p(x))
    for k in (2.0, 2.0, 2.0, 3.0, 3.0, 2.0):
        p.keywords["k"] = k
        assert f(X).tolist() == [k, 2 * k, 3 * k]
    p.__setstate__((_scaled, (), {"ks": [5.0]}, {}))
    assert f(X).tolist() == [5, 10, 15]
    assert f.cache_info().traces == 3


def test_jit_releases_last_captured_tensor() -> None:
    batch = {"x": torch.ones(3)}
    f = xf.jit(lambda x: x + batch["x"])
    for k in range(5):
        batch["x"] = torch.full((3,), float(k))
        assert f(X)[0].item() == k + 1
    last = weakref.ref(batch["x"])
    del batch["x"]
    assert last() is None


@pytest.mark.parametrize(
    "value", ["iter([1, 2])", "(k for k in range(3))", "map(abs, [1])", "zip([1])", "[iter([1])]"]
)
def test_jit_captured_iterator_is_refused(value: str) -> None:
    held = eval(value)
    message = r"<lambda> holds .*in 'held', which gives different values each time(.|\n)*Hint"
    with pytest.raises(TypeError, match=message):
        xf.jit(lambda x: x * len([held]))(X)


def test_jit_captured_object_with_unused_iterator() -> None:
    owner = types.SimpleNamespace(rate=2.0, batches=iter([1, 2]))
    assert xf.jit(lambda x: x * owner.rate)(X).tolist() == [2, 4, 6]
    assert next(owner.batches) == 1


ITERATORS = """
import itertools
numbers = itertools.count()
rates = iter([1, 2])

class Named:
    made = itertools.count()
    def __init__(self):
        self.number = next(numbers)

def method(values):
    class Reads:
        def __next__(self):
            return next(values)
    return Reads
Reads = method(iter([1, 2]))

def uses(x, named=True):
    return x * 2 if named and Named() and Reads() else x

def reads(x):
    return x * next(rates)
"""


def test_jit_global_counters_and_iterators_of_classes() -> None:
    code = module(ITERATORS)
    uses = xf.jit(code.uses)
    assert uses(X).tolist() == uses(X).tolist() == [2, 4, 6]
    assert uses.cache_info().traces == 1
    assert next(code.numbers) == 1
    with pytest.raises(TypeError, match="in the global 'rates', which gives different values"):
        xf.jit(code.reads)(X)
    assert next(code.rates) == 1


def test_jit_captured_list_nested_too_deep_is_refused() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match=r"nested too deep(.|\n)*Hint"):
        xf.jit(lambda x: x * len(deep))(X)


COUNTERS = """
class Counter:
    total = 0
    seen = []

def f(x):
    Counter.total += 1
    Counter.seen.append(1)
    return x * 2
"""


def test_jit_class_attributes_mutated_by_function() -> None:
    m = module(COUNTERS)
    f = xf.jit(m.f)
    for _ in range(2):
        for n in (1, 2, 3, 1):
            f(X[:n])
    first = m.Counter.total
    for n in (1, 2, 3, 1):
        f(X[:n])
    assert m.Counter.total == first <= 6


def test_jit_loop_rebinding_globals_traces_once() -> None:
    m = module(f"{PREAMBLE}\nk = 2.0\ndef f(p): return p * k\nstep = xf.jit(f)")
    exec("p = torch.ones(3)\nfor i in range(5):\n    p = step(p)\n    loss = i", vars(m))
    assert m.p.tolist() == [32.0] * 3
    assert m.step.cache_info()[:3] == (4, 1, 1)


def test_jit_torch_modes_have_separate_programs() -> None:
    f = xf.jit(lambda x: x * (3 if torch.is_autocast_enabled("cpu") else 2))
    assert f(X).tolist() == [2, 4, 6]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert f(X).tolist() == [3, 6, 9]
    g = xf.jit(lambda x: x * (3 if torch.are_deterministic_algorithms_enabled() else 2))
    assert g(X).tolist() == [2, 4, 6]
    torch.use_deterministic_algorithms(True)
    try:
        assert g(X).tolist() == [3, 6, 9]
    finally:
        torch.use_deterministic_algorithms(False)
    assert f(X).tolist() == g(X).tolist() == [2, 4, 6]
    assert (f.cache_info().traces, g.cache_info().traces) == (2, 2)
