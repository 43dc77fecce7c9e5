"""Mistakes of people who come from JAX, and arguments in the wrong order: what the errors say."""

from __future__ import annotations

import contextlib
import copy
import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch.utils import dlpack

import xfunc as xf

pytestmark = pytest.mark.quick

X = torch.ones(3)
IGNORING_TYPES: Any = xf  # The calls here are wrong on purpose.


def said_by(call: Callable[[], object], kind: type[Exception] | tuple[type[Exception], ...]) -> str:
    """The message of the error that a call raises, with its notes."""
    with pytest.raises(kind, match=r".") as caught:
        call()
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


SWAPPED: dict[str, tuple[Callable[[Any], object], str]] = {
    "scan": (lambda xf: xf.scan(X, lambda c, x: (c, x), X), "scan(f, init, xs)"),
    "map": (lambda xf: xf.map(X, torch.sin), "map(f, xs)"),
    "fori_loop": (
        lambda xf: xf.fori_loop(0, 3, X, lambda i, v: v),
        "fori_loop(lower, upper, body_fun, init_val)",
    ),
    "fori_loop, the body first": (
        lambda xf: xf.fori_loop(lambda i, v: v, 0, 3, X),
        "fori_loop(lower, upper, body_fun, init_val)",
    ),
    "vjp": (lambda xf: xf.vjp(X, torch.sin), "vjp(fun, *primals)"),
    "jvp": (lambda xf: xf.jvp((X,), (X,), torch.sin), "jvp(fun, primals, tangents)"),
    "linearize": (lambda xf: xf.linearize(X, torch.sin), "linearize(fun, *primals)"),
    "associative_scan": (
        lambda xf: xf.associative_scan(X, torch.add),
        "associative_scan(fn, elems)",
    ),
    "switch": (lambda xf: xf.switch([torch.sin], 0, X), "switch(index, [f, g], x)"),
    "while_loop": (
        lambda xf: xf.while_loop(X, lambda s: s.sum() < 1, lambda s: s),
        "while_loop(cond_fun, body_fun, init_val)",
    ),
}


@pytest.mark.parametrize("name", SWAPPED)
def test_arguments_in_the_wrong_order(name: str) -> None:
    call, usage = SWAPPED[name]
    said = said_by(lambda: call(xf), TypeError)
    assert re.match(rf"{name.partition(',')[0]} was given .*", said)
    assert usage in said


def test_branches_that_are_lambdas_are_named_by_their_lines() -> None:
    said = said_by(
        lambda: xf.cond(
            torch.tensor(True),
            lambda x: x,
            lambda x: (x, x),
            X,
        ),
        TypeError,
    )
    found = re.search(
        r"true_fun \(<lambda at (.*):(\d+)>\) and false_fun \(<lambda at .*:(\d+)>", said
    )
    assert found
    assert found[1] == "test_mistakes.py"
    assert int(found[3]) == int(found[2]) + 1


def test_scan_without_a_first_carry() -> None:
    hint = r"give the first carry as `init`"
    assert re.search(hint, said_by(lambda: xf.scan(lambda c, x: (x, x), None, X), TypeError))
    said = said_by(lambda: xf.scan(lambda c, x: (c + x, x), None, X), TypeError)  # pyright: ignore[reportOperatorIssue]
    assert "was given init=None, so its carry is None" in said


READS: dict[str, tuple[Callable[..., object], tuple[object, ...], str]] = {
    "a size": (
        lambda x, n: x * torch.zeros(n),
        (X, 3),
        "n as a static argument (static_argnames='n')",
    ),
    "a range": (lambda x, n: sum(x for _ in range(n)), (X, 3), "static_argnames='n'"),
    "in a dict": (
        lambda x, o: x if o["train"] else -x,
        (X, {"train": True}),
        "static_argnames='o'",
    ),
    "one of many": (
        lambda x, *sizes: x * torch.zeros(sizes[1]),
        (X, 2, 3),
        "argument 2 as a static argument (static_argnums=2)",
    ),
    "computed": (
        lambda x, n: x if n > 2 else -x,
        (X, 3),
        "what it is computed from as a static argument (n)",
    ),
}


@pytest.mark.parametrize("name", READS)
def test_which_argument_to_make_static(name: str) -> None:
    fun, args, hint = READS[name]
    assert hint in said_by(lambda: xf.jit(fun)(*args), xf.errors.ConcretizationError)


@pytest.mark.parametrize(
    ("f", "args", "hint"),
    [
        (lambda x, mode: x, (X, "sum"), "static (static_argnames='mode')"),
        (lambda x, o: x, (X, {"mode": "sum"}), "static (static_argnames='o')"),
        (lambda x, *modes, dim=0: x, (X, "sum", 1), "static (static_argnums=1)"),
    ],
)
def test_which_argument_that_is_no_array_to_make_static(
    f: Callable[..., object], args: tuple[object, ...], hint: str
) -> None:
    assert hint in said_by(lambda: xf.jit(f)(*args), TypeError)


