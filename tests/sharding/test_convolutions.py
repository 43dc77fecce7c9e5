"""Convolutions of sharded arrays and their gradients against one device."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from tests.support.divided import spec_of
from xfunc.sharding import Mesh, NamedSharding, P, make_mesh

Tensor = torch.Tensor
MESHES = [((8,), ("a",)), ((4, 2), ("a", "b")), ((2, 2, 2), ("a", "b", "c"))]


@pytest.fixture(params=["default", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "shardy":
        request.getfixturevalue("pjrt")
        monkeypatch.setattr(xf.config, "use_shardy_partitioner", True)


def check(
    fun: Callable[[Tensor, Tensor], Tensor], args: list[Tensor], placed: list[Tensor]
) -> None:
    """The value, and the gradients by both arguments for the cotangent, which is the third."""

    def loss(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
        return (fun(x, w) * c).sum()

    found = xf.jit(lambda x, w, c: (fun(x, w), *xf.grad(loss, argnums=(0, 1))(x, w, c)))(*placed)
    want = fun(*args[:2]), *torch.func.grad(loss, argnums=(0, 1))(*args)
    for a, b in zip(found, want, strict=True):
        assert torch.equal(a.cpu(), b)


def put(args: list[Tensor], mesh: Mesh, specs: list[P]) -> list[Tensor]:
    return [xf.device_put(x, NamedSharding(mesh, s)) for x, s in zip(args, specs, strict=True)]


def integers(*shape: int) -> Tensor:
    return torch.randint(-4, 5, shape).double()


# XLA's partitioner computes a gradient wrongly, or ends the process.
WRONG: dict[str, tuple[Any, ...]] = {
    "batch, with groups": (
        *((4, 2), (8, 16, 8, 8), (16, 8, 3, 3), {"groups": 2, "padding": 1}),
        [P("a"), P(), P("a")],
    ),
    "positions, and the batch of the gradient": (
        *((4, 2), (2, 16, 8), (8, 16, 2), {"stride": 2, "padding": 2, "dilation": 2}),
        [P(None, None, "a"), P(), P("b")],
    ),
    "positions, and channels of the kernel": (
        *((8,), (4, 8, 16), (16, 8, 1), {"stride": 3, "padding": 1}),
        [P(None, None, "a"), P(None, "a"), P(None, "a")],
    ),
    "positions of both": (
        *((4, 2), (2, 16, 16, 8), (8, 16, 2, 1), {"dilation": 2}),
        [P(None, None, "b"), P(None, None, "b"), P()],
    ),
}


@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("name", WRONG)
def test_convolution_of_sharded_operands(name: str) -> None:
    sizes, x, w, options, specs = WRONG[name]
    mesh = make_mesh(sizes, ("a", "b")[: len(sizes)])
    convs: dict[int, Any] = {3: F.conv1d, 4: F.conv2d}
    conv = convs[len(x)]
    args = [integers(*x), integers(*w)]
    args.append(integers(*conv(*args, **options).shape))
    check(lambda x, w: conv(x, w, **options), args, put(args, mesh, specs))


def program(draw: random.Random) -> tuple[Callable[[Tensor, Tensor], Tensor], list[Tensor]]:
    dims, groups = draw.choice([1, 1, 2]), draw.choice([1, 1, 1, 2, 4, 8])
    ins, outs, batch = draw.choice([8, 16]), draw.choice([8, 16]), draw.choice([2, 4, 8])
    space = [draw.choice([8, 16]) for _ in range(dims)]
    kernel = [draw.choice([1, 2, 3, 4]) for _ in range(dims)]
    stride, dilation = draw.choice([1, 1, 2, 3]), draw.choice([1, 1, 2])
    padding = draw.choice([0, 1, 2])
    transposed = draw.random() < 0.3
    if transposed:
        padding = min(padding, dilation * (min(kernel) - 1))
    of: list[Any] = [F.conv_transpose1d, F.conv_transpose2d] if transposed else [F.conv1d, F.conv2d]
    shape = (ins, outs // groups) if transposed else (outs, ins // groups)

    def fun(x: Tensor, w: Tensor) -> Tensor:
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return of[dims - 1](x, w, **options)

    args = [integers(batch, ins, *space), integers(*shape, *kernel)]
    return fun, [*args, integers(*fun(*args).shape)]


@pytest.mark.sample(100, seed=0)
@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("number", range(300))
def test_convolutions_of_random_shardings(number: int, seed: int) -> None:
    draw = random.Random(f"{seed} {number}")
    sizes, names = draw.choice(MESHES)
    mesh = make_mesh(sizes, names)
    fun, args = program(draw)
    check(fun, args, put(args, mesh, [spec_of(draw, tuple(x.shape), mesh, 0.75) for x in args]))
