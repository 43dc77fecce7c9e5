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
Function = Callable[[Tensor, Tensor], Tensor]
MESHES = [((8,), ("a",)), ((4, 2), ("a", "b")), ((2, 2, 2), ("a", "b", "c"))]


def check(fun: Function, args: list[Tensor], placed: list[Tensor], on_mesh: Function) -> None:
    """The value, and the gradients by both arguments for the cotangent, which is the third."""

    def loss(fun: Function) -> Callable[..., Tensor]:
        return lambda x, w, c: (fun(x, w) * c).sum()

    @xf.jit
    def both(x: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return on_mesh(x, w), *xf.grad(loss(on_mesh), argnums=(0, 1))(x, w, c)

    want = fun(*args[:2]), *torch.func.grad(loss(fun), argnums=(0, 1))(*args)
    for a, b in zip(both(*placed), want, strict=True):
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

    def fun(x: Tensor, w: Tensor) -> Tensor:
        return conv(x, w, **options)

    check(fun, args, put(args, mesh, specs), fun)


FUNCTIONS: dict[bool, list[Any]] = {
    False: [F.conv1d, F.conv2d, F.conv3d],
    True: [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d],
}


def program(draw: random.Random, dims: int) -> tuple[Function, list[Tensor]]:
    """A convolution along so many dimensions, and its operands and a cotangent of its result."""
    groups = draw.choice([1, 1, 1, 2, 4, 8])
    ins, outs, batch = draw.choice([8, 16]), draw.choice([8, 16]), draw.choice([2, 4, 8])
    space = [draw.choice([8, 16] if dims < 3 else [2, 4, 8]) for _ in range(dims)]
    kernel = [draw.choice([1, 2, 3, 4] if dims < 3 else [1, 2, 3]) for _ in range(dims)]
    stride, dilation, padding = ([draw.choice(n) for _ in range(dims)] for n in CHOICES)
    transposed = draw.random() < 0.3
    shape = (ins, outs // groups) if transposed else (outs, ins // groups)
    options = {"stride": stride, "dilation": dilation, "groups": groups}
    of: Any = FUNCTIONS[transposed][dims - 1]
    for d, (n, k) in enumerate(zip(space, kernel, strict=True)):
        reach = dilation[d] * (k - 1)
        space[d] = n if transposed else max(n, reach + 1 - 2 * padding[d])
        if transposed:
            padding[d] = min(padding[d], reach, ((n - 1) * stride[d] + reach) // 2)
    options["padding"] = padding
    if transposed:
        options["output_padding"] = [draw.randrange(s) for s in stride]

    def fun(x: Tensor, w: Tensor) -> Tensor:
        return of(x, w, **options)

    args = [integers(batch, ins, *space), integers(*shape, *kernel)]
    return fun, [*args, integers(*fun(*args).shape)]


CHOICES = [1, 1, 2, 3], [1, 1, 2], [0, 1, 2]  # strides, dilations, paddings


@pytest.mark.sample(100, seed=0)
@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("number", range(300))
def test_convolutions_of_random_shardings(number: int, seed: int) -> None:
    draw = random.Random(f"{seed} {number}")
    sizes, names = draw.choice(MESHES)
    mesh = make_mesh(sizes, names)
    fun, args = program(draw, draw.choice([1, 1, 2]))
    specs = [spec_of(draw, tuple(x.shape), mesh, 0.75) for x in args]
    check(fun, args, put(args, mesh, specs), fun)


@pytest.mark.sample(100, seed=0)
@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("number", range(100))
def test_convolutions_in_three_dimensions_of_random_shardings(number: int, seed: int) -> None:
    draw = random.Random(f"three {seed} {number}")
    sizes, names = draw.choice(MESHES)
    mesh = make_mesh(sizes, names)
    fun, args = program(draw, 3)
    specs = [spec_of(draw, tuple(x.shape), mesh, 0.75) for x in args]
    check(fun, args, put(args, mesh, specs), fun)


def check_in_region(number: int, seed: int) -> None:
    """Each device along one axis has a part of the batch, and XLA divides it along the others."""
    draw = random.Random(f"region {seed} {number}")
    sizes, names = draw.choice(MESHES[1:])
    mesh = make_mesh(sizes, names)
    fun, args = program(draw, draw.choice([1, 1, 2, 3]))
    own = draw.choice([n for n in names if args[0].shape[0] % mesh.shape[n] == 0])
    each = xf.shard_map(fun, mesh=mesh, in_specs=(P(own), P()), out_specs=P(own), axis_names={own})
    specs = [spec_of(draw, tuple(x.shape), mesh, 0.75) for x in args]
    check(fun, args, put(args, mesh, specs), each)


# Wrong, and the end of the process, where XLA divided positions.
@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("number", [26, 40])
def test_convolution_in_partly_manual_region(number: int) -> None:
    check_in_region(number, 0)


@pytest.mark.sample(200, seed=0)
@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("number", range(200))
def test_convolutions_in_partly_manual_regions(number: int, seed: int) -> None:
    check_in_region(number, seed)
