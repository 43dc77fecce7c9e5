"""`typeof`: how values vary in a `shard_map`. What is expected is what JAX 0.7.1 says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.divided import MESH
from xfunc.errors import UnsupportedOpError
from xfunc.sharding import P, pcast, psum, pvary, shard_map

pytestmark = pytest.mark.quick

X = torch.arange(8.0).reshape(4, 2)
W = torch.ones(2)
NOTHING: Any = "x"
BOTH = P("fsdp", "tensor")


def seen(f: Any, spec: Any = BOTH, of: Any = None, **options: Any) -> list[str]:
    """The axes that `f` says of what a device has; also when it is traced again."""
    found: list[list[str]] = []

    def device(x: torch.Tensor) -> torch.Tensor:
        found.append(sorted(xf.typeof(f(x)).vma))
        return x.sin()

    run = shard_map(device, MESH, spec, spec, **options)
    (of or (lambda run: run(X)))(run)
    assert found
    assert all(one == found[0] for one in found)
    return found[0]


@pytest.mark.parametrize(
    ("f", "spec", "want"),
    [
        (lambda x: x, P("fsdp", "tensor"), ["fsdp", "tensor"]),
        (lambda x: x, P("fsdp"), ["fsdp"]),
        (lambda x: x, P(("fsdp",)), ["fsdp"]),
        (lambda x: x, P(), []),
        (lambda x: x * 2 + 1, P("tensor"), ["tensor"]),
        (lambda x: psum(x, "fsdp"), P("fsdp", "tensor"), ["tensor"]),
        (lambda x: psum(x, ("fsdp", "tensor")), P("fsdp", "tensor"), []),
        (lambda x: pvary(x, "tensor"), P("fsdp"), ["fsdp", "tensor"]),
        (lambda x: xf.all_gather(x, "fsdp"), P("fsdp"), ["fsdp"]),
        (lambda x: torch.zeros(2), P("fsdp"), []),
        (lambda x: W, P("fsdp"), []),
        (lambda x: W + x[0], P("fsdp"), ["fsdp"]),
        (lambda x: xf.axis_index("tensor"), P("fsdp"), ["tensor"]),
        (lambda x: 2.0, P("fsdp"), []),
        (lambda x: xf.jit(lambda y: y + 1)(x), P("fsdp"), ["fsdp"]),
        (lambda x: pcast(W, tuple(xf.typeof(x).vma), to="varying"), P("fsdp"), ["fsdp"]),
    ],
)
def test_typeof_axes_equal_jax(f: Any, spec: Any, want: list[str]) -> None:
    assert seen(f, spec) == want


@pytest.mark.parametrize(
    "of",
    [
        lambda run: xf.jit(run)(X),
        lambda run: xf.grad(lambda x: run(x).sum())(X),
        lambda run: xf.jvp(run, (X,), (X,)),
        lambda run: xf.vmap(run)(X[None]),
        lambda run: xf.hessian(lambda x: run(x).sum())(X),
    ],
)
def test_typeof_in_shard_map_under_transforms(of: Any) -> None:
    assert seen(lambda x: x * 2, P("fsdp"), of) == ["fsdp"]


def test_typeof_under_transforms_inside_shard_map() -> None:
    def of_gradient(x: torch.Tensor) -> torch.Tensor:
        found: list[Any] = []
        xf.grad(lambda y: found.append(xf.typeof(y).vma) or y.sum())(x)
        xf.vmap(lambda y: found.append(xf.typeof(y).vma) or y)(x)
        return pvary(W, tuple(found[0] & found[1]))

    assert seen(of_gradient, P("fsdp")) == ["fsdp"]


def test_typeof_of_one_function_with_different_specs() -> None:
    """With parts of one shape."""
    found: list[Any] = []

    def device(x: torch.Tensor) -> torch.Tensor:
        found.append(xf.typeof(x).vma)
        return x

    for name in ("fsdp", "fsdp", "tensor"):
        shard_map(device, MESH, P(name), P(name))(torch.ones(2 * MESH.shape[name], 2))
    assert found == [{"fsdp"}, {"tensor"}]


def test_typeof_outside_shard_map_and_without_check_vma() -> None:
    kind = xf.typeof(X)
    assert (kind.shape, kind.dtype, kind.ndim, kind.vma) == ((4, 2), torch.float32, 2, frozenset())
    assert xf.typeof(xf.ShapeDtypeStruct((2,), torch.int32)).vma == frozenset()
    assert seen(lambda x: x, check_vma=False) == []


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: xf.typeof(NOTHING), TypeError, "typeof was given a str"),
        (
            lambda: seen(
                lambda x: xf.scan(lambda c, y: (pvary(c, tuple(xf.typeof(y).vma)), y), W, x)[0]
            ),
            UnsupportedOpError,
            "typeof was asked how a value .* traced by itself.*\n.*\n.*infer by themselves",
        ),
        (
            lambda: seen(lambda x: xf.jit(lambda y: pvary(y, tuple(xf.typeof(y).vma)))(x)),
            UnsupportedOpError,
            "typeof was asked how a value",
        ),
    ],
)
def test_typeof_errors(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()
