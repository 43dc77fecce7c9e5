"""Arrays on a mesh: putting, asking, resharding, jit with shardings, donation."""

import copy
import io
import pickle
import re
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc import NamedSharding, P
from xfunc.errors import ShardingError, TreeMismatchError, UnsupportedOpError

MESH = xf.make_mesh((4, 2), ("x", "y"))
X = torch.arange(64.0).reshape(8, 8)


def on(*entries):
    return NamedSharding(MESH, P(*entries))


SPECS = [
    (),
    ("x",),
    ("y",),
    (None, "x"),
    ("x", "y"),
    ("y", "x"),
    (("x", "y"),),
    (("y", "x"),),
    (None, ("x", "y")),
    ("x", None),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_device_put_and_get(spec, dtype):
    x = (X % 3).to(dtype)
    y = xf.device_put(x, on(*spec))
    assert xf.sharding_of(y) == on(*spec)
    assert torch.equal(xf.device_get(y), x)


@pytest.mark.parametrize("after", SPECS, ids=str)
@pytest.mark.parametrize("before", SPECS[:6], ids=str)
def test_device_put_reshards(before, after):
    y = xf.device_put(xf.device_put(X, on(*before)), on(*after))
    assert xf.sharding_of(y) == on(*after)
    assert torch.equal(y.cpu(), X)


@pytest.mark.parametrize("shape", [(), (0,), (8, 0), (4, 2, 4), (2, 4, 2, 2, 2, 2, 2)], ids=str)
def test_device_put_shapes(shape):
    x = torch.randn(shape)
    spec = P() if not shape else P(None, "x") if shape[1:] and shape[1] % 4 == 0 else P("y")
    y = xf.device_put(x, NamedSharding(MESH, spec))
    assert torch.equal(y.cpu(), x)
    assert xf.sharding_of(y) == NamedSharding(MESH, spec)


@pytest.mark.quick
def test_device_put_on_meshes_of_1_to_3_axes(any_mesh):
    sharding = NamedSharding(any_mesh, P(tuple(any_mesh.axis_names)))
    y = xf.device_put(X, sharding)
    assert torch.equal(y.cpu(), X)
    assert xf.sharding_of(y) == sharding
    assert sharding.shard_shape(X.shape) == (1, 8)


def test_mesh_with_permuted_devices():
    mesh = xf.Mesh([[6, 1, 3, 0], [2, 7, 5, 4]], ("a", "b"))
    y = xf.device_put(X, NamedSharding(mesh, P("b", "a")))
    z = xf.jit(lambda a: a @ a, out_shardings=NamedSharding(mesh, P("a")))(y)
    assert xf.sharding_of(y) == NamedSharding(mesh, P("b", "a"))
    assert xf.sharding_of(z) == NamedSharding(mesh, P("a"))
    assert torch.equal(z.cpu(), X @ X)


def test_jit_out_shardings_distinguish_axis_order():
    """torch_xla's hash of a program leaves the compact order out."""
    one = xf.jit(lambda a: a + 1, out_shardings=on(("x", "y")))(X)
    two = xf.jit(lambda a: a + 1, out_shardings=on(("y", "x")))(X)
    assert xf.sharding_of(one) == on(("x", "y"))
    assert xf.sharding_of(two) == on(("y", "x"))


def test_device_put_tree_of_specs():
    tree = {"a": [X, X], "b": (X, 1.5), "c": None}
    with xf.use_mesh(MESH):
        y = xf.device_put(tree, {"a": P("x"), "b": (P("y"), P()), "c": P("x")})
    assert xf.sharding_of(y["a"][1]) == on("x")
    assert xf.sharding_of(y["b"][0]) == on("y")
    assert y["b"][1].item() == 1.5


def test_jit_compiles_once_per_argument_shardings():
    f = xf.jit(lambda a, b: a @ b)
    for left, right in ((("x", "y"), ("y", "x")), (("x",), ()), ((), ())):
        y = f(xf.device_put(X, on(*left)), xf.device_put(X, on(*right)))
        assert torch.equal(y.cpu(), X @ X)
    assert xf.trace_count(f) == 1  # The function is traced once, and compiled for each way.
    assert f.cache_info().compiles == 3
    f(xf.device_put(X, on("x", "y")), xf.device_put(X, on("y", "x")))
    assert f.cache_info().compiles == 3


def test_jit_elementwise_result_keeps_sharding():
    y = xf.jit(lambda a: torch.tanh(a) * 2)(xf.device_put(X, on("y", "x")))
    assert xf.sharding_of(y) == on("y", "x")


def test_jit_in_shardings_and_out_shardings():
    f = xf.jit(
        lambda a, b: {"dot": a @ b, "sum": a + b},
        in_shardings=(on("x"), on(None, "y")),
        out_shardings={"dot": on("x", "y"), "sum": on()},
    )
    y = f(X, X)
    assert xf.sharding_of(y["dot"]) == on("x", "y")
    assert xf.sharding_of(y["sum"]) == on()
    assert torch.equal(y["dot"].cpu(), X @ X)
    text = f.lower(X, xf.ShapeDtypeStruct((8, 8), torch.float32)).as_text()
    tiles = r"\{devices=\[4,1,2\]<=\[8\] last_tile_dim_replicate\}"
    assert re.search(rf"parameter\(\d\), sharding={tiles}", text)  # in either order
    z = xf.jit(lambda a: f(a, a + 0)["dot"])(X)  # inside another function: constraints
    assert xf.sharding_of(z) == on("x", "y")


def test_jit_shardings_with_static_and_donated_arguments():
    f = xf.jit(
        lambda n, a, b: (a * n, b),
        static_argnums=0,
        donate_argnums=1,
        in_shardings=(on("x"), None),
        out_shardings=(on("y"), None),
    )
    a = xf.device_put(X, on("x"))
    y, z = f(3, a, X)
    assert torch.equal(y.cpu(), 3 * X)
    assert xf.sharding_of(y) == on("y")
    assert torch.equal(z.cpu(), X)
    with pytest.raises(RuntimeError, match="was donated to a jitted function"):
        a.add(1)


def test_jit_specs_mean_the_mesh_in_use():
    f = xf.jit(lambda a: a + 1, in_shardings=P("x"), out_shardings=P("y"))
    with xf.use_mesh(MESH):
        assert xf.sharding_of(f(X)) == on("y")
    other = xf.make_mesh((2, 4), ("x", "y"))
    with xf.use_mesh(other):
        assert xf.sharding_of(f(X)) == NamedSharding(other, P("y"))


def test_jit_donated_sharded_buffers_are_reused():
    def step(p, g):
        return p - 0.1 * g

    abstract = xf.ShapeDtypeStruct((64, 64), torch.float32, on("x", "y"))
    kept = xf.jit(step).lower(abstract, abstract).compile().memory_analysis()
    donated = xf.jit(step, donate_argnums=0).lower(abstract, abstract).compile().memory_analysis()
    assert kept.argument_size_in_bytes == 2 * 64 * 64 * 4 // 8  # of one device
    assert kept.alias_size_in_bytes == 0
    assert donated.alias_size_in_bytes == 64 * 64 * 4 // 8


def test_compiled_argument_shardings():
    abstract = xf.ShapeDtypeStruct((8, 8), torch.float32, on("x"))
    compiled = xf.jit(lambda a: a + 1).lower(abstract).compile()
    assert xf.sharding_of(compiled(X)) == on("x")
    with pytest.raises(
        ShardingError, match=r"takes a sharded as .*'x'.* but it is sharded as NamedSharding"
    ):
        compiled(xf.device_put(X, on("y")))


def test_value_and_grad_of_sharded_arguments():
    w = xf.device_put(torch.randn(8, 8, dtype=torch.float64), on("x", "y"))
    x = xf.device_put(torch.randn(16, 8, dtype=torch.float64), on("x"))
    value, grad = xf.value_and_grad(lambda w, x: torch.tanh(x @ w).square().sum())(w, x)
    plain = w.cpu().requires_grad_()
    torch.tanh(x.cpu() @ plain).square().sum().backward()
    torch.testing.assert_close(grad.cpu(), plain.grad)
    assert value.dtype == torch.float64


def test_autograd_through_jit_of_sharded_arguments():
    leaf = torch.randn(8, 8, requires_grad=True)
    on_mesh = xf.device_put(leaf, on("x"))
    f = xf.jit(lambda a: (a @ a).sum())
    f(on_mesh).backward()
    assert leaf.grad is not None
    plain = leaf.detach().requires_grad_()
    (plain @ plain).sum().backward()
    torch.testing.assert_close(leaf.grad, plain.grad)
    param = xf.device_put(leaf.detach(), on("x", "y")).requires_grad_()
    f(param).backward()
    torch.testing.assert_close(param.grad.cpu(), plain.grad)


def test_torch_xla_operations_on_sharded_tensors():
    y = xf.device_put(X, on("x", "y"))
    lazy = y + 1
    assert lazy.sum().item() == (X + 1).sum().item()
    z = xf.jit(lambda a: a * 2)(y * 3)  # a pending lazy tensor as an argument
    assert torch.equal(z.cpu(), X * 6)
    assert "tensor" in repr(y)


def test_jit_captured_tensor_keeps_its_sharding():
    w = xf.device_put(X, on("x", "y"))
    f = xf.jit(lambda a: a * w)
    y = f(xf.device_put(X, on("x", "y")))
    assert torch.equal(y.cpu(), X * X)
    assert xf.sharding_of(y) == on("x", "y")
    assert "devices=[4,2]<=[8]" in f.lower(X).as_text()


def test_jit_100_donated_steps_on_a_mesh():
    f = xf.jit(lambda p, x: (p - 0.1 * (p @ x.T).mean(0), p.square().sum()), donate_argnums=0)
    small = X / 64
    p, x = xf.device_put(small, on("x", "y")), xf.device_put(small, on("y"))
    plain, totals, expected = small, [], []
    for _ in range(100):
        p, total = f(p, x)
        totals.append(total.cpu())
        expected.append(plain.square().sum())
        plain = plain - 0.1 * (plain @ small.T).mean(0)
    torch.testing.assert_close(torch.stack(totals), torch.stack(expected), rtol=1e-4, atol=0)
    assert xf.trace_count(f) == 1


@pytest.mark.quick
def test_mesh_and_spec_equality_hash_and_pickle():
    assert P("x") == P("x", None) == P(("x",))
    assert hash(P("x")) == hash(P("x", None))
    assert P("x") != P("y")
    assert P(("x", "y")) != P(("y", "x"))
    assert P(()) == P(None) == P()
    assert repr(P("x", None, ("y", "z"))) == "P('x', None, ('y', 'z'))"
    assert on("x") == on("x", None)
    assert len({on("x"), on("x", None), on("y")}) == 2
    again = xf.make_mesh((4, 2), ("x", "y"))
    assert again == MESH
    assert hash(again) == hash(MESH)
    assert xf.AbstractMesh((4, 2), ("x", "y")) != MESH
    assert xf.make_mesh((2, 4), ("x", "y")) != MESH
    for value in (MESH, P("x", P.UNCONSTRAINED), on("x"), xf.AbstractMesh((64, 4), ("a", "b"))):
        assert pickle.loads(pickle.dumps(value)) == value
        assert copy.deepcopy(value) == value
    assert dict(MESH.shape) == {"x": 4, "y": 2}
    assert (MESH.size, MESH.ndim, MESH.axis_names) == (8, 2, ("x", "y"))
    with pytest.raises(AttributeError, match="cannot be changed"):
        setattr(MESH, next(iter(vars(MESH))), ())


def test_make_mesh_dcn_axes():
    mesh = xf.make_mesh((4, 2), ("data", "tensor"), dcn_axes={"data": 2})
    assert mesh.devices.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    mesh = xf.make_mesh((2, 4), ("data", "tensor"), dcn_axes={"tensor": 2})
    assert mesh.devices.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    y = xf.device_put(X, NamedSharding(mesh, P("tensor")))
    assert torch.equal(y.cpu(), X)
    assert xf.sharding_of(y) == NamedSharding(mesh, P("tensor"))
    big = xf.sharding.abstract_mesh((64, 64), ("data", "tensor"), dcn_axes={"data": 16})
    abstract = xf.ShapeDtypeStruct(
        (4096, 4096), torch.float32, NamedSharding(big, P("tensor", "data"))
    )
    text = xf.jit(lambda a: a @ a).lower(abstract).as_text()
    assert "sharding={devices=[64,64]<=[64,64]T(1,0)}" in text
    with pytest.raises(ShardingError, match=r"axis 'data' .of size 64. of .* spans 3 slices"):
        xf.sharding.abstract_mesh((64,), ("data",), dcn_axes={"data": 3})
    with pytest.raises(ShardingError, match=r"axis 'model' .no such axis."):
        xf.sharding.abstract_mesh((64,), ("data",), dcn_axes={"model": 2})


BIG = xf.AbstractMesh((64, 4), ("x", "y"))
WRONG: Any = 3  # of no type that is asked for
ERRORS = [
    (
        lambda: xf.make_mesh((4, 4), ("x", "y")),
        "needs 16 devices, but this process has 8",
    ),
    (lambda: xf.make_mesh((2, 2), ("x", "y")), "4 of 8 devices, but XLA runs every program on all"),
    (lambda: xf.make_mesh((8,), "x", devices=[0, 1]), "given 2 devices for"),
    (lambda: xf.Mesh([0, 1, 2, 3, 4, 5, 6, 6], "x"), "not those from 0 to 7, each one once"),
    (lambda: xf.Mesh("abc", "x"), "not an array of device numbers"),
    (lambda: xf.AbstractMesh((4, 2), ("x", "x")), "not all different"),
    (lambda: xf.AbstractMesh((4, 2), ("x",)), "2 axis sizes and 1 axis names"),
    (lambda: xf.AbstractMesh((0, 2), ("x", "y")), "a size is an int of at least 1"),
    (lambda: xf.AbstractMesh((4, 2), ("x", WRONG)), "a name is a string"),
    (lambda: P(3), "PartitionSpec was given 3"),
    (lambda: on("z"), "has no axis 'z'"),
    (lambda: on("x", "x"), "the axis 'x' occurs twice"),
    (lambda: on(("x", "x")), "the axis 'x' occurs twice"),
    (lambda: NamedSharding(MESH, "x"), "was given 'x' as spec"),
    (lambda: NamedSharding(WRONG, P()), "was given 3 as mesh"),
    (lambda: xf.device_put({"a": [X[:6]]}, on("x")), r"x\['a'\]\[0\] of shape \(6, 8\) cannot be"),
    (lambda: xf.device_put(X[0], on("x", "y")), "has 1 dimensions"),
    (lambda: xf.device_put(1.0, on("x")), "x has 0 dimensions"),
    (lambda: xf.device_put(X, P("x")), "no mesh is in use"),
    (lambda: xf.device_put(X, "x"), "is not a sharding"),
    (
        lambda: xf.device_put(torch.ones(64, 4), NamedSharding(BIG, P("x"))),
        "needs .* devices, but this process has",
    ),
    (lambda: xf.jit(lambda a: a, in_shardings=on("x"))(X[:3]), "a of .* of shape .* cannot be"),
    (lambda: xf.jit(lambda a: a[:3], out_shardings=on("x"))(X), "of shape .* cannot be"),
    (lambda: xf.device_put(X, on(P.UNCONSTRAINED, "x")), "is for constraints"),
    (lambda: xf.jit(lambda a: a, in_shardings=on("x"))(a=X), "was given 'a' by keyword"),
    (lambda: xf.sharding_of(WRONG), "sharding_of was given 3"),
    (lambda: xf.jit(xf.sharding_of)(X), "sharding_of was given a traced tensor"),
    (lambda: xf.use_mesh(WRONG).__enter__(), "use_mesh was given 3"),
    (
        lambda: xf.jit(lambda a: a).lower(xf.ShapeDtypeStruct((8,), torch.int64, "x")),
        "the sharding of a of .* is 'x'",
    ),
    (
        lambda: (
            xf.jit(lambda a: a + 1)
            .lower(xf.ShapeDtypeStruct((64,), torch.int64, NamedSharding(BIG, P("x"))))
            .compile()
        ),
        "was traced for a mesh of 256 devices, but this process has 8",
    ),
]


@pytest.mark.parametrize(("call", "match"), ERRORS, ids=lambda x: x if isinstance(x, str) else "")
def test_sharding_errors(call, match):
    with pytest.raises(ShardingError, match=match) as caught:
        call()
    assert "Hint: " in str(caught.value)
    assert torch.equal(xf.jit(lambda a: a + 1)(X).cpu(), X + 1)


def test_sharding_prefix_errors():
    with pytest.raises(TreeMismatchError, match=r"at x\['a'\] it is .* but the tree has a leaf"):
        xf.device_put({"a": X}, {"a": [on("x")]})
    with pytest.raises(TreeMismatchError, match="the tree has a dict of 'a'"):
        xf.device_put({"a": X}, {"b": on("x")})
    with pytest.raises(TreeMismatchError, match="in_shardings is not a prefix"):
        xf.jit(lambda a: a, in_shardings=(on("x"), on("y")))(X)
    with pytest.raises(TreeMismatchError, match="out_shardings is not a prefix"):
        xf.jit(lambda a: a, out_shardings=(on("x"), on("y")))(X)


def test_lowered_text_size_is_independent_of_mesh_size():
    def text(n):
        mesh = xf.AbstractMesh((n, 4), ("x", "y"))
        a = xf.ShapeDtypeStruct((4096, 4096), torch.float32, NamedSharding(mesh, P("x", "y")))
        b = xf.ShapeDtypeStruct((4096, 4096), torch.float32, NamedSharding(mesh, P("y", "x")))
        return xf.jit(lambda a, b: (a @ b).sum()).lower(a, b).as_text()

    assert len(text(1024)) - len(text(2)) < 32


def test_torch_save_of_sharded_tensor():
    file = io.BytesIO()
    torch.save({"a": xf.device_put(X, on("x"))}, file)
    file.seek(0)
    assert torch.equal(torch.load(file)["a"].cpu(), X)


def test_device_put_unsupported_values():
    with pytest.raises(TypeError, match=r"device_put was given 'a' \(a str\) as x\[1\]"):
        xf.device_put([X, "a"])
    with pytest.raises(UnsupportedOpError, match=r"x\['b'\] .uint16\[8,8\]. cannot be used"):
        xf.device_put({"b": X.to(torch.uint16)}, on("x"))
    assert xf.device_put(X.numpy(), on("x")).dtype == torch.float32


def test_device_put_under_transforms():
    def f(a):
        return xf.device_put(torch.sin(a), on("x")).sum()

    x = xf.device_put(X.double(), on("y"))
    for _ in range(2):
        torch.testing.assert_close(xf.grad(f)(x).cpu(), X.double().cos())
        torch.testing.assert_close(xf.vmap(xf.grad(f))(x[None])[0].cpu(), X.double().cos())
    with xf.disable_jit():
        torch.testing.assert_close(xf.grad(f)(x).cpu(), X.double().cos())
    torch.testing.assert_close(torch.func.grad(f)(X.double()), X.double().cos())


def test_stablehlo_and_export_carry_shardings():
    f = xf.jit(lambda a, b: a @ b, in_shardings=(on("x"), on(None, "y")), out_shardings=on("y"))
    lowered = f.lower(X, X)
    text = lowered.as_text("stablehlo")
    assert 'mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"' in text
    loaded = xf.export.deserialize(xf.export.serialize(lowered))
    y = loaded(X, X)
    assert torch.equal(y.cpu(), X @ X)
    assert xf.sharding_of(y) == on("y")
    abstract = xf.ShapeDtypeStruct((64,), torch.float32, NamedSharding(BIG, P("x")))
    loaded = xf.export.deserialize(xf.export.serialize(xf.jit(lambda a: a + 1).lower(abstract)))
    with pytest.raises(ShardingError, match="for a mesh of 256 devices, but this process has 8"):
        loaded(torch.ones(64))
