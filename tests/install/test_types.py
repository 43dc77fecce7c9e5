"""What a type checker knows of transformed functions: `make check` reads this file, and it runs."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Any, assert_type

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

X = torch.ones(3)


def loss(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return (x * scale).sum()


def of_params(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return (params["w"] * x).sum()


PARAMS = {"w": X}


def with_aux(x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return x.sum(), {"x": x}


def step(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, None]]:
    return carry + x, (carry * x, None)


class Layer:
    @xf.jit(static_argnums=0)
    def call(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_jit_keeps_the_signature() -> None:
    assert_type(xf.jit(loss)(X, scale=2.0), torch.Tensor)
    assert_type(xf.jit(static_argnames="scale")(loss)(X), torch.Tensor)
    assert_type(xf.jit(loss).lower(X).as_text(), str)
    assert_type(Layer().call(X), torch.Tensor)
    with pytest.raises(TypeError, match="'text'"):
        xf.jit(loss)("text")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="unexpected keyword"):
        xf.jit(loss)(X, size=2)  # pyright: ignore[reportCallIssue]


def test_derivatives_keep_the_signature() -> None:
    value, slope = xf.value_and_grad(loss)(X, 2.0)
    assert_type(value, torch.Tensor)
    assert_type(slope, torch.Tensor)
    assert_type(xf.grad(loss)(X, 2.0), torch.Tensor)
    assert_type(xf.grad(loss)(X, scale=2.0), torch.Tensor)
    assert_type(xf.jit(xf.grad(of_params))(PARAMS, X), dict[str, torch.Tensor])
    assert_type(xf.grad(of_params, argnums=1)(PARAMS, X), Any)
    assert_type(xf.grad(with_aux, has_aux=True)(X), Any)
    assert_type(xf.jvp(loss, (X,), (X,)), tuple[torch.Tensor, torch.Tensor])
    _, _, aux = xf.jvp(with_aux, (X,), (X,), has_aux=True)
    assert_type(aux, dict[str, torch.Tensor])
    out, pull, aux = xf.vjp(with_aux, X, has_aux=True)
    assert_type(out, torch.Tensor)
    assert_type(aux, dict[str, torch.Tensor])
    assert_type(pull(X.sum()), tuple[Any, ...])
    out, linear = xf.linearize(loss, X)
    assert_type(linear(X), torch.Tensor)
    with pytest.raises(ValueError, match="0 positional arguments"):
        xf.grad(loss)()  # pyright: ignore[reportCallIssue]


def test_control_flow_keeps_result_types() -> None:
    carry, (ys, nothing) = xf.scan(step, X.sum(), X)
    assert_type(carry, torch.Tensor)
    assert_type(ys, torch.Tensor)
    assert_type(nothing, None)
    assert_type(xf.cond(True, loss, loss, X), torch.Tensor)
    assert_type(xf.fori_loop(0, 3, lambda _, x: loss(x), X.sum()), torch.Tensor)
    assert_type(xf.map(loss, X), torch.Tensor)


def test_control_flow_gives_lambdas_the_types_of_their_arguments() -> None:
    pair = X, X
    assert_type(xf.scan(lambda c, x: (c + x, c), X[0], X), tuple[torch.Tensor, torch.Tensor])
    carry, _ = xf.scan(lambda c, x: ({"w": c["w"] * x}, None), PARAMS, X)
    assert_type(carry, dict[str, torch.Tensor])
    assert_type(xf.cond(True, lambda x: x + 1, lambda x: x * 2, X), torch.Tensor)
    assert_type(xf.switch(0, [lambda x, y: x + y, lambda x, y: x], X, X), torch.Tensor)
    assert_type(
        xf.fori_loop(0, 3, lambda i, v: (v[0] + i, v[1]), pair), tuple[torch.Tensor, torch.Tensor]
    )
    assert_type(xf.while_loop(lambda x: x.sum() < 9, lambda x: x + 1, X), torch.Tensor)
    assert_type(xf.map(lambda x: x * 2, X), torch.Tensor)
    with pytest.raises(AttributeError, match="no attribute 'upper'"):
        xf.scan(lambda c, x: (c.upper(), x), X[0], X)  # pyright: ignore[reportAttributeAccessIssue]


def test_loops_make_tensors_of_numbers() -> None:
    assert_type(xf.fori_loop(0, 3, lambda i, n: n + i, 0), Any)
    steps, total = xf.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, X))
    assert_type(steps, Any)
    assert_type(total, Any)
    carry, _ = xf.scan(lambda c, x: (c + x, None), 0.0, X)
    assert_type(carry, Any)
    assert [n.tolist() for n in (steps, total, carry)] == [3, [8.0] * 3, 3.0]


def test_tree_map_keeps_types() -> None:
    assert_type(xf.tree.map(lambda p: p * 2, PARAMS), dict[str, torch.Tensor])
    assert_type(xf.tree.map(lambda p, g: p - g, PARAMS, PARAMS), dict[str, torch.Tensor])
    assert_type(xf.tree.map(torch.zeros_like, (X, X)), tuple[torch.Tensor, torch.Tensor])
    assert_type(xf.tree.map(lambda p: p.shape, PARAMS), Any)
    assert_type(xf.tree.map(lambda n: n + 1, {"n": 1}), Any)
    unknown: Any = {"w": "text"}
    assert_type(xf.tree.map(lambda leaf: leaf.upper(), unknown), Any)
    with pytest.raises(AttributeError, match="no attribute 'upper'"):
        xf.tree.map(lambda p: p.upper(), PARAMS)  # pyright: ignore[reportAttributeAccessIssue]


def test_other_transforms_keep_the_signature() -> None:
    assert_type(xf.vmap(loss)(X[None]), torch.Tensor)
    assert_type(xf.checkpoint(loss)(X, 2.0), torch.Tensor)
    looped = xf.sequential_vmap(loss)
    assert_type(looped(X, 2.0), torch.Tensor)
    assert_type(xf.stop_gradient({"a": X}), dict[str, torch.Tensor])
    assert_type(xf.checkpoint_name({"a": X}, "a"), dict[str, torch.Tensor])
    assert_type(xf.at(X)[0].add(1.0), torch.Tensor)
    assert_type(xf.vectorize(loss)(X, 2.0), torch.Tensor)


def test_sharding_keeps_the_signature() -> None:
    mesh = xf.make_mesh((1,), ("i",))
    mapped = xf.shard_map(loss, mesh=mesh, in_specs=xf.P(), out_specs=xf.P())
    assert_type(mapped(X), torch.Tensor)
    decorated = xf.shard_map(mesh=mesh, in_specs=xf.P(), out_specs=xf.P())(loss)
    assert_type(decorated(X), torch.Tensor)
    summed = xf.vmap(lambda x: xf.psum({"x": loss(x)}, "i"), axis_name="i")
    assert_type(summed(X), dict[str, torch.Tensor])
    assert_type(
        xf.with_sharding_constraint({"a": X}, xf.NamedSharding(mesh, xf.P())),
        dict[str, torch.Tensor],
    )


def test_lambdas_have_types_in_transforms() -> None:
    # Where a lambda's type is unknown, pyright reports the whole line.
    assert_type(xf.vmap(lambda x: x + 1)(X), Any)
    assert_type(xf.jit(lambda p, x: torch.sin(x * p["w"]))(PARAMS, X), torch.Tensor)
    assert_type(xf.jit(lambda: X)(), torch.Tensor)
    assert_type(xf.vmap(lambda a, b, c, d: {"x": a * b + c - d})(X, X, X, X), dict[str, Any])
    assert_type(xf.jit(xf.vmap(lambda p, x: {"x": x}, in_axes=(None, 0)))(PARAMS, X)["x"], Any)
    assert_type(xf.checkpoint(lambda x: (x * x, X))(X), tuple[Any, torch.Tensor])
    assert_type(xf.grad(lambda p, x: (p["w"] * x).sum())(PARAMS, X), Any)
    value, grad = xf.value_and_grad(lambda p, x: loss(p["w"] * x))(PARAMS, X)
    assert_type(value, torch.Tensor)
    assert_type(grad, Any)
    assert_type(xf.jacfwd(lambda x: x * x)(X), Any)
    assert_type(xf.hessian(lambda x, y: (x * y).sum())(X, X), Any)
    assert_type(xf.vectorize(lambda x: torch.sin(x))(X), torch.Tensor)
    assert_type(xf.jvp(lambda x: torch.sin(x), (X,), (X,)), tuple[torch.Tensor, torch.Tensor])
    assert_type(xf.vjp(lambda x: torch.sin(x), X)[0], torch.Tensor)
    assert_type(xf.linearize(lambda x: torch.sin(x), X)[0], torch.Tensor)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
        xf.jit(lambda x, y: x + y)(X)  # pyright: ignore[reportCallIssue]


def test_transforms_keep_keywords() -> None:
    assert_type(xf.jit(of_params)(params=PARAMS, x=X), torch.Tensor)
    assert_type(xf.checkpoint(of_params)(PARAMS, x=X), torch.Tensor)
