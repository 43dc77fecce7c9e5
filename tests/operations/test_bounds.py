"""Indices out of bounds: constants are refused; traced ones clamp reads, and drop writes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

X = torch.arange(9.0).reshape(3, 3)
ROW = torch.ones(1, 3)


def put(x: torch.Tensor, index: Any) -> torch.Tensor:
    y = x.clone()
    y[index] = 1.0
    return y


def at(values: Any) -> torch.Tensor:
    return torch.tensor(values)


# Of an index along a dimension of 3.
USES: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "x[[i]]": lambda x, i: x[[0, i]],
    "x[tensor]": lambda x, i: x[at([0, i])],
    "x[0-d]": lambda x, i: x[at(i)],
    "x[:, tensor]": lambda x, i: x[:, at([i])],
    "x[..., tensor]": lambda x, i: x[..., at([i])],
    "x[None, tensor]": lambda x, i: x[None, at([i])],
    "x[tensor, tensor]": lambda x, i: x[at([0, 1]), at([0, i])],
    "x[i] = y": lambda x, i: put(x, at([i])),
    "x[:, [i]] = y": lambda x, i: put(x, (slice(None), [i])),
    "index_put": lambda x, i: x.index_put((at([i]),), torch.ones(())),
    "index_select": lambda x, i: x.index_select(1, at([i])),
    "dim=": lambda x, i: torch.index_select(x, dim=-1, index=at([i])),
    "gather": lambda x, i: x.gather(1, at([[i]])),
    "take": lambda x, i: torch.take(x[0], at([i])),
    "put": lambda x, i: x[0].put(at([i]), torch.ones(1)),
    "index_add": lambda x, i: x.index_add(0, at([i]), ROW),
    "index_copy": lambda x, i: x.index_copy(0, at([i]), ROW),
    "index_fill": lambda x, i: x.index_fill(0, at([i]), 2.0),
    "index_reduce": lambda x, i: x.index_reduce(0, at([i]), ROW, "prod"),
    "scatter": lambda x, i: x.scatter(0, at([[i]]), 2.0),
    "scatter_": lambda x, i: x.clone().scatter_(0, at([[i]]), 2.0),
    "scatter_add": lambda x, i: x.scatter_add(0, at([[i]]), ROW[:, :1]),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, at([[i]]), ROW[:, :1], "sum"),
    "embedding": lambda x, i: F.embedding(at([i]), x),
    "nll_loss": lambda x, i: F.nll_loss(x, at([0, 1, i])),
    "cross_entropy": lambda x, i: F.cross_entropy(x, at([0, 1, i])),
    "one_hot": lambda x, i: F.one_hot(at([0, i]), 3) + x[:2].long(),
    # What is computed from the code alone is known as well.
    "tensor[:, None]": lambda x, i: x.gather(0, at([i])[:, None]),
    "tensor + 1": lambda x, i: x[at([i - 1]) + 1],
    "to": lambda x, i: x[at([i]).to(torch.int32).long()],
    "cat": lambda x, i: x[torch.cat([at([0]), at([i])])],
    "arange": lambda x, i: x[torch.arange(min(i, 0), max(i, 0) + 1)],
}


@pytest.mark.sample(3, seed=0)
@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", USES)
def test_constant_index_matches_eager_torch(name: str) -> None:
    use, expected = USES[name], {}
    for i in (0, 2, 3, -1, -3, -4):
        try:
            expected[i] = use(X, i)
        except (IndexError, RuntimeError):
            with pytest.raises(IndexError, match=rf"the index {i}, which is out of bounds"):
                xf.eval_shape(lambda x, i=i: use(x, i), X)
    found = xf.device_get(xf.jit(lambda x: [use(x, i) for i in expected])(X))
    torch.testing.assert_close(found, [*expected.values()])


def test_take_along_dim_counts_from_the_end() -> None:
    """As in torch 2.13; torch 2.9 refuses such indices, and 2.13 wraps others, too."""

    def take(x: torch.Tensor, i: int) -> torch.Tensor:
        return torch.take_along_dim(x, at([[i]]), 0)

    refused = [-4, 3]
    for i in range(-3, 3):
        try:
            take(X, i)
        except RuntimeError:
            refused.append(i)
        else:
            assert torch.equal(xf.jit(lambda x, i=i: take(x, i))(X).cpu(), X[i][None])
    assert refused in ([-4, 3], [-4, 3, -3, -2, -1])
    for i in refused:
        with pytest.raises(IndexError, match=f"the index {i}, which is out of bounds"):
            xf.eval_shape(lambda x, i=i: take(x, i), X)
    with pytest.raises(RuntimeError, match="index -1 is out of bounds"):
        torch.take_along_dim(X, torch.tensor([-1]))
    with pytest.raises(IndexError, match="the index -1, which is out of bounds"):
        xf.eval_shape(lambda x: torch.take_along_dim(x, at([-1])), X)


def test_constant_index_error_names_operation_line_and_bounds() -> None:
    with pytest.raises(IndexError, match="index 3, which is out of bounds") as error:
        xf.grad(lambda x: xf.vmap(lambda r: r[[0, 3]].sum())(x).sum())(X)
    text = str(error.value)
    assert "Tensor.__getitem__ was given the index 3, which is out of bounds" in text
    assert "dimension 0 of float32[3] has 3" in text
    assert "test_bounds.py" in text
    assert text.endswith("Hint: give indices from -3 to 2.")


def test_constant_index_changed_in_place_is_traced() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        index = torch.tensor([7, 8])
        view = index[:]
        index[0], index[1] = i, 0
        return x[view]

    found = xf.jit(f)(X, torch.tensor(1))
    torch.testing.assert_close(xf.device_get(found), X[[1, 0]])


@pytest.mark.parametrize("divide", [torch.div, torch.true_divide, lambda x, y: 2 / (x / y)])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bfloat16, torch.complex64])
def test_constants_are_divided(dtype: torch.dtype, divide: Callable[..., torch.Tensor]) -> None:
    """Their values are followed, as they could be indices."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return divide(torch.tensor([1, 2, 3], dtype=dtype), 2) * x

    torch.testing.assert_close(xf.jit(f)(X).cpu(), f(X))


