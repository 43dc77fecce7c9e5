"""Arrays of numpy that traced code makes tensors of, anew in each of its runs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
TABLE = np.arange(6, dtype=np.float32).reshape(2, 3)
MAKERS: dict[str, Callable[[], Tensor]] = {
    "from_numpy": lambda: torch.from_numpy(TABLE)[1],
    "a copy": lambda: torch.from_numpy(TABLE.copy())[1],
    "from_dlpack": lambda: torch.from_dlpack(TABLE)[1],
    "frombuffer": lambda: torch.frombuffer(bytearray(12), dtype=torch.float32),
    "as_tensor": lambda: torch.as_tensor(TABLE)[1],
    "not a number": lambda: torch.from_numpy(np.array([1, np.nan, 3], np.float32)),
    "one number": lambda: torch.from_numpy(np.array(3.0, np.float32)),
}


def looped(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: xf.scan(lambda c, _: (f(c), None), x, length=2)[0]


def chosen(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: xf.cond(x.sum() > 0, f, f, x)


@pytest.mark.parametrize("wrap", [xf.jit, xf.checkpoint, looped, chosen])
@pytest.mark.parametrize("name", MAKERS)
def test_constants_in_derived_programs(name: str, wrap: Any) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.sin(x) * MAKERS[name]()

    def plain(x: Tensor) -> Tensor:
        return f(f(x)) if wrap is looped else f(x)

    x = torch.tensor([0.5, 1.0, 1.5])
    staged = wrap(f)
    found = xf.jvp(staged, (x,), (x,))
    want = torch.func.jvp(plain, (x,), (x,))
    torch.testing.assert_close(xf.device_get(found), want, equal_nan=True)
    found = xf.vmap(xf.grad(lambda x: staged(x).sum()))(x.expand(2, 3))
    want = torch.func.grad(lambda x: plain(x).sum())(x).expand(2, 3)
    torch.testing.assert_close(xf.device_get(found), want, equal_nan=True)


def test_another_value_in_the_second_run_is_refused() -> None:
    def f(x: Tensor) -> Tensor:
        return x * torch.from_numpy(np.random.default_rng().random(3, np.float32))

    x = torch.ones(3)
    with pytest.raises(xf.errors.PurityError, match="that the first run did not"):
        xf.jvp(xf.checkpoint(f), (x,), (x,))


def test_an_array_that_changes_is_seen() -> None:
    table = np.ones(3, np.float32)
    f = xf.jit(lambda x: x * torch.from_numpy(table))
    assert f(torch.ones(3)).tolist() == [1, 1, 1]
    table[0] = 5
    assert f(torch.ones(3)).tolist() == [5, 1, 1]
