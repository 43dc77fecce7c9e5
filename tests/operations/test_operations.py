"""Operations that torch_xla does not lower, or lowers wrongly, against eager torch.

torch's own database of operations is the judge: ``python -m benchmarks operations`` runs all of it.
"""

import functools
from typing import Any

import pytest
import torch
from torch.signal.windows import kaiser

import xfunc as xf
from benchmarks import operations
from tests.support.tiers import draw

# A spread over all kernels, and every operation that torch_xla gets wrong without an error.
RIGHT = """
    amax argmax masked.amax count_nonzero cummax cummin logcumsumexp cumsum median nanmedian mode
    aminmax softmax topk squeeze gather scatter scatter_reduce.mean scatter_reduce.prod index_fill
    index_reduce.mean searchsorted bucketize histc histogram masked_scatter nonzero_static isin
    diagonal diag_embed diagonal_scatter as_strided as_strided_scatter unfold roll _chunk_cat
    fft.fft fft.rfftn fft.irfft2 fft.ihfft2 stft istft
    linalg.cholesky linalg.solve linalg.det linalg.slogdet linalg.inv linalg.inv_ex linalg.lu
    linalg.lu_solve linalg.qr linalg.householder_product ormqr linalg.svd linalg.svdvals linalg.eigh
    linalg.eig linalg.eigvals linalg.ldl_factor linalg.ldl_solve
    linalg.pinv linalg.lstsq linalg.matrix_norm linalg.solve_triangular linalg.vector_norm
    matrix_exp cholesky_solve norm.inf norm.nuc addmm cov cdist nn.functional.pdist
    nn.functional.elu nn.functional.selu nn.functional.glu nn.functional.huber_loss
    nn.functional.avg_pool2d nn.functional.avg_pool3d nn.functional.adaptive_avg_pool2d
    nn.functional.max_pool2d nn.functional.max_pool3d nn.functional.adaptive_max_pool2d
    nn.functional.upsample_nearest nn.functional.interpolate.bicubic _upsample_bilinear2d_aa
    nn.functional.pad.reflect nn.functional.pad.replicate_negative grid_sampler_2d
    grid_sampler_3d copysign frexp gcd nextafter hypot logaddexp polar angle
    bitwise_right_shift
    lgamma digamma polygamma.polygamma_n_2 igamma special.zeta i0 special.bessel_j1
    special.bessel_y0 special.scaled_modified_bessel_k1 special.erfcx special.log_ndtr
    special.chebyshev_polynomial_t special.laguerre_polynomial_l
""".split()

REFUSED = {
    "nonzero": "depends on data",
    "masked_select": "depends on data",
    "unique": "depends on data",
    "bincount": "depends on data",
    "bernoulli": "global random generator",
    "item": "reads a traced value",
}


@functools.cache
def database():
    return operations.entries()


def examined(name, *transforms, samples):
    op = database()[name]
    dtype = next(d for d in ("float32", "int64", "complex64") if operations.DTYPES[d] in op.dtypes)
    return operations.examine(op, operations.Unit(name, dtype, transforms, samples))


@pytest.mark.sample(12, seed=0)
@pytest.mark.quick
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RIGHT)
def test_operation_and_gradient_match_eager_torch(name):
    forward, *backward = examined(name, "jit", "grad", samples=2)
    assert (forward.status, forward.detail) == ("right", "")
    for found in backward:
        assert found.status in ("right", "absent"), found.detail


@pytest.mark.sample(2, seed=0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_operation_that_cannot_be_traced_is_refused(name):
    (found,) = examined(name, "jit", samples=1)
    assert found.status == "refused"
    assert REFUSED[name] in found.detail
    assert "Hint: " in found.detail


def square(n=3, *batch):
    return torch.randn(*batch, n, n) + 4 * torch.eye(n)


def same(found, expected):
    torch.testing.assert_close(xf.device_get(found), expected, rtol=1e-4, atol=1e-4)


FUNCTIONS = {
    "fft": lambda x: torch.fft.rfft(x).abs().square(),
    "solve": lambda x: torch.linalg.solve(x, x.sum(0)),
    "det": torch.linalg.det,
    "inv": torch.linalg.inv,
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(3)),
    "qr": lambda x: torch.linalg.qr(x)[1].abs(),
    "svdvals": torch.linalg.svdvals,
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 0),
    "median": lambda x: torch.median(x, 1)[0],
    "avg_pool": lambda x: torch.nn.functional.avg_pool2d(x[None], 2, 1, 1, ceil_mode=True),
    "lgamma": lambda x: torch.lgamma(x.abs() + 1),
    "diagonal": lambda x: torch.diagonal(x, 1, 1, 0),
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_under_vmap_and_grad(name):
    f = FUNCTIONS[name]
    torch.manual_seed(0)
    x = square(3, 2)

    def loss(x):
        return f(x).square().sum()

    same(xf.vmap(xf.grad(loss))(x), torch.stack([torch.func.grad(loss)(a) for a in x]))
    same(xf.grad(lambda x: xf.vmap(loss)(x).sum())(x), torch.func.vmap(torch.func.grad(loss))(x))
    turned = x.permute(1, 2, 0)
    same(
        xf.vmap(xf.grad(loss), in_axes=2)(turned),
        torch.stack([torch.func.grad(loss)(a) for a in x]),
    )


