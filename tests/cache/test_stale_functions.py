"""A change of functions, names and contents that a function uses makes a new program."""

from __future__ import annotations

import pytest

from tests.cache.stale import WAYS, Case, assert_change_is_seen, case

pytestmark = pytest.mark.usefixtures("of_the_user")


CASES: dict[str, Case] = {
    "bound method": case(
        "class M:\n def __init__(self): self.k = 2.0\n def go(self, x): return x * self.k\n"
        "m = M(); go = m.go\ndef f(x): return go(x)",
        "m.k = 3.0",
        "m.k = 2.0",
    ),
    "bound method of a builtin": case(
        "d = {'k': 2.0}; get = d.get\ndef f(x): return x * get('k')", "d['k'] = 3.0", "d['k'] = 2.0"
    ),
    "partial": case(
        "def g(k, x): return x * k\np = functools.partial(g, 2.0)\ndef f(x): return p(x)",
        "p = functools.partial(g, 3.0)",
        "p = functools.partial(g, 2.0)",
    ),
    "list in a partial": case(
        "def g(k, x): return x * k[0]\np = functools.partial(g, [2.0])\ndef f(x): return p(x)",
        "p.args[0][0] = 3.0",
        "p.args[0][0] = 2.0",
    ),
    "function in a list": case(
        "fs = [lambda x: x * 2]\ndef f(x): return fs[0](x)",
        "old = fs[0]; fs[0] = lambda x: x * 3",
        "fs[0] = old",
    ),
    "function in a dict": case(
        "k = 2.0\nfs = {'g': lambda x: x * k}\ndef f(x): return fs['g'](x)", "k = 3.0", "k = 2.0"
    ),
    "closure of a function in a dict": case(
        "def make():\n k = 2.0\n def g(x): return x * k\n def put(v):\n  nonlocal k; k = v\n"
        " return g, put\ng, put = make()\nfs = {'g': g}\ndef f(x): return fs['g'](x)",
        "put(3.0)",
        "put(2.0)",
    ),
    "list in a default": case(
        "def g(x, ks=[2.0]): return x * ks[0]\ndef f(x): return g(x)",
        "g.__defaults__[0][0] = 3.0",
        "g.__defaults__[0][0] = 2.0",
    ),
    "object made inside": case(
        "class M:\n def __init__(self): self.k = 2.0\ndef f(x): return x * M().k",
        "old = M.__init__\ndef new(self): self.k = 3.0\nM.__init__ = new",
        "M.__init__ = old",
    ),
    "global named by a class made inside": case(
        "k = 2.0\nclass M:\n def __init__(self): self.k = k\ndef f(x): return x * M().k",
        "k = 3.0",
        "k = 2.0",
    ),
    "attribute of a Python module": case(
        "s = types.ModuleType('s'); s.k = 2.0\ndef f(x): return x * s.k", "s.k = 3.0", "s.k = 2.0"
    ),
    "attribute of a module of a package": case(
        "p = types.ModuleType('p'); p.s = types.ModuleType('p.s'); p.s.k = 2.0\n"
        "def f(x): return x * p.s.k",
        "p.s.k = 3.0",
        "p.s.k = 2.0",
    ),
    "function of a Python module": case(
        "s = types.ModuleType('s'); exec('k = 2.0\\ndef g(x): return x * k', vars(s))\n"
        "def f(x): return s.g(x)",
        "s.k = 3.0",
        "s.k = 2.0",
    ),
    "attribute of a module by another name": case(
        "s = types.ModuleType('s'); s.k = 2.0\ndef f(x):\n here = s\n return x * here.k",
        "s.k = 3.0",
        "s.k = 2.0",
    ),
    "attribute of a module by a pattern": case(
        "s = types.ModuleType('s'); s.k = 2.0\ndef f(x):\n"
        " match s:\n  case types.ModuleType(k=k): return x * k",
        "s.k = 3.0",
        "s.k = 2.0",
    ),
    "attribute of a module by getattr": case(
        "s = types.ModuleType('s'); s.k = 2.0\ndef f(x): return x * getattr(s, 'k')",
        "s.k = 3.0",
        "s.k = 2.0",
    ),
    "attribute that a module does not have": case(
        "s = types.ModuleType('s')\ndef f(x): return x * (s.k if hasattr(s, 'k') else 2.0)",
        "s.k = 3.0",
        "del s.k",
    ),
    "dataclass with slots": case(
        "@dataclasses.dataclass(slots=True)\nclass M:\n k: float\nm = M(2.0)\n"
        "def f(x): return x * m.k",
        "m.k = 3.0",
        "m.k = 2.0",
    ),
    "object with slots, one unset": case(
        "class M:\n __slots__ = ('k', 'n')\nm = M(); m.k = 2.0\n"
        "def f(x): return x * getattr(m, 'n', m.k)",
        "m.n = 3.0",
        "del m.n",
    ),
    "attribute of a callable object": case(
        "class M:\n def __init__(self): self.k = 2.0\n def __call__(self, x): return x * self.k\n"
        "m = M()\ndef f(x): return m(x)",
        "m.k = 3.0",
        "m.k = 2.0",
    ),
    "callable attribute": case(
        "class M: pass\nm = M(); m.g = lambda x: x * 2\ndef f(x): return m.g(x)",
        "old = m.g; m.g = lambda x: x * 3",
        "m.g = old",
    ),
    "global named by a callable attribute": case(
        "k = 2.0\nclass M: pass\nm = M(); m.g = lambda x: x * k\ndef f(x): return m.g(x)",
        "k = 3.0",
        "k = 2.0",
    ),
    "attribute of a function": case(
        "def g(x): return x * g.k\ng.k = 2.0\ndef f(x): return g(x)", "g.k = 3.0", "g.k = 2.0"
    ),
    "name that appears": case(
        "def f(x):\n try: return x * k\n except NameError: return x * 2", "k = 3.0", "del k"
    ),
    "name that disappears": case(
        "k = 3.0\ndef f(x):\n try: return x * k\n except NameError: return x * 2",
        "del k",
        "k = 3.0",
    ),
    "globals().get": case("def f(x): return x * globals().get('k', 2.0)", "k = 3.0", "del k"),
    "shadowed builtin": case("def f(x): return x * max(2, 1)", "max = lambda a, b: 3", "del max"),
    "changed builtin": case(
        "import builtins\ndef f(x): return x * max(2, 1)",
        "old = builtins.max; builtins.max = lambda *a, **k: 3 if a == (2, 1) else old(*a, **k)",
        "builtins.max = old",
    ),
    "code of a helper": case(
        "def g(x): return x * 2\ndef h(x): return x * 3\ndef f(x): return g(x)",
        "old = g.__code__; g.__code__ = h.__code__",
        "g.__code__ = old",
    ),
    "defaults of a helper": case(
        "def g(x, k=2.0): return x * k\ndef f(x): return g(x)",
        "g.__defaults__ = (3.0,)",
        "g.__defaults__ = (2.0,)",
    ),
    "keyword defaults of a helper": case(
        "def g(x, *, k=2.0): return x * k\ndef f(x): return g(x)",
        "g.__kwdefaults__['k'] = 3.0",
        "g.__kwdefaults__['k'] = 2.0",
    ),
    "own code": case(
        "def h(x): return x * 3\ndef f(x): return x * 2",
        "old = f.__code__; f.__code__ = h.__code__",
        "f.__code__ = old",
    ),
    "own defaults": case(
        "def f(x, k=2.0): return x * k", "f.__defaults__ = (3.0,)", "f.__defaults__ = (2.0,)"
    ),
    "own attribute": case("def f(x): return x * getattr(f, 'k', 2.0)", "f.k = 3.0", "del f.k"),
    "wrapped by lru_cache": case(
        "k = 2.0\n@functools.lru_cache\ndef g(): return k\ndef f(x): return x * g()",
        "k = 3.0; g.cache_clear()",
        "k = 2.0; g.cache_clear()",
    ),
    "global read in a comprehension": case(
        "k = 2.0\ndef f(x): return sum(x * k for _ in range(2))", "k = 3.0", "k = 2.0"
    ),
    "global of a decorated helper": case(
        "k = 2.0\ndef deco(g):\n @functools.wraps(g)\n def run(x): return g(x)\n return run\n"
        "@deco\ndef g(x): return x * k\ndef f(x): return g(x)",
        "k = 3.0",
        "k = 2.0",
    ),
    "context variable": case(
        "c = contextvars.ContextVar('c', default=2.0)\ndef f(x): return x * c.get()",
        "t = c.set(3.0)",
        "c.reset(t)",
    ),
    "thread local": case(
        "t = threading.local(); t.k = 2.0\ndef f(x): return x * t.k", "t.k = 3.0", "t.k = 2.0"
    ),
    "environment": case(
        "def f(x): return x * float(os.environ.get('XFUNC_TEST_STALE', '2'))",
        "os.environ['XFUNC_TEST_STALE'] = '3'",
        "del os.environ['XFUNC_TEST_STALE']",
    ),
    "weak reference": case(
        "class M: pass\nm = M(); m.k = 2.0; r = weakref.ref(m)\ndef f(x): return x * r().k",
        "m.k = 3.0",
        "m.k = 2.0",
    ),
    "weak proxy": case(
        "class M: pass\nm = M(); m.k = 2.0; r = weakref.proxy(m)\ndef f(x): return x * r.k",
        "m.k = 3.0",
        "m.k = 2.0",
    ),
    "proxy of a dict": case(
        "d = {'k': 2.0}; p = types.MappingProxyType(d)\ndef f(x): return x * p['k']",
        "d['k'] = 3.0",
        "d['k'] = 2.0",
    ),
    "view of a dict": case(
        "d = {'k': 2.0}; v = d.values()\ndef f(x): return x * sum(v)",
        "d['k'] = 3.0",
        "d['k'] = 2.0",
    ),
    "bytearray": case("b = bytearray([2])\ndef f(x): return x * b[0]", "b[0] = 3", "b[0] = 2"),
    "array": case("a = np.array([2.0])\ndef f(x): return x * a[0]", "a[0] = 3", "a[0] = 2"),
    "array of objects": case(
        "a = np.array([2.0, None], object)\ndef f(x): return x * a[0]", "a[0] = 3.0", "a[0] = 2.0"
    ),
    "factory of a defaultdict": case(
        "d = collections.defaultdict(lambda: 2.0)\ndef f(x): return x * d.copy()['k']",
        "old = d.default_factory; d.default_factory = lambda: 3.0",
        "d.default_factory = old",
    ),
    "attribute of an enum": case(
        "class E(enum.Enum):\n A = 1\nE.A.k = 2.0\ndef f(x): return x * E.A.k",
        "E.A.k = 3.0",
        "E.A.k = 2.0",
    ),
    "attribute of a tensor": case(
        "w = torch.ones(3); w.k = 2.0\ndef f(x): return x * w.k", "w.k = 3.0", "w.k = 2.0"
    ),
    "requires_grad of a tensor": case(
        "w = torch.ones(3)\ndef f(x): return x * (3 if w.requires_grad else 2)",
        "w.requires_grad_()",
        "w.requires_grad_(False)",
    ),
    "attribute of a subclass of list": case(
        "class L(list): pass\nv = L(); v.k = 2.0\ndef f(x): return x * v.k",
        "v.k = 3.0",
        "v.k = 2.0",
    ),
    "shifted between two lists": case(
        "a, b = [2.0, 3.0], [4.0]\ndef f(x): return x * len(a) + len(b)",
        "b.insert(0, a.pop())",
        "a.append(b.pop(0))",
    ),
    "deep in lists": case(
        "deep = leaf = []\nfor _ in range(100): leaf.append([]); leaf = leaf[0]\nleaf.append(2.0)\n"
        "def f(x):\n v = deep\n while isinstance(v, list): v = v[0]\n return x * v",
        "leaf[0] = 3.0",
        "leaf[0] = 2.0",
    ),
    "far in a list": case(
        "far = [[0.0] for _ in range(12000)]; far[-1][0] = 2.0\ndef f(x): return x * far[-1][0]",
        "far[-1][0] = 3.0",
        "far[-1][0] = 2.0",
    ),
}


@pytest.mark.sample(27, seed=0)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_transforms_function_or_content_changed(name: str, way: str) -> None:
    assert_change_is_seen(CASES[name], way)