def test_traced_negative_index_counts_from_the_end() -> None:
    i = torch.tensor([-7, -4, -4])
    torch.testing.assert_close(xf.device_get(xf.jit(torch.take)(X, i)), torch.take(X, i))
    j = torch.tensor([-7, -4, -3])
    found = xf.jit(lambda x, j: x.put(j, ROW[0]))(X, j)
    torch.testing.assert_close(xf.device_get(found), X.put(j, ROW[0]))
    k = torch.tensor([-1])
    found = xf.jit(lambda x, k: x.index_fill(0, k, 5.0))(X, k)
    torch.testing.assert_close(xf.device_get(found), X.index_fill(0, k, 5.0))


READS = {
    "x[i]": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(2, 3)),
    "take": lambda x, i: torch.take(x[:, 0], i)[:, None].expand(2, 3) + X[0],
    "embedding": lambda x, i: F.embedding(i, x),
}
WRITES = {
    "x[i] = y": put,
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "index_copy": lambda x, i: x.index_copy(0, i, torch.ones(2, 3)),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(2, 3)),
    "scatter": lambda x, i: x.scatter(0, i[:, None].expand(2, 3), 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None].expand(2, 3), torch.ones(2, 3)),
}


@pytest.mark.parametrize("name", READS)
def test_traced_index_out_of_bounds_is_clamped_on_reads(name: str) -> None:
    found = xf.device_get(xf.jit(READS[name])(X, torch.tensor([5, -9])))
    # Where torch takes no negative index, each one is beyond the end.
    torch.testing.assert_close(found, X[[2, 0 if name == "x[i]" else 2]])


