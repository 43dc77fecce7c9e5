"""A program whose traces are kept on disk, to be loaded anew and changed."""

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf

SOURCE = """
import dataclasses, functools, math, os, random, sys, time
import numpy as np
import torch
import torch.nn.functional as F
import xfunc as xf

RATE = 2.0
TABLE = {"a": [1.0, 2.0]}
ARRAY = np.arange(3.0, dtype=np.float32)
FILE = None
ORDER = ("a", "b")

@dataclasses.dataclass(frozen=True)
class Config:
    layers: int = 3
    scale: float = 0.5

class Base:
    factor = 2.0
    def shift(self, x):
        return x + self.factor

class Model(Base):
    def __init__(self, k):
        self.k = k
    def __call__(self, x):
        return self.shift(x) * self.k

CONFIG, MODEL = Config(), Model(3.0)
Pair = __import__("collections").namedtuple("Pair", "x y")

def inner(x):
    return torch.tanh(x) * 3.0

def helper(x, by=1.5, *, plus=0.25):
    return inner(x) * by + plus

def body(x):
    for _ in range(CONFIG.layers):
        x = helper(x * CONFIG.scale)
    return MODEL(x) * RATE * TABLE["a"][1] + float(np.sqrt(ARRAY[-1]))

def loss(w, x):
    last, each = xf.scan(lambda h, _: (body(h @ w), h.sum()), x, length=2)
    return F.softmax(last, -1).square().sum() + last.abs().mean() + max(1, 2)

def f(w, x):
    return xf.value_and_grad(loss)(w, x)

def by(k, held):
    return lambda w, x: {"out": (x @ w) * k + held, "pair": Pair(x, [k])}

def linear(w, x):
    return torch.nn.Linear.forward(type("L", (), {"weight": w, "bias": None})(), x)

def reads(w, x):
    with open(FILE) as opened:
        return x * float(opened.read())

def clock(w, x):
    return x * time.time()

def draws(w, x):
    return x * random.random()

def computed(w, x):
    return x * globals()["RA" + "TE"]

def environment(w, x):
    return x * float(os.environ["FACTOR"])

def imports(w, x):
    import own_settings
    return x * own_settings.rate

def arguments(w, x):
    return x * len(sys.argv)

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, ct):
        return ct * 2

def rule(w, x):
    return Twice.apply(x)

def counts(w, x):
    TABLE["a"].append(0.0)
    return x * len(TABLE["a"])

def constant(w, x):
    return x + torch.tensor([1.0, 2.0, 3.0]) + xf.random.normal(xf.random.key(0), (3,))
"""

W = torch.linspace(-0.1, 0.1, 9, dtype=torch.float64).reshape(3, 3)
X = torch.linspace(0, 0.1, 6, dtype=torch.float64).reshape(2, 3)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Loads the program from its file, anew each time, as another process would."""
    xf.config.set_trace_cache_dir(tmp_path / "traces")

    def load(*edits: tuple[str, str]) -> types.ModuleType:
        text = SOURCE
        for old, new in edits:
            assert text.count(old) == 1
            text = text.replace(old, new)
        file = tmp_path / "kept_program.py"
        file.write_text(text)
        module = types.ModuleType("kept_program")
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, "kept_program", module)
        exec(compile(text, str(file), "exec"), vars(module))
        xf.clear_caches()
        return module

    yield load
    xf.config.set_trace_cache_dir(None)


def run(fun: Any, *args: Any, **settings: Any) -> tuple[int, Any]:
    """How often a function is traced in its first call, and its result."""
    jitted = xf.jit(fun, **settings)
    found = jitted(*(args or (W, X)))
    return xf.trace_count(jitted), xf.device_get(found)


def by_torch(fun: Any, *args: Any) -> Any:
    with xf.disable_jit():
        return fun(*(args or (W, X)))


def equal(got: Any, want: Any) -> None:
    for g, w in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        g, w = torch.as_tensor(g).cpu(), torch.as_tensor(w).cpu()
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-7, equal_nan=True)
