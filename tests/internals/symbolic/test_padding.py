"""Programs of a bucket give the results of the exact shape, whatever is in the padding."""

import os
from importlib.metadata import version

import pytest
import torch

import xfunc as xf
from tests.support.dynamic_programs import EXACT, INEXACT, random_program
from xfunc.symbolic import call_cache

B, S = xf.Dim("B", max=8), xf.Dim("S", min=2, max=16)
SPEC = ((B, S), (S, None))
SIZES = [(3, 5), (8, 16), (5, 11), (2, 2)]


@pytest.fixture(autouse=True)
def garbage_in_the_padding(monkeypatch):
    """NaN, True or a large number, where the library puts zeros."""

    def pad(x, shape):
        if tuple(x.shape) == shape:
            return x
        fill = float("nan") if x.dtype.is_floating_point else 10**6
        wide = torch.full(shape, fill, dtype=x.dtype)
        wide[tuple(slice(0, n) for n in x.shape)] = x
        return wide

    monkeypatch.setattr(call_cache, "pad", pad)


def arguments(b, s, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*n, dtype=torch.float64, generator=g) for n in ((b, s), (s, 3))]


def check(program, sizes, jitted=None):
    """The results at sizes, beside those of plain torch, and of the function jitted for a shape."""
    jitted = jitted or xf.jit(program, dynamic_shapes=SPEC, buckets={"B": [8], "S": [16]})
    for b, s in sizes:
        x = arguments(b, s, seed=b * 100 + s)
        found = xf.tree.leaves(jitted(*x))
        with xf.disable_jit():
            expected = xf.tree.leaves(program(*x))
        for got, want in zip(found, expected, strict=True):
            torch.testing.assert_close(got.cpu(), want.cpu(), rtol=1e-9, atol=1e-9, equal_nan=True)
    return jitted


@pytest.mark.sample(8, seed=0)
@pytest.mark.parametrize("name", EXACT)
def test_padding_exact_programs(name):
    jitted = check(EXACT[name], SIZES[:3])
    assert "3 calls, one program" in jitted.explain(), jitted.explain()


@pytest.mark.parametrize("name", INEXACT)
def test_padding_inexact_programs_compile_each_shape(name):
    program, reason = INEXACT[name]
    jitted = check(program, SIZES[:2])
    text = jitted.explain()
    assert "a program for each exact shape" in text
    assert reason in text
    compiled = jitted.cache_info().compiles
    check(program, SIZES[:2], jitted)
    assert jitted.cache_info().compiles == compiled


# XFUNC_RANDOM_PROGRAMS=300 pytest tests/internals/symbolic/test_padding.py -k random (20 shapes)
COUNT = int(os.environ.get("XFUNC_RANDOM_PROGRAMS", "4"))


@pytest.mark.parametrize("seed", range(COUNT))
def test_padding_random_programs(seed):
    name, program = random_program(seed)
    sizes = [(b, s) for b in range(2, 9) for s in range(3, 17)]
    chosen = sizes[seed % 7 :: len(sizes) // (20 if COUNT > 4 else 2)]
    jitted = check(program, chosen)
    assert f"{len(chosen)} calls, one program" in jitted.explain(), name


def test_padding_masks_are_written_once():
    """The masks stand before transposes, and no value is used both with and without one."""

    def loss(w, x):
        h = torch.tanh(x @ w)
        return ((h @ w.T).sin() * x).sum()

    x = xf.ShapeDtypeStruct((3, S, 4), torch.float64)
    w = xf.ShapeDtypeStruct((4, 4), torch.float64)
    spec = (None, (None, S, None))
    jitted = xf.jit(xf.grad(loss, argnums=(0, 1)), dynamic_shapes=spec, buckets=[16])
    module = jitted.lower(w, x).module
    masked = {
        i.operands[1].id: i
        for i in module.entry.instructions
        if i.opcode == "select" and i.shape.dims
    }
    assert masked
    for i in module.entry.instructions:
        for x in i.operands:
            if x.opcode not in ("parameter", "get-tuple-element"):
                assert masked.get(x.id, i) is i, i.name
    assert {m.operands[1].opcode for m in masked.values()}.isdisjoint({"transpose", "reshape"})


def attention(qkv):
    q, k, v = qkv
    return torch.softmax((q @ k.mT).sin() * 3, -1) @ v


def by_hand(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def with_another_maximum(x):
    e = torch.exp(x - (x * 0 + 1).amax(-1, keepdim=True))  # which may be infinite where x is not
    return e / (e * -1).sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("f", "least"), [(lambda x: x.softmax(-1), 1), (by_hand, 2), (with_another_maximum, 2)]
)
def test_padding_softmax_of_inf_and_nan(f, least):
    """What is known of the padding of a softmax holds for every line: see NOTE [softmax]."""
    inf, nan = torch.inf, torch.nan
    rows = [[-inf, -inf, -inf], [-inf, 0, 1], [inf, 0, 1], [inf, -inf, 1], [nan, 0, 1], [0, 1, 2]]

    def program(x, w):
        p = f(x)
        return p, p.sum(-1), p @ w, p.mT @ x.nan_to_num(0, 1, 2), f(x[:, 1:]).sum(-1)

    dim = xf.Dim("S", min=least, max=16)
    spec = ((B, dim), (dim, None))
    jitted = xf.jit(program, dynamic_shapes=spec, buckets={"B": [8], "S": [16]})
    x = torch.tensor(rows, dtype=torch.float64)
    w = torch.randn(3, 2, dtype=torch.float64)
    for n in range(least, 4):
        found = jitted(x[:, :n], w[:n])
        for got, want in zip(found, program(x[:, :n], w[:n]), strict=True):
            torch.testing.assert_close(got.cpu(), want, rtol=1e-9, atol=1e-9, equal_nan=True)
    # Of 1, x[:, 1:] has no elements: a program of its own.
    assert f"S<=16: {4 - max(least, 2)} calls, one program" in jitted.explain(), jitted.explain()


def test_padding_attention_memory_as_without_padding():
    """Its probabilities are not masked, neither along the keys nor for the gradient."""
    n, width = 256, 8
    grad = xf.value_and_grad(lambda qkv: attention(qkv).square().sum())
    dim = xf.Dim("S", min=2, max=n)
    spec = (((None, dim, None),) * 3,)

    def held(jitted, size):
        given = [xf.ShapeDtypeStruct((2, size, width), torch.float32)] * 3
        return jitted.lower(given).compile().memory_analysis().temp_size_in_bytes or 0

    plain, padded = held(xf.jit(grad), n), held(xf.jit(grad, dynamic_shapes=spec, buckets=[n]), dim)
    scores = 2 * n * n * 4
    assert plain > 2 * scores
    # Newer XLA multiplies by YNNPACK, with which no mask is fused: the sum takes masked scores.
    fuses = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 8)
    assert padded < plain + scores * (0.5 if fuses else 1.25)
