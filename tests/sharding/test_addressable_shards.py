"""`addressable_shards`: what each device holds, as slices of the whole."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

import xfunc as xf
from xfunc.sharding import NamedSharding, P, addressable_shards

SPECS = [
    ((8,), ("x",), P("x")),
    ((8,), ("x",), P(None, "x")),
    ((4, 2), ("x", "y"), P("x", "y")),
    ((4, 2), ("x", "y"), P("y", "x")),
    ((4, 2), ("x", "y"), P(("y", "x"))),
    ((2, 4), ("x", "y"), P("x")),
    ((2, 4), ("x", "y"), P(None, "y")),
    ((2, 1, 4), ("x", "y", "z"), P("z", ("x", "y"))),
    ((2, 2, 2), ("x", "y", "z"), P("y")),
    ((4, 2), ("x", "y"), P()),
]

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2,
    torch.float8_e4m3fn, torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.complex64, torch.complex128,
]  # fmt: skip


def tied(index: tuple[slice, ...], shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    return [each.indices(n) for each, n in zip(index, shape, strict=True)]


@pytest.mark.parametrize(("sizes", "names", "spec"), SPECS, ids=str)
def test_addressable_shards_are_slices(
    sizes: tuple[int, ...], names: tuple[str, ...], spec: P
) -> None:
    whole = np.arange(8 * 16 * 3).reshape(8, 16, 3)
    x = xf.device_put(torch.tensor(whole), NamedSharding(xf.make_mesh(sizes, names), spec))
    shards = addressable_shards(x)
    assert [s.device for s in shards] == [*range(8)]
    seen = np.zeros(whole.shape, int)
    for s in shards:
        assert s.data.device.type == "cpu"
        assert s.data.dtype == torch.int64
        np.testing.assert_array_equal(s.data, whole[s.index])
        seen[s.index] += s.replica_id == 0
    assert (seen == 1).all()


@pytest.mark.usefixtures("pjrt")
@pytest.mark.parametrize(("sizes", "names", "spec"), SPECS, ids=str)
def test_addressable_shards_equal_jax(
    sizes: tuple[int, ...], names: tuple[str, ...], spec: P
) -> None:
    whole = torch.arange(8.0 * 16 * 3).reshape(8, 16, 3)
    x = xf.device_put(whole, NamedSharding(xf.make_mesh(sizes, names), spec))
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(sizes), names)
    where: Any = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    theirs = jax.device_put(whole.numpy(), where).addressable_shards
    theirs = sorted(theirs, key=lambda s: s.device.id)
    for own, other in zip(addressable_shards(x), theirs, strict=True):
        assert (own.device, own.replica_id) == (other.device.id, other.replica_id)
        assert tied(own.index, (8, 16, 3)) == tied(other.index, (8, 16, 3))
        np.testing.assert_array_equal(own.data, np.asarray(other.data))


def test_addressable_shards_of_permuted_devices() -> None:
    mesh = xf.make_mesh((4, 2), ("x", "y"), devices=[7, 6, 5, 4, 3, 2, 1, 0])
    x = xf.device_put(torch.arange(4.0), NamedSharding(mesh, P("x")))
    found = [(s.device, s.replica_id, s.data.tolist()) for s in addressable_shards(x)]
    assert found == [(k, k % 2, [3.0 - k // 2]) for k in range(8)]


@pytest.mark.torch_xla
def test_addressable_shards_of_padded_torch_xla_tensor() -> None:
    """It pads what it cannot divide; some devices then hold nothing."""
    from torch_xla.distributed import spmd  # pyright: ignore[reportMissingImports]

    mesh = spmd.Mesh([*range(8)], (8,), ("x",))
    whole = torch.arange(20.0).reshape(10, 2)
    x = spmd.mark_sharding(whole.to(xf.device_put(whole).device), mesh, ("x", None)).global_tensor
    shards = addressable_shards(x)
    assert [s.data.shape[0] for s in shards] == [2, 2, 2, 2, 2, 0, 0, 0]
    for s in shards:
        assert torch.equal(s.data, whole[s.index])


def test_addressable_shards_of_results_and_parameters() -> None:
    split = NamedSharding(xf.make_mesh((8,), ("x",)), P("x"))
    x = xf.device_put(torch.arange(16, dtype=torch.bfloat16), split).requires_grad_()
    y = xf.jit(lambda x: (2 * x, x.sum()))(x)
    for value, wanted in ((x, [0.0, 1.0]), (y[0], [0.0, 2.0])):
        first = addressable_shards(value)[0]
        assert first.data.tolist() == wanted
        assert not first.data.requires_grad
    assert [(s.index, s.data.item()) for s in addressable_shards(y[1])] == [((), 120.0)] * 8
    empty = xf.device_put(torch.ones(0, 3), split)
    assert [tuple(s.data.shape) for s in addressable_shards(empty)] == [(0, 3)] * 8


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_addressable_shards_and_device_get_of_each_dtype(dtype: torch.dtype) -> None:
    mesh = xf.make_mesh((4, 2), ("x", "y"))
    parts = torch.randn(2, 8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = torch.complex(*parts).to(dtype) if dtype.is_complex else (parts[0] * 5).to(dtype)
    for spec in (P("x"), P("y", "x"), P()):
        x = xf.device_put(whole, NamedSharding(mesh, spec))
        y = xf.jit(lambda x: x.T)(x)
        for value, want in ((x, whole), (y, whole.T)):
            assert bits(xf.device_get(value)) == bits(want)
            for s in addressable_shards(value):
                assert s.data.dtype is dtype
                assert bits(s.data) == bits(want[s.index])


def bits(x: torch.Tensor) -> list[int]:
    x = torch.view_as_real(x) if x.is_complex() else x
    return x.contiguous().view(torch.uint8).tolist()


def test_addressable_shards_are_copies() -> None:
    split = NamedSharding(xf.make_mesh((8,), ("x",)), P("x"))
    for spec in (split, NamedSharding(split.mesh, P())):
        x = xf.device_put(torch.zeros(8), spec)
        shards = addressable_shards(x)
        x += 1
        assert {s.data.sum().item() for s in shards} == {0.0}
        assert torch.equal(torch.stack([s.data[-1] for s in addressable_shards(x)]), torch.ones(8))


def test_addressable_shards_errors() -> None:
    hint = r"(.|\n)*Hint: put it on the devices with xf.device_put"
    with pytest.raises(xf.errors.ShardingError, match="was given a tensor on the host" + hint):
        addressable_shards(torch.ones(2))
    with pytest.raises(xf.errors.ShardingError, match="addressable_shards was given 'x'" + hint):
        addressable_shards("x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(xf.errors.ShardingError, match=r"a traced tensor(.|\n)*Hint: ask for"):
        xf.jit(lambda x: addressable_shards(x)[0].data)(torch.ones(2))
