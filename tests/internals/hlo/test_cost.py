"""Costs against what ``jax.jit(f).lower(...).cost_analysis()`` of JAX 0.7.1 says on the CPU."""

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from xfunc.hlo.estimate.cost import CHIPS, Cost, cost, costs, roofline
from xfunc.hlo.flat import inline_calls

pytestmark = pytest.mark.quick

# Recorded: (flops, transcendentals, bytes accessed), of jnp or lax functions of the same meaning.
CASES = {
    "matmul": (torch.matmul, [(64, 128), (128, 32)], (524288, 0, 57344)),
    "bmm": (torch.bmm, [(4, 16, 32), (4, 32, 8)], (32768, 0, 14336)),
    "multiply": (torch.mul, [(64, 128), (64, 128)], (8192, 0, 98304)),
    "tanh": (torch.tanh, [(64, 128)], (0, 8192, 65536)),
    "power": (torch.pow, [(64,), (64,)], (0, 64, 768)),
    "reshape": (lambda x: x.reshape(8192), [(64, 128)], (0, 0, 65536)),
    "slice": (lambda x: x[:8], [(64, 128)], (0, 0, 8192)),
    "sum": (torch.sum, [(64, 128)], (8191, 0, 32776)),
    "sum of rows": (lambda x: x.sum(1), [(64, 128)], (8128, 0, 33028)),
    "conv": (F.conv2d, [(2, 3, 16, 16), (8, 3, 5, 5)], (345600, 0, 17760)),
    "conv, padded": (
        lambda x, k: F.conv2d(x, k, padding=2),
        [(2, 3, 16, 16), (8, 3, 5, 5)],
        (525696, 0, 24928),
    ),
    "conv, strided, grouped": (
        lambda x, k: F.conv2d(x, k, stride=2, padding=1, groups=2),
        [(2, 4, 16, 16), (8, 2, 3, 3)],
        (33856, 0, 12864),
    ),
}


def lowered(fun, *shapes):
    return xf.jit(fun).lower(*(xf.ShapeDtypeStruct(s, torch.float32) for s in shapes))


@pytest.mark.parametrize("name", CASES)
def test_cost_equals_jax(name):
    fun, shapes, want = CASES[name]
    assert cost(lowered(fun, *shapes).module) == Cost(*want)


def scanned(length):
    def fun(c, w):
        return xf.scan(lambda c, _: (torch.tanh(c @ w), None), c, None, length=length)[0]

    return cost(lowered(fun, (16, 16), (16, 16)).module)


def test_cost_scan_counts_each_step():
    # JAX counts a step once: 8194 operations (two are of the counter) and 256 tanh.
    assert (scanned(5).flops, scanned(5).transcendentals) == (5 * 8194, 5 * 256)
    assert scanned(50) == scanned(5) * 10


def test_cost_counts_called_functions():
    inner = xf.jit(torch.tanh)
    found = cost(lowered(lambda x: inner(inner(x)), (8,)).module)
    assert (found.flops, found.transcendentals) == (0, 16)


def by_opcode_of(module):
    assert module.graph is not None
    return {n.opcode: cost for n, cost in costs(module.graph).items()}


def test_costs_of_instructions_sum_to_module():
    def fun(c, w):
        c, _ = xf.scan(lambda c, _: (torch.tanh(c @ w), None), c, None, length=5)
        return (c @ w).sum()

    module = inline_calls(lowered(fun, (16, 16), (16, 16)).module)
    assert module.graph is not None
    assert sum(costs(module.graph).values(), Cost()) == cost(module)
    by_opcode = by_opcode_of(module)
    assert by_opcode["while"].transcendentals == 5 * 256
    assert by_opcode["dot"] == Cost(2 * 16**3, 0, 3 * 4 * 16**2)
    assert by_opcode["parameter"] == Cost()


def test_costs_of_conditional_are_of_dearer_branch():
    def fun(p, x):
        return xf.cond(p, lambda x: x @ x @ x, lambda x: x @ x, x)

    p, x = xf.ShapeDtypeStruct((), torch.bool), xf.ShapeDtypeStruct((8, 8), torch.float32)
    module = inline_calls(xf.jit(fun).lower(p, x).module)
    assert by_opcode_of(module)["conditional"].flops == 2 * 2 * 8**3  # of the dearer branch


def test_roofline_flops_or_bytes():
    v6e = CHIPS["v6e"]
    assert roofline(Cost(flops=918, bytes_accessed=1)) == 918 / v6e.flops
    assert roofline(Cost(flops=1, bytes_accessed=1640)) == 1640 / v6e.bytes
    assert roofline(Cost(transcendentals=10**12), "cpu") == 10**12 / CHIPS["cpu"].flops
    assert roofline(Cost()) == 0
