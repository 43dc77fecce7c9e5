"""What a function holds is watched, rather than looked at in each call."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.cache import identity, mutation_guard

X = torch.tensor([1.0, 2.0, 3.0])


class _Walks(identity.Fingerprinter):
    count = 0

    def __init__(self) -> None:
        super().__init__()
        _Walks.count += 1


def test_walk_only_after_held_objects_change(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = types.SimpleNamespace(rate=2.0, more={"bias": [1.0]})
    f = xf.jit(lambda x: x * settings.rate + settings.more["bias"][0])

    def looks() -> int:
        _Walks.count = 0
        f(X)
        return _Walks.count

    f(X)
    f(X)
    monkeypatch.setattr(identity, "Fingerprinter", _Walks)
    assert [looks() for _ in range(5)] == [0] * 5
    settings.more["bias"][0] = 5.0
    assert looks() > 0
    assert f(X).tolist() == [7, 9, 11]
    for k in range(100):  # What changes at each call is soon looked at, rather than watched.
        settings.rate = float(k)
        assert f(X)[0].item() == k + 5.0
    for _ in range(200):
        f(X)
    assert looks() == 0


def test_watch_namespaces_and_classes() -> None:
    space: dict[str, object] = {"a": 1, "b": 2}
    names = mutation_guard.Namespace(space, ["a", "missing"])
    assert names.is_unchanged()
    space["b"] = 3
    assert names.is_unchanged()
    space["missing"] = 1
    assert not names.is_unchanged()
    cls: Any = type("C", (), {"k": 1})
    found = mutation_guard.MutationGuard([], [cls])
    assert found.is_unchanged()
    cls.k = 2
    assert not found.is_unchanged()
    base: Any = type("B", (), {"k": 1})
    found = mutation_guard.MutationGuard([], [type("D", (base,), {})])
    base.k = 2
    assert not found.is_unchanged()


def test_watch_functions() -> None:
    rate = 2.0

    def scaled(x: torch.Tensor, shift: float = 1.0) -> torch.Tensor:
        return x * rate + shift

    f, x = xf.jit(lambda x: scaled(x)), torch.ones(2)
    for _ in range(3):
        assert f(x).tolist() == [3, 3]
    rate = 3.0
    assert f(x).tolist() == [4, 4]
    scaled.__defaults__ = (5.0,)
    assert f(x).tolist() == [8, 8]
    scaled.__code__ = (lambda x, shift: x - shift + 0 * rate).__code__
    assert f(x).tolist() == [-4, -4]


def test_watch_bases_of_class() -> None:
    class A:
        k = 1

    class B:
        k = 2

    class C(A):
        pass

    found = mutation_guard.MutationGuard([], [C])
    assert found.is_unchanged()
    C.__bases__ = (B,)
    assert not found.is_unchanged()
