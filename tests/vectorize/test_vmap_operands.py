"""`vmap` over each operand alone, of operations that torch's own vmap cannot batch."""

import functools
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

torch.manual_seed(0)
A, B = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "cov": (torch.cov, (A,)),
    "cov of a row": (torch.cov, (A[:, 0],)),
    "cov of weights": (
        lambda x, w, v: torch.cov(x, fweights=w, aweights=v),
        (A, torch.tensor([[1, 2, 3], [2, 1, 1]]), B[:, 0].abs()),
    ),
    "corrcoef": (torch.corrcoef, (A,)),
    "prelu": (F.prelu, (A, torch.rand(2, 3))),
    "prelu of one weight": (torch.prelu, (A, torch.rand(2, 1))),
    "column_stack": (lambda a, b: torch.column_stack([a, b]), (A, B)),
    "column_stack of rows": (lambda a, b: torch.column_stack([a[0], b[1]]), (A, B)),
    **{
        f"cdist {p}": (lambda a, b, p=p: torch.cdist(a, b, p), (A, B))
        for p in (0.0, 1.0, 2.0, 3.0, float("inf"))
    },
    "masked_fill": (lambda a, b: a.masked_fill(b > 0, b.sum()), (A, B)),
    "index_fill": (lambda a, b: a.index_fill(0, torch.tensor([1]), b.sum()), (A, B)),
}


def _loop(
    f: Callable[..., Any], dims: tuple[int | None, ...], args: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    each = [[a if d is None else a[i] for a, d in zip(args, dims, strict=True)] for i in range(2)]
    return torch.stack([f(*xs) for xs in each])


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_over_each_operand_and_all(name: str) -> None:
    f, args = FUNCTIONS[name]
    found, expected = {}, {}
    for mapped in itertools.product((0, None), repeat=len(args)):
        if any(d == 0 for d in mapped):
            given = tuple(a if d == 0 else a[1] for a, d in zip(args, mapped, strict=True))
            found[mapped] = lambda xs=given, dims=mapped: xf.vmap(f, in_axes=dims)(*xs)
            expected[mapped] = _loop(f, mapped, given)
    got = xf.device_get(xf.jit(lambda: {dims: run() for dims, run in found.items()})())
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return f(x, *(a[0] for a in args[1:])).square().sum()

    slopes = xf.device_get(xf.vmap(xf.grad(loss))(args[0]))
    expected_slopes = torch.stack([torch.func.grad(loss)(x) for x in args[0]])
    torch.testing.assert_close(slopes, expected_slopes, rtol=1e-3, atol=1e-3)


LEVELS = [
    ((0, None), (None, 0), (None, 0)),
    ((None, 0), (0, None), (None, 0)),
    ((None, 0), (None, 0), (0, None)),
]


@pytest.mark.parametrize("value", [2.5, torch.tensor(2.5)])
@pytest.mark.parametrize("levels", LEVELS)
def test_vmaps_of_index_fill_over_one_operand_each(levels: Any, value: Any) -> None:
    def fill(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.index_fill(0, i, value)

    def looped(x: torch.Tensor, i: torch.Tensor, levels: Any) -> torch.Tensor:
        if not levels:
            return fill(x, i)
        if levels[0] == (0, None):
            return torch.stack([looped(row, i, levels[1:]) for row in x])
        return torch.stack([looped(x, part, levels[1:]) for part in i])

    x, i = torch.randn(2, 4), torch.tensor([[[0, -1], [1, 2], [3, 3]], [[2, 0], [-4, 1], [0, 0]]])
    f = fill
    for dims in reversed(levels):  # the first is the outermost
        f = xf.vmap(f, in_axes=dims)
    torch.testing.assert_close(xf.device_get(f(x, i)), looped(x, i, levels))


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "huber_loss"])
@pytest.mark.parametrize("shape", [(), (5,)])
def test_vmaps_of_losses_over_one_array_each(
    shape: tuple[int, ...], name: str, reduction: str
) -> None:
    def loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return getattr(F, name)(a, b, reduction=reduction)

    a, b = 2 * torch.randn(3, *shape), 2 * torch.randn(2, *shape)
    f = xf.vmap(xf.vmap(loss, (0, None)), (None, 0))
    expected = torch.stack([torch.stack([loss(x, y) for x in a]) for y in b])
    torch.testing.assert_close(xf.device_get(f(a, b)), expected)
    f = xf.vmap(xf.vmap(loss, (None, 0)), (0, None))
    torch.testing.assert_close(xf.device_get(f(a, b)), expected.transpose(0, 1))
    slopes = xf.grad(lambda a, b: f(a, b).sum(), argnums=(0, 1))(a, b)
    given = a.requires_grad_(), b.requires_grad_()
    total = torch.stack([loss(x, y).sum() for x in a for y in b]).sum()
    torch.testing.assert_close(xf.device_get(slopes), torch.autograd.grad(total, given))


