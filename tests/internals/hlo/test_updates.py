"""Parts of arrays that are computed from other parts are computed before they are written."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
import torch

import xfunc as xf
from xfunc.hlo import Module
from xfunc.hlo.passes.updates import keep_updates_apart

from .conftest import Lower, Run, changed

Tensor = torch.Tensor
pytestmark = pytest.mark.quick


def shifted(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:] = x[:-1] * 2
    return y[None]


def of_rows(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:3] = x.reshape(4, 6)[2:].reshape(3, 4)[1:]
    return y.sum(0)


def by_a_function(x: Tensor) -> Tensor:
    @xf.jit
    def write(x: Tensor, part: Tensor) -> Tensor:
        y = x.clone()
        y[1:] = part
        return y

    return write(x, x[:-1]) + write(x + 1, x[1:])


def twice(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:] = y[:-1] + 1
    y[:, 1:] = y[:, :-1] * 2
    return y[None]


def to_one_row(x: Tensor) -> Tensor:
    i = x[:1, 0].long() + 1
    return x.index_copy(0, i, x.index_select(0, i).roll(1, 1)).cumsum(0)


def in_its_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:3] += 1
    return y[None]


def one_element(x: Tensor) -> Tensor:
    y = x.reshape(-1).clone()
    y[6] = y[3] * 2
    return y[None]


def stacked(x: Tensor) -> Tensor:
    return xf.scan(lambda c, row: (c + row, c.sin()), x[0], x)[1]


def from_another(x: Tensor) -> Tensor:
    y = x + 1
    y[1:3] = x[1:3].exp()
    return y[None]


def calls(module: Module) -> int:
    return str(module).count("to_apply=%apart")


@pytest.mark.parametrize("fun", [shifted, of_rows, by_a_function, twice, to_one_row])
def test_keep_updates_apart(lower: Lower, run: Run, fun: Callable[[Tensor], Tensor]) -> None:
    x = torch.arange(24.0).reshape(6, 4)
    module = lower(lambda x: [fun(x)], [x])
    found = changed(module, keep_updates_apart)
    assert calls(module) == 0
    assert calls(found) >= 1
    with xf.disable_jit():
        want = fun(x)
    for each in (module, found):  # The backend runs the pass.
        torch.testing.assert_close(run(each, [x])[0], want)
    assert changed(found, keep_updates_apart).to_bytes() == found.to_bytes()


@pytest.mark.parametrize("fun", [in_its_place, one_element, stacked, from_another])
def test_keep_updates_apart_leaves_others(lower: Lower, fun: Callable[[Tensor], Tensor]) -> None:
    module = lower(lambda x: [fun(x)], [torch.arange(24.0).reshape(6, 4)])
    assert changed(module, keep_updates_apart).to_bytes() == module.to_bytes()


def test_shifted_write_is_wrong_in_xla() -> None:
    """Where this fails, the bug is gone: see `xfunc.hlo.passes.updates`."""
    x = jax.device_put(jnp.arange(4.0)[:, None], jax.devices("cpu")[0])
    found = jax.jit(lambda x: (x + 1).at[1:].set((x + 1)[:-1])[None])(x)
    assert found.ravel().tolist() == [1, 1, 1, 1]  # not 1, 1, 2, 3
