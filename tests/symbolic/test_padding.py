"""Programs of a bucket give the results of the exact shape, whatever is in the padding."""

import os

import pytest
import torch

import xfunc as xf
from tests.support.dynamic_programs import EXACT, INEXACT, random_program
from xfunc.symbolic import seen

B, S = xf.Dim("B", max=8), xf.Dim("S", min=2, max=16)
SPEC = ((B, S), (S, None))
SIZES = [(3, 5), (8, 16), (5, 11), (2, 2)]


@pytest.fixture(autouse=True)
def garbage_in_the_padding(monkeypatch):
    """NaN, True or a large number, where the library puts zeros."""

    def widened(x, shape):
        if tuple(x.shape) == shape:
            return x
        fill = float("nan") if x.dtype.is_floating_point else 10**6
        wide = torch.full(shape, fill, dtype=x.dtype)
        wide[tuple(slice(0, n) for n in x.shape)] = x
        return wide

    monkeypatch.setattr(seen, "widened", widened)


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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", EXACT)
def test_exact(name):
    jitted = check(EXACT[name], SIZES[:3])
    assert "3 calls, one program" in jitted.explain(), jitted.explain()


@pytest.mark.parametrize("name", INEXACT)
def test_what_cannot_be_exact_is_compiled_for_each_shape_and_said(name):
    program, reason = INEXACT[name]
    jitted = check(program, SIZES[:2])
    text = jitted.explain()
    assert "a program for each exact shape" in text
    assert reason in text
    compiled = jitted.cache_info().compiles
    check(program, SIZES[:2], jitted)
    assert jitted.cache_info().compiles == compiled


# XFUNC_RANDOM_PROGRAMS=300 python -m pytest tests/symbolic/test_padding.py -k random (20 shapes)
COUNT = int(os.environ.get("XFUNC_RANDOM_PROGRAMS", "4"))


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_programs(seed):
    name, program = random_program(seed)
    sizes = [(b, s) for b in range(2, 9) for s in range(3, 17)]
    chosen = sizes[seed % 7 :: len(sizes) // (20 if COUNT > 4 else 2)]
    jitted = check(program, chosen)
    assert f"{len(chosen)} calls, one program" in jitted.explain(), name


def test_what_is_masked_for_one_use_is_written_once():
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
