"""`vectorize`: what NumPy's and JAX's accept."""

from __future__ import annotations

import pytest
import torch

import xfunc as xf

X = torch.arange(6.0).reshape(2, 3)


def test_vectorize_results_with_axes_and_no_signature() -> None:
    found = xf.vectorize(lambda x: x + torch.arange(4.0))(X)
    assert torch.equal(found.cpu(), X[..., None] + torch.arange(4.0))
    pair = xf.vectorize(lambda x, y: (x * y, x.expand(2)))(X, X[0])
    assert [tuple(p.shape) for p in pair] == [(2, 3), (2, 3, 2)]


def test_vectorize_none_is_passed_on() -> None:
    f = xf.vectorize(lambda x, y: x if y is None else x + y)
    assert torch.equal(f(X, None).cpu(), X)
    assert torch.equal(f(X, X).cpu(), 2 * X)
    rows = xf.vectorize(lambda x, y: x.sum(), signature="(n),()->()")
    assert rows(X, None).tolist() == [3, 12]


def test_vectorize_none_for_a_part_with_axes() -> None:
    f = xf.vectorize(lambda x, y: x, signature="(),(n)->()")
    with pytest.raises(TypeError, match=r"given None as argument 1, which has the axes \(n\)"):
        f(X, None)