@pytest.mark.parametrize("name", WRITES)
def test_traced_index_out_of_bounds_is_dropped_on_writes(name: str) -> None:
    found = xf.device_get(xf.jit(WRITES[name])(X, torch.tensor([5, -9])))
    torch.testing.assert_close(found, X)


DIFFERENTIABLE_READS: dict[str, Callable[..., torch.Tensor]] = {
    **READS,
    "x[:, i]": lambda x, i: x[:, i],
    "x[i, i]": lambda x, i: x[i, i],
    "x[number]": lambda x, i: x[i[0]],
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i[:, None].expand(2, 3), 0),
    "embedding_bag": lambda x, i: F.embedding_bag(i[None], x),
}
DIFFERENTIABLE_WRITES: dict[str, Callable[..., torch.Tensor]] = {
    "index_put": lambda y, i: X.index_put((i,), y),
    "index_put of columns": lambda y, i: X.index_put((torch.tensor([0, 1]), i), y[0, :2]),
    "index_put accumulates": lambda y, i: X.index_put((i,), y, accumulate=True),
    "index_copy": lambda y, i: X.index_copy(0, i, y),
    "index_add": lambda y, i: X.index_add(0, i, y),
    "put": lambda y, i: X.put(3 * i, y[0, :2]),
    "scatter": lambda y, i: X.scatter(0, i[:, None].expand(2, 3), y),
    "scatter_add": lambda y, i: X.scatter_add(0, i[:, None].expand(2, 3), y),
    "scatter_reduce": lambda y, i: X.scatter_reduce(0, i[:, None].expand(2, 3), y, "mean"),
}


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize("name", DIFFERENTIABLE_READS)
def test_derivative_of_clamped_read_in_both_modes(name: str) -> None:
    """The derivative is that of the element that was read."""
    f = DIFFERENTIABLE_READS[name]
    i = torch.tensor([5, -9])
    forward, reverse = (xf.device_get(j(f)(X, i)) for j in (xf.jacfwd, xf.jacrev))
    torch.testing.assert_close(reverse, forward)
    assert forward.abs().sum() > 0
    second = xf.device_get(xf.jacfwd(xf.jacrev(lambda x: f(x * x, i).sum()))(X))
    dots = xf.device_get(xf.jacrev(xf.jacrev(lambda x: f(x * x, i).sum()))(X))
    torch.testing.assert_close(second, dots)


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("name", DIFFERENTIABLE_WRITES)
def test_derivative_of_dropped_write_is_zero_in_both_modes(name: str) -> None:
    f = DIFFERENTIABLE_WRITES[name]
    i = torch.tensor([5, -9])
    for transform in (xf.jacfwd, xf.jacrev):
        assert not xf.device_get(transform(f)(X[:2], i)).any()
    partly = xf.device_get(xf.jacrev(f)(X[:2], torch.tensor([1, 9])))
    torch.testing.assert_close(partly, xf.device_get(xf.jacfwd(f)(X[:2], torch.tensor([1, 9]))))
    assert partly.any()


STRIDED = {
    "too many": lambda x: x.as_strided((4, 4), (3, 1)),
    "offset": lambda x: x.as_strided((3, 3), (3, 1), 2),
    "backwards": lambda x: x.as_strided((3, 3), (-3, 1), 8),
    "scatter": lambda x: x.as_strided_scatter(torch.ones(4, 4), (4, 4), (3, 1)),
}


@pytest.mark.parametrize("name", STRIDED)
def test_as_strided_beyond_the_array_raises(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"setStorage|Negative strides"):
        STRIDED[name](X)
    says = r"out of bounds for storage of size 36|Negative strides"
    with pytest.raises(RuntimeError, match=says):
        xf.jit(STRIDED[name])(X)


def test_as_strided_with_empty_size() -> None:
    found = xf.jit(lambda x: x.as_strided((0, 4), (100, 1)))(X)
    assert found.shape == (0, 4)
