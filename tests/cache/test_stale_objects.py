"""A change of an object or a class that a function uses makes a new program."""

from __future__ import annotations

import pytest

from tests.cache.stale import WAYS, Case, assert_change_is_seen, case

pytestmark = [pytest.mark.usefixtures("of_the_user"), pytest.mark.quick]


CASES: dict[str, Case] = {
    # -- what is reached through the globals that a function names
    "number": case("k = 2.0\ndef f(x): return x * k", "k = 3.0", "k = 2.0"),
    "method of a class": case(
        "class M:\n def go(self, x): return x * 2\nm = M()\ndef f(x): return m.go(x)",
        "old = M.go; M.go = lambda self, x: x * 3",
        "M.go = old",
    ),
    "class attribute": case(
        "class M:\n k = 2.0\nm = M()\ndef f(x): return x * m.k", "M.k = 3.0", "M.k = 2.0"
    ),
    "class attribute by its class": case(
        "class M:\n k = 2.0\ndef f(x): return x * M.k", "M.k = 3.0", "M.k = 2.0"
    ),
    "class attribute of a base": case(
        "class B:\n k = 2.0\nclass M(B): pass\nm = M()\ndef f(x): return x * m.k",
        "B.k = 3.0",
        "B.k = 2.0",
    ),
    "list in a class": case(
        "class M:\n ks = [2.0]\nm = M()\ndef f(x): return x * m.ks[0]",
        "M.ks[0] = 3.0",
        "M.ks[0] = 2.0",
    ),
    "property": case(
        "class M:\n @property\n def k(self): return 2.0\nm = M()\ndef f(x): return x * m.k",
        "old = M.k; M.k = property(lambda self: 3.0)",
        "M.k = old",
    ),
    "classmethod": case(
        "class M:\n @classmethod\n def go(cls, x): return x * 2\ndef f(x): return M.go(x)",
        "old = M.__dict__['go']; M.go = classmethod(lambda cls, x: x * 3)",
        "M.go = old",
    ),
    "staticmethod": case(
        "class M:\n @staticmethod\n def go(x): return x * 2\ndef f(x): return M.go(x)",
        "old = M.__dict__['go']; M.go = staticmethod(lambda x: x * 3)",
        "M.go = old",
    ),
    "metaclass": case(
        "class T(type):\n k = 2.0\nclass M(metaclass=T): pass\ndef f(x): return x * M.k",
        "T.k = 3.0",
        "T.k = 2.0",
    ),
    "operator of a class": case(
        "class M:\n def __mul__(self, x): return x * 2\nm = M()\ndef f(x): return m * x",
        "old = M.__mul__; M.__mul__ = lambda self, x: x * 3",
        "M.__mul__ = old",
    ),
    "global named by a method": case(
        "k = 2.0\nclass M:\n def go(self, x): return x * k\nm = M()\ndef f(x): return m.go(x)",
        "k = 3.0",
        "k = 2.0",
    ),
    "class of an object": case(
        "class A:\n k = 2.0\nclass B:\n k = 3.0\nm = A()\ndef f(x): return x * m.k",
        "m.__class__ = B",
        "m.__class__ = A",
    ),
    "dict of an object": case(
        "class M: pass\nm = M(); m.k = 2.0\ndef f(x): return x * m.k",
        "m.__dict__ = {'k': 3.0}",
        "m.__dict__ = {'k': 2.0}",
    ),
    "forward of a module": case(
        "class N(torch.nn.Module):\n def forward(self, x): return x * 2\nn = N()\n"
        "def f(x): return n(x)",
        "old = N.forward; N.forward = lambda self, x: x * 3",
        "N.forward = old",
    ),
    "forward of one instance": case(
        "class N(torch.nn.Module):\n def forward(self, x): return x * 2\nn = N()\n"
        "def f(x): return n(x)",
        "n.forward = lambda x: x * 3",
        "del n.forward",
    ),
    "mode of a module": case(
        "class N(torch.nn.Module):\n"
        " def forward(self, x): return x * (2 if self.training else 3)\n"
        "n = N()\ndef f(x): return n(x)",
        "n.eval()",
        "n.train()",
    ),
    "mode of a module inside a module": case(
        "class N(torch.nn.Module):\n"
        " def forward(self, x): return x * (2 if self.training else 3)\n"
        "n = torch.nn.Sequential(N())\ndef f(x): return n(x)",
        "n[0].eval()",
        "n[0].train()",
    ),
    "hook of a module": case(
        "n = torch.nn.Identity()\ndef f(x): return n(x)",
        "h = n.register_forward_hook(lambda m, a, out: out * 3)",
        "h.remove()",
    ),
    "attribute of a module of torch's": case(
        "n = torch.nn.LeakyReLU(0.5)\ndef f(x): return n(-x)",
        "n.negative_slope = 0.25",
        "n.negative_slope = 0.5",
    ),
    "forward of a class of torch's": case(
        "n = torch.nn.Tanhshrink()\ndef f(x): return n(x)",
        "old = torch.nn.Tanhshrink.forward; torch.nn.Tanhshrink.forward = lambda self, x: x * 3",
        "torch.nn.Tanhshrink.forward = old",
    ),
}


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_transforms_object_or_class_changed(name: str, way: str) -> None:
    assert_change_is_seen(CASES[name], way)
