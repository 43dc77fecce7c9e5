"""Every operation has its derivative at every level, or is refused."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from benchmarks import operations
from xfunc.errors import UnsupportedOpError


def inverse_of(x):
    return torch.inverse(x + 3 * torch.eye(3))


# Composed of others in torch, and lowered by torch_xla as they are.
COMPOSED = {
    "selu": F.selu,
    "selu_": lambda x: F.selu_(x * 1),
    "std": torch.std,
    "std.dim": lambda x: x.std(1),
    "logdet": lambda x: torch.logdet(x @ x.T + torch.eye(3)),
    "kl_div": lambda x: F.kl_div(x, x.square(), reduction="sum"),
    "diag": lambda x: torch.diag(x, 1),
    "diagflat": lambda x: torch.diagflat(x[0], -1),
    "cross": lambda x: torch.cross(x, x.flip(0), 1),
    "qr": lambda x: torch.qr(x)[1].abs(),
    "svd": lambda x: torch.svd(x)[1],
    "inverse": inverse_of,
}


@pytest.mark.sample(6, seed=0)
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's vmap of some
@pytest.mark.filterwarnings("ignore:torch.qr is deprecated")
@pytest.mark.parametrize("name", COMPOSED)
def test_composed_operation_derivatives_at_every_level(name):
    f, x = COMPOSED[name], torch.tensor([[1.0, -0.5, 2.0], [0.3, 1.5, 0.4], [-1.0, 0.2, 0.7]])

    def loss(x):
        return f(x).square().sum()

    def program(t, x):
        return {
            "grad": t.grad(loss)(x),
            "vmap of grad": t.vmap(t.grad(loss))(x[None]),
            "grad of vmap": t.grad(lambda x: t.vmap(loss)(x).sum())(x[None]),
            "jvp": t.jvp(f, (x,), (x.flip(0),))[1],
            "vjp": t.vjp(loss, x)[1](x.sum()),
            "jacrev": t.jacrev(lambda x: f(x).sum(0))(x),
            "jacfwd": t.jacfwd(lambda x: f(x).sum(0))(x),
            "grad of grad": t.grad(lambda x: t.grad(loss)(x).square().sum())(x),
            "hessian": t.hessian(loss)(x),
        }

    found = xf.device_get(xf.jit(lambda x: program(xf, x))(x))
    torch.testing.assert_close(found, program(torch.func, x), rtol=1e-3, atol=1e-3)
    pushed = xf.device_get(xf.linearize(f, x)[1](x))
    torch.testing.assert_close(pushed, torch.func.jvp(f, (x,), (x,))[1], rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def bare():
    """Operators without a rule, as an extension may define them."""
    with torch.library._scoped_library("xfunc_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        library.define("place(Tensor x) -> Tensor")
        library.impl("place", lambda x: x.argmax(), "CompositeExplicitAutograd")
        yield torch.ops.xfunc_test


X = torch.tensor([1.0, 3.0])
TRANSFORMS = {
    "grad": lambda f: xf.grad(lambda x: f(x).sum())(X),
    "vmap of grad": lambda f: xf.vmap(xf.grad(f))(X),
    "grad of vmap": lambda f: xf.grad(lambda x: xf.vmap(f)(x).sum())(X),
    "jvp": lambda f: xf.jvp(f, (X,), (X,)),
    "linearize": lambda f: xf.linearize(f, X),
    "vjp": lambda f: xf.vjp(f, X),
    "jacfwd": lambda f: xf.jacfwd(f)(X),
    "hessian": lambda f: xf.hessian(lambda x: f(x).sum())(X),
}


@pytest.mark.parametrize("overload", ["packet", "default"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_operator_without_derivative_is_refused_by_name(name, overload, bare):
    twice = bare.twice if overload == "packet" else bare.twice.default
    with pytest.raises(UnsupportedOpError, match=r"xfunc_test::twice has no derivative") as error:
        TRANSFORMS[name](lambda x: twice(x))
    assert "test_derivatives.py" in str(error.value)


def test_operator_without_derivative_of_detached_input(bare):
    def f(x):
        return (x.square() * bare.twice(x.detach())).sum() + bare.place(x)

    found, grad = xf.device_get(xf.value_and_grad(f)(X))
    torch.testing.assert_close(found, torch.tensor(57.0))
    torch.testing.assert_close(grad, torch.tensor([4.0, 36.0]))
    torch.testing.assert_close(xf.device_get(xf.vmap(bare.twice)(X)), 2 * X)


def test_operator_without_derivative_below_function_modes(bare):
    def hidden(x):
        with torch._C.DisableTorchFunction():  # as in an extension's C++
            return bare.twice(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UnsupportedOpError, match="xfunc_test::twice has no derivative"):
            xf.vmap(xf.grad(hidden))(X)


# What torch has no derivative of in some mode or order, or a wrong one, or no batch rule.
MENDED = """
    scatter_reduce.prod index_reduce.prod index_reduce.amin nn.functional.embedding_bag
    linalg.cholesky ormqr native_dropout_backward select_scatter cov cdist
""".split()


@pytest.mark.sample(6, seed=0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MENDED)
def test_operation_derivatives_of_every_kind(name):
    transforms = tuple(operations.TRANSFORMS)
    unit = operations.Unit(name, "float64", transforms, samples=1)
    for found in operations.examine(operations.entries()[name], unit):
        assert found.status in ("right", "absent"), (found.transform, found.detail)


def test_as_strided_scatter_overwritten_has_no_derivative():
    """torch's own rule for as_strided_scatter counts it."""
    x, src = torch.arange(9.0).reshape(3, 3), torch.ones(2, 2)

    def f(x, src):
        return torch.as_strided_scatter(x, src, (2, 2), (3, 1), 1)

    kept = torch.ones(3, 3)
    kept[:2, 1:] = 0
    grads = xf.device_get(xf.grad(lambda x, src: f(x, src).sum(), argnums=(0, 1))(x, src))
    torch.testing.assert_close(grads, (kept, torch.ones(2, 2)))
    pushed = xf.device_get(xf.jvp(f, (x, src), (x, 2 * src))[1])
    torch.testing.assert_close(pushed, torch.where(kept > 0, x, 2))
    found = xf.device_get(xf.vmap(f)(torch.stack([x, -x]), torch.stack([src, 2 * src])))
    for each, sign in zip(found, (1, -1), strict=True):
        expected = torch.where(kept > 0, sign * x, 1.0 if sign > 0 else 2.0)
        torch.testing.assert_close(each, expected)


def test_embedding_bag_scale_grad_by_freq_is_refused():
    weight, places = torch.ones(3, 2), torch.tensor([[0, 1]])
    with pytest.raises(UnsupportedOpError, match="scale gradients by the frequency"):
        xf.jit(lambda w, i: F.embedding_bag(i, w, scale_grad_by_freq=True))(weight, places)
