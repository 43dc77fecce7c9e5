"""What a miss says of static values that differ."""

from __future__ import annotations

import pytest
import torch

import xfunc as xf
from tests.support.functions import vector

pytestmark = [pytest.mark.usefixtures("cleared"), pytest.mark.quick]


_X = vector()


_explained = xf.grad(lambda x, n, **named: xf.tree.leaves(x)[0].sum())

_OF_VALUES = {
    "number": (lambda: _explained(_X, 3), lambda: _explained(_X, 4), "n went from 3 to 4"),
    "type": (lambda: _explained(_X, 1), lambda: _explained(_X, True), "n went from 1 to True"),
    "inside": (
        lambda: _explained(vector(), {"lr": 0.5}),
        lambda: _explained(vector(), {"lr": 0.25}),
        "n['lr'] went from 0.5 to 0.25",
    ),
    "array": (
        lambda: _explained(vector(), 2),
        lambda: _explained(vector(), vector()),
        "n went from 2 to float32[3]",
    ),
    "keyword": (
        lambda: _explained(vector(), 0, train=True),
        lambda: _explained(vector(), 0, train=False),
        "train went from True to False",
    ),
    "nearest": (
        lambda: (_explained(vector(), 7), _explained(torch.ones(5), 9)),
        lambda: _explained(vector(), 8),
        "n went from 7 to 8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _OF_VALUES)
def test_last_miss_names_values(name: str) -> None:
    before, after, says = _OF_VALUES[name]
    cache = _explained.staged.cache
    cache.clear()
    before()
    after()
    assert cache.last_miss == says
