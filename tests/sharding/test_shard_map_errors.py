"""What `shard_map` refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc import sharding
from xfunc.errors import ShardingError, TreeMismatchError
from xfunc.sharding import P, make_mesh, shard_map

pytestmark = pytest.mark.quick

MESH = make_mesh((4, 2), ("x", "y"))
X = torch.zeros(8, 4)


def close(got: Any, want: Any) -> None:
    leaves = xf.tree.leaves(xf.device_get(got)), xf.tree.leaves(want)
    torch.testing.assert_close(*leaves, rtol=1e-9, atol=1e-9, check_dtype=False)


@pytest.mark.parametrize(
    ("in_specs", "out_specs", "match"),
    [
        (P("q"), P(), r"the spec of a is P\('q'\), and Mesh\(x=4, y=2\) has no axis 'q'"),
        (P("x", "x"), P(), "'x' occurs twice"),
        (P(None, "x", "y"), P(), r"a has 2 dimensions \(8, 4\), and P\(None, 'x', 'y'\) is for 3"),
        (P(None, ("x", "y")), P(), r"dimension 1 is 4, which is not a multiple of 8 \(x=4 x y=2\)"),
        (P(P.UNCONSTRAINED), P(), "parts of an unknown size"),
        (None, P(), "the spec of a is None"),
        (P(), P("q"), r"the spec of the result\['k'\] is P\('q'\), and Mesh"),
        (P(), P("x", None, "y"), r"the result\['k'\] is float32\[8,4\] on each device, and its"),
        (P("x"), P(), r"the result\['k'\] has the spec P\(\), which does not name 'x', and may"),
        (P("x", "y"), P("x"), "which does not name 'y'"),
    ],
)  # fmt: skip
def test_shard_map_invalid_specs_raise(in_specs: Any, out_specs: Any, match: str) -> None:
    with pytest.raises(ShardingError, match=match) as raised:
        shard_map(lambda a: {"k": a}, MESH, in_specs, out_specs)(X)
    assert "Hint: " in str(raised.value)
    assert "test_shard_map_errors.py" in str(raised.value)


def test_shard_map_spec_tree_mismatch_raises() -> None:
    for in_specs, out_specs, match in (
        ((P(), P()), P(), r"in_specs is not a prefix .* at the arguments it is \(P\(\), P\(\)\)"),
        (P(), {"k": P()}, "out_specs is not a prefix .* at the result"),
    ):
        with pytest.raises(TreeMismatchError, match=match):
            shard_map(lambda a: a, MESH, in_specs, out_specs)(X)


def test_shard_map_invalid_calls_raise() -> None:
    def nested(a: torch.Tensor) -> torch.Tensor:
        return shard_map(lambda b: b, MESH, P("x"), P("x"))(a)

    other = sharding.AbstractMesh((2, 4), ("x", "y"))

    def elsewhere(a: torch.Tensor) -> torch.Tensor:
        return shard_map(lambda b: b, other, P("y"), P("y"), axis_names="y")(a)

    bad: Any = "mesh"
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (nested, {}, "is inside a shard_map that is manual over 'x' already"),
        (elsewhere, {"axis_names": "x"}, "on AbstractMesh.*inside a shard_map on Mesh"),
        (torch.sin, {"axis_names": ("x", "q")}, "axis_names has 'q', which is not an axis of Mesh"),
        (torch.sin, {"axis_names": "y"}, "but the shard_map is not manual over 'x'"),
        (torch.sin, {"mesh": bad}, "mesh is 'mesh'"),
    ]
    for f, options, match in cases:
        with pytest.raises(ShardingError, match=match):
            shard_map(
                lambda a, f=f: f(a), **{"mesh": MESH, **options}, in_specs=P("x"), out_specs=P("x")
            )(X)
    with pytest.raises(TypeError, match="was given no out_specs"):
        shard_map(torch.sin, MESH, P())
    with pytest.raises(TypeError, match="was given the keyword arguments a"):
        shard_map(lambda a: a, MESH, P("x"), P("x"))(a=X)


@pytest.mark.parametrize(
    "f",
    [
        torch.linalg.qr,
        torch.linalg.cholesky,
        torch.linalg.inv,
        torch.fft.fft,
        torch.linalg.eigvalsh,
    ],
    ids=lambda f: f.__name__,
)
def test_shard_map_partly_manual_unsupported_op_raises(f: Any) -> None:
    """XLA's partitioner ends the process there. Manual over all axes, all of it works."""
    x = torch.eye(4, dtype=torch.float64).repeat(4, 1, 1) * 3

    def each(a: torch.Tensor) -> torch.Tensor:
        out = f(a)
        return (out[1] if isinstance(out, tuple) else out).abs()

    with pytest.raises(ShardingError, match="manual over some axes of the mesh only"):
        shard_map(each, MESH, P("x"), P("x"), axis_names="x")(x)
    close(shard_map(each, MESH, P("x"), P("x"))(x), each(x))


def test_shard_map_partly_manual_branch_raises() -> None:
    def each(a: torch.Tensor) -> torch.Tensor:
        return xf.cond(a.sum() > 0, torch.sin, torch.cos, a)

    with pytest.raises(ShardingError, match="has a branch in a region that XLA divides further"):
        shard_map(each, MESH, P("x"), P("x"), axis_names="x")(X)
    close(shard_map(each, MESH, P("x"), P("x"))(X), torch.cos(X))
