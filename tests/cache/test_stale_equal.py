"""Values that compare or hash as equal and are not the same make programs of their own."""

from __future__ import annotations

import types

import pytest
import torch

import xfunc as xf
from tests.cache.stale import PREAMBLE, WAYS, X, module

pytestmark = pytest.mark.usefixtures("of_the_user")


EQUAL: dict[str, tuple[str, str, str]] = {
    # Two expressions whose values compare equal, and what is computed with the value `v`.
    "signed zero of numpy": ("np.float32(0.0)", "np.float32(-0.0)", "x / float(v)"),
    "float64 of numpy": ("np.float64(2.0)", "2.0", "x * (3 if type(v) is float else 2)"),
    "order of a set": ("{0, 8}", "{8, 0}", "x * (1 + list(v)[0])"),
    "empty ranges": ("range(0)", "range(5, 5)", "x * (v.stop + 1)"),
    "ranges with another stop": ("range(0, 3, 2)", "range(0, 4, 2)", "x * v.stop"),
    "fold of a datetime": (
        "datetime.datetime(2020, 1, 1, fold=0)",
        "datetime.datetime(2020, 1, 1, fold=1)",
        "x * (v.fold + 2)",
    ),
    "decimals": ("decimal.Decimal('1.0')", "decimal.Decimal('1.00')", "x * len(str(v))"),
    "equality that ignores": ("Ignores(2.0)", "Ignores(3.0)", "x * v.k"),
    "hash that ignores": ("Hashes(2.0)", "Hashes(3.0)", "x * v.k"),
    "attribute of a str": ("sub(str, 'a', 2.0)", "sub(str, 'a', 3.0)", "x * v.k"),
    "attribute of a float": ("sub(float, 1.0, 2.0)", "sub(float, 1.0, 3.0)", "x * v.k"),
    "attribute of a list": ("sub(list, [1], 2.0)", "sub(list, [1], 3.0)", "x * v.k"),
    "attribute of a set": ("sub(set, [1], 2.0)", "sub(set, [1], 3.0)", "x * v.k"),
    "attribute of a tuple": ("sub(tuple, [1], 2.0)", "sub(tuple, [1], 3.0)", "x * v.k"),
    "attribute of a dict": ("sub(dict, {}, 2.0)", "sub(dict, {}, 3.0)", "x * v.k"),
    "attribute of an array": ("array(2.0)", "array(3.0)", "x * v.k"),
    "attribute of a tensor": ("tensor(2.0)", "tensor(3.0)", "x * v.k"),
    "tensor or parameter": (
        "torch.ones(3)",
        "torch.nn.Parameter(torch.ones(3), requires_grad=False)",
        "x * (2 if isinstance(v, torch.nn.Parameter) else 3)",
    ),
    "true and one": ("True", "1", "x * len(str(v))"),
    "bytes and bytearray": ("b'a'", "bytearray(b'a')", "x * len(type(v).__name__)"),
    "proxies of dicts": (
        "types.MappingProxyType({'k': 2.0})",
        "types.MappingProxyType({'k': 3.0})",
        "x * v['k']",
    ),
    "arrays of objects": (
        "np.array([2.0, None], object)", "np.array([3.0, None], object)", "x * v[0]"
    ),
    "factories": (
        "collections.defaultdict(lambda: 2.0)",
        "collections.defaultdict(lambda: 3.0)",
        "x * v.copy()[0]",
    ),
    "weak references": ("ref(2.0)", "ref(3.0)", "x * v().k"),
    "slices": ("slice(0, 1)", "slice(0, 2)", "x * x[v].sum()"),
    "complex zeros": ("complex(0, 0.0)", "complex(0, -0.0)", "x * (2 + math.copysign(1, v.imag))"),
    "sets": ("{1, 2}", "{1, 2, 3}", "x * len(v)"),
}  # fmt: skip

EQUAL_PREAMBLE = (
    PREAMBLE
    + """
import datetime, decimal, math

class Ignores:
    def __init__(self, k): self.k = k
    def __eq__(self, other): return True
    def __hash__(self): return 1

class Hashes:
    __slots__ = ("k",)
    def __init__(self, k): self.k = k
    def __eq__(self, other): return type(other) is Hashes
    def __hash__(self): return 1

class Holds:
    def __init__(self, k): self.k = k

kept = []
classes = {}

def sub(base, value, k):
    cls = classes.setdefault(base, type(base.__name__, (base,), {}))
    found = cls(value)
    found.k = k
    return found

def array(k):
    cls = classes.setdefault(np.ndarray, type("array", (np.ndarray,), {}))
    found = np.ones(3).view(cls)
    found.k = k
    return found

def tensor(k):
    found = torch.ones(3)
    found.k = k
    return found

def ref(k):
    kept.append(Holds(k))
    return weakref.ref(kept[-1])
"""
)


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EQUAL)
def test_transforms_closure_values_that_compare_equal(name: str, way: str) -> None:
    a, b, compute = EQUAL[name]
    m = module(f"{EQUAL_PREAMBLE}\ndef make(v):\n    def f(x): return {compute}\n    return f")
    values = [eval(a, vars(m)), eval(b, vars(m))]
    wants = []
    for v in (*values, *values):
        m.f = m.make(v)
        want = m.f(X)
        torch.testing.assert_close(xf.device_get(WAYS[way](m)(X)), want, rtol=1e-5, atol=1e-6)
        wants.append(want)
    assert not torch.equal(wants[0], wants[1]), "the values compute the same"
    m.g = types.SimpleNamespace(v=values[0])
    exec(f"def f(x):\n    v = g.v\n    return {compute}", vars(m))
    for v in (*values, *values):
        m.g.v = v
        want = m.f(X)
        torch.testing.assert_close(xf.device_get(WAYS[way](m)(X)), want, rtol=1e-5, atol=1e-6)


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", EQUAL)
def test_jit_watched_values_that_compare_equal(name: str) -> None:
    a, b, compute = EQUAL[name]
    source = f"def hold(g):\n    def f(x):\n        v = g.v\n        return {compute}\n    return f"
    m = module(f"{EQUAL_PREAMBLE}\n{source}")
    g = types.SimpleNamespace(v=None)
    f = m.hold(g)
    jitted = xf.jit(f)
    for v in [eval(a, vars(m)), eval(b, vars(m))] * 2:
        g.v = v
        for _ in range(3):
            torch.testing.assert_close(xf.device_get(jitted(X)), f(X), rtol=1e-5, atol=1e-6)
