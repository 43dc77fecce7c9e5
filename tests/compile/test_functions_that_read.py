"""Functions that torch implements by reading a tensor, against eager torch."""

import math
import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

DRAW = torch.Generator().manual_seed(0)
X = torch.tensor([123.4567, -2.5, 0.125, -0.005])
INPUT, TARGET, VAR = torch.rand(3, 3, 4, generator=DRAW)


def same(f, *args):
    torch.testing.assert_close(xf.device_get(xf.jit(f)(*args)), f(*args), equal_nan=True)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("r", [0, 1, 2, 3, 9])
def test_combinations(r, replace):
    f: Any = partial(torch.combinations, r=r, with_replacement=replace)
    for x in (X, X[:1], X[:0], torch.tensor([3, 1, 2])):
        same(f, x)
    both = torch.stack([X, -X])
    torch.testing.assert_close(xf.device_get(xf.vmap(f)(both)), torch.stack([*map(f, both)]))
    if not r:  # There is no derivative.
        return
    weights = torch.rand(f(X).shape, generator=DRAW)
    leaf = X.clone().requires_grad_()
    (f(leaf) * weights).sum().backward()
    found = xf.device_get(xf.grad(lambda x: (f(x) * weights).sum())(X))
    torch.testing.assert_close(found, leaf.grad)


@pytest.mark.parametrize(
    "var", [VAR, VAR[:, 0], VAR[:, :1], 0 * VAR], ids=lambda v: str([*v.shape])
)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_gaussian_nll_loss(var, full, reduction):
    f: Any = partial(F.gaussian_nll_loss, full=full, eps=0.4, reduction=reduction)
    same(f, INPUT, TARGET, var)
    leaves = [x.clone().requires_grad_() for x in (INPUT, TARGET, var)]
    f(*leaves).sum().backward()
    grads = xf.grad(lambda *x: f(*x).sum(), argnums=(0, 1, 2))(INPUT, TARGET, var)
    torch.testing.assert_close(xf.device_get(grads), tuple(x.grad for x in leaves))


def test_gaussian_nll_loss_scalar_or_invalid_var():
    same(lambda x, y: F.gaussian_nll_loss(x, y, 0.3), INPUT, TARGET)
    assert xf.jit(F.gaussian_nll_loss)(INPUT, TARGET, -VAR).isnan()
    given: Any
    for given, said in (
        ((INPUT, TARGET, VAR[:2]), "var is of incorrect size"),
        ((INPUT, TARGET, -1.0), "var has negative"),
        ((INPUT, TARGET, VAR, False, 1e-6, "max"), "max is not valid"),
    ):
        with pytest.raises(ValueError, match=said):
            xf.jit(lambda given=given: F.gaussian_nll_loss(*given))()


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("dtype", [None, torch.float64, torch.float16, torch.int64])
@pytest.mark.parametrize("space", [torch.linspace, torch.logspace])
def test_linspace_and_logspace_between_tensors(space, dtype, steps):
    for start, end in ((0.5, 2.0), (1, 4), (3.0, -1.0)):
        a, b = torch.tensor(start), torch.tensor(end)
        f: Any = partial(space, steps=steps, dtype=dtype)
        for given in ((a, b), (a, end), (start, b)):
            same(f, *given)


def test_linspace_and_logspace_vmap_and_grad():
    same(partial(torch.linspace, steps=3), torch.tensor(1j), torch.tensor(2.0))
    same(lambda a: torch.logspace(a, 2, 4, 2.0), torch.tensor(0.0))
    many = xf.vmap(lambda a: torch.linspace(a, 2.0, 3))(torch.arange(2.0))
    torch.testing.assert_close(many.cpu(), torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.5, 2.0]]))
    slope = xf.grad(lambda a: torch.linspace(a, 2.0, 3).sum())(torch.tensor(0.0))
    torch.testing.assert_close(slope.cpu(), torch.tensor(1.5))
    with pytest.raises(RuntimeError, match="only supports 0-dimensional start and end tensors"):
        xf.jit(lambda a: torch.linspace(a, 2.0, 3))(X)


@pytest.mark.parametrize("decimals", [-39, -2, -1, 0, 1, 2, 39])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_to_decimals(decimals, dtype):
    x = torch.cat([X, torch.tensor([125.0, 135.0, 1e30, math.inf, math.nan])]).to(dtype)
    f: Any = partial(torch.round, decimals=decimals)
    same(f, x)
    assert not xf.grad(lambda x: f(x).sum())(X.to(dtype)).any()
    with pytest.raises(NotImplementedError, match=re.escape("not implemented for")):
        xf.jit(partial(torch.round, decimals=1))(torch.tensor([12]))


def test_ndtr_of_booleans_and_integers():
    same(torch.special.ndtr, torch.tensor([True, False]))
    same(torch.special.ndtr, torch.tensor([3, -1]))


def test_rrelu_draws_only_in_training():
    module = torch.nn.RReLU(0.2, 0.4).eval()
    for f in (F.rrelu, torch.rrelu, module, lambda x: F.rrelu(x.clone(), inplace=True)):
        same(lambda x, f=f: f(x), X)
        leaf = X.clone().requires_grad_()
        f(leaf).sum().backward()
        torch.testing.assert_close(xf.grad(lambda x, f=f: f(x).sum())(X).cpu(), leaf.grad)
    with pytest.raises(xf.errors.PurityError, match="draws from the global random generator"):
        xf.jit(lambda x: F.rrelu(x, training=True))(X)


def test_equal_of_shapes_that_differ_reads_nothing() -> None:
    x = torch.ones(3)
    assert xf.jit(lambda x: x * torch.equal(x, x))(x).tolist() == [1, 1, 1]
    assert xf.jit(lambda x: x * x.equal(x[1:]))(x).tolist() == [0, 0, 0]
    with pytest.raises(xf.errors.ConcretizationError, match=r"torch\.equal reads a traced value"):
        xf.jit(lambda x: x * torch.equal(x, x + 1))(x)
