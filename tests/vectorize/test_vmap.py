"""vmap, and the Jacobians made with it, against a loop over eager torch."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

X = torch.tensor([[0.3, -1.2, 0.7], [1.1, 0.4, -0.6], [-0.2, 0.9, 1.5], [0.8, -0.5, 0.1]])
T = torch.tensor


def _put(index: Callable[..., Any], value: Callable[..., Any]) -> Callable[..., Any]:
    return lambda y, x: y.__setitem__(index(x), value(x))


def _rows(y: torch.Tensor, x: torch.Tensor) -> None:
    for i in range(4):
        y[i] = x[i] * x[i - 1]


# What is written into a tensor of zeros that the function makes.
WRITES: dict[str, Callable[..., Any]] = {
    "y[1] = x": _put(lambda x: 1, lambda x: x[0] * x[1]),
    "y[1, 2] = x": _put(lambda x: (1, 2), lambda x: x[0, 0] * x[1, 1]),
    "y[rows] = x": _put(lambda x: T([0, 2]), lambda x: x[:2] ** 2),
    "y[:, 1] = x": _put(lambda x: (slice(None), 1), lambda x: x[:, 0] ** 2),
    "y[x > 0] = number": _put(lambda x: x > 0, lambda x: x.sum()),
    "y[i] = number": _put(lambda x: x[0].argmax(), lambda x: 2.0),
    "row by row": _rows,
    "+=": lambda y, x: y.__iadd__(x**2),
    "add_": lambda y, x: y.add_(x, alpha=2),
    "mul_": lambda y, x: y.add_(1).mul_(x),
    "copy_": lambda y, x: y.copy_(x * x),
    "lerp_": lambda y, x: y.add_(1).lerp_(x, 0.3),
    "addcmul_": lambda y, x: y.addcmul_(x, x),
    "fill_": lambda y, x: y.fill_(x.sum()),
    "masked_fill_": lambda y, x: y.masked_fill_(x > 0, x.sum()),
    "masked_scatter_": lambda y, x: y.masked_scatter_(x > 0, x**2),
    "index_put_": lambda y, x: y.index_put_((T([0, 0]),), x[:2] ** 2, accumulate=True),
    "index_add_": lambda y, x: y.index_add_(0, T([0, 1]), x[:2] ** 2),
    "index_copy_": lambda y, x: y.index_copy_(0, T([0, 1]), x[:2] ** 2),
    "index_fill_": lambda y, x: y.index_fill_(0, T([2]), x.sum()),
    "scatter_": lambda y, x: y.scatter_(0, T([[0, 1, 2]]), x[:1] ** 2),
    "scatter_add_": lambda y, x: y.scatter_add_(0, T([[0, 1, 2]]), x[:1] ** 2),
    "a view": lambda y, x: y[1:][0].copy_(x[0]),
    "a view made before": lambda y, x: (v := y[1], y.add_(x), v.mul_(2)),
    "transposed": lambda y, x: y.T.add_(x.T**2),
    "diagonal": lambda y, x: y.diagonal().copy_(x[0]),
    "one of several views": lambda y, x: y.split(2)[1].add_(x[:2]),
    "into another": lambda y, x: y.add_((x * 2).mul_(x).sigmoid_()),
}


def _writing(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(4, 3)
        WRITES[name](y, x)
        return (y.square() * x).sum()

    return f


def _tangent(t: Any, f: Any) -> Callable[..., Any]:
    return lambda x: t.jvp(f, (x,), (torch.ones_like(x),))[1]


def _pair(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x + 1])


def _stacked(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: torch.stack([f(a) for a in _pair(x)])


def _summed(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: torch.stack([f(a) for a in _pair(x)]).sum()


eager: Any = torch.func
MODES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "vmap": (lambda f: lambda x: xf.vmap(f)(_pair(x)), _stacked),
    "vmap of grad": (
        lambda f: lambda x: xf.vmap(xf.grad(f))(_pair(x)),
        lambda f: _stacked(eager.grad(f)),
    ),
    "grad of vmap": (
        lambda f: xf.grad(lambda x: xf.vmap(f)(_pair(x)).sum()),
        lambda f: eager.grad(_summed(f)),
    ),
    "jvp of vmap": (
        lambda f: _tangent(xf, lambda x: xf.vmap(f)(_pair(x)).sum()),
        lambda f: _tangent(eager, _summed(f)),
    ),
    "vmap of jvp": (
        lambda f: lambda x: xf.vmap(_tangent(xf, f))(_pair(x)),
        lambda f: _stacked(_tangent(eager, f)),
    ),
    "vmap of vmap": (
        lambda f: lambda x: xf.vmap(xf.vmap(f))(_pair(x)[None]),
        lambda f: lambda x: _stacked(f)(x)[None],
    ),
    "vmap of jit": (lambda f: lambda x: xf.vmap(xf.jit(f))(_pair(x)), _stacked),
    "vmap of scan": (
        lambda f: (
            lambda x: xf.vmap(
                lambda x: xf.scan(lambda c, _: (c + f(x * c), None), T(0.5), None, length=2)[0]
            )(_pair(x))
        ),
        lambda f: _stacked(lambda a: (c := 0.5 + f(a * 0.5)) + f(a * c)),
    ),
    "jvp": (lambda f: _tangent(xf, f), lambda f: _tangent(eager, f)),
    "linearize": (
        lambda f: lambda x: xf.linearize(f, x)[1](torch.ones_like(x)),
        lambda f: _tangent(eager, f),
    ),
    "grad of grad": (
        lambda f: xf.grad(lambda x: xf.grad(f)(x).square().sum()),
        lambda f: eager.grad(lambda x: eager.grad(f)(x).square().sum()),
    ),
    "hessian": (xf.hessian, eager.hessian),
}
# What eager torch.func refuses.
BACKWARD = ("vmap of grad", "grad of vmap", "grad of grad", "hessian")
VIEWS = ("a view made before", "one of several views")
NOT_OF_TORCH = {*itertools.product(BACKWARD, VIEWS), ("hessian", "fill_")}


def _agree(ours: Callable[..., Any], theirs: Callable[..., Any], functions: dict[str, Any]) -> None:
    expected = {name: theirs(f)(X) for name, f in functions.items()}
    found = xf.jit(lambda x: {name: ours(f)(x) for name, f in functions.items()})(X)
    torch.testing.assert_close(xf.device_get(found), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.sample(4, seed=0)
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of eager torch
@pytest.mark.parametrize("mode", MODES)
def test_vmap_in_place_writes_under_transforms(mode: str) -> None:
    _agree(*MODES[mode], {n: _writing(n) for n in WRITES if (mode, n) not in NOT_OF_TORCH})


def test_vmap_in_place_write_into_outer_tensor_raises() -> None:
    message = r"Tensor\.add_ writes values that differ along the axis of a vmap into a tensor"

    def into_what_is_outside(xs: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(3)
        xf.vmap(lambda x: y.add_(x))(xs)
        return y

    with pytest.raises(xf.errors.PurityError, match=message) as error:
        xf.jit(into_what_is_outside)(X)
    assert "Hint: compute a new tensor and return it, or write into a copy" in str(error.value)
    with pytest.raises(xf.errors.PurityError, match=message):
        xf.vmap(lambda x, y: y.add_(x), in_axes=(0, None))(X, torch.zeros(3))
    captured = torch.zeros(3)
    with pytest.raises(xf.errors.PurityError, match=message):
        xf.vmap(lambda x: captured.add_(x))(X)
    with pytest.raises(xf.errors.PurityError, match=message):
        xf.vmap(lambda x, y: y[1:].add_(x[1:]), in_axes=(0, None))(X, torch.zeros(3))
    found = xf.vmap(lambda x, y: y.clone().add_(x), in_axes=(0, None))(X, torch.ones(3))
    torch.testing.assert_close(xf.device_get(found), X + 1)
    assert not captured.any()


# Of these, torch.func.vmap fails for a batch of nothing, or the results have other shapes.
OF_NOTHING: dict[str, tuple[Callable[..., Any], list[list[int]]]] = {
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3), [[1, 2, 9]]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2, return_indices=True), [[2, 2, 4, 6]]),
    "interpolate": (lambda x: F.interpolate(x, (6, 6), mode="bilinear"), [[2, 3, 4, 4]]),
    "conv_transpose1d": (F.conv_transpose1d, [[2, 4], [2, 3, 3], [3]]),
    "pad": (lambda x: F.pad(x, (1, 1), mode="reflect"), [[2, 3]]),
    "mean": (torch.mean, [[0, 5]]),
    "inner": (torch.inner, [[3], [4, 3]]),
    "nanquantile": (lambda x, q: torch.nanquantile(x, q.sigmoid()), [[5], [2]]),
    "view": (lambda x: x.view(-1, 5), [[10, 2]]),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij"), [[3], [2]]),
    "a column of zeros": (lambda x, y: y / x, [[2], [2]]),
}


@pytest.mark.sample(3, seed=0)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", OF_NOTHING)
def test_vmap_of_nothing(name: str) -> None:
    f, shapes = OF_NOTHING[name]
    first, *others = [torch.rand(shape) for shape in shapes]
    nothing = torch.zeros([*first.shape, 0])
    in_axes, every = (-1, *(None for _ in others)), tuple(range(len(shapes)))

    def loss(*xs: torch.Tensor) -> torch.Tensor:
        out = xf.vmap(f, in_axes)(*xs)
        return sum((a.sum() for a in xf.tree.leaves(out) if a.is_floating_point()), T(0.0))

    def run(*xs: torch.Tensor) -> Any:
        out = xf.vmap(f, in_axes)(*xs)
        return xf.tree.leaves(out), xf.grad(loss, argnums=every)(*xs)

    found, grads = xf.device_get(xf.jit(run)(nothing, *others))
    for a, b in zip(found, xf.tree.leaves(f(first, *others)), strict=True):
        assert (a.shape, a.dtype) == ((0, *b.shape), b.dtype)
    for a, x in zip(grads, [nothing, *others], strict=True):
        torch.testing.assert_close(a, torch.zeros_like(x))


@pytest.mark.parametrize("is_eager", [False, True], ids=["jit", "disable_jit"])
@pytest.mark.parametrize("axis_name", [None, "i"])
def test_vmap_of_nothing_has_no_effects_and_shared_results(
    is_eager: bool, axis_name: str | None
) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return xf.while_loop(lambda x: x < 9, lambda x: x * 2, x)  # without end for 0

    seen: list[Any] = []

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        xf.debug.callback(lambda *a: seen.append(a), x)
        return xf.vmap(doubled)(x[:1]) * y, y * 2

    g = xf.jit(xf.vmap(f, (1, None), (-1, None), axis_name=axis_name))
    with xf.disable_jit(is_eager):
        product, double = xf.device_get(g(torch.zeros(3, 0), T(1.5)))
    assert (product.shape, double, seen) == ((1, 0), T(3.0), [])


ACTIVATIONS = """
    sigmoid tanh relu elu gelu hardswish softplus silu leaky_relu hardsigmoid logsigmoid mish celu
    selu hardtanh relu6 softsign tanhshrink hardshrink softshrink
