"""JAX compiles each program once, wherever its arguments come from."""

from collections.abc import Callable, Iterator

import pytest
import torch

import xfunc as xf
from tests.support.compilations import compilations


@pytest.fixture
def compiled(pjrt: None) -> Iterator[Callable[[], int]]:
    """How many programs JAX has compiled since the test began."""
    xf.jit(lambda: torch.zeros(1))()  # What is compiled once for all programs is compiled now.
    with compilations() as count:
        yield count


def test_once_for_each_program(compiled: Callable[[], int]) -> None:
    init = xf.jit(lambda: (torch.ones(3), torch.zeros((), dtype=torch.int64)))
    step = xf.jit(lambda state, x: (state[0] * x, state[1] + 1), donate_argnums=0)
    read = xf.jit(lambda w: w * 2)
    state = init()
    assert compiled() == 1
    for _ in range(3):
        state = step(state, torch.full((3,), 2.0))
    assert compiled() == 2
    torch.testing.assert_close(xf.device_get(state), (torch.full((3,), 8.0), torch.tensor(3)))
    changed = read(state[0])
    changed[0] = 5.0
    loaded = xf.export.deserialize(xf.export.serialize(read.lower(torch.ones(3))))
    for given in (torch.ones(3), xf.device_put(torch.ones(3)), changed, read(changed)):
        torch.testing.assert_close(read(given).cpu(), given.cpu() * 2)
        torch.testing.assert_close(loaded(given).cpu(), given.cpu() * 2)
    assert compiled() == 4
