"""Derivatives of functions that return nothing, or nothing that is floating."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf

X = torch.tensor([0.5, -1.0, 2.0])


@pytest.mark.parametrize("wrap", [lambda f: f, xf.jit], ids=["plain", "jit"])
def test_jvp_of_integers_and_bools(wrap: Any) -> None:
    def f(x: torch.Tensor) -> Any:
        return {"at": x.argmax(), "sign": x > 0, "none": None}

    push = wrap(lambda x: xf.jvp(f, (x,), (x,)))
    out, dot = push(X)
    assert out["at"].item() == 2
    assert out["sign"].tolist() == [True, False, True]
    assert dot["at"].item() == 0
    assert dot["sign"].tolist() == [False] * 3
    assert out["none"] is dot["none"] is None


@pytest.mark.parametrize("staged", [False, True])
def test_jvp_of_nothing(staged: bool) -> None:
    push = lambda x: xf.jvp(lambda x: (), (x,), (x,))  # noqa: E731
    assert (xf.jit(push) if staged else push)(X) == ((), ())


@pytest.mark.parametrize("staged", [False, True])
def test_pullback_of_nothing_is_zero(staged: bool) -> None:
    pull = lambda x: xf.vjp(lambda x: {}, x)[1]({})  # noqa: E731
    (found,) = (xf.jit(pull) if staged else pull)(X)
    assert found.tolist() == [0, 0, 0]


def test_pullback_of_nothing_with_aux() -> None:
    out, pull, aux = xf.vjp(lambda x: ((), x * 2), X, has_aux=True)
    assert out == ()
    assert aux.tolist() == [1, -2, 4]
    assert pull(())[0].tolist() == [0, 0, 0]


def test_linearize_of_nothing() -> None:
    out, push = xf.linearize(lambda x: (), X)
    assert out == push(X) == ()
