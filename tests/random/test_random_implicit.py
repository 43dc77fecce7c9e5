"""`xf.random.implicit`: torch's own drawing functions, made to draw from a key."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import xfunc as xf
from xfunc import random as xr
from xfunc.errors import LeakError, PurityError

ONES = torch.ones(40, 50, 8)
FEATURES = torch.ones(200, 80, 2)
RAMP = torch.arange(8.0).expand(1, 8000, 8, 8)
P = torch.tensor([[0.1, 0.2, 0.0, 0.7], [0.25, 0.25, 0.25, 0.25]])


def drawn(f: Callable[..., Any], key: torch.Tensor, *args: Any) -> Any:
    with xr.implicit(key):
        return f(*args)


def empty(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(40, 50, 8, dtype=dtype)


stack = nn.RNN(2, 2, 2, "relu", bias=False, dropout=0.5)
for _weight in stack.parameters():
    nn.init.ones_(_weight)


# Name, call, mean and standard deviation of what it draws.
CALLS: dict[str, tuple[Callable[[], Any], float, float]] = {
    "dropout": (lambda: F.dropout(ONES, 0.2), 1.0, 0.5),
    "dropout in place": (lambda: F.dropout(ONES * 1, 0.2, inplace=True), 1.0, 0.5),
    "dropout of nearly all": (lambda: F.dropout(ONES, 1.0), 0.0, 0.0),
    "no dropout": (lambda: F.dropout(ONES, 0.2, training=False), 1.0, 0.0),
    "torch.dropout": (lambda: torch.dropout(ONES, 0.2, train=True), 1.0, 0.5),
    "torch.dropout, not training": (lambda: torch.dropout(ONES, p=0.2, train=False), 1.0, 0.0),
    "dropout1d": (lambda: F.dropout1d(FEATURES, 0.2), 1.0, 0.5),
    "dropout2d": (lambda: F.dropout2d(FEATURES[..., None], 0.2), 1.0, 0.5),
    "dropout3d": (lambda: F.dropout3d(FEATURES[..., None, None], 0.2), 1.0, 0.5),
    "native_dropout": (lambda: torch.native_dropout(ONES, 0.2, None)[0], 1.0, 0.5),
    "native_dropout, mask": (lambda: torch.native_dropout(ONES, 0.2, True)[1].float(), 0.8, 0.4),
    "alpha_dropout": (lambda: F.alpha_dropout(torch.randn_like(ONES), 0.2), 0.0, 1.0),
    "feature_alpha_dropout": (lambda: F.feature_alpha_dropout(torch.randn_like(ONES)), 0.0, 1.0),
    "rand": (lambda: torch.rand(40, 50, 8), 0.5, math.sqrt(1 / 12)),
    "rand, sizes as a list": (lambda: torch.rand([40, 400]), 0.5, math.sqrt(1 / 12)),
    "randn": (lambda: torch.randn(size=(16000,)), 0.0, 1.0),
    "randint": (lambda: torch.randint(10, (16000,)).float(), 4.5, math.sqrt(99 / 12)),
    "randint from": (lambda: torch.randint(-5, 5, (16000,)).float(), -0.5, math.sqrt(99 / 12)),
    "randperm": (lambda: torch.randperm(100) / 100, 0.495, 0.28866),
    "rand_like": (lambda: torch.rand_like(ONES), 0.5, math.sqrt(1 / 12)),
    "randn_like": (lambda: torch.randn_like(ONES), 0.0, 1.0),
    "randint_like": (lambda: torch.randint_like(ONES, 10), 4.5, math.sqrt(99 / 12)),
    "normal": (lambda: torch.normal(3.0, 2.0, (16000,)), 3.0, 2.0),
    "normal of means": (lambda: torch.normal(ONES, 2.0), 1.0, 2.0),
    "normal of deviations": (lambda: torch.normal(3.0, ONES * 2), 3.0, 2.0),
    "bernoulli": (lambda: torch.bernoulli(ONES * 0.2), 0.2, 0.4),
    "bernoulli of p": (lambda: ONES.bernoulli(0.2), 0.2, 0.4),
    "multinomial": (lambda: torch.multinomial(P, 8000, True)[0].float(), 2.3, 1.1),
    "poisson": (lambda: torch.poisson(ONES * 3), 3.0, math.sqrt(3)),
    "poisson of float64": (lambda: torch.poisson(ONES.double() * 40), 40.0, math.sqrt(40)),
    "binomial": (lambda: torch.binomial(ONES * 9, ONES / 3), 3.0, math.sqrt(2)),
    "binomial of many": (lambda: torch.binomial(ONES * 90, ONES / 3), 30.0, math.sqrt(20)),
    "bernoulli_": (lambda: empty().bernoulli_(0.2), 0.2, 0.4),
    "bernoulli_ of a tensor": (lambda: empty().bernoulli_(ONES * 0.2), 0.2, 0.4),
    "normal_": (lambda: empty().normal_(3.0, 2.0), 3.0, 2.0),
    "uniform_": (lambda: empty().uniform_(-6.0, to=6.0), 0.0, math.sqrt(12)),
    "exponential_": (lambda: empty().exponential_(0.5), 2.0, 2.0),
    "geometric_": (lambda: empty().geometric_(0.5), 2.0, math.sqrt(2)),
    "geometric_ of integers": (lambda: empty(torch.int64).geometric_(0.5).float(), 2.0, 2**0.5),
    "log_normal_": (lambda: empty().log_normal_(0.0, 0.5), 1.1331, 0.6039),
    "cauchy_": (lambda: empty().cauchy_(1.0, 2.0).clamp(-1, 3), 1.0, 1.5958),
    "random_": (lambda: empty().random_(-5, 5), -0.5, math.sqrt(99 / 12)),
    "random_ to": (lambda: empty().random_(to=10), 4.5, math.sqrt(99 / 12)),
    "random_ of int8": (lambda: empty(torch.int8).random_().float(), 63.0, 36.66),
    "random_ of bool": (lambda: empty(torch.bool).random_().float(), 0.5, 0.5),
    "rrelu": (lambda: F.rrelu(-ONES, training=True), -0.22917, 0.06014),
    "rrelu in place": (lambda: F.rrelu(-ONES, 0.0, 1.0, True, inplace=True), -0.5, 0.28868),
    "rrelu above 0": (lambda: F.rrelu(ONES, training=True), 1.0, 0.0),
    "between layers": (lambda: stack(torch.ones(1, 8000, 2))[0], 4.0, math.sqrt(8)),
    "fractional pooling": (lambda: F.fractional_max_pool2d(RAMP, 1, 3), 3.4762, 2.8722),
    "gamma": (lambda: torch._standard_gamma(ONES * 3), 3.0, math.sqrt(3)),
    "dirichlet": (lambda: torch._sample_dirichlet(ONES), 1 / 8, math.sqrt(7) / 24),
    "gumbel_softmax": (lambda: F.gumbel_softmax(ONES[..., :2], hard=True), 0.5, 0.5),
    "init": (lambda: nn.init.trunc_normal_(empty()), 0.0, 0.87978),
    "init.normal_": (lambda: nn.init.normal_(empty(), 3.0, std=2.0), 3.0, 2.0),
    "init.uniform_": (lambda: nn.init.uniform_(empty(), -6.0, b=6.0), 0.0, math.sqrt(12)),
}  # fmt: skip


@pytest.mark.sample(16, seed=0)
@pytest.mark.parametrize("name", CALLS)
def test_implicit_distributions_in_jit_and_eager(name: str) -> None:
    call, mean, deviation = CALLS[name]
    key = xr.key(11)
    got = drawn(call, key)
    assert got.device.type == "cpu"
    again = drawn(call, key)
    assert torch.equal(again, got)
    tolerance = 1e-5 + 0.03 * deviation
    assert got.double().mean().item() == pytest.approx(mean, abs=tolerance)
    assert got.double().std().item() == pytest.approx(deviation, abs=tolerance)
    traced = xf.jit(lambda key: drawn(call, key))
    torch.testing.assert_close(traced(key).cpu(), got, rtol=1e-4, atol=1e-5)
    with xf.disable_jit():
        torch.testing.assert_close(drawn(call, key), got, rtol=1e-4, atol=1e-5)
    if deviation:
        assert not torch.equal(traced(xr.key(12)).cpu(), got)


def test_implicit_multinomial_without_replacement() -> None:
    found = xf.jit(lambda k, p: drawn(lambda: torch.multinomial(p, 3), k))(xr.key(0), P)
    assert sorted(found[0].tolist()) == [0, 1, 3]  # The third has weight 0.
    assert len(set(found[1].tolist())) == 3


def test_implicit_draws_fold_in_a_counter() -> None:
    def f(key: torch.Tensor) -> Any:
        with xr.implicit(key):
            return torch.rand(3), torch.rand(3)

    key = xr.key(2)
    for got in (f(key), xf.jit(f)(key)):
        for i in range(2):
            assert got[i].tolist() == xr.uniform(xr.fold_in(key, i), (3,)).tolist()


def test_implicit_new_keys_do_not_retrace() -> None:
    def f(key: torch.Tensor) -> torch.Tensor:
        with xr.implicit(key):
            return F.dropout(ONES, 0.5).sum()

    g = xf.jit(f)
    assert len({g(k).item() for k in xr.split(xr.key(0), 4)}) == 4
    assert xf.trace_count(f) == 1


def test_implicit_dropout1d_drops_whole_features() -> None:
    kept = drawn(lambda: F.dropout1d(ONES, 0.5), xr.key(0))
    assert set(kept.sum(-1).unique().tolist()) == {0.0, 16.0}


# -- with gradients, loops and batches ----------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.norm, self.dropout, self.linear = nn.LayerNorm(8), nn.Dropout(0.4), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.norm(x + self.dropout(torch.relu(self.linear(x))))


@pytest.mark.slow
def test_implicit_dropout_module_in_scan() -> None:
    """Other masks at each step; gradients are those of eager torch with the same masks."""
    torch.manual_seed(0)
    block, x, keys = Block(), torch.randn(2, 5, 8), xr.split(xr.key(3), 4)
    params = dict(block.named_parameters())

    def step(h: torch.Tensor, key: torch.Tensor) -> Any:
        with xr.implicit(key):
            return block(h), F.dropout(torch.ones(50), 0.5)

    def loss(params: Any, x: torch.Tensor, keys: torch.Tensor) -> Any:
        def body(h: torch.Tensor, key: torch.Tensor) -> Any:
            with xr.implicit(key):
                return torch.func.functional_call(block, params, (h,)), torch.rand(2)

        h, noise = xf.scan(body, x, keys)
        return h.square().mean(), noise

    (value, noise), grads = xf.value_and_grad(loss, has_aux=True)(params, x, keys)
    assert len({tuple(row) for row in noise.tolist()}) == 4
    _, masks = xf.jit(lambda x, keys: xf.scan(step, x, keys))(x, keys)
    assert len({tuple(row) for row in masks.tolist()}) == 4

    h = x
    for key in keys:
        with xr.implicit(key):
            h = block(h)
    expected = h.square().mean()
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, p in block.named_parameters():
        torch.testing.assert_close(grads[name].cpu(), p.grad, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("wrap", [lambda f: f, xf.jit, xf.checkpoint, lambda f: xf.jit(xf.jit(f))])
def test_implicit_dropout_gradient_uses_the_same_mask(wrap: Any) -> None:
    def f(x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        with xr.implicit(key):
            return (F.dropout(x, 0.3) * F.alpha_dropout(x, 0.3)).sum()

    x, key = torch.linspace(-1, 1, 60), xr.key(4)
    got = xf.grad(wrap(f))(x, key)
    leaf = x.clone().requires_grad_()
    f(leaf, key).backward()
    torch.testing.assert_close(got.cpu(), leaf.grad)


def test_implicit_vmap_draws_differ_for_batched_keys_only() -> None:
    def f(x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        with xr.implicit(key):
            return F.dropout(x, 0.5) + torch.rand(5)

    x, keys = torch.ones(3, 5), xr.split(xr.key(0), 3)
    alike = xf.vmap(f, in_axes=(0, None))(x, keys[0])
    assert alike.tolist() == [f(x[0], keys[0]).tolist()] * 3
    each = xf.vmap(f)(x, keys)
    torch.testing.assert_close(
        each.cpu(), torch.stack([f(a, k) for a, k in zip(x, keys, strict=True)])
    )
    per_example = xf.vmap(xf.grad(lambda x, k: f(x, k).sum()))(x, keys)
    assert set(per_example.flatten().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_implicit_attention_with_negligible_dropout(causal: bool, masked: bool) -> None:
    q, k, v = (torch.randn(2, h, 6, 4) for h in (4, 2, 2))
    mask = torch.ones(6, 6).tril().bool() if masked and not causal else None

    def f(p: float) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, p, causal, scale=0.7, enable_gqa=True)

    got = xf.jit(lambda key: drawn(f, key, 1e-9))(xr.key(0))
    torch.testing.assert_close(got.cpu(), f(0.0), rtol=1e-4, atol=1e-5)


# -- what is refused ----------------------------------------------------------------------------

RECURRENT = nn.LSTM(3, 3, 2, dropout=0.5)
KEYED = r"Hint: draw with a key \(xf\.random\.uniform\(key, shape\) and the like\), or let this"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: torch.rand(3), "torch.rand"),
        (lambda: F.dropout(ONES), "torch.nn.functional.dropout|torch.dropout"),
        (lambda: empty().normal_(), "Tensor.normal_"),
        (lambda: RECURRENT(torch.zeros(2, 3)), "torch.lstm"),
    ],
)
def test_draw_without_key_error_hints_at_keys(call: Any, name: str) -> None:
    with pytest.raises(
        PurityError, match=rf"({name}) draws from the global [^\n]*\n  at .*\n{KEYED}"
    ):
        xf.jit(lambda: call())()


def test_draw_without_key_found_in_lowering_is_refused() -> None:
    with pytest.raises(PurityError, match=rf"something draws from the global .*\n{KEYED}"):
        xf.jit(lambda x: torch.ops.aten.bernoulli.p(x, 0.5))(ONES)


def test_implicit_with_generator_is_refused() -> None:
    def f(key: torch.Tensor) -> torch.Tensor:
        with xr.implicit(key):
            return torch.rand(3, generator=torch.Generator())

    match = (
        rf"torch\.rand was given a torch\.Generator, whose state cannot be traced .*\n.*\n{KEYED}"
    )
    with pytest.raises(PurityError, match=match):
        xf.jit(f)(xr.key(0))
    assert f(xr.key(0)).shape == (3,)  # Outside a trace it draws from the generator.


def test_implicit_unsupported_draw_is_refused() -> None:
    match = r"torch\.rand draws from .*, and xf\.random\.implicit does not cover it"
    with pytest.raises(PurityError, match=match):
        xf.jit(lambda key: drawn(lambda: torch.rand(3, out=torch.zeros(3)), key))(xr.key(0))


def draw(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(3)


@pytest.mark.parametrize(
    "inner",
    [
        lambda x: xf.scan(lambda c, _: (draw(c), None), x, length=3)[0],
        lambda x: xf.jit(draw)(x),
        lambda x: xf.checkpoint(draw)(x),
    ],
)
@pytest.mark.parametrize("outer", [xf.jit, lambda f: f])
def test_implicit_of_outer_trace_is_refused(inner: Any, outer: Any) -> None:
    def f(x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        with xr.implicit(key):
            return inner(x)

    match = (
        r"torch\.rand draws from an xf\.random\.implicit key that was opened outside the function "
        r"being traced.*\n  at .*\nHint: open `with xf\.random\.implicit\(key\):` insi"
    )
    with pytest.raises(PurityError, match=match):
        outer(f)(torch.zeros(3), xr.key(0))
    torch.rand(3)  # And nothing is left behind.


def test_implicit_contexts_nest() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        with xr.implicit(a):
            first = torch.rand(2)
            with xr.implicit(b):
                inner = torch.rand(2)
            return first, inner, torch.rand(2)

    keys = xr.key(0), xr.key(1)
    folds = [xr.fold_in(keys[i], n) for i, n in ((0, 0), (1, 0), (0, 1))]
    want = [xr.uniform(k, (2,)).tolist() for k in folds]
    for g in (f, xf.jit(f)):
        assert [t.tolist() for t in g(*keys)] == want


def test_implicit_entered_twice_raises() -> None:
    context = xr.implicit(xr.key(0))
    with context, pytest.raises(RuntimeError, match="this implicit context is already open"):
        context.__enter__()
    with context:
        torch.rand(2)
    with pytest.raises(TypeError, match="implicit was given 0 "):
        xr.implicit(0)  # pyright: ignore[reportArgumentType]


def test_implicit_never_closed_does_no_harm() -> None:
    def f(key: torch.Tensor) -> torch.Tensor:
        xr.implicit(key).__enter__()
        return torch.rand(2)

    with pytest.raises(LeakError, match=r"int32\[2\] .* outlived its trace"):
        xf.jit(f)(xr.key(0))
    with pytest.raises(PurityError, match=rf"draws from the global [^\n]*\n  at .*\n{KEYED}"):
        xf.jit(lambda: torch.rand(2))()


def test_implicit_draw_into_argument_raises() -> None:
    def f(x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        with xr.implicit(key):
            return x.normal_()

    with pytest.raises(PurityError, match=r"changes x \(float32\[3\]\) in place"):
        xf.jit(f)(torch.zeros(3), xr.key(0))
