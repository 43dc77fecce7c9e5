"""Sizes at which a dimension is 0 or 1, or shorter than a slice: there torch takes other paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from tests.support.dynamic_programs import program_at_small_sizes
from xfunc.errors import ShapeError

B, S = xf.Dim("B", max=4), xf.Dim("S", max=16)
Program = Callable[[torch.Tensor], Any]

PROGRAMS: dict[str, Program] = {
    "roll along the batch": lambda x: x.roll(3, 0),
    "roll": lambda x: x.roll(3, 1),
    "roll backwards": lambda x: x.roll(-3, 1),
    "roll of all": lambda x: x.roll(3),
    "roll of a joined array": lambda x: torch.cat([x, x], 1).roll(3, 1),
    "the first three": lambda x: x[:, :3],
    "the last three": lambda x: x[:, -3:],
    "all but two": lambda x: x[:, :-2].sum(1),
    "a branch below the slice": lambda x: x[:, :-2].sum(1) + (100.0 if x.shape[1] < 4 else 0.0),
    "a step of decoding": lambda x: x * 2 if x.shape[1] == 1 else x,
    "a branch at two": lambda x: x * 2 if x.shape[1] == 2 else x,
    "a minimum": lambda x: x * min(x.shape[1], 3),
    "squeezed": lambda x: x.squeeze(1),
    "squeezed everywhere": lambda x: x.squeeze(),
    "cov": torch.cov,
    "corrcoef": torch.corrcoef,
    "outer product": lambda x: x[:, :, None] * x[:, None],
    "gradient of a roll": xf.grad(lambda x: (x.roll(3, 0) ** 2 * x).sum()),
    "gradient of a branch": xf.grad(lambda x: (x[:, 1:] ** 2).sum() * x.shape[1] ** 0),
    "reflected": lambda x: F.pad(x, (2, 1), mode="reflect"),
    "replicated": lambda x: F.pad(x[:, :-1], (2, 1), mode="replicate"),
    "written": lambda x: x.slice_scatter(x[:, :-1] * 2, 1, 1),
    "sorted": lambda x: x.sort(1)[0] + x.cummax(0)[0],
    "windows": lambda x: x.unfold(1, 3, 1).sum(2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "instance_norm": lambda x: F.instance_norm(x[None]),
}


def check(f: Program, jitted: Any, b: int, s: int) -> None:
    """Compare a call with eager torch; both may refuse the size."""
    x = torch.linspace(-1.0, 2.0, b * s, dtype=torch.float64).reshape(b, s).cos()
    try:
        with xf.disable_jit():
            want = f(x)
    except Exception:
        with pytest.raises((RuntimeError, ValueError, IndexError), match=r"\S"):
            jitted(x)
        return
    torch.testing.assert_close(jitted(x).cpu(), want.cpu(), equal_nan=True)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.sample(4, seed=1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_dynamic_shapes_smallest_sizes_of_bucket(name: str) -> None:
    f = PROGRAMS[name]
    jitted = xf.jit(f, dynamic_shapes=((B, S),), buckets={"B": [4], "S": [16]})
    for b, s in ((4, 16), (1, 1), (2, 1), (1, 2), (3, 2), (2, 3), (1, 16)):
        check(f, jitted, b, s)


def test_dynamic_shapes_small_size_that_disagrees_has_own_program() -> None:
    f = PROGRAMS["a branch below the slice"]
    s = xf.Dim("S", min=2, max=16)
    jitted = xf.jit(f, dynamic_shapes=((B, s),), buckets={"B": [4], "S": [16]})
    sizes = [(4, 16), (3, 2), (1, 2), (2, 3), (4, 4), (1, 9)]
    for b, n in sizes:
        check(f, jitted, b, n)
    before = jitted.cache_info()
    for b, n in ((2, 2), (4, 2), (1, 3), (2, 5), (2, 2)):
        check(f, jitted, b, n)
    after = jitted.cache_info()
    assert (after.traces, after.compiles) == (before.traces, before.compiles)
    lines = [line.partition(",")[0] for line in jitted.explain().splitlines()[2:]]
    assert "bucket B<=4, S<=2: 5 calls, one program" in jitted.explain(), lines
    assert "bucket B<=4, S<=16: 4 calls, one program" in jitted.explain(), lines


def test_dynamic_shapes_small_size_that_agrees_shares_program() -> None:
    jitted = xf.jit(lambda x: x.mean(0) - x[:, :1], dynamic_shapes=((B, S),), buckets=((4,), (16,)))
    for b, s in ((4, 16), (1, 1), (2, 1), (1, 2)):
        check(lambda x: x.mean(0) - x[:, :1], jitted, b, s)
    assert "4 calls, one program" in jitted.explain()
    assert jitted.cache_info().compiles == 1


def test_dynamic_shapes_other_argument_for_other_sizes() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x if x.shape[0] > 8 else y).sin()

    jitted = xf.jit(f, dynamic_shapes=((S,), (S,)), buckets=[16])
    for n in (16, 5, 9):
        x, y = torch.ones(n), torch.zeros(n)
        torch.testing.assert_close(jitted(x, y).cpu(), f(x, y))
    assert "it uses other arguments for other sizes" in jitted.explain()


def test_dynamic_shapes_error_of_torch_at_smallest_size() -> None:
    jitted = xf.jit(
        lambda x: F.batch_norm(x, None, None, training=True),
        dynamic_shapes=((B, None),), buckets=[4],
    )  # fmt: skip
    assert jitted(torch.ones(2, 3)).tolist() == [[0.0] * 3] * 2
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        jitted(torch.ones(1, 3))


def test_lowered_range_refuses_small_size_that_disagrees() -> None:
    def decode(x: Any) -> Any:
        return x * 2 if x.shape[0] == 1 else x.cumsum(0)

    struct: Any = xf.ShapeDtypeStruct((S,), torch.float32)
    lowered: Any = xf.jit(decode, dynamic_shapes=((S,),), buckets=[16]).lower(struct)
    loaded = xf.export.deserialize(xf.export.serialize(lowered))
    for run in (lowered.compile(), loaded):
        assert run(torch.ones(2)).tolist() == [1, 2]
        with pytest.raises(ShapeError, match=r"(?s)no program at S=1.*end at S=1.*min=2"):
            run(torch.ones(1))
    both: Any = xf.jit(decode, dynamic_shapes=((S,),), buckets=[1, 16]).lower(struct)
    for run in (both.compile(), xf.export.deserialize(xf.export.serialize(both))):
        assert run(torch.ones(1)).tolist() == [2]
        assert run(torch.ones(2)).tolist() == [1, 2]


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_padding_by_edges_beyond_the_size_raises_as_torch(mode: str) -> None:
    sizes = [((1, 1, 2), (2, 0)), ((1, 1, 3, 2), (0, 1, 3, 0)), ((1, 1, 4), (-3, -2))]
    for shape, pad in sizes:
        x = torch.ones(shape)
        f = lambda x, pad=pad: F.pad(x, pad, mode=mode)  # noqa: E731
        try:
            want = f(x)
        except RuntimeError:
            with pytest.raises(RuntimeError, match=r"should be less than|is too small"):
                xf.jit(f)(x)
        else:
            torch.testing.assert_close(xf.jit(f)(x).cpu(), want)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.slow
@pytest.mark.parametrize("number", range(400))
def test_random_programs_of_two_dims_at_small_sizes(number: int, seed: int) -> None:
    f = program_at_small_sizes(1000 * seed + number)
    b, s = xf.Dim("B", min=1 + number % 2, max=8), xf.Dim("S", min=1 + number // 2 % 2, max=16)
    jitted = xf.jit(f, dynamic_shapes=((b, s),), buckets={"B": [8], "S": [16]})
    for m, n in ((2, 2), (1, 1), (1, 2), (2, 1), (1, 5), (4, 1), (3, 2), (2, 3), (3, 4), (8, 16)):
        if m > number % 2 and n > number // 2 % 2:
            check(f, jitted, m, n)