RECURRENT = {
    "LSTM": torch.nn.LSTM(3, 5),
    "LSTM of two layers": torch.nn.LSTM(3, 5, 2, bidirectional=True, batch_first=True),
    "LSTM with projections": torch.nn.LSTM(3, 5, proj_size=2, bias=False),
    "GRU": torch.nn.GRU(3, 5, 2, bidirectional=True),
    "RNN": torch.nn.RNN(3, 5, nonlinearity="relu", batch_first=True),
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", RECURRENT)
def test_vmap_of_recurrent_modules(name: str) -> None:
    module = RECURRENT[name]
    apply, params, buffers = xf.functional(module)
    xs = torch.randn(2, 4, 2, 3)

    def run(params: Any, x: torch.Tensor) -> torch.Tensor:
        return apply(params, buffers, x)[0][0]

    expected = torch.stack([module(x)[0] for x in xs]).detach()
    found = xf.vmap(run, in_axes=(None, 0))(params, xs)
    torch.testing.assert_close(xf.device_get(found), expected, rtol=1e-4, atol=1e-4)
    several = {k: torch.stack([v, v * 2]) for k, v in params.items()}
    found = xf.vmap(run, in_axes=(0, None))(several, xs[0])
    expected = torch.stack(
        [
            torch.func.functional_call(
                module, {k: v.detach() * n for k, v in module.named_parameters()}, (xs[0],)
            )[0]
            for n in (1, 2)
        ]
    )
    torch.testing.assert_close(xf.device_get(found), expected, rtol=1e-4, atol=1e-4)


def test_vmap_without_batching_rule_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = xf.vmap(lambda x: torch.linalg.householder_product(x, x[0]))(A)
    assert found.shape == A.shape
    assert [str(w.message) for w in caught] == []
    with pytest.raises(xf.errors.ConcretizationError, match="vector_norm reads a traced value"):
        xf.jit(torch.linalg.vector_norm)(A, torch.tensor(2.0))
    assert capfd.readouterr().err == ""


if hasattr(F, "linear_cross_entropy"):  # torch 2.13

    @pytest.mark.parametrize("reduction", ["mean", "none"])
    def test_chunks_of_linear_cross_entropy(reduction: str) -> None:
        from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

        x, labels = torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % 4
        weights = torch.randn(5, 4, 3, dtype=torch.float64)
        options = LinearCrossEntropyOptions(batch_chunk_size=2)

        def loss(w: torch.Tensor, **options: Any) -> torch.Tensor:
            found = F.linear_cross_entropy(x, w, labels, reduction=reduction, **options)
            return found.sin().sum()

        want = torch.stack([torch.func.grad(loss)(w) for w in weights])
        chunked = functools.partial(loss, options=options)
        for each in (
            xf.grad(lambda w: xf.vmap(chunked)(w).sum())(weights),
            xf.vmap(xf.grad(chunked))(weights),
        ):
            torch.testing.assert_close(each.cpu(), want)


def test_gradients_of_small_products_of_examples_along_the_last_axis() -> None:
    a, b = torch.randn(2, 4, 3), torch.randn(4, 3, 3)  # XLA's compiler ended the process

    def loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b).sin().sum()

    found = xf.jit(xf.vmap(xf.grad(loss, (0, 1)), in_axes=(2, 2)))(a, b)
    expected = torch.func.vmap(torch.func.grad(loss, (0, 1)), in_dims=(2, 2))(a, b)
    torch.testing.assert_close(xf.device_get(found), expected)


@pytest.mark.parametrize(
    "bounds", [(-2, None), (3, 9), (-9, 2), (1, 9, 2), (None, -3), (7, 9), (4, 2)]
)
def test_slice_scatter_with_bounds_beyond_the_tensor(bounds: Any) -> None:
    x, weights = torch.arange(10.0).reshape(2, 5), torch.rand(2, 5)
    y = -torch.rand_like(x[:, slice(*bounds)])

    def put(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.slice_scatter(x, y, 0, *bounds)

    want = torch.stack([put(a, b) for a, b in zip(x, y, strict=True)])
    found = xf.jit(xf.vmap(put))(x, y)
    torch.testing.assert_close(found.cpu(), want)
    slopes = xf.grad(lambda x, y: (xf.vmap(put)(x, y) * weights).sum(), (0, 1))(x, y)
    kept = xf.vmap(put)(weights, torch.zeros_like(y))
    written = weights[:, slice(*bounds)]
    torch.testing.assert_close(xf.device_get(slopes), xf.device_get((kept, written)))


def test_examples_without_elements() -> None:
    rows, places = torch.zeros(2, 0, 3), torch.zeros(2, 0, dtype=torch.int64)
    assert xf.vmap(F.embedding)(places, rows).shape == (2, 0, 3)
    parts = xf.vmap(lambda x: torch.unsafe_chunk(x, 2))(rows)
    assert [part.shape for part in parts] == [(2, 0, 3), (2, 0, 3)]