@pytest.mark.parametrize("inside", [False, True])
def test_batch_norm_that_is_closed_over_in_train_mode(inside: bool) -> None:
    norm = nn.BatchNorm1d(3)
    module = nn.Sequential(nn.Linear(3, 3), norm) if inside else norm
    said = said_by(lambda: xf.jit(lambda x: module(x))(torch.ones(4, 3)), xf.errors.PurityError)
    assert "'num_batches_tracked' of a BatchNorm1d" in said
    assert "xf.functional(module)" in said
    assert ".eval()" in said
    xf.jit(lambda x: module.eval()(x))(torch.ones(4, 3))


def test_attributes_of_arrays_of_jax() -> None:
    said = said_by(lambda: xf.jit(lambda x: x.at[0].set(1.0))(X), AttributeError)
    assert "write xf.at(x)[index].set(y)" in said
    assert "test_mistakes.py" in said
    assert ".to(dtype)" in said_by(lambda: xf.grad(lambda x: x.astype(0).sum())(X), AttributeError)
    unlike = said_by(lambda: xf.jit(lambda x: x.no_such_thing)(X), AttributeError)
    assert "Hint" not in unlike


OF_JAX: dict[str, Callable[[Any, torch.Tensor], object]] = {
    "a jitted one": lambda jnp, x: jnp.sin(x),
    "a ufunc": lambda jnp, x: jnp.add(x, 1),
    "of a list": lambda jnp, x: jnp.concatenate([x]),
    "one that calls another": lambda jnp, x: jnp.sum(x),
    "of a dtype": lambda jnp, x: jnp.zeros_like(x),
    "one that reads": lambda jnp, x: jnp.asarray(x),
}


