"""Python numbers that are not differentiated or mapped stay Python numbers, as in JAX."""

from typing import Any, NamedTuple

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

X = torch.tensor([1.0, -2.0, 3.0])
ROWS = torch.arange(6.0).reshape(3, 2)


def power(x, n, *, negate=False):
    total = (x**n).sum() * len(range(n))  # needs a Python integer
    return -total if negate else total


def repeat(x, n):
    return x.expand(n, *x.shape).sum(0)


def twice(x, options):
    return x * 2 if options["double"] else x


def want(n, negate=False):
    x = X.clone().requires_grad_()
    power(x, n, negate=negate).backward()
    return x.grad


class Holder:
    """Neither a tree nor hashable by value."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor


# How a transform is called with a number that must stay one, and what eager torch says.
CASES = {
    "grad": (lambda: xf.grad(power)(X, 3), lambda: want(3)),
    "grad, flag by keyword": (lambda: xf.grad(power)(X, 3, negate=True), lambda: want(3, True)),
    "grad, by keyword": (lambda: xf.grad(power)(X, n=2), lambda: want(2)),
    "grad, argnums=-1": (lambda: xf.grad(lambda n, x: power(x, n), -1)(3, X), lambda: want(3)),
    "value_and_grad": (lambda: xf.value_and_grad(power)(X, 2)[1], lambda: want(2)),
    "jacrev": (lambda: xf.jacrev(power)(X, 2), lambda: want(2)),
    "jacfwd": (lambda: xf.jacfwd(power)(X, 2), lambda: want(2)),
    "hessian": (lambda: xf.hessian(power)(X, 2), lambda: 4 * torch.eye(3)),
    "in jit": (lambda: xf.jit(lambda x: xf.grad(power)(x, 3))(X), lambda: want(3)),
    "nested": (lambda: xf.grad(lambda x, n: xf.grad(power)(x, n).sum())(X, 3), lambda: 18 * X),
    "static of jit": (
        lambda: xf.grad(xf.jit(power, static_argnames=("n", "negate")))(X, n=3, negate=True),
        lambda: want(3, True),
    ),
    "static of checkpoint": (
        lambda: xf.grad(xf.checkpoint(power, static_argnums=1))(X, 3),
        lambda: want(3),
    ),
    "an option of checkpoint": (
        lambda: xf.checkpoint(twice, static_argnums=-1)(X, {"double": True}),
        lambda: 2 * X,
    ),
    "remat without a barrier": (
        lambda: xf.grad(xf.remat(power, prevent_cse=False, static_argnums=(1,)))(X, 3),
        lambda: want(3),
    ),
    "vmap": (lambda: xf.vmap(repeat, (0, None))(ROWS, 3), lambda: 3 * ROWS),
    "vmap of a tree": (
        lambda: xf.vmap(lambda o, x: repeat(x, o["n"]) * o["w"], ({"n": None, "w": 0}, 0))(
            {"n": 3, "w": torch.arange(3.0)}, ROWS
        ),
        lambda: 3 * ROWS * torch.arange(3.0)[:, None],
    ),
    "vmap of a string": (
        lambda: xf.vmap(lambda x, how: getattr(x, how)(), (0, None))(ROWS, "sum"),
        lambda: ROWS.sum(1),
    ),
    "vmap of grad": (
        lambda: xf.vmap(xf.grad(power), (0, None))(ROWS, 3),
        lambda: 9 * ROWS**2,
    ),
    "grad of vmap": (
        lambda: xf.grad(lambda x, n: xf.vmap(repeat, (0, None))(x, n).sum())(ROWS, 3),
        lambda: torch.full((3, 2), 3.0),
    ),
    "disable_jit": (lambda: eagerly(lambda: xf.grad(power)(X, 3)), lambda: want(3)),
}  # fmt: skip


def eagerly(f):
    with xf.disable_jit():
        return f()


@pytest.mark.parametrize("name", CASES)
def test_transforms_keep_python_numbers(name: str) -> None:
    got, expected = CASES[name]
    torch.testing.assert_close(got().cpu(), expected())


@pytest.mark.parametrize(
    ("one", "two"),
    [(2, 3), (1, True), (0, False), (0.0, -0.0), (1, 1.0), (3, "3")],
    ids=repr,
)
def test_grad_traces_each_number_separately(one, two) -> None:
    seen = []

    def f(x, n):
        seen.append(n)
        return x.sum()

    slope = xf.grad(f)
    for n in (one, two, one):
        slope(X, n)
    assert [(type(n), str(n)) for n in seen] == [(type(n), str(n)) for n in (one, two)]


def test_grad_and_vmap_number_arguments_are_tensors() -> None:
    assert xf.grad(lambda x: x * x)(3.0).item() == 6.0
    with pytest.raises(TypeError, match=r"with respect to x, which is int64\[\], not floating"):
        xf.grad(lambda x: x * x)(3)
    with pytest.raises(xf.errors.TreeMismatchError, match=r"axis 0 of n, which is int64\[\]"):
        xf.vmap(repeat)(ROWS, 3)
    with pytest.raises(xf.errors.TreeMismatchError, match=r"axis 0 of n, which is int64\[\]"):
        xf.vmap(repeat)(ROWS, n=3)


def test_checkpoint_number_without_static_argnums_is_tensor() -> None:
    with pytest.raises(xf.errors.ConcretizationError, match=r"reads a traced value \(int64\[\]\)"):
        xf.checkpoint(power)(X, 3)


def test_checkpoint_static_argnums_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"static_argnums=\(3,\), but was called with 2"):
        xf.checkpoint(power, static_argnums=3)(X, 2)


def by_held(x, o):
    return x * o.tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda: xf.grad(lambda x, o: (x * o.tensor).sum()),
        lambda: xf.vmap(by_held, (0, None)),
        lambda: xf.checkpoint(by_held, static_argnums=1),
        lambda: xf.jit(lambda x, o: xf.checkpoint(by_held)(x, o), static_argnums=1),
    ],
    ids=["grad", "vmap", "checkpoint", "static of jit"],
)  # fmt: skip
def test_transforms_tensors_in_opaque_argument_are_data(make) -> None:
    f, x = make(), torch.ones(3)
    holders = [Holder(torch.full((), float(i))) for i in range(3)]
    assert [f(x, h)[0].item() for h in holders] == [0.0, 1.0, 2.0]


def test_grad_captured_tensor_also_in_opaque_argument() -> None:
    a, b = torch.tensor(2.0), torch.tensor(5.0)

    def by(t):
        return xf.grad(lambda x, o: (x * t * o.tensor).sum())

    assert [by(t)(X, Holder(u))[0].item() for t in (a, b) for u in (a, b)] == [4, 10, 10, 25]


def test_numbers_in_nondiff_arguments_stay_numbers_outside_of_traces() -> None:
    def total(x: torch.Tensor, axes: Any, scale: Any = 2) -> torch.Tensor:
        return x.sum(axes) * scale

    f = xf.custom_jvp(total, nondiff_argnums=1, nondiff_argnames="scale")
    f.defjvp(lambda axes, scale, xs, ts: (total(xs[0], axes, scale), ts[0].sum(axes)))
    g = xf.custom_vjp(total, nondiff_argnums=(-2, -1))
    g.defvjp(lambda x, axes, scale: (total(x, axes, scale), None), lambda *_: (None,))
    for h in (f, g):
        for axes in (0, 1, (0, 1)):
            assert h(ROWS, axes).tolist() == total(ROWS, axes).tolist()
            assert h(ROWS, axes, scale=3).tolist() == total(ROWS, axes, 3).tolist()
        assert h(ROWS.long(), 0, 0.5).tolist() == total(ROWS.long(), 0, 0.5).tolist()
        assert h(ROWS.long(), 0, 1).dtype == torch.int64
        assert h(ROWS.long(), 0, 1.0).dtype == torch.float32


def test_equal_static_numbers_of_other_types_are_other_values() -> None:
    class Pair(NamedTuple):
        first: float
        second: object

    def scaled(x, n):
        return x * (n[0] if isinstance(n, tuple) else n)

    f, x = xf.jit(scaled, static_argnums=1), torch.arange(3)
    values = 1, 1.0, True, 0.0, -0.0, (1,), (1.0,), (True,), Pair(1, (2,)), Pair(1.0, (2,))
    for n in values:
        got, want = f(x, n), scaled(x, n)
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0)
        assert got.cpu().signbit().tolist() == want.signbit().tolist()
    assert xf.trace_count(f) == len(values)
    nested = xf.jit(lambda x, *, n: x * n[1][0], static_argnames="n")
    assert nested(x, n=(1, (2,))).dtype == torch.int64
    assert nested(x, n=(1, (2.0,))).dtype == torch.float32


def test_custom_rules_tensors_in_nondiff_argument_are_data() -> None:
    f = xf.custom_jvp(lambda x, o: x * o.tensor, nondiff_argnums=1)
    f.defjvp(lambda o, xs, ts: (xs[0] * o.tensor, ts[0] * o.tensor))
    g = xf.custom_vjp(lambda x, o: x * o.tensor, nondiff_argnums=1)
    g.defvjp(lambda x, o: (x * o.tensor, ()), lambda o, _, ct: (ct * o.tensor,))
    for h in (f, g):
        for i in (2.0, 3.0):
            o = Holder(torch.tensor(i))
            assert h(X, o).tolist() == (X * i).tolist()
            assert xf.grad(lambda x, o=o, h=h: h(x, o).sum())(X).tolist() == [i] * 3


def test_eval_shape_takes_non_arrays() -> None:
    def f(x, how, n, scale=None):
        return getattr(x, how)() * n if scale is None else x * scale

    aval = xf.ShapeDtypeStruct((2, 3), torch.bfloat16)
    assert xf.eval_shape(f, aval, "sum", 2) == xf.ShapeDtypeStruct((), torch.bfloat16)
    assert xf.eval_shape(f, aval, "sum", 2, scale=2.0) == aval
    with pytest.raises(xf.errors.ConcretizationError, match=r"reads a traced value \(int64\[\]\)"):
        xf.eval_shape(repeat, aval, 3)


def test_negative_static_argnums_of_variadic_function() -> None:
    x = torch.ones(3)
    jit: Any = xf.jit
    f = jit(lambda *a: a[0] * len(a[1]), static_argnums=-1)
    assert f(x, "abc").tolist() == [3, 3, 3]
    f = jit(lambda x, *a: x * len(a[-1]), static_argnums=-1)
    assert f(x, "ab").tolist() == [2, 2, 2]
    assert f(x, x, "abc").tolist() == [3, 3, 3]
    y = xf.device_put(torch.ones(3))
    f = jit(lambda *a: a[0] + a[1], donate_argnums=-1)
    assert f(x, y).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="was donated"):
        _ = y + 1


@pytest.mark.parametrize("option", ["static_argnums", "donate_argnums"])
def test_negative_argnums_before_the_first_argument(option: str) -> None:
    jit: Any = xf.jit
    f = jit(lambda *a: a[0], **{option: -3})
    with pytest.raises(ValueError, match=rf"has {option}=-3, but was called with 1 positional"):
        f(torch.ones(3))


def test_static_argnums_beyond_the_arguments_of_variadic_function() -> None:
    f: Any = xf.jit(lambda *a: a[0], static_argnums=3)
    assert f(torch.ones(1)).tolist() == [1]
