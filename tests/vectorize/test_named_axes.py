"""`vmap` over named axes equals JAX's in every transform, and refuses wrong collectives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf
from tests.support.cases import OURS, PLAIN
from tests.support.jax_names import names
from tests.vectorize.named_axis_programs import named_programs
from xfunc.errors import ShardingError

RECORDED = np.load(Path(__file__).parents[1] / "data" / "named_axes.npz")
PROGRAMS = named_programs(names())


def close(got: Any, want: Any) -> None:
    leaves = xf.tree.leaves(xf.device_get(got)), xf.tree.leaves(want)
    torch.testing.assert_close(*leaves, rtol=1e-9, atol=1e-9, check_dtype=False)


@pytest.mark.quick(8, seed=0)
@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("name", PROGRAMS)
def test_named_axis_programs_match_jax(name: str) -> None:
    want = [torch.from_numpy(RECORDED[k]) for k in RECORDED if k.rpartition("/")[0] == name]
    close(PROGRAMS[name](), want)


# What JAX cannot do, or gets wrong: of the values of all examples, as rows.


def some(a: torch.Tensor) -> torch.Tensor:
    return xf.ppermute(a * a, "k", [(0, 2), (3, 1)])


def plain_some(x: torch.Tensor) -> torch.Tensor:
    return (x * x)[torch.tensor([0, 3, 0, 0])] * torch.tensor([[0], [1], [1], [0]])


def exchanged(a: torch.Tensor) -> torch.Tensor:
    return xf.all_to_all(a.reshape(4, 2), "k", 0, 1).flatten() * a


def plain_exchanged(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(4, 4, 2).permute(1, 2, 0).flatten(1) * x


def branches(a: torch.Tensor) -> torch.Tensor:
    return xf.cond(
        a.sum() > 0, lambda a: xf.psum(a * a, "k") * a, lambda a: xf.pmean(a.sin(), "k"), a
    )


def plain_branches(x: torch.Tensor) -> torch.Tensor:
    chosen = (x.sum(1) > 0)[:, None]
    return torch.where(chosen, (x * x).sum(0) * x, x.sin().mean(0).expand_as(x))


def greatest(a: torch.Tensor) -> torch.Tensor:
    return xf.pmax(a * a, "k") * a + xf.pmin(a, "k")


def plain_greatest(x: torch.Tensor) -> torch.Tensor:
    return (x * x).amax(0) * x + x.amin(0)


def rounds(a: torch.Tensor) -> torch.Tensor:
    """A loop whose length differs, in which those that are done take part."""
    return xf.while_loop(
        lambda c: c[0] < 4,
        lambda c: (c[0] + 1 + (xf.axis_index("k") % 2), c[1].tanh() * a),
        (torch.zeros((), dtype=torch.int64), xf.psum(a, "k")),
    )[1]


def plain_rounds(x: torch.Tensor) -> torch.Tensor:
    first = c = x.sum(0).expand_as(x)
    for k in range(4):
        c = c.tanh() * x
        first = c if k == 1 else first
    return torch.stack([(first if k % 2 else c)[k] for k in range(4)])


def chosen_in_a_loop(a: torch.Tensor) -> torch.Tensor:
    return xf.scan(lambda c, _: (branches(c).tanh(), None), a, None, 2)[0]


def plain_chosen_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    return plain_branches(plain_branches(x).tanh()).tanh()


def chosen_twice(a: torch.Tensor) -> torch.Tensor:
    return xf.cond(a.sum() > 0.2, lambda a: branches(a) * 2, lambda a: a * xf.psum(a, "k"), a)


def plain_chosen_twice(x: torch.Tensor) -> torch.Tensor:
    chosen = (x.sum(1) > 0.2)[:, None]
    return torch.where(chosen, plain_branches(x) * 2, x * x.sum(0))


WHOLE = {
    f.__name__: (f, plain)
    for f, plain in (
        (some, plain_some),
        (exchanged, plain_exchanged),
        (branches, plain_branches),
        (greatest, plain_greatest),
        (rounds, plain_rounds),
    )
}
FORWARD = ("value", "jvp", "vmap", "jvp of vmap")
BOTH = (*FORWARD, "grad", "grad of grad", "vmap of grad", "jvp of grad")


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, dtype=torch.float64, generator=generator)
    return x, torch.randn(4, 8, dtype=torch.float64, generator=generator) / 2


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize(
    ("name", "transform"),
    [(n, t) for n in WHOLE for t in (FORWARD if n == "rounds" else BOTH)],
)
def test_named_axis_collectives_match_plain_torch(name: str, transform: str) -> None:
    f, plain = WHOLE[name]

    def ours(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return xf.vmap(f, axis_name="k")(x[:, None] * w).pow(2).sum()

    def whole(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return plain(x[:, None] * w).pow(2).sum()

    close(OURS[transform](ours)(*arguments()), PLAIN[transform](whole)(*arguments()))


@pytest.mark.parametrize("name", ["some", "exchanged", "branches", "greatest"])
def test_named_axis_gradient_inside_vmap(name: str) -> None:
    """It is one of what all examples return, together."""
    f, plain = WHOLE[name]
    x = arguments()[1]
    inside = xf.vmap(xf.grad(lambda a: f(a).pow(2).sum()), axis_name="k")(x)
    close(inside, torch.func.grad(lambda x: plain(x).pow(2).sum())(x))


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize(
    ("f", "plain"),
    [
        *(WHOLE[name] for name in ("some", "exchanged", "branches", "greatest")),
        (chosen_in_a_loop, plain_chosen_in_a_loop),
        (chosen_twice, plain_chosen_twice),
    ],
)
def test_named_axis_second_gradient_inside_vmap(f: Any, plain: Any) -> None:
    x = arguments()[1]

    def twice(grad: Any, f: Any) -> Any:
        return grad(lambda x: grad(lambda x: f(x).pow(2).sum())(x).sin().sum())

    close(xf.vmap(twice(xf.grad, f), axis_name="k")(x), twice(torch.func.grad, plain)(x))


def test_collectives_over_several_named_axes() -> None:
    x = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4)

    def both(f: Any) -> Any:
        return xf.vmap(xf.vmap(f, axis_name="j"), axis_name="i")(x)

    rows = x.reshape(6, 4)
    turned = x.transpose(0, 1).reshape(6, 4)
    close(both(lambda a: xf.all_gather(a, ("i", "j"))), rows.expand(2, 3, 6, 4))
    close(both(lambda a: xf.all_gather(a, ("j", "i"))), turned.expand(2, 3, 6, 4))
    close(both(lambda a: xf.axis_index(("j", "i"))), torch.tensor([[0, 2, 4], [1, 3, 5]]))
    places = both(lambda a: xf.psum_scatter(a.sum() * torch.arange(6) + a[:1], ("i", "j")))
    close(places, (x.sum() * torch.arange(6) + rows[:, 0].sum()).reshape(2, 3))
    assert both(lambda a: torch.tensor(xf.axis_size(("i", "j")))).unique().item() == 6
    with pytest.raises(ShardingError, match=r"all_to_all over .'i', 'j'. is over several axes"):
        both(lambda a: xf.all_to_all(a.expand(6, 4), ("i", "j"), 0, 0))


def test_custom_vjp_with_psum_over_named_axis() -> None:
    @xf.custom_vjp
    def total(a: torch.Tensor) -> torch.Tensor:
        return xf.psum(a * a, "k")

    total.defvjp(lambda a: (total(a), a), lambda a, ct: (xf.psum(ct, "k") * a * 3,))
    x = torch.arange(1.0, 5.0, dtype=torch.float64)
    sum_of_squares = (x * x).sum()
    want = 4 * 2 * sum_of_squares * 3 * x
    close(xf.grad(lambda x: xf.vmap(total, axis_name="k")(x).pow(2).sum())(x), want)
    close(xf.vmap(xf.grad(lambda a: total(a) ** 2), axis_name="k")(x), want)


def test_named_axis_function_called_with_other_sizes() -> None:
    """What is kept of one call serves the next, for another axis too."""

    @xf.jit
    def centred(a: torch.Tensor) -> torch.Tensor:
        return a - xf.pmean(a, "k")

    def each(a: torch.Tensor) -> torch.Tensor:
        chosen = xf.cond(a.ndim == 0, lambda: centred(a), lambda: a)
        return centred(a) + xf.scan(lambda c, _: (centred(c), None), chosen, length=2)[0]

    for n in (3, 5, 3):
        x = torch.arange(n, dtype=torch.float64) ** 2
        want = 2 * (x - x.mean())
        close(xf.vmap(each, axis_name="k")(x), want)
        close(xf.jit(xf.vmap(each, axis_name="k"))(x), want)
        with xf.disable_jit():
            close(xf.vmap(centred, axis_name="k")(x), want / 2)


X = torch.zeros(3, 4)


@pytest.mark.parametrize(
    ("f", "match"),
    [
        (lambda a: xf.psum(a, "q"), r"psum over 'q': no vmap(?s:.*)name those .* around it, 'k'"),
        (lambda a: xf.psum(a, ()), r"psum over \(\) names no axis"),
        (lambda a: xf.all_gather(a, ("k", "k")), "names an axis twice"),
        (lambda a: xf.ppermute(a, "k", [(0, 3)]), "beyond the 3 places"),
        (lambda a: xf.psum_scatter(a, "k"), "is 4, which is not 3"),
    ],
)
def test_named_axis_collective_errors(f: Any, match: str) -> None:
    with pytest.raises(ShardingError, match=match) as raised:
        xf.vmap(f, axis_name="k")(X)
    assert "Hint: " in str(raised.value)
    assert "test_named_axes.py" in str(raised.value)


def test_named_axis_of_wrong_type_or_absent_raises() -> None:
    bad: Any = 3
    with pytest.raises(TypeError, match="was given axis_name=3"):
        xf.vmap(torch.sin, axis_name=bad)(X)
    with pytest.raises(ShardingError, match=r"outside a shard_map(?s:.*)axis_name='k'"):
        xf.jit(lambda a: xf.psum(a, "k"))(X)
