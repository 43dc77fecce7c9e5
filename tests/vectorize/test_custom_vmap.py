"""custom_vmap and sequential_vmap beyond what is recorded from JAX in `snippets_of_transforms`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

X = torch.tensor([0.5, -1.25, 2.0])
Y = torch.tensor([1.5, 0.25, -0.75])
FLAGS: Any = 0


def doubled(calls: list[Any] | None = None) -> Any:
    """``sin(x) * y``, whose rule is right."""

    @xf.custom_vmap
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * y

    @f.def_vmap
    def rule(n: int, batched: list[bool], x: torch.Tensor, y: torch.Tensor) -> Any:
        if calls is not None:
            calls.append((n, batched))
        assert [x.ndim > 0, y.ndim > 0] == batched
        assert any(batched)
        return torch.sin(x) * y, True

    return f


def sequential() -> Any:
    return xf.sequential_vmap(lambda x, y: torch.sin(x) * y)


def plain() -> Any:
    return lambda x, y: torch.sin(x) * y


# Where JAX refuses, or gives results of a wrong shape: compared with the function without a rule.
TABLE: dict[str, Any] = {
    "tangent of one argument": lambda f: xf.vmap(
        lambda x, y, t: xf.jvp(lambda x: f(x, y), (x,), (t,))
    )(X, Y, Y),
    "one tangent for all": lambda f: xf.vmap(lambda x, y: xf.jvp(f, (x, y), (X[0], X[1])))(X, Y),
    "many tangents": lambda f: xf.vmap(lambda t: xf.jvp(f, (X[0], Y[0]), (t, X[1])))(X),
    "jvp of jvp": lambda f: xf.vmap(
        lambda x, t: xf.jvp(lambda x: xf.jvp(lambda x: f(x, t), (x,), (t,))[1], (x,), (t,))
    )(X, Y),
    "jvp of vmap of jvp": lambda f: xf.jvp(
        lambda x: xf.vmap(lambda x, y: xf.jvp(f, (x, y), (y, x)))(x, Y), (X,), (Y,)
    ),
    "jacfwd": lambda f: xf.vmap(xf.jacfwd(f, (0, 1)))(X, Y),
    "jit of vmap of vmap": lambda f: xf.jit(xf.vmap(xf.vmap(f, (0, None)), (None, 0)))(X, Y),
    "linearize": lambda f: xf.linearize(lambda x: f(x, Y[0]), X[0])[1](Y[1]),
    "vmap of a size": lambda f: xf.vmap(lambda x: (f(X[0], Y[0]), x))(X),
    "scan": lambda f: xf.vmap(lambda x: xf.scan(lambda c, y: (f(c, y), c), x, Y))(X),
}


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("make", [doubled, sequential])
@pytest.mark.parametrize("name", TABLE)
def test_custom_vmap_with_right_rule_changes_nothing(name: str, make: Any, eager: bool) -> None:
    want = TABLE[name](plain())
    with xf.disable_jit(eager):
        got = TABLE[name](make())
    for g, w in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        torch.testing.assert_close(g.cpu(), w.cpu(), rtol=1e-5, atol=1e-6)


def test_custom_vmap_gradient_by_closure_of_rule() -> None:
    def total(w: torch.Tensor) -> torch.Tensor:
        f = xf.custom_vmap(lambda x: x * w)
        f.def_vmap(lambda n, batched, x: (x * w * 10, True))
        return xf.vmap(f)(X).sum()

    assert xf.grad(total)(torch.tensor(2.0)).item() == pytest.approx(10 * X.sum().item())


def test_custom_vmap_redefined_rule_retraces() -> None:
    f = xf.custom_vmap(lambda x: x)
    f.def_vmap(lambda n, batched, x: (x + 1, True))
    step = xf.jit(xf.vmap(lambda x: f(x)))
    assert step(X).tolist() == (X + 1).tolist()
    f.def_vmap(lambda n, batched, x: (x + 2, True))  # The last one holds, as in JAX.
    assert step(X).tolist() == (X + 2).tolist()
    assert step(Y).tolist() == (Y + 2).tolist()
    assert step.cache_info().traces == 2


def test_custom_vmap_rule_is_traced_once_per_signature() -> None:
    calls: list[Any] = []
    step = xf.jit(xf.vmap(doubled(calls), in_axes=(0, None)))
    for _ in range(2):
        step(X, Y[0])
    assert calls == [(3, [True, False])]


def test_sequential_vmap_prints_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    @xf.sequential_vmap
    def f(x: torch.Tensor) -> torch.Tensor:
        xf.debug.print("{}", x)
        return x + 1

    xf.block_until_ready(xf.vmap(f)(torch.tensor([5, 6, 7])))
    assert capsys.readouterr().out.split() == ["5", "6", "7"]
    with pytest.raises(xf.errors.UnsupportedOpError, match="custom_vmap function that is being"):
        xf.jvp(f, (X,), (Y,))
    with xf.disable_jit():
        xf.vmap(f)(torch.tensor([8, 9]))
    assert capsys.readouterr().out.split() == ["8", "9"]


def test_custom_vmap_error_in_rule_propagates() -> None:
    f = xf.custom_vmap(lambda x: x)

    @f.def_vmap
    def rule(n: int, batched: list[bool], x: torch.Tensor) -> Any:
        raise ValueError("my own")

    with pytest.raises(ValueError, match=r"^my own$"):
        xf.vmap(f)(X)


def with_rule(result: Any) -> Any:
    f = xf.custom_vmap(lambda x: x * 2)
    f.def_vmap(lambda n, batched, x: result(x))
    return f


def closing(f_too: bool) -> Any:
    """A function of (x, w) whose rule, or which itself, closes over `w`."""

    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        f = xf.custom_vmap((lambda x: x * w) if f_too else (lambda x: x * 2))
        f.def_vmap(lambda n, batched, x: (x if f_too else x * w, True))
        return f(x)

    return call


MISMATCH = xf.errors.TreeMismatchError


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: xf.custom_vmap(lambda x: x)(X), TypeError, r"has no rule.*\n.*\n.*def_vmap"),
        (lambda: xf.vmap(xf.custom_vmap(lambda x: x))(X), TypeError, "has no rule"),
        (lambda: with_rule(0).def_vmap(FLAGS), TypeError, "def_vmap was given 0.*not callable"),
        (lambda: xf.custom_vmap(FLAGS), TypeError, "custom_vmap was given 0, which is not call"),
        (lambda: doubled()(X), TypeError, "do not fit it: missing a required argument: 'y'"),
        (lambda: doubled()(X, "y"), TypeError, "custom_vmap function .*'y'"),
        (lambda: xf.vmap(with_rule(lambda x: x))(X), MISMATCH, "returned a Tensor, not a pair"),
        (
            lambda: xf.vmap(with_rule(lambda x: (x.int(), True)))(X),
            MISMATCH,
            r"output: int32\[3\] instead of float32\[3\]",
        ),
        (
            lambda: xf.vmap(with_rule(lambda x: (x, False)))(X),
            MISMATCH,
            r"output: float32\[3\] instead of float32\[\]",
        ),
        (
            lambda: xf.vmap(with_rule(lambda x: ((x, x), (True, True))))(X),
            MISMATCH,
            r"output\[1\]: unexpected",
        ),
        (
            lambda: xf.vmap(with_rule(lambda x: (x, (True,))))(X),
            MISMATCH,
            r"returned \(True,\) as what is batched",
        ),
        (lambda: xf.vmap(with_rule(lambda x: (x, 0)))(X), MISMATCH, "returned 0 as what is"),
        (lambda: xf.vmap(with_rule(lambda x: (x, x)))(X), MISMATCH, "returned Tensor as what is"),
        (
            lambda: xf.grad(lambda x: doubled()(x, Y).sum())(X),
            xf.errors.UnsupportedOpError,
            r"custom_vmap function, which reverse mode.*\n.*\n.*xf.custom_vjp on top",
        ),
        (
            lambda: xf.vmap(xf.grad(doubled()))(X, Y),
            xf.errors.UnsupportedOpError,
            "custom_vmap function, which reverse mode",
        ),
        (
            lambda: xf.grad(lambda x: xf.vmap(sequential())(x, Y).sum())(X),
            xf.errors.UnsupportedOpError,
            "custom_vmap function, which reverse mode",
        ),
        (lambda: xf.vmap(closing(True))(X, Y), TypeError, r"float32\[3\]\) that a transform.*maps"),
        (lambda: xf.vmap(closing(False))(X, Y), TypeError, "the vmap rule of .* closes over"),
        (
            lambda: xf.vmap(lambda x: xf.jvp(lambda w: closing(True)(x, w), (X[0],), (X[0],)))(X),
            TypeError,
            "that a transform of it differentiates",
        ),
    ],
)
def test_custom_vmap_errors(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()