def test_inv_of_singular_matrix_is_not_finite():
    found = xf.device_get(xf.jit(torch.linalg.inv)(torch.zeros(2, 2)))
    assert not found.isfinite().any()


def test_max_keeps_nan():
    x = torch.tensor([[1.0, float("nan"), 3.0], [4.0, 2.0, float("nan")]])

    def maxima(x):
        values, places = x.max(1)
        return x.amax(), values, places, x.argmax(), torch.maximum(x, x.flip(0))

    for found, expected in zip(xf.jit(maxima)(x), maxima(x), strict=True):
        torch.testing.assert_close(xf.device_get(found), expected, equal_nan=True)


def test_shift_rounds_down_and_keeps_dtype():
    x = torch.tensor([-5, 7, -(2**31)], dtype=torch.int32)
    same(xf.jit(lambda x: (x >> 1, x << 31))(x), (x >> 1, x << 31))
    same(xf.jit(lambda x: torch.bitwise_right_shift(x, 1))(x), torch.bitwise_right_shift(x, 1))


def test_repeat_interleave_without_output_size_is_refused():
    repeats = torch.tensor([2, 0, 1])
    of_counts: Any = torch.repeat_interleave
    with pytest.raises(xf.errors.UnsupportedOpError, match="give `output_size`"):
        xf.jit(of_counts)(repeats)
    same(
        xf.jit(lambda r: torch.repeat_interleave(r, output_size=3))(repeats),
        torch.tensor([0, 0, 2]),
    )


def _several(t):
    """The same tensor as one of several results of an operation."""
    return xf.jit(lambda t: (t + 0, t * 1))(t)[1]


INDEXING = {
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, x),
    "index_copy": lambda x, i: x.index_copy(0, i, x),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(3, 3)),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None].expand(3, 3), x),
    "index": lambda x, i: x[i],
    "index_put": lambda x, i: x.index_put((i,), x.flip(0)),
    "cross_entropy": lambda x, i: torch.nn.functional.cross_entropy(x, i),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing_operand_from_multi_output_operation(name):
    """Some end the process in torch_xla 2.9."""
    op, x, i = INDEXING[name], torch.arange(9.0).reshape(3, 3), torch.tensor([2, 0, 1])
    same(xf.jit(lambda x, i: op(_several(x), _several(i)))(x, i), op(x, i))
    same(xf.jit(lambda x, i: op(x, torch.sort(i).indices))(x, i), op(x, torch.sort(i).indices))
    got = xf.grad(lambda x: op(_several(x), torch.argsort(i)).sum())(x)
    same(got, torch.func.grad(lambda x: op(x, torch.argsort(i)).sum())(x))


@pytest.mark.parametrize("name", "sum mean std var std_mean var_mean nansum amax any".split())
def test_reduction_with_empty_dim_reduces_all(name):
    op, x = getattr(torch, name), torch.randn(2, 3)
    for keepdim in (False, True):
        same(
            xf.jit(lambda x, k=keepdim: op(x, dim=(), keepdim=k))(x), op(x, dim=(), keepdim=keepdim)
        )


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_division(dtype):
    x, y = torch.randn(2, 4, dtype=dtype)
    for divide in (
        lambda x, y: x / y,
        lambda x, y: x / 2,
        lambda x, y: 1 / y,
        lambda x, y: x.real / y,
        lambda x, y: x / y.real,
        lambda x, y: x / 2j,
    ):
        f = xf.jit(lambda x, y, divide=divide: divide(x, y))
        torch.testing.assert_close(xf.device_get(f(x, y)), divide(x, y))


# -- a part of the database that is drawn, each operation in two dtypes and in all transforms ----

