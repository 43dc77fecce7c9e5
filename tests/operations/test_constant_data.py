"""Reads of constants of the code, and results whose shape depends on them."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.autograd.functional import hessian, jacobian, jvp
from torch.utils.checkpoint import checkpoint

import xfunc as xf

Tensor = torch.Tensor
X = torch.arange(12.0).reshape(3, 4)
MASK = np.array([True, False, True])

CALLS: dict[str, Callable[[Tensor], object]] = {
    "mask": lambda x: x[torch.tensor([True, False, True])],
    "mask of all": lambda x: x[torch.ones(3, 4, dtype=torch.bool).tril()],
    "mask of the last dimension": lambda x: x[:, torch.tensor([True, False, False, True])],
    "mask and ellipsis": lambda x: x[..., torch.tensor([False, True, False, True])],
    "mask and numbers": lambda x: x[torch.tensor([True, False, True]), torch.tensor([1, 2])],
    "mask of nothing": lambda x: x[torch.tensor([False, False, False])],
    "mask of one value": lambda x: (x[torch.tensor(True)], x[0, torch.arange(2).sum() > 2]),
    "computed mask": lambda x: x[torch.arange(3) > 0],
    "mask from numpy": lambda x: x[torch.from_numpy(MASK)],
    "computed mask from numpy": lambda x: x[~torch.from_numpy(MASK)],
    "masked_select": lambda x: x.masked_select(torch.tensor([True, False, True, False])),
    "repeats": lambda x: x.repeat_interleave(torch.tensor([1, 2, 0]), 0),
    "repeats of all": lambda x: torch.repeat_interleave(x[0, :3], torch.tensor([1, 2, 0])),
    "repeats of one": lambda x: x.repeat_interleave(torch.tensor([2]), dim=1),
    "repeats of a number": lambda x: x.repeat_interleave(torch.tensor(2), dim=1),
    "places": lambda x: x[torch.repeat_interleave(torch.tensor([1, 2, 0]))],
    "nonzero": lambda x: x[torch.tensor([1, 0, 1]).nonzero()],
    "nonzero as a tuple": lambda x: x[torch.tensor([1, 0, 1]).nonzero(as_tuple=True)],
    "unique": lambda x: x[torch.tensor([2, 0, 2]).unique()],
    "bincount": lambda x: x[0] * torch.bincount(torch.tensor([1, 1, 3])),
    "classes": lambda x: F.one_hot(torch.tensor([3, 1])) * x[:2],
    "classes that are not given": lambda x: F.one_hot(torch.arange(4), num_classes=-1) * x[0],
    "bounds of a slice": lambda x: x[torch.tensor(1) : torch.tensor([0, 3])[1]],
    "padding": lambda x: F.pad(x, (torch.tensor(1), torch.arange(3).max())),  # pyright: ignore[reportArgumentType]
    "resizing": lambda x: F.interpolate(x[None], size=torch.tensor([3, 8])[1]),  # pyright: ignore[reportCallIssue, reportArgumentType]
    "item": lambda x: x[: torch.tensor(2).item()],
    "list": lambda x: x.split(torch.tensor([[1, 3]]).diff(prepend=torch.tensor([[0]]))[0].tolist()),
    "number of frames": lambda x: F.pad(x, (0, frames(len(x)))),  # pyright: ignore[reportArgumentType]
    "floats": lambda x: [x * t for t in (torch.arange(3) / 2.0).tolist()],
    "branch": lambda x: x if (torch.arange(3) == 2).any() else -x,
    "positions": lambda x: x[torch.where(torch.arange(3) > 0)],
    "extremes": lambda x: x * (torch.eye(3).max(dim=0).values + torch.arange(3).max()).sum().item(),
    "order": lambda x: x[torch.tensor([3, 1, 2]).sort().indices.tolist()],
    "numbers": lambda x: [int(n) * x * float(n) for n in torch.tensor([2, 3])],
    "parts": lambda x: [x * a.item() for a in torch.arange(6).chunk(3)[1]],
    "lengths of repeats": lambda x: x.split(torch.tensor([1, 2]).repeat_interleave(1).tolist()),
    "membership": lambda x: x * (2 in torch.arange(3)),
    "equality": lambda x: x * torch.equal(torch.arange(2), torch.tensor([0, 1])),
    "closeness": lambda x: x * torch.allclose(torch.arange(2.0), torch.tensor([0, 1.0])),
    "complex number": lambda x: x * complex(torch.tensor(1j) * 2),
    "floating branch": lambda x: x if (torch.tensor([0.5, 2.0]).exp() > 1).all() else -x,
    "floating number": lambda x: x * float(torch.linspace(0, 1, 5)[1:3].sum()),
    "complex assertion": lambda x: x * bool((torch.eye(3) * 1j).imag.norm() < 2),
    "product": lambda x: x * torch.einsum("ij,j->", torch.eye(3), torch.tensor([1.0, 2, 3])).item(),
    "tensor of tensors": lambda x: x[:, torch.tensor([torch.tensor(3), torch.arange(3).max()])],
    "mask in an assignment": lambda x: assigned(x, torch.tensor([True, False, True])),
    "computed mask in an assignment": lambda x: assigned(x, torch.arange(3) != 1),
    "assignment to a constant": lambda x: x * (grid()[-1] - grid()[-2]).item(),
    "operators in place": lambda x: x[:, operator.imul(torch.arange(3), 2).sum().item() - 5 :],
    "methods in place": lambda x: x * float(torch.arange(3.0).add_(1).index_fill_(0, one(), 5)[1]),
    "copies into a constant": lambda x: x[torch.arange(2).copy_(torch.tensor([1.7, 2.2])).tolist()],
}


def one() -> Tensor:
    return torch.tensor([1])


def grid() -> Tensor:
    """Points at steps of 0.4 that end at 1, as solvers of differential equations make them."""
    ends = torch.linspace(0, 1, 3)
    points = torch.arange(0, torch.ceil(ends[-1] / 0.4 + 1).item()) * 0.4 + ends[0]
    points[-1] = ends[-1]
    return points


def frames(length: int) -> Tensor:
    return torch.ceil((length - torch.tensor(1)) / torch.tensor(4) + 1).to(torch.int64)


def assigned(x: Tensor, mask: Tensor) -> Tensor:
    x = x.clone()
    x[mask] = x[1:] * 2
    x[:2, torch.arange(4) > 1] = x[1:, :2] * 3
    return x


@pytest.mark.parametrize("name", CALLS)
def test_shape_of_a_result_that_constants_decide(name: str) -> None:
    fun = CALLS[name]
    torch.testing.assert_close(xf.device_get(xf.jit(fun)(X)), fun(X))


@pytest.mark.parametrize("name", ["mask", "mask from numpy", "repeats", "mask in an assignment"])
def test_transforms_of_a_result_that_constants_decide(name: str) -> None:
    def loss(x: Tensor) -> Tensor:
        found = CALLS[name](x)
        assert isinstance(found, Tensor)
        return found.square().sum()

    x = X.clone().requires_grad_()
    (want,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(xf.grad(loss)(X).cpu(), want)
    both = torch.stack([X, X + 1])
    each = torch.stack([loss(X), loss(X + 1)])
    torch.testing.assert_close(xf.vmap(loss)(both).cpu(), each)


def counted(x: Tensor) -> Tensor:
    count = torch.tensor(0.0)
    count += x.shape[0]
    return (x * count).sin()


def accumulated(x: Tensor) -> Tensor:
    total = torch.tensor([0.5, 1.0, 2.0, 3.0])
    total[1:] *= 2
    total += x[0] * x[1]
    total[0] = x.sum()
    return (x * total).sin()


@pytest.mark.parametrize("fun", [counted, accumulated])
def test_transforms_of_a_constant_that_is_changed_in_place(fun: Callable[[Tensor], Tensor]) -> None:
    def loss(x: Tensor) -> Tensor:
        return fun(x).square().sum()

    x = X / 10
    both, slope = torch.stack([x, -2 * x]), x.cos()
    torch.testing.assert_close(xf.jvp(fun, (x,), (slope,))[1].cpu(), jvp(fun, (x,), (slope,))[1])
    want = torch.stack([jacobian(loss, x) for x in both])
    torch.testing.assert_close(xf.vmap(xf.grad(loss))(both).cpu(), want)
    torch.testing.assert_close(xf.hessian(loss)(x).cpu(), hessian(loss, x))


def test_mask_from_an_array_that_changes() -> None:
    mask = np.array([True, False, True])
    fun = xf.jit(lambda x: x[torch.from_numpy(mask)])
    assert fun(X).shape == (2, 4)
    mask[1] = True
    torch.testing.assert_close(fun(X).cpu(), X)


def test_mask_that_is_no_constant_is_refused() -> None:
    mask = torch.tensor([True, False, True])
    match = "depends on data"
    with pytest.raises(xf.errors.UnsupportedOpError, match=match):
        xf.jit(lambda x: x[mask])(X)  # Another tensor may take its place in the next call.
    with pytest.raises(xf.errors.UnsupportedOpError, match=match):
        xf.jit(lambda x, m: x[m])(X, mask)
    with pytest.raises(xf.errors.UnsupportedOpError, match=match):
        xf.jit(lambda x: x[x.sum() > 0])(X)
    with pytest.raises(xf.errors.UnsupportedOpError, match=r"torch.where " + match):
        xf.jit(lambda x: torch.where(x > 0))(X)
    with pytest.raises(xf.errors.UnsupportedOpError, match=match):
        xf.jit(lambda x, n: x.repeat_interleave(n, 0))(X, torch.tensor([1, 2, 0]))
    with pytest.raises(xf.errors.UnsupportedOpError, match=f"one_hot {match}.*\n.*\nHint: give"):
        xf.jit(lambda x: F.one_hot(x.long()))(X)


def test_read_that_is_of_no_constant_is_refused() -> None:
    number = torch.tensor(2)
    for fun in (lambda x: x * number.item(), lambda x: x * int(torch.tensor(2) + number)):
        with pytest.raises(xf.errors.ConcretizationError, match="reads a traced value"):
            xf.jit(fun)(X)
    with pytest.raises(xf.errors.ConcretizationError, match="bound of a slice is a traced value"):
        xf.jit(lambda x: x[:number])(X)

    def changed(x: Tensor) -> Tensor:
        count = torch.tensor([2])
        count += number
        return x * count.item()

    with pytest.raises(xf.errors.ConcretizationError, match="reads a traced value"):
        xf.jit(changed)(X)


def test_read_that_would_lose_a_derivative_or_a_change_is_refused() -> None:
    def changed(x: Tensor) -> Tensor:
        known = torch.ones(2)
        torch._foreach_add_([known], [x])
        return x * known.sum().item()

    def derived(x: Tensor) -> Tensor:
        return xf.grad(lambda n: x.sum() * n * n.item())(torch.tensor(2.0))

    for fun in (changed, derived):
        with pytest.raises(xf.errors.ConcretizationError, match="reads a traced value"):
            xf.jit(fun)(torch.ones(2))


CHANGED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "through a view": lambda known, x: known[1:].fill_(5.0),
    "of the base": lambda known, x: known.view(3, 1).mul_(2).sum(),
    "to data": lambda known, x: known.detach().copy_(x),
    "of data": lambda known, x: known.data.fill_(5.0),
    "by out": lambda known, x: torch.exp(known.clone(), out=known),
    "by a list": lambda known, x: torch._foreach_add_([known], [x]),
    "partly": lambda known, x: known[1:].copy_(x[1:]),
    "again": lambda known, x: known.copy_(x).fill_(4.0),
}


@pytest.mark.parametrize("name", CHANGED)
def test_constant_that_is_changed_otherwise_is_refused(name: str) -> None:
    change = CHANGED[name]

    def fun(x: Tensor) -> Tensor:
        known = torch.arange(3.0)
        known[0] = 7
        change(known, x)
        return x * known.tolist()[1]

    with pytest.raises(xf.errors.ConcretizationError, match="reads a traced value"):
        xf.jit(fun)(torch.ones(3))


def test_view_of_a_constant_that_is_changed_is_refused() -> None:
    def fun(x: Tensor) -> Tensor:
        known = torch.arange(3.0)
        view = known[1:]
        known[1] = 7
        return x * view.tolist()[0]

    with pytest.raises(xf.errors.ConcretizationError, match="reads a traced value"):
        xf.jit(fun)(torch.ones(3))


def test_constants_in_inference_mode() -> None:
    def fun(x: Tensor) -> Tensor:
        with torch.inference_mode():
            known = torch.arange(2) + torch.ones(2)
            known += x
        return x * known

    torch.testing.assert_close(xf.jit(fun)(torch.ones(2)).cpu(), fun(torch.ones(2)))


def test_reads_at_each_size() -> None:
    """A number that is computed from a size takes the place of one that remembers that."""

    def fun(x: Tensor) -> Tensor:
        last = torch.arange(len(x)).max()
        return x * 2 if last > 3 else x * 3 if last.item() % 2 else x

    step = xf.jit(fun, dynamic_shapes=((xf.Dim("N", min=1, max=64),),))
    for n in range(1, 10):
        x = torch.ones(n)
        torch.testing.assert_close(step(x).cpu(), fun(x))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool])
def test_tensor_of_traced_whole_numbers(dtype: torch.dtype) -> None:
    def fun(n: Tensor, m: Tensor) -> list[Tensor]:
        return [
            torch.tensor([n, m]),
            torch.tensor([[n, 2], (m, True)]),
            torch.tensor([m, n], dtype=torch.float32),
        ]

    n, m = torch.tensor(3), torch.tensor(1, dtype=dtype)
    torch.testing.assert_close(xf.device_get(xf.jit(fun)(n, m)), fun(n, m))
    with pytest.raises(xf.errors.ConcretizationError, match=r"[\s\S]*use torch\.stack"):
        xf.jit(lambda n: torch.tensor([n, 2.5]))(n)


SPACES: dict[str, Callable[[Tensor], Tensor]] = {
    "linspace": lambda a: torch.linspace(0, a, 5),
    "linspace, reversed": lambda a: torch.linspace(a, 0.5, 5),
    "linspace of integers": lambda a: torch.linspace(0, a, 4, dtype=torch.int32),
    "logspace": lambda a: torch.logspace(0, a, 5),
    "logspace, reversed": lambda a: torch.logspace(a, 0, 5, base=2),
    "logspace of integers": lambda a: torch.logspace(0, a, 3, dtype=torch.int64),
}


@pytest.mark.parametrize("name", SPACES)
def test_space_between_a_number_and_a_traced_value(name: str) -> None:
    fun, end = SPACES[name], torch.tensor(2.0)
    torch.testing.assert_close(xf.jit(fun)(end).cpu(), fun(end))
    if "integers" not in name:
        step = 1e-3
        slope = (fun(end + step) - fun(end - step)) / (2 * step)
        torch.testing.assert_close(xf.jacfwd(fun)(end).cpu(), slope, rtol=1e-2, atol=1e-2)


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "@ of vectors": lambda x, y: x[0] @ y[0],
    "@ of matrices": lambda x, y: x @ y.T,
    "@ of batches": lambda x, y: x[None] @ y.T[None],
    "@ of a vector": lambda x, y: x @ y[0],
    "mm": lambda x, y: torch.mm(x, y.T),
    "addmm": lambda x, y: torch.addmm(x[:, :3], x, y.T),
    "linear": torch.nn.functional.linear,
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y),
    "tensordot": lambda x, y: torch.tensordot(x, y, dims=([1], [1])),  # pyright: ignore[reportArgumentType],
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64])
def test_products_of_different_dtypes_are_refused_as_in_torch(
    name: str, dtype: torch.dtype
) -> None:
    fun, other = PRODUCTS[name], X.to(dtype)
    with pytest.raises(RuntimeError, match=r"dtype|scalar type") as of_torch:
        fun(X, other)
    with pytest.raises(RuntimeError, match=r"dtype|scalar type") as caught:
        xf.jit(fun)(X, other)
    assert type(caught.value) is type(of_torch.value)
    said = "\n".join(caught.value.__notes__)
    assert "convert one of them" in said
    assert "test_constant_data.py" in said
    torch.testing.assert_close(xf.jit(fun)(X, X).cpu(), fun(X, X))


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # of NumPy about torch
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_comparison_with_an_array_of_numpy(dtype: type) -> None:
    array = X.numpy().astype(dtype)
    array[1] += 1
    same = torch.from_numpy(array) == X
    assert xf.jit(lambda x: x == array)(X).tolist() == same.tolist()


def test_reading_a_constant_runs_no_code_again() -> None:
    calls: list[None] = []

    def twice(x: Tensor) -> Tensor:
        calls.append(None)
        return x * 2

    def fun(x: Tensor) -> Tensor:
        known = torch.tensor([1.0, 2.0])
        checkpoint(twice, known, use_reentrant=False)
        return x * known.sum().item()

    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    assert xf.jit(fun)(torch.ones(2)).tolist() == [3.0, 3.0]
    assert len(calls) == 1
    assert torch.equal(torch.random.get_rng_state(), before)