""".split()
LABELS = T([0, 2, 1, 2])
WEIGHTS = T([0.5, 2.0, 1.0])
JACOBIANS: dict[str, Callable[..., Any]] = {
    **{name: getattr(F, name) for name in ACTIVATIONS},
    "gelu of tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid_": lambda x: (x * 1).sigmoid_(),
    "softmax": lambda x: F.softmax(x, 0),
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS),
    "weighted": lambda x: F.cross_entropy(x, LABELS, WEIGHTS, ignore_index=1),
    "sum": lambda x: F.cross_entropy(x, LABELS, reduction="sum"),
    "none": lambda x: F.cross_entropy(x, LABELS, WEIGHTS, reduction="none"),
    "two dimensions": lambda x: F.cross_entropy(x.T[None, :, :, None], LABELS[None, :, None]),
}
DERIVATIVES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "jacfwd": (xf.jacfwd, eager.jacfwd),
    "jacrev": (xf.jacrev, eager.jacrev),
    "hessian": (
        lambda f: xf.hessian(lambda x: f(x).square().sum()),
        lambda f: eager.hessian(lambda x: f(x).square().sum()),
    ),
    "vmap of grad": (
        lambda f: lambda x: xf.vmap(xf.grad(lambda x: f(x).sum()))(_pair(x)),
        lambda f: _stacked(eager.grad(lambda x: f(x).sum())),
    ),
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", DERIVATIVES)
def test_jacobians_match_torch(name: str) -> None:
    left_out = {"hardsigmoid"} if name == "hessian" else {}  # It has none in torch.
    _agree(*DERIVATIVES[name], {n: f for n, f in JACOBIANS.items() if n not in left_out})
