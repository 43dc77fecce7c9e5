"""A transform refuses a result of the user's function that is no array, and names its place."""

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

X = torch.tensor([0.5, 2.0, 3.0])


def pair(x):
    return x.sum(), {"k": "a"}


def text(*args):
    return "a"


def by_vjp(fwd, bwd):
    f = xf.custom_vjp(lambda x: x * 2)
    f.defvjp(fwd, bwd)
    return xf.grad(lambda x: f(x).sum())(X)


def by_jvp(rule):
    f = xf.custom_jvp(lambda x: x * 2)
    f.defjvp(rule)
    return xf.jvp(f, (X,), (X,))


EVERYWHERE = {
    "grad": (lambda: xf.grad(pair, has_aux=True)(X), "aux['k']"),
    "value_and_grad": (lambda: xf.value_and_grad(pair, has_aux=True)(X), "aux['k']"),
    "grad in jit": (lambda: xf.jit(xf.grad(pair, has_aux=True))(X), "aux['k']"),
    "grad in vmap": (lambda: xf.vmap(xf.grad(pair, has_aux=True))(X[:, None]), "aux['k']"),
    "jvp": (lambda: xf.jvp(text, (X,), (X,)), "output"),
    "jvp, aux": (lambda: xf.jvp(pair, (X,), (X,), has_aux=True), "aux['k']"),
    "vjp": (lambda: xf.vjp(text, X), "output"),
    "vjp in jit": (lambda: xf.jit(lambda x: xf.vjp(pair, x, has_aux=True)[0])(X), "aux['k']"),
    "linearize": (lambda: xf.linearize(text, X), "output"),
    "linearize, aux": (lambda: xf.linearize(pair, X, has_aux=True), "aux['k']"),
    "fwd_and_bwd": (lambda: xf.fwd_and_bwd(text, 0)[0](X), "output"),
    "jacrev": (lambda: xf.jacrev(text)(X), "output"),
    "jacrev, aux": (lambda: xf.jacrev(pair, has_aux=True)(X), "aux['k']"),
    "jacfwd": (lambda: xf.jacfwd(text)(X), "output"),
    "jacfwd, aux": (lambda: xf.jacfwd(pair, has_aux=True)(X), "aux['k']"),
    "hessian": (lambda: xf.hessian(text)(X), "output"),
    "associative_scan": (lambda: xf.associative_scan(text, X), "output"),
    "custom_vjp, gradient": (lambda: by_vjp(lambda x: (x, x), lambda r, g: ("a",)), "gradient[0]"),
    "custom_jvp, output": (lambda: by_jvp(lambda p, t: ("a", t[0])), "output"),
    "custom_jvp, tangent": (lambda: by_jvp(lambda p, t: (p[0], "a")), "tangent"),
}
UNSTAGED = {
    "scan": (lambda: xf.scan(lambda c, x: (c, "a"), X[0], X), "output[1]"),
    "while_loop": (lambda: xf.while_loop(lambda c: c < 3, text, X[0]), "output"),  # pyright: ignore[reportOperatorIssue]
    "while_loop, condition": (lambda: xf.while_loop(text, lambda c: c + 1, X[0]), "output"),
    "custom_vjp, output": (lambda: by_vjp(lambda x: ("a", x), lambda r, g: (g,)), "output"),
    "custom_vjp, residuals": (lambda: by_vjp(lambda x: (x, "a"), lambda r, g: (g,)), "residuals"),
}


def check(function, place) -> None:
    with pytest.raises(TypeError, match=r"returned 'a' \(a str\) at ") as caught:
        function()
    assert f"at {place}\n" in str(caught.value)


@pytest.mark.parametrize(("function", "place"), EVERYWHERE.values(), ids=EVERYWHERE)
def test_transform_result_no_array_raises(function, place) -> None:
    check(function, place)


@pytest.mark.parametrize(
    ("function", "place"), [*EVERYWHERE.values(), *UNSTAGED.values()], ids=[*EVERYWHERE, *UNSTAGED]
)
def test_transform_result_no_array_raises_without_jit(function, place) -> None:
    with xf.disable_jit():
        check(function, place)
