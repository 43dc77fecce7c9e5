"""Ways in which a function's meaning changes between two calls, as a table.

Each case is Python source: what is defined (with a function ``f`` of one tensor), a change, and
what takes the change back. `EQUAL` has values that compare or hash as equal and are not the same.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """Source of a module, of a change to it, and of what takes it back."""

    define: str
    change: str
    back: str


PREAMBLE = """
import collections, contextvars, dataclasses, enum, functools, os, threading, types, weakref
import numpy as np
import torch
import xfunc as xf
"""


def _case(define: str, change: str, back: str) -> Case:
    return Case(PREAMBLE + define, change, back)


CASES: dict[str, Case] = {
    # -- what is reached through the globals that a function names
    "number": _case("k = 2.0\ndef f(x): return x * k", "k = 3.0", "k = 2.0"),
    "method of a class": _case(
        "class M:\n def go(self, x): return x * 2\nm = M()\ndef f(x): return m.go(x)",
        "old = M.go; M.go = lambda self, x: x * 3",
        "M.go = old",
    ),
    "class attribute": _case(
        "class M:\n k = 2.0\nm = M()\ndef f(x): return x * m.k", "M.k = 3.0", "M.k = 2.0"
    ),
    "class attribute by its class": _case(
        "class M:\n k = 2.0\ndef f(x): return x * M.k", "M.k = 3.0", "M.k = 2.0"
    ),
    "class attribute of a base": _case(
        "class B:\n k = 2.0\nclass M(B): pass\nm = M()\ndef f(x): return x * m.k",
        "B.k = 3.0",
        "B.k = 2.0",
    ),
    "list in a class": _case(
        "class M:\n ks = [2.0]\nm = M()\ndef f(x): return x * m.ks[0]",
        "M.ks[0] = 3.0",
        "M.ks[0] = 2.0",
    ),
    "property": _case(
        "class M:\n @property\n def k(self): return 2.0\nm = M()\ndef f(x): return x * m.k",
        "old = M.k; M.k = property(lambda self: 3.0)",
        "M.k = old",
    ),
    "classmethod": _case(
        "class M:\n @classmethod\n def go(cls, x): return x * 2\ndef f(x): return M.go(x)",
        "old = M.__dict__['go']; M.go = classmethod(lambda cls, x: x * 3)",
        "M.go = old",
    ),
    "staticmethod": _case(
        "class M:\n @staticmethod\n def go(x): return x * 2\ndef f(x): return M.go(x)",
        "old = M.__dict__['go']; M.go = staticmethod(lambda x: x * 3)",
        "M.go = old",
    ),
    "metaclass": _case(
        "class T(type):\n k = 2.0\nclass M(metaclass=T): pass\ndef f(x): return x * M.k",
        "T.k = 3.0",
        "T.k = 2.0",
    ),
    "operator of a class": _case(
        "class M:\n def __mul__(self, x): return x * 2\nm = M()\ndef f(x): return m * x",
        "old = M.__mul__; M.__mul__ = lambda self, x: x * 3",
        "M.__mul__ = old",
    ),
    "global named by a method": _case(
        "k = 2.0\nclass M:\n def go(self, x): return x * k\nm = M()\ndef f(x): return m.go(x)",
        "k = 3.0",
        "k = 2.0",
    ),
    "class of an object": _case(
        "class A:\n k = 2.0\nclass B:\n k = 3.0\nm = A()\ndef f(x): return x * m.k",
        "m.__class__ = B",
        "m.__class__ = A",
    ),
    "dict of an object": _case(
        "class M: pass\nm = M(); m.k = 2.0\ndef f(x): return x * m.k",
        "m.__dict__ = {'k': 3.0}",
        "m.__dict__ = {'k': 2.0}",
    ),
    "forward of a module": _case(
        "class N(torch.nn.Module):\n def forward(self, x): return x * 2\nn = N()\n"
        "def f(x): return n(x)",
        "old = N.forward; N.forward = lambda self, x: x * 3",
        "N.forward = old",
    ),
    "forward of one instance": _case(
        "class N(torch.nn.Module):\n def forward(self, x): return x * 2\nn = N()\n"
        "def f(x): return n(x)",
        "n.forward = lambda x: x * 3",
        "del n.forward",
    ),
    "mode of a module": _case(
        "class N(torch.nn.Module):\n"
        " def forward(self, x): return x * (2 if self.training else 3)\n"
        "n = N()\ndef f(x): return n(x)",
        "n.eval()",
        "n.train()",
    ),
    "mode of a module inside a module": _case(
        "class N(torch.nn.Module):\n"
        " def forward(self, x): return x * (2 if self.training else 3)\n"
        "n = torch.nn.Sequential(N())\ndef f(x): return n(x)",
        "n[0].eval()",
        "n[0].train()",
    ),
    "hook of a module": _case(
        "n = torch.nn.Identity()\ndef f(x): return n(x)",
        "h = n.register_forward_hook(lambda m, a, out: out * 3)",
        "h.remove()",
    ),
    "attribute of a module of torch's": _case(
        "n = torch.nn.LeakyReLU(0.5)\ndef f(x): return n(-x)",
        "n.negative_slope = 0.25",
        "n.negative_slope = 0.5",
    ),
    "forward of a class of torch's": _case(
        "n = torch.nn.Tanhshrink()\ndef f(x): return n(x)",
        "old = torch.nn.Tanhshrink.forward; torch.nn.Tanhshrink.forward = lambda self, x: x * 3",
        "torch.nn.Tanhshrink.forward = old",
    ),
    "bound method": _case(
        "class M:\n def __init__(self): self.k = 2.0\n def go(self, x): return x * self.k\n"
        "m = M(); go = m.go\ndef f(x): return go(x)",
        "m.k = 3.0",
        "m.k = 2.0",
    ),
    "bound method of a builtin": _case(
        "d = {'k': 2.0}; get = d.get\ndef f(x): return x * get('k')", "d['k'] = 3.0", "d['k'] = 2.0"
    ),
    "partial": _case(
        "def g(k, x): return x * k\np = functools.partial(g, 2.0)\ndef f(x): return p(x)",
        "p = functools.partial(g, 3.0)",
        "p = functools.partial(g, 2.0)",
    ),
    "list in a partial": _case(
        "def g(k, x): return x * k[0]\np = functools.partial(g, [2.0])\ndef f(x): return p(x)",
        "p.args[0][0] = 3.0",
        "p.args[0][0] = 2.0",
    ),
    "function in a list": _case(
        "fs = [lambda x: x * 2]\ndef f(x): return fs[0](x)",
        "old = fs[0]; fs[0] = lambda x: x * 3",
        "fs[0] = old",
    ),
    "function in a dict": _case(
        "k = 2.0\nfs = {'g': lambda x: x * k}\ndef f(x): return fs['g'](x)", "k = 3.0", "k = 2.0"
    ),
    "closure of a function in a dict": _case(
        "def make():\n k = 2.0\n def g(x): return x * k\n def put(v):\n  nonlocal k; k = v\n"
        " return g, put\ng, put = make()\nfs = {'g': g}\ndef f(x): return fs['g'](x)",
        "put(3.0)",
        "put(2.0)",
    ),
    "list in a default": _case(
        "def g(x, ks=[2.0]): return x * ks[0]\ndef f(x): return g(x)",
        "g.__defaults__[0][0] = 3.0",
        "g.__defaults__[0][0] = 2.0",
    ),
    "object made inside": _case(
        "class M:\n def __init__(self): self.k = 2.0\ndef f(x): return x * M().k",
        "old = M.__init__\ndef new(self): self.k = 3.0\nM.__init__ = new",
        "M.__init__ = old",
    ),
    "global named by a class made inside": _case(
        "k = 2.0\nclass M:\n def __init__(self): self.k = k\ndef f(x): return x * M().k",
        "k = 3.0",
        "k = 2.0",
    ),
    "attribute of a Python module": _case(
        "s = types.ModuleType('s'); s.k = 2.0\ndef f(x): return x * s.k", "s.k = 3.0", "s.k = 2.0"
    ),
    "attribute of a module of a package": _case(
        "p = types.ModuleType('p'); p.s = types.ModuleType('p.s'); p.s.k = 2.0\n"
        "def f(x): return x * p.s.k",
        "p.s.k = 3.0",
        "p.s.k = 2.0",
    ),
    "function of a Python module": _case(
        "s = types.ModuleType('s'); exec('k = 2.0\\ndef g(x): return x * k', vars(s))\n"
        "def f(x): return s.g(x)",
        "s.k = 3.0",
        "s.k = 2.0",
    ),
    "attribute of a module by another name": _case(
        "s = types.ModuleType('s'); s.k = 2.0\ndef f(x):\n here = s\n return x * here.k",
        "s.k = 3.0",
        "s.k = 2.0",
    ),
    "attribute of a module by a pattern": _case(
        "s = types.ModuleType('s'); s.k = 2.0\ndef f(x):\n"
        " match s:\n  case types.ModuleType(k=k): return x * k",
        "s.k = 3.0",
        "s.k = 2.0",
    ),
    "attribute of a module by getattr": _case(
        "s = types.ModuleType('s'); s.k = 2.0\ndef f(x): return x * getattr(s, 'k')",
        "s.k = 3.0",
        "s.k = 2.0",
    ),
    "attribute that a module does not have": _case(
        "s = types.ModuleType('s')\ndef f(x): return x * (s.k if hasattr(s, 'k') else 2.0)",
        "s.k = 3.0",
        "del s.k",
    ),
    "dataclass with slots": _case(
        "@dataclasses.dataclass(slots=True)\nclass M:\n k: float\nm = M(2.0)\n"
        "def f(x): return x * m.k",
        "m.k = 3.0",
        "m.k = 2.0",
    ),
    "object with slots, one unset": _case(
        "class M:\n __slots__ = ('k', 'n')\nm = M(); m.k = 2.0\n"
        "def f(x): return x * getattr(m, 'n', m.k)",
        "m.n = 3.0",
        "del m.n",
    ),
    "attribute of a callable object": _case(
        "class M:\n def __init__(self): self.k = 2.0\n def __call__(self, x): return x * self.k\n"
        "m = M()\ndef f(x): return m(x)",
        "m.k = 3.0",
        "m.k = 2.0",
    ),
    "callable attribute": _case(
        "class M: pass\nm = M(); m.g = lambda x: x * 2\ndef f(x): return m.g(x)",
        "old = m.g; m.g = lambda x: x * 3",
        "m.g = old",
    ),
    "global named by a callable attribute": _case(
        "k = 2.0\nclass M: pass\nm = M(); m.g = lambda x: x * k\ndef f(x): return m.g(x)",
        "k = 3.0",
        "k = 2.0",
    ),
    "attribute of a function": _case(
        "def g(x): return x * g.k\ng.k = 2.0\ndef f(x): return g(x)", "g.k = 3.0", "g.k = 2.0"
    ),
    "name that appears": _case(
        "def f(x):\n try: return x * k\n except NameError: return x * 2", "k = 3.0", "del k"
    ),
    "name that disappears": _case(
        "k = 3.0\ndef f(x):\n try: return x * k\n except NameError: return x * 2",
        "del k",
        "k = 3.0",
    ),
    "globals().get": _case("def f(x): return x * globals().get('k', 2.0)", "k = 3.0", "del k"),
    "shadowed builtin": _case("def f(x): return x * max(2, 1)", "max = lambda a, b: 3", "del max"),
    "changed builtin": _case(
        "import builtins\ndef f(x): return x * max(2, 1)",
        "old = builtins.max; builtins.max = lambda *a, **k: 3 if a == (2, 1) else old(*a, **k)",
        "builtins.max = old",
    ),
    "code of a helper": _case(
        "def g(x): return x * 2\ndef h(x): return x * 3\ndef f(x): return g(x)",
        "old = g.__code__; g.__code__ = h.__code__",
        "g.__code__ = old",
    ),
    "defaults of a helper": _case(
        "def g(x, k=2.0): return x * k\ndef f(x): return g(x)",
        "g.__defaults__ = (3.0,)",
        "g.__defaults__ = (2.0,)",
    ),
    "keyword defaults of a helper": _case(
        "def g(x, *, k=2.0): return x * k\ndef f(x): return g(x)",
        "g.__kwdefaults__['k'] = 3.0",
        "g.__kwdefaults__['k'] = 2.0",
    ),
    "own code": _case(
        "def h(x): return x * 3\ndef f(x): return x * 2",
        "old = f.__code__; f.__code__ = h.__code__",
        "f.__code__ = old",
    ),
    "own defaults": _case(
        "def f(x, k=2.0): return x * k", "f.__defaults__ = (3.0,)", "f.__defaults__ = (2.0,)"
    ),
    "own attribute": _case("def f(x): return x * getattr(f, 'k', 2.0)", "f.k = 3.0", "del f.k"),
    "wrapped by lru_cache": _case(
        "k = 2.0\n@functools.lru_cache\ndef g(): return k\ndef f(x): return x * g()",
        "k = 3.0; g.cache_clear()",
        "k = 2.0; g.cache_clear()",
    ),
    "global read in a comprehension": _case(
        "k = 2.0\ndef f(x): return sum(x * k for _ in range(2))", "k = 3.0", "k = 2.0"
    ),
    "global of a decorated helper": _case(
        "k = 2.0\ndef deco(g):\n @functools.wraps(g)\n def run(x): return g(x)\n return run\n"
        "@deco\ndef g(x): return x * k\ndef f(x): return g(x)",
        "k = 3.0",
        "k = 2.0",
    ),
    "context variable": _case(
        "c = contextvars.ContextVar('c', default=2.0)\ndef f(x): return x * c.get()",
        "t = c.set(3.0)",
        "c.reset(t)",
    ),
    "thread local": _case(
        "t = threading.local(); t.k = 2.0\ndef f(x): return x * t.k", "t.k = 3.0", "t.k = 2.0"
    ),
    "environment": _case(
        "def f(x): return x * float(os.environ.get('XFUNC_TEST_STALE', '2'))",
        "os.environ['XFUNC_TEST_STALE'] = '3'",
        "del os.environ['XFUNC_TEST_STALE']",
    ),
    "weak reference": _case(
        "class M: pass\nm = M(); m.k = 2.0; r = weakref.ref(m)\ndef f(x): return x * r().k",
        "m.k = 3.0",
        "m.k = 2.0",
    ),
    "weak proxy": _case(
        "class M: pass\nm = M(); m.k = 2.0; r = weakref.proxy(m)\ndef f(x): return x * r.k",
        "m.k = 3.0",
        "m.k = 2.0",
    ),
    "proxy of a dict": _case(
        "d = {'k': 2.0}; p = types.MappingProxyType(d)\ndef f(x): return x * p['k']",
        "d['k'] = 3.0",
        "d['k'] = 2.0",
    ),
    "view of a dict": _case(
        "d = {'k': 2.0}; v = d.values()\ndef f(x): return x * sum(v)",
        "d['k'] = 3.0",
        "d['k'] = 2.0",
    ),
    "bytearray": _case("b = bytearray([2])\ndef f(x): return x * b[0]", "b[0] = 3", "b[0] = 2"),
    "array": _case("a = np.array([2.0])\ndef f(x): return x * a[0]", "a[0] = 3", "a[0] = 2"),
    "array of objects": _case(
        "a = np.array([2.0, None], object)\ndef f(x): return x * a[0]", "a[0] = 3.0", "a[0] = 2.0"
    ),
    "factory of a defaultdict": _case(
        "d = collections.defaultdict(lambda: 2.0)\ndef f(x): return x * d.copy()['k']",
        "old = d.default_factory; d.default_factory = lambda: 3.0",
        "d.default_factory = old",
    ),
    "attribute of an enum": _case(
        "class E(enum.Enum):\n A = 1\nE.A.k = 2.0\ndef f(x): return x * E.A.k",
        "E.A.k = 3.0",
        "E.A.k = 2.0",
    ),
    "attribute of a tensor": _case(
        "w = torch.ones(3); w.k = 2.0\ndef f(x): return x * w.k", "w.k = 3.0", "w.k = 2.0"
    ),
    "requires_grad of a tensor": _case(
        "w = torch.ones(3)\ndef f(x): return x * (3 if w.requires_grad else 2)",
        "w.requires_grad_()",
        "w.requires_grad_(False)",
    ),
    "attribute of a subclass of list": _case(
        "class L(list): pass\nv = L(); v.k = 2.0\ndef f(x): return x * v.k",
        "v.k = 3.0",
        "v.k = 2.0",
    ),
    "shifted between two lists": _case(
        "a, b = [2.0, 3.0], [4.0]\ndef f(x): return x * len(a) + len(b)",
        "b.insert(0, a.pop())",
        "a.append(b.pop(0))",
    ),
    "deep in lists": _case(
        "deep = leaf = []\nfor _ in range(100): leaf.append([]); leaf = leaf[0]\nleaf.append(2.0)\n"
        "def f(x):\n v = deep\n while isinstance(v, list): v = v[0]\n return x * v",
        "leaf[0] = 3.0",
        "leaf[0] = 2.0",
    ),
    "far in a list": _case(
        "far = [[0.0] for _ in range(12000)]; far[-1][0] = 2.0\ndef f(x): return x * far[-1][0]",
        "far[-1][0] = 3.0",
        "far[-1][0] = 2.0",
    ),
}

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