FLOATING = ["float64", "float32", "complex64", "bfloat16", "float16"]
EXACT = ["int64", "bool"]
TRANSFORMS = ["jit", "vmap", "grad", "vmap(grad)", "jvp", "grad(grad)", "vjp"]


def drawn():
    """One operation in 40, drawn with seed 0, each with a floating and an exact dtype."""
    for k, name in enumerate(sorted(draw(operations.entries(), 40, seed=0))):
        yield name, [FLOATING[k % len(FLOATING)], EXACT[k % len(EXACT)]]


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("part", range(2))
def test_operations_drawn_are_right_or_refused(part):
    units = [
        unit
        for name, dtypes in [*drawn()][part::2]
        for unit in operations.units(dtypes, TRANSFORMS, [name], samples=1)
    ]
    found = operations.measure(units)
    assert sum(f.status == "right" for f in found) > 40
    assert [f for f in found if f.status in ("wrong", "crash", "error")] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch warns of its own samples.
def test_operations_drawn_have_samples_with_elements():
    """With empty arrays, every result would be right."""
    empty = []
    for name, _ in drawn():
        op = operations.entries()[name]
        dtype = next((d for d in (torch.float32, torch.int64) if d in op.dtypes), torch.bool)
        for sample in operations.samples_of(op, dtype, 1):
            given = operations.arrays((sample.input, tuple(sample.args), sample.kwargs))
            if given and not any(a.numel() for a in given):
                empty.append(name)
    assert empty == []


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: torch.unsafe_split_with_sizes(x, [1, 2])[1],
        lambda x: torch.stack(torch.lstm_cell(x, (x.sin(), x.cos()), LSTM, LSTM, LSTM[:, 0])),
        lambda x: torch.gru_cell(x, LSTM[:3], LSTM[:9], LSTM[:9], LSTM[:9, 0]),
        lambda x: x * kaiser(3, beta=8.0, dtype=torch.float64),
    ],
    ids=["unsafe_split_with_sizes", "lstm_cell", "gru_cell", "kaiser"],
)
def test_functions_that_torch_composes_in_its_own_way(fun: Any) -> None:
    x = torch.linspace(-1, 1, 18, dtype=torch.float64).reshape(2, 3, 3)
    want = torch.stack([fun(one) for one in x])
    torch.testing.assert_close(xf.vmap(fun)(x).cpu(), want)
    torch.testing.assert_close(xf.jit(fun)(x[0]).cpu(), want[0])

    def loss(x: torch.Tensor) -> torch.Tensor:
        return fun(x).sin().sum()

    slopes = torch.stack([torch.func.grad(loss)(one) for one in x])
    torch.testing.assert_close(xf.grad(loss)(x[0]).cpu(), slopes[0])
    torch.testing.assert_close(xf.vmap(xf.grad(loss))(x).cpu(), slopes)


LSTM = torch.linspace(-1, 1, 36, dtype=torch.float64).reshape(12, 3)


@pytest.mark.parametrize("cell", ["lstm_cell", "gru_cell"])
def test_cells_refuse_states_with_other_rows(cell: str) -> None:
    x, h = torch.ones(3, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    fun, weights = getattr(torch, cell), LSTM[: 12 if cell == "lstm_cell" else 9]
    state = (h, h) if cell == "lstm_cell" else h
    with pytest.raises(RuntimeError, match="Input batch size 3 doesn't match hidden0 batch size 1"):
        xf.jit(lambda x: fun(x, state, weights, weights))(x)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": True}])
def test_attention_of_the_cpu_and_its_sums(options: dict[str, Any]) -> None:
    query, key, value = (torch.linspace(-1, k, 80).reshape(2, 2, 5, 4) for k in (1, 2, 3))
    if options.get("attn_mask"):
        options = {"attn_mask": torch.linspace(-3, 3, 25).reshape(5, 5)[:3]}

    def fun(*operands: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return attend(*operands, **options)

    def loss(*operands: torch.Tensor) -> torch.Tensor:
        return fun(*operands)[0].sin().sum()

    given = (query[:, :, :3], key, value)
    torch.testing.assert_close(xf.device_get(xf.jit(fun)(*given)), fun(*given))
    batch = xf.vmap(lambda *one: fun(*(x[None] for x in one)))(*given)
    for found, want in zip(xf.device_get(batch), fun(*given), strict=True):
        torch.testing.assert_close(found.squeeze(1), want)
    slopes = xf.device_get(xf.grad(loss, argnums=(0, 1, 2))(*given))
    torch.testing.assert_close(slopes, torch.func.grad(loss, argnums=(0, 1, 2))(*given))
