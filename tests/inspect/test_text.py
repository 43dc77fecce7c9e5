"""Traced functions as text, and what transformed functions and modules show of themselves."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

X = torch.ones(2, 3)


def looped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def body(c: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.tanh(c) * y, None

    return xf.scan(body, x, w)[0]


def test_text_of_operations() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2 + 1).sum(0)[1:], n > 0

    assert str(xf.jit(f).trace(X, torch.tensor(3))).splitlines()[1:] == [
        "  c: float32[2,3] = multiply(a, 2.0)",
        "  d: float32[2,3] = add(c, 1.0)",
        "  e: float32[3] = reduce(d, 0) dims=(0) combine=add",
        "  f: float32[2] = slice(e) at=[1:3]",
        "  g: bool[] = compare(b, 0) is=GT",
        "  return f, g",
    ]


def test_text_nests_bodies() -> None:
    text = str(xf.jit(looped).trace(X, torch.ones(4, 3)))
    assert text.splitlines()[0] == ("looped(a: float32[2,3], b: float32[4,3]) -> (float32[2,3]):")
    depths = [(len(s) - len(s.lstrip()), s.split()[-1]) for s in text.splitlines() if "tanh" in s]
    assert depths == [(14, "tanh(a)")]
    assert "metadata" not in text
    assert re.findall(r"^ *(body|condition)\(", text, re.MULTILINE) == ["body", "condition"]


def test_text_of_branches_and_a_graph_that_is_called_twice() -> None:
    inner = xf.jit(lambda x: torch.sin(x) * 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        return xf.cond(x.sum() > 0, torch.cos, torch.exp, inner(x) + inner(x * 2))

    text = str(xf.jit(f).trace(X))
    assert text.count("sine(") - text.count("cosine(") == 1
    assert text.count(" = call test_text_of_branches") == 2
    assert re.findall(r"branch \d", text) == ["branch 0", "branch 1"]


def test_text_has_lines_on_request() -> None:
    traced = xf.jit(looped).trace(X, torch.ones(4, 3))
    number = inspect.getsourcelines(looped)[1] + 2
    (line,) = [s for s in traced.as_text(lines=True).splitlines() if "tanh(" in s]
    assert line.endswith(f"    # test_text.py:{number}")
    assert "#" not in traced.as_text()


def test_text_of_a_gradient() -> None:
    text = str(xf.jit(xf.grad(lambda x: torch.sin(x).sum())).trace(torch.ones(3)))
    assert "= cosine(a)" in text


def test_repr_names_transform_function_and_place() -> None:
    line = inspect.getsourcelines(looped)[1]
    assert repr(xf.jit(looped)) == f"<jit of looped at test_text.py:{line}>"
    assert repr(xf.vmap(xf.grad(looped))) == f"<vmap of grad(looped) at test_text.py:{line}>"
    assert repr(xf.jit(torch.sin)) == "<jit of sin>"


def test_dir_lists_what_is_public() -> None:
    assert dir(xf.jit(looped)) == ["cache_info", "clear_cache", "explain", "lower", "trace"]
    assert dir(xf.grad(looped)) == []
    assert dir(xf.custom_jvp(looped)) == ["defjvp", "defjvps"]
    assert dir(xf.tree) == sorted(xf.tree.__all__)
    assert dir(xf.debug) == sorted(xf.debug.__all__)