@pytest.mark.parametrize("name", OF_JAX)
def test_functions_of_jax(name: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    kinds = TypeError, xf.errors.ConcretizationError
    said = said_by(lambda: xf.jit(lambda x: OF_JAX[name](jnp, x))(X), kinds)
    assert "xf.call_jax(jnp.sin, x)" in said
    assert re.search(r"while tracing .*\n +at .*test_mistakes.py:\d+ in <lambda>", said)


class _Foreign:
    """An array of another library."""

    def __dlpack__(self) -> object:
        return None


def test_arrays_of_other_libraries() -> None:
    for call in (
        lambda: IGNORING_TYPES.jit(torch.sin)(_Foreign()),
        lambda: IGNORING_TYPES.vmap(torch.sin)(_Foreign()),
    ):
        assert "torch.from_dlpack(array)" in said_by(call, TypeError)


def test_fold_in_of_no_integer() -> None:
    said = said_by(lambda: IGNORING_TYPES.random.fold_in(xf.random.key(0), "a"), TypeError)
    assert "fold_in was given 'a' (a str) as data" in said
    said = said_by(lambda: IGNORING_TYPES.random.fold_in(xf.random.key(0), 1.5), TypeError)
    assert "fold_in was given 1.5 (a float) as data" in said
    said = said_by(lambda: IGNORING_TYPES.random.fold_in(3, 1), TypeError)
    assert "fold_in was given 3 (an int), which is no key" in said


def test_make_mesh_names_itself() -> None:
    said = said_by(lambda: xf.sharding.make_mesh((2,), ("a",)), xf.errors.ShardingError)
    assert said.startswith("Mesh(a=2) needs 2 devices")
    said = said_by(lambda: IGNORING_TYPES.sharding.make_mesh(("a",), (1,)), xf.errors.ShardingError)
    assert said.startswith("make_mesh: the axis names are (1,)")
    said = said_by(
        lambda: IGNORING_TYPES.sharding.make_mesh(1, "a b".split()), xf.errors.ShardingError
    )
    assert said.startswith("make_mesh: there are 1 axis sizes and 2 axis names")


def _fails_on_devices(x: torch.Tensor) -> torch.Tensor:
    """An operation that torch has for the CPU only."""
    if has_torch_function_unary(x):
        return handle_torch_function(_fails_on_devices, (x,), x)
    return x if x.device.type == "cpu" else nn.functional.interpolate(x)


WITHOUT_DATA: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "to_dlpack": (dlpack.to_dlpack, "return the value and exchange it outside"),
    "nested_tensor": (lambda x: torch.nested.nested_tensor([x]), "pad the values to one shape"),
    "copy": (copy.copy, "write x.clone(), or copy.deepcopy(x)."),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", WITHOUT_DATA)
def test_functions_of_torch_that_need_data(name: str) -> None:
    fun, hint = WITHOUT_DATA[name]
    kinds = (xf.errors.UnsupportedOpError, xf.errors.ConcretizationError)
    assert f"Hint: {hint}" in said_by(lambda: xf.jit(fun)(X), kinds)


def test_failure_on_arguments_that_torch_takes() -> None:
    said = said_by(lambda: xf.jit(_fails_on_devices)(X), ValueError)
    assert "this is a defect of xfunc" in said
    assert "make the shapes" not in said
    said = said_by(lambda: xf.jit(lambda x: x @ x[:2])(X), RuntimeError)
    assert "make the shapes and dtypes match" in said


N = xf.Dim("n", max=8)
MISTAKES: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "a policy that was not made": (
        lambda xf: xf.grad(
            xf.checkpoint(lambda x: x.sin().sum(), policy=xf.checkpoint_policies.min_cut)
        )(X),
        TypeError,
        r"call it: xf.checkpoint_policies.min_cut\(\)",
    ),
    "a policy without its names": (
        lambda xf: xf.grad(
            xf.checkpoint(
                lambda x: x.sin().sum(), policy=xf.checkpoint_policies.save_only_these_names
            )
        )(X),
        TypeError,
        "save_only_these_names itself was given as a policy",
    ),
    "a body without a result": (
        lambda xf: xf.scan(lambda c, x: None, 0.0, X),
        xf.errors.TreeMismatchError,
        r"must return a pair \(carry, y\), not None",
    ),
    "fori_loop": (
        lambda xf: xf.fori_loop(0, 3, lambda i, c: c.double(), X),
        xf.errors.TreeMismatchError,
        "^fori_loop of",
    ),
    "fori_loop with a traced bound": (
        lambda xf: xf.fori_loop(0, torch.tensor(3), lambda i, c: c.double(), X),
        xf.errors.TreeMismatchError,
        "^fori_loop of",
    ),
    "map": (
        lambda xf: xf.map(lambda p: p[0], (X, X[1:])),
        xf.errors.TreeMismatchError,
        "^map of",
    ),
    "at without an index": (
        lambda xf: xf.at(X).set(1.0),
        AttributeError,
        r"write at\(x\)\[index\]\.set\(\.\.\.\)",
    ),
    "at with a wrong name": (lambda xf: xf.at(X).put(1.0), AttributeError, "put"),
    "a name as a position": (
        lambda xf: xf.jit(lambda x: x, donate_argnums="x"),
        TypeError,
        "choose by names with argnames in place of argnums",
    ),
    "the state of an optimizer": (
        lambda xf: xf.optim.adam(0.1).update(X, None, X),
        ValueError,
        "pass the state that init or update of the same chain returned",
    ),
    "a dimension that is not there": (
        lambda xf: xf.jit(lambda x: x, dynamic_shapes=({1: N},))(X),
        xf.errors.TreeMismatchError,
        r"dynamic_shapes\[0\] declares dimension 1 of an array that has 1\n(.|\n)*from 0 to 0",
    ),
    "a dimension from the end": (
        lambda xf: xf.jit(lambda t: t, dynamic_shapes=({-1: N},))([X, X]),
        xf.errors.TreeMismatchError,
        "declares dimension -1",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_errors_say_what_to_write(name: str) -> None:
    call, kind, match = MISTAKES[name]
    assert re.search(match, said_by(lambda: call(xf), kind))


REPLACED_READS: dict[str, Callable[[Any], object]] = {
    "torch.Size": lambda n: torch.Size((n, 1)),
    "a shape and a number": lambda n: X.shape.__add__((n,)),
    "numpy": lambda n: np.zeros(n),
    "islice": lambda n: list(itertools.islice([1, 2, 3], n)),
    "%d": lambda n: "%d" % n,  # noqa: UP031
    "bytes": bytes,
}


@pytest.mark.parametrize("name", REPLACED_READS)
def test_code_in_c_that_replaces_the_error_of_a_read(name: str) -> None:
    """It asks for a number, drops the error and raises its own, which does not say why."""
    read = REPLACED_READS[name]
    assert read(torch.tensor(2)) is not None

    def f(n: torch.Tensor) -> torch.Tensor:
        read(n)
        return n

    for call in (xf.jit(f), xf.jit(lambda n: xf.jit(f)(n))):
        said = said_by(lambda call=call: call(torch.tensor(2)), xf.errors.ConcretizationError)
        assert re.search(r"reads a traced value \(int64\[\]\), which has no data", said), said
        assert "read(n)" in said or "lambda n:" in said
        assert "Hint: compute with tensors" in said


def test_an_error_after_a_refusal_that_was_caught_stays() -> None:
    def f(n: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(TypeError):
            int(n)
        raise ValueError("of the function")

    with pytest.raises(ValueError, match=r"^of the function$"):
        xf.jit(f)(torch.tensor(2))
