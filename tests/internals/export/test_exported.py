"""`xfunc.export.Exported`: which calls check their arguments."""

import collections

import pytest
import torch

import xfunc as xf
from tests.export.test_export import Dot, Point, equal


def test_exported_repeated_calls_are_not_checked(monkeypatch):
    """And all others are."""

    def f(pair, more):
        return {"sum": pair.x + more["b"], "next": [pair.y * 2]}

    given = Point(torch.ones(3), torch.ones(2)), {"a": torch.ones(1), "b": torch.ones(3)}
    fun = xf.export.deserialize(xf.export.serialize(xf.jit(f).lower(*given)))
    checks = []
    long = xf.export.Exported._checked
    monkeypatch.setattr(
        xf.export.Exported, "_checked", lambda *args: checks.append(1) or long(*args)
    )

    def called(pair, more):
        """The result, and whether the arguments were checked."""
        checks.clear()
        out = fun(pair, more)
        equal(out, f(pair, more))
        return bool(checks)

    pair, more = xf.device_put(given)
    assert called(*given), "These are on no device."
    assert called(pair, more)
    assert not called(pair, more)
    assert not called(Point(more["b"], pair.y), dict(reversed(more.items())))
    assert called(pair, {**more, "b": torch.ones(3)}), "One is on no device."
    assert called(pair, more), "It is not like the last call."
    assert not called(pair, more)
    for wrong, message in [
        (Point(pair.y, pair.x), r"argument 0.x: float32\[2\] instead of float32\[3\]"),
        (Point(pair.x, [pair.y]), r"argument 0.y\[0\]: unexpected"),
        (Dot(*pair), "argument 0: a Dot instead of a Point"),
        (list(pair), r"argument 0\[0\]: unexpected"),
    ]:
        with pytest.raises(xf.errors.TreeMismatchError, match=message):
            fun(wrong, more)
    same = collections.namedtuple("Point", "x y")
    assert called(same(*pair), more), "It is of another class."
    assert not called(same(*pair), more)
    assert called(pair, more)
    watched = Point(xf.device_put(torch.ones(3)).requires_grad_(), pair.y)
    with pytest.raises(xf.errors.UnsupportedOpError, match="no longer be differentiated"):
        fun(watched, more)
    with torch.no_grad():
        assert not called(watched, more)
    equal(xf.jit(lambda p, m: fun(p, m)["sum"])(pair, more), pair.x + more["b"])
    assert not called(pair, more)
    with pytest.raises(xf.errors.UnsupportedOpError, match="no longer be differentiated"):
        xf.grad(lambda x: fun(Point(x, pair.y), more)["sum"].sum())(pair.x)
