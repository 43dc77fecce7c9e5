"""Cholesky and LU factors and linear systems in memory, as XLA hands it over."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.testing import assert_close

from xfunc.backends import scipy_lapack, solvers
from xfunc.backends.host_calls import Memory

Tensor = torch.Tensor
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
MANY_SMALL = {"by torch": 48, "one by one": 0}
"""Of fewer rows torch does batches."""


def memory(x: Tensor) -> Memory:
    assert x.is_contiguous()
    return Memory(x.data_ptr(), x.dtype, list(x.shape))


def run(name: str, operands: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """The results of a routine, which must write nothing beside them nor to its operands."""
    beside = 64
    before = [x.clone() for x in operands]
    held = [torch.full((x.numel() + 2 * beside,), 7, dtype=x.dtype) for x in like]
    results = [h[beside:-beside].view(x.shape) for h, x in zip(held, like, strict=True)]
    solvers.ROUTINES[name]([memory(x) for x in operands], [memory(x) for x in results])
    for h in held:
        assert (h[:beside] == 7).all()
        assert (h[-beside:] == 7).all()
    for x, b in zip(operands, before, strict=True):
        assert_close(x, b, rtol=0, atol=0, equal_nan=True)
    return results


def check(name: str, operands: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    found = run(name, operands, wanted)
    precision = torch.finfo(operands[0].dtype).eps ** 0.6
    for f, w in zip(found, wanted, strict=True):
        assert_close(f, w, rtol=precision, atol=precision)


def operands_of(
    dtype: torch.dtype, batch: tuple[int, ...] = (2, 3), n: int = 5
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(*batch, n, n, dtype=dtype, generator=generator)
    return a + 2 * torch.eye(n, dtype=dtype), torch.randn(*batch, 2, n, dtype=dtype)


@pytest.fixture(params=MANY_SMALL)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "_SMALL", MANY_SMALL[request.param])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cholesky(dtype: torch.dtype) -> None:
    a, _ = operands_of(dtype)
    a = (a @ a.mH).contiguous()
    for upper, name in ((False, "potrf lower"), (True, "potrf upper")):
        factor = torch.linalg.cholesky(a, upper=upper)
        check(name, [a], [factor])
        only = a.triu() if upper else a.tril()  # The other triangle is not read.
        check(name, [only], [factor])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_getrf_getrs_and_gesv(dtype: torch.dtype) -> None:
    a, b = operands_of(dtype)
    packed, pivots = torch.linalg.lu_factor(a.mT)
    held = packed.mT.contiguous()
    check("getrf", [a], [held, pivots])
    for adjoint, end in ((False, ""), (True, "_adjoint")):
        x = torch.linalg.solve(a.conj() if adjoint else a.mT, b.mT).mT.contiguous()
        check(f"getrs{end}", [held, pivots, b], [x])
        check(f"gesv{end}", [a, b], [x, held, pivots])


def test_getrf_of_rectangles() -> None:
    for shape in ((3, 7, 4), (3, 4, 7), (1, 9)):
        a = torch.randn(*shape)
        packed, pivots = torch.linalg.lu_factor(a.mT)
        check("getrf", [a], [packed.mT.contiguous(), pivots])


OPTIONS = [
    tuple(filter(None, words))
    for words in itertools.product(
        ("left", ""), ("lower", ""), ("unit", ""), ("transposed", "adjoint", "")
    )
]
FORMS: dict[str, Callable[[Tensor], Tensor]] = {"transposed": lambda a: a.mT}
FORMS["adjoint"] = lambda a: a.mH


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
def test_trsm(dtype: torch.dtype) -> None:
    a, b = operands_of(dtype)
    for said in OPTIONS:
        triangle = a.tril() if "lower" in said else a.triu()
        if "unit" in said:
            triangle = triangle.clone()
            triangle.diagonal(0, -2, -1).fill_(1)
        for form in said:
            triangle = FORMS.get(form, lambda a: a)(triangle)
        left = "left" in said
        rhs = b.mT.contiguous() if left else b
        x = torch.linalg.solve(triangle, rhs, left=left)
        check(" ".join(("trsm", *said)), [a, rhs], [x.contiguous()])


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
def test_solvers_write_in_bounds_for_non_finite_values(dtype: torch.dtype, value: float) -> None:
    for n in (1, 7, 33, 385):
        a, b = operands_of(dtype, (), n)
        for rows in (slice(None), slice(n // 2, n // 2 + 1)):
            a[rows] = value
            x, packed, pivots = run("gesv", [a, b], [b, a, torch.ones(n, dtype=torch.int32)])
            assert value == torch.inf or not x.isfinite().all()  # b / inf is zero
            assert not (packed.diagonal().isfinite() & (packed.diagonal() != 0)).all()
            assert 1 <= pivots.min() <= pivots.max() <= n
            (factor,) = run("potrf lower", [a], [a])
            assert not factor.isfinite().all()
            assert (factor.triu(1) == 0).all()
            a, _ = operands_of(dtype, (), n)


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_solvers_first_calls_in_threads(
    dtype: torch.dtype,
) -> None:
    """Each of 8 devices calls a routine in a thread of its own."""
    a, b = operands_of(dtype, (1,))
    spd = a @ a.mH + 4 * torch.eye(5)
    packed, pivots = torch.linalg.lu_factor(a.mT)
    packed = packed.mT.contiguous()
    kinds = {"potrf": ([spd], [spd]), "getrf": ([a], [packed, pivots])}
    kinds |= {"getrs": ([packed, pivots, b], [b]), "gesv": ([a, b], [b, packed, pivots])}
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as devices:
            for name in solvers.ROUTINES:
                rhs = b.mT.contiguous() if "left" in name else b
                case = kinds.get(name.split()[0].removesuffix("_adjoint"), ([a, rhs], [rhs]))
                wanted = run(name, *case)
                for _ in range(3):
                    scipy_lapack.scalar.cache_clear()
                    scipy_lapack.routine.cache_clear()
                    for found in devices.map(
                        lambda _, name=name, case=case: run(name, *case), range(8)
                    ):
                        assert_close(found, wanted, rtol=0, atol=0)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("batch", [(0,), (2, 0), (3,)])
@pytest.mark.parametrize(("n", "columns"), [(3, 2), (3, 0), (0, 2), (0, 0)])
def test_solvers_empty_matrices(batch: tuple[int, ...], n: int, columns: int) -> None:
    a = torch.eye(n).expand(*batch, n, n).contiguous()
    b = torch.ones(*batch, columns, n)
    pivots = torch.arange(1, n + 1, dtype=torch.int32).expand(*batch, n).contiguous()
    check("potrf lower", [a], [a])
    check("getrf", [a], [a, pivots])
    check("getrs", [a, pivots, b], [b])
    check("gesv", [a, b], [b, a, pivots])
    check("trsm lower", [a, b], [b])


def test_fortran_one_thread_restores_count() -> None:
    count, put = scipy_lapack._thread_count()
    before = count()
    put(2)
    with scipy_lapack.one_thread:
        with scipy_lapack.one_thread:
            assert count() == 1
        assert count() == 1
    assert count() == 2
    put(before)
