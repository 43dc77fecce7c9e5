"""``torch.arange`` in traced functions: one instruction, the numbers of torch."""

from typing import Any

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

GIVEN = {
    "end": ((5,), {}),
    "start": ((-3, 40), {}),
    "step": ((7, 200, 9), {}),
    "backwards": ((50, 0, -3), {}),
    "one": ((2, 3), {}),
    "none": ((4, 4), {}),
    "int32": ((100,), {"dtype": torch.int32}),
    "int8": ((100,), {"dtype": torch.int8}),
    "bfloat16": ((300,), {"dtype": torch.bfloat16}),
    "float64": ((0, 9), {"dtype": torch.float64}),
    "fractions": ((0.5, 3.0, 0.25), {}),
    "large": ((2**40, 2**40 + 9, 3), {}),
}


@pytest.mark.parametrize("name", GIVEN)
def test_arange_matches_torch(name: str) -> None:
    args, options = GIVEN[name]

    def f(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.arange(*args, device=x.device, **options)
        return made

    found, wanted = xf.jit(f)(torch.ones(())).cpu(), torch.arange(*args, **options)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((5, 1), "upper bound and lower bound inconsistent with step sign"),
        ((0, 5, -1), "upper bound and lower bound inconsistent with step sign"),
        ((0, 5, 0), "step must be nonzero"),
    ],
)
def test_arange_of_invalid_range_raises(args: tuple[int, ...], error: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.arange(*args, device=x.device)  # pyright: ignore[reportCallIssue, reportArgumentType]
        return made

    for run in (f, xf.jit(f)):
        with pytest.raises(RuntimeError, match=error):
            run(torch.ones(()))


def test_arange_compiles_to_iota() -> None:
    def f(x: Any) -> Any:
        words = torch.arange(100_000, device=x.device)
        return xf.vmap(lambda row: (row == words).sum())(x), torch.arange(1, 90_000, 2)[x[0]]

    lowered = xf.jit(f).lower(torch.tensor([3, 44]))
    assert "s64[100000]{0} iota()" in lowered.as_text()
    assert [n.tolist() for n in xf.jit(f)(torch.tensor([3, 44]))] == [[1, 1], 7]
    inside = [i for c in lowered.module.computations for i in c.instructions]
    assert not [i for i in inside if i.opcode == "constant" and i.bytes > 100]


def test_arange_changed_in_place_does_not_affect_the_next() -> None:
    def f(x: Any) -> Any:
        first = torch.arange(4, device=x.device)
        first += 1
        first[0] = 9
        return first, torch.arange(4, device=x.device)

    first, second = xf.jit(f)(torch.ones(()))
    assert (first.tolist(), second.tolist()) == ([9, 2, 3, 4], [0, 1, 2, 3])
