"""`xfunc.random` against what `jax.random` drew (`tests/record/random_draws.py`), everywhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf

xr: Any = xf.random  # Any, since some tests pass what no checker would let through

RECORDED = np.load(Path(__file__).parents[1] / "data" / "random_vectors.npz")
CALLS = list(RECORDED)
X = torch.linspace(-1.0, 1.0, 6)


def logits(*shape: int) -> torch.Tensor:
    return torch.arange(math.prod(shape), dtype=torch.float32).sin().reshape(shape)


NAMES: dict[str, Any] = {n: getattr(xr, n) for n in vars(xr) if not n.startswith("_")}
NAMES |= {"logits": logits, "arange": torch.arange, "vmap": xf.vmap}
NAMES |= {"u8": torch.uint8, "u16": torch.int16, "u32": torch.int32, "u64": torch.int64}
NAMES |= {f"i{n}": getattr(torch, f"int{n}") for n in (8, 16, 32, 64)}
NAMES |= {f"f{n}": getattr(torch, f"float{n}") for n in (16, 32, 64)}
NAMES |= {"bf16": torch.bfloat16}


def compute(call: str) -> torch.Tensor:
    return eval(call, NAMES)


def recorded(call: str, dtype: torch.dtype) -> torch.Tensor:
    """What JAX drew; its unsigned words, of which torch has no dtype, in `dtype`."""
    array = RECORDED[call]
    if array.dtype.kind == "u" and dtype is not torch.uint8:
        tensor = torch.from_numpy(array.view(f"i{array.itemsize}"))
        return tensor.view(dtype) if dtype is torch.bfloat16 else tensor
    return torch.from_numpy(array)


def check(call: str, got: torch.Tensor) -> None:
    """Integers, and floats made from bits alone, are equal; others up to their last places."""
    got, want = got.cpu(), recorded(call, got.dtype)
    if "categorical" in call or "permutation" in call:
        want = want.long()  # JAX gives int32, torch's indices are int64.
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    exact = not got.is_floating_point() or (call.startswith("uniform") and call.endswith("6)"))
    if exact:
        assert torch.equal(got, want)
        return
    if got.dtype is torch.bfloat16:
        # XLA keeps more places between two operations than bfloat16 has, and erf_inv is steep.
        got, want = (torch.special.ndtr(t.double()) for t in (got, want))
        torch.testing.assert_close(got, want, rtol=0, atol=2.0**-7)
        return
    # Some CPUs have arithmetic for float16, which rounds after each operation.
    places = {torch.float32: 6, torch.float64: 60, torch.float16: 8}[got.dtype]
    tolerance = places * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.sample(9, seed=0)
@pytest.mark.quick(3, seed=0)
@pytest.mark.parametrize("call", CALLS)
def test_random_matches_jax(call: str) -> None:
    check(call, compute(call))


@pytest.mark.sample(9, seed=0)
@pytest.mark.parametrize("call", CALLS)
def test_random_inside_jit(call: str) -> None:
    check(call, xf.jit(lambda: compute(call))())


@pytest.mark.parametrize("call", CALLS)
def test_random_under_disable_jit(call: str) -> None:
    with xf.disable_jit():
        got = compute(call)
    assert got.device.type == "cpu"
    check(call, got)


# -- under transforms ---------------------------------------------------------------------------

BATCHED = [c for c in CALLS if c.startswith("vmap(lambda k")]


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("call", BATCHED)
@pytest.mark.parametrize("wrap", [lambda f: f, xf.checkpoint, xf.jit])
def test_random_scan_over_keys_matches_vmap(call: str, wrap: Any) -> None:
    draw = wrap(eval(call.partition("vmap(")[2].rpartition(")(split")[0], NAMES))
    _, got = xf.scan(lambda c, k: (c, draw(k)), 0, xr.split(xr.key(8), 5))
    check(call, got)


def test_key_of_traced_seed() -> None:
    seeds = [0, -1, 123456789, 2**32 + 5, -(2**63)]
    made = xf.jit(xr.key)
    for seed in seeds:
        assert torch.equal(made(seed).cpu(), recorded(f"key({seed})", torch.int32))
    assert xf.trace_count(xr.key) == 1
    batch = xf.vmap(xr.key)(torch.tensor(seeds))
    assert batch.tolist() == [xr.key(s).tolist() for s in seeds]


def test_uniform_gradient_by_bounds() -> None:
    def f(low: torch.Tensor, high: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return xr.uniform(key, (100,), None, low, high).sum()

    key, unit = xr.key(3), xr.uniform(xr.key(3), (100,)).sum().item()
    low, high = xf.grad(f, argnums=(0, 1))(torch.tensor(-1.0), torch.tensor(2.0), key)
    assert low.item() == pytest.approx(100 - unit, rel=1e-5)
    assert high.item() == pytest.approx(unit, rel=1e-5)


def test_truncated_normal_gradient_by_bounds() -> None:
    def f(bounds: Any, key: torch.Tensor) -> torch.Tensor:
        return xr.truncated_normal(key, bounds[0], bounds[1], (64,), torch.float64).sum()

    at = [torch.tensor(v, dtype=torch.float64) for v in (-0.5, 1.5)]
    got = xf.grad(f)(at, xr.key(1))
    for i in range(2):
        step = [torch.tensor(1e-5 * (i == j), dtype=torch.float64) for j in range(2)]
        ahead, behind = (
            f([a + s * d for a, d in zip(at, step, strict=True)], xr.key(1)) for s in (1, -1)
        )
        assert got[i].item() == pytest.approx((ahead - behind).item() / 2e-5, rel=1e-5)


@pytest.mark.parametrize("wrap", [lambda f: f, xf.checkpoint, xf.jit])
def test_random_inside_grad_is_drawn_once(wrap: Any) -> None:
    def loss(x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (x.sin() * xr.normal(key, (6,))).sum()

    got = xf.grad(wrap(loss))(X, xr.key(5))
    torch.testing.assert_close(got.cpu(), X.cos() * xr.normal(xr.key(5), (6,)).cpu())


def test_key_captured_repeats_and_new_keys_do_not_retrace() -> None:
    def f(key: torch.Tensor) -> torch.Tensor:
        return xr.normal(key, (3,)) + xr.uniform(key, (3,))

    g, key = xf.jit(f), xr.key(1)
    first = g(key).tolist()
    assert xf.jit(lambda: f(key))().tolist() == first
    assert len({tuple(g(k).tolist()) for k in xr.split(key, 4)} | {tuple(first)}) == 5
    assert xf.trace_count(f) == 1


def test_keys_are_computed_once() -> None:
    """A hash shifts 20 times: a fusion with more computes keys again for each number drawn."""

    def draw(key: torch.Tensor) -> torch.Tensor:
        keys = xr.split(xr.split(key)[0], 64)
        return xf.vmap(lambda k: xr.uniform(xr.fold_in(k, 3), (4,)))(keys)

    text = xf.jit(draw).lower(xr.key(0)).compile().as_text()
    assert text is not None
    assert max(c.count(" shift-left(") for c in text.split("\n}\n")) == 20


def test_key_is_a_plain_leaf() -> None:
    state = {"key": xr.key(7), "x": X}
    value, grads = xf.value_and_grad(lambda x, s: (x * xr.uniform(s["key"], (6,))).sum())(X, state)
    again = xf.device_get(xf.jit(lambda s: s)(state))
    assert value.dtype is grads.dtype is torch.float32
    assert again["key"].tolist() == [0, 7]
    assert again["key"].dtype is torch.int32


def test_random_bounds_broadcast() -> None:
    low = torch.tensor([[0.0], [10.0]])
    drawn = xr.uniform(xr.key(0), (2, 50), None, low, low + torch.ones(50)).cpu()
    assert torch.equal(drawn.floor(), low.expand(2, 50))
    assert xr.uniform(xr.key(0), (9,), maxval=torch.tensor(0.5)).max().item() < 0.5
    whole = xr.randint(xr.key(0), (2, 50), torch.tensor([[3], [7]]), torch.tensor([[4], [8]]))
    assert whole.tolist() == [[3] * 50, [7] * 50]
    assert xr.bernoulli(xr.key(0), torch.tensor([0.0, 1.0]), (3, 2)).tolist() == [[False, True]] * 3


def test_truncated_normal_stays_inside_bounds() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        got = xr.truncated_normal(xr.key(0), 1.0, 1.0625, (2000,), dtype)
        assert 1.0 < got.min().item() <= got.max().item() < 1.0625


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda k: xr.key(1.5), TypeError, r"key was given 1\.5 \(a float\)\n  at .*\nHint: pas"),
        (lambda k: xr.key(True), TypeError, r"key was given True \(a bool\)"),
        (lambda k: xr.key(torch.ones(2)), TypeError, r"key was given float32\[2\]"),
        (lambda k: xr.key(2**63), OverflowError, "has more than 64 bits"),
        (lambda k: xr.fold_in(k, -1), OverflowError, "fold_in was given -1 as data"),
        (lambda k: xr.fold_in(k, X), TypeError, r"fold_in was given float32\[6\] as data"),
        (lambda k: xr.uniform(0), TypeError, r"uniform was given 0 \(an int\), which is no key"),
        (
            lambda k: xr.normal(xr.split(k)),
            TypeError,
            r"an array of keys, int32\[2,2\]\n.*\n.*vmap",
        ),
        (lambda k: xr.split(k.long()), TypeError, r"split was given int64\[2\], which is no key"),
        (lambda k: xr.uniform(k, 3), TypeError, "uniform was given the shape 3"),
        (lambda k: xr.uniform(k, (-1,)), TypeError, r"uniform was given the shape \(-1,\)"),
        (
            lambda k: xr.uniform(k, (), torch.int32),
            TypeError,
            "uniform was given the dtype torch.i",
        ),
        (lambda k: xr.uniform(k, (2,), None, X), ValueError, r"\(6,\) does not broadcast"),
        (lambda k: xr.bits(k, (), torch.float32), TypeError, "bits was given the dtype torch.floa"),
        (
            lambda k: xr.randint(k, (), 0, 3, torch.float32),
            TypeError,
            "randint was given the dtype",
        ),
        (lambda k: xr.randint(k, (), 0, X.sum()), TypeError, "a bound of torch.float32"),
        (lambda k: xr.bernoulli(k, torch.tensor(1)), TypeError, "bernoulli was given a torch.int6"),
        (lambda k: xr.bernoulli(k, mode="no"), ValueError, "bernoulli has mode='no'"),
        (lambda k: xr.permutation(k, 1.5), TypeError, "permutation was given 1.5"),
        (lambda k: xr.permutation(k, X, 1), ValueError, "permutation has axis=1"),
        (lambda k: xr.categorical(k, X, 1), ValueError, "categorical has axis=1"),
        (lambda k: xr.categorical(k, [0.1]), TypeError, "categorical was given"),
        (lambda k: xr.categorical(k, X[None], shape=(3,)), ValueError, "does not end with"),
        (lambda k: xr.categorical(k, X, shape=(7,), replace=False), ValueError, "7 different ones"),
    ],
)
def test_random_errors(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(xr.key(0))
    with pytest.raises(error, match=match):
        xf.jit(call)(xr.key(0))
