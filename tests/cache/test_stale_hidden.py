"""A change of what names do not show makes a new program.

Behind decorators of libraries, imports inside of functions, which of several equal objects it is,
and what descriptors and aliases hold.
"""

from __future__ import annotations

import pytest

from tests.cache.stale import WAYS, Case, assert_change_is_seen, case

pytestmark = pytest.mark.usefixtures("of_the_user")


def _decorated(decorator: str, body: str = "return x * k", use: str = "g(x)") -> Case:
    """A helper under a decorator, which uses a global number."""
    return case(
        f"k = 2.0\n{decorator}\ndef g(x): {body}\ndef f(x): return {use}", "k = 3.0", "k = 2.0"
    )


def _imported(statement: str, use: str) -> Case:
    """A function that imports a module of the program."""
    define = (
        "import sys\n__package__ = 'stale_package'\n"
        "for n in ('stale_package', 'stale_package.types'):\n"
        "    sys.modules[n] = types.ModuleType(n)\n"
        "part = sys.modules['stale_package'].types = sys.modules['stale_package.types']\n"
        f"part.k = 2.0\ndef f(x):\n    {statement}\n    return x * {use}"
    )
    return case(define, "part.k = 3.0", "part.k = 2.0")


def _marked(define: str, test: str) -> Case:
    """A function that asks whether `mode` is `on`."""
    define = f"{define}\nmode = on\ndef f(x): return x * (2.0 if {test} else 3.0)"
    return case(define, "mode = off", "mode = on")


def _held(define: str, use: str, change: str = "C.k = 3.0", back: str = "C.k = 2.0") -> Case:
    return case(f"{define}\ndef f(x): return x * {use}", change, back)


_MARKER = "class Mark:\n def __repr__(self): return 'mark'\non, off = Mark(), Mark()"
_FACTOR = "N.p.factor = 3.0", "N.p.factor = 2.0"

CASES: dict[str, Case] = {
    # -- behind decorators of libraries
    "no_grad": _decorated("@torch.no_grad()"),
    "inference_mode": _decorated("@torch.inference_mode()"),
    "autocast": _decorated("@torch.autocast('cpu')"),
    "compiler.disable": _decorated("@torch.compiler.disable"),
    "a context manager": case(
        "import contextlib\nk = 2.0\n@contextlib.contextmanager\ndef g(): yield k\n"
        "def f(x):\n with g() as factor: return x * factor",
        "k = 3.0",
        "k = 2.0",
    ),
    "singledispatch": _decorated("@functools.singledispatch"),
    "a registered implementation": case(
        "@functools.singledispatch\ndef g(x): return x * 2\n"
        "def f(x): return g(x)\n@g.register\ndef _(x: int): return x",
        "old = g.registry[object]; g.register(object, lambda x: x * 3)",
        "g.register(object, old)",
    ),
    "a decorated method": case(
        "k = 2.0\nclass M:\n @torch.autocast('cpu')\n def g(self, x): return x * k\n"
        "m = M()\ndef f(x): return m.g(x)",
        "k = 3.0",
        "k = 2.0",
    ),
    "a decorated property": case(
        "k = 2.0\nclass M:\n @property\n @torch.no_grad()\n def k(self): return k\n"
        "m = M()\ndef f(x): return x * m.k",
        "k = 3.0",
        "k = 2.0",
    ),
    # -- imports inside of functions
    "import": _imported("import stale_package.types", "stale_package.types.k"),
    "import as": _imported("import stale_package.types as t", "t.k"),
    "from import": _imported("from stale_package.types import k", "k"),
    "relative import": _imported("from .types import k as factor", "factor"),
    "relative import of a module": _imported("from . import types as t", "t.k"),
    "import in a helper": case(
        "import sys\npart = sys.modules['stale_part'] = types.ModuleType('stale_part')\n"
        "part.k = 2.0\ndef g(x):\n import stale_part\n return x * stale_part.k\n"
        "def f(x): return g(x)",
        "part.k = 3.0",
        "part.k = 2.0",
    ),
    # -- which object it is
    "a marker": _marked(_MARKER, "mode is on"),
    "an object()": _marked("on, off = object(), object()", "mode is on"),
    "a marker in a class": _marked(f"{_MARKER}\nclass M:\n on, off = on, off\n", "mode is M.on"),
    "a marker as a key": _marked(f"{_MARKER}\nt = {{on: 2.0, off: 3.0}}", "t[mode] == 2.0"),
    "one of two equal objects": _marked(
        "class M:\n def __init__(self): self.k = 1\non, off = M(), M()", "mode is on"
    ),
    "one of two equal lists": _marked("on, off = [1], [1]", "mode is on"),
    # -- what descriptors, aliases and classes hold
    "a property's attribute": _held(
        "class P(property): pass\nclass N: p = P(lambda s: 1)\nN.p.factor = 2.0",
        "N.p.factor",
        *_FACTOR,
    ),
    "the class of a property": _held(
        "class C(property): k = 2.0\nclass N: p = C(lambda s: 1)", "N.p.k"
    ),
    "the class of a static method": _held(
        "class C(staticmethod): k = 2.0\nclass N: p = C(lambda s: 1)", "vars(N)['p'].k"
    ),
    "Optional": _held("import typing\nclass C: k = 2.0\nA = typing.Optional[C]", "A.__args__[0].k"),
    "a union": _held("class C: k = 2.0\nA = C | None", "A.__args__[0].k"),
    "an alias": _held("class C: k = 2.0\nA = list[C]", "A.__args__[0].k"),
    "__match_args__": case(
        "class C:\n __match_args__ = ('a', 'b')\n a, b = 2.0, 3.0\nc = C()\n"
        "def f(x):\n match c:\n  case C(k, _): return x * k",
        "C.__match_args__ = ('b', 'a')",
        "C.__match_args__ = ('a', 'b')",
    ),
    "names of an array's fields": _held(
        "r = np.array([(2.0, 3.0)], [('a', 'f4'), ('b', 'f4')])",
        "float(r['a'][0])",
        "old = r; r = np.array([(2.0, 3.0)], [('b', 'f4'), ('a', 'f4')])",
        "r = old",
    ),
    "a default of a context variable": case(
        "v = contextvars.ContextVar('v', default=2.0)\ndef f(x): return x * v.get()",
        "old = v; v = contextvars.ContextVar('v', default=3.0)",
        "v = old",
    ),
}


@pytest.mark.sample(9, seed=0)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_transforms_hidden_dependency_changed(name: str, way: str) -> None:
    assert_change_is_seen(CASES[name], way)
