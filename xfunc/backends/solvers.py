"""Cholesky and LU factors, and linear systems, by LAPACK in XLA's own memory.

XLA stores matrices row by row, LAPACK column by column: a matrix here is its transpose there. So
the LU routines (named as in LAPACK) are composites over transposed matrices, and the others name
the opposite triangle or side.

NOTE [one matrix, or many small ones]: calling LAPACK on a matrix costs a microsecond or two here,
and less in torch, which therefore handles batches of small matrices.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch

from xfunc.backends.host_calls import Direct, Memory
from xfunc.backends.scipy_lapack import number, one_thread, routine, scalar

Tensor = torch.Tensor
_SMALL = 48
_ROWS_FOR_THREADS = 384


def _many_small(a: Memory) -> bool:
    """See NOTE [one matrix, or many small ones]."""
    return len(a.dims) > 2 and max(a.dims[-2:]) < _SMALL and math.prod(a.dims[:-2]) > 1


def _each(*memories: Memory) -> Iterator[tuple[int, ...]]:
    """The addresses of each element of a batch; the first memory holds matrices."""
    count = math.prod(memories[0].dims[:-2])
    steps = [m.size // count for m in memories]
    for k in range(count):
        yield tuple(m.address + k * step for m, step in zip(memories, steps, strict=True))


def _copy(source: Memory, target: Memory) -> None:
    ctypes.memmove(target.address, source.address, source.size)


# -- Cholesky -------------------------------------------------------------------------------------


def _potrf(operands: list[Memory], results: list[Memory], upper: bool) -> None:
    (a,), (factor,) = operands, results
    if _many_small(a):
        found, info = torch.linalg.cholesky_ex(a.tensor(), upper=upper)
        factor.tensor().copy_(found)
        _mark(factor.tensor(), info, upper)
        return
    n = number(a.dims[-1])
    kept, other = (b"L", b"U") if upper else (b"U", b"L")
    copy, fill, factorise = (routine(x, a.dtype) for x in ("lacpy", "laset", "potrf"))
    zero, info = scalar(0, a.dtype), ctypes.c_int()
    for source, target in _each(a, factor):
        fill(other, n, n, zero, zero, target, n)
        copy(kept, n, n, source, n, target, n)
        factorise(kept, n, target, n, ctypes.byref(info))
        if info.value:
            one = Memory(target, a.dtype, a.dims[-2:])
            _mark(one.tensor(), torch.tensor(info.value), upper)


def _mark(factor: Tensor, info: Tensor, upper: bool) -> None:
    """Write NaN into the rows that LAPACK did not reach, to show where it stopped."""
    if info.any():
        row = torch.arange(1, factor.shape[-1] + 1)
        left = ((row >= info[..., None]) & (info[..., None] > 0))[..., None]
        left = left.expand(factor.shape).tril()
        factor.masked_fill_(left.mT if upper else left, torch.nan)


# -- LU -------------------------------------------------------------------------------------------


def _getrf(operands: list[Memory], results: list[Memory]) -> None:
    (a,), (packed, pivots) = operands, results
    n, m = a.dims[-2:]
    if _many_small(a):
        found = torch.linalg.lu_factor_ex(a.tensor().mT)
        packed.tensor().copy_(found[0].mT)
        pivots.tensor().copy_(found[1])
    else:
        factorise, info = routine("getrf", a.dtype), number(0)
        rows, columns = number(m), number(n)
        _copy(a, packed)
        for matrix, swaps in _each(packed, pivots):
            factorise(rows, columns, matrix, rows, swaps, info)
    # For NaN, LAPACK's pivots may be anything.
    swaps = _array(pivots)
    np.clip(swaps, _places(swaps.shape[-1]), m, out=swaps)


def _array(pivots: Memory) -> np.ndarray:
    memory = (ctypes.c_int * (pivots.size // 4)).from_address(pivots.address)
    return np.frombuffer(memoryview(memory), np.int32).reshape(pivots.dims)


@functools.lru_cache(64)
def _places(n: int) -> np.ndarray:
    return np.arange(1, n + 1, dtype=np.int32)


def _getrs(operands: list[Memory], results: list[Memory], adjoint: bool) -> None:
    packed, pivots, b = operands
    swaps, n = _array(pivots), packed.dims[-1]
    if swaps.min() < 1 or swaps.max() > n:
        raise RuntimeError(f"the pivots given to lu_solve must lie between 1 and {n}")
    _solve(packed, pivots, b, results[0], adjoint)


def _gesv(operands: list[Memory], results: list[Memory], adjoint: bool) -> None:
    (a, b), (x, packed, pivots) = operands, results
    _getrf([a], [packed, pivots])
    _solve(packed, pivots, b, x, adjoint)


def _solve(packed: Memory, pivots: Memory, b: Memory, x: Memory, adjoint: bool) -> None:
    if _many_small(packed):
        found = torch.linalg.lu_solve(
            packed.tensor().mT, pivots.tensor(), b.tensor().mT, adjoint=adjoint
        )
        x.tensor().copy_(found.mT)
        return
    swap, solve = routine("laswp", b.dtype), routine("trsm", b.dtype)
    k, n = map(number, b.dims[-2:])
    one, first, forwards, backwards = scalar(1, b.dtype), number(1), number(1), number(-1)
    _copy(b, x)
    # The steps of `getrs`, which itself wakes OpenBLAS's threads however small the matrices are.
    for matrix, swaps, target in _each(packed, pivots, x):
        if adjoint:
            solve(b"L", b"U", b"C", b"N", n, k, one, matrix, n, target, n)
            solve(b"L", b"L", b"C", b"U", n, k, one, matrix, n, target, n)
            swap(k, target, n, first, n, swaps, backwards)
        else:
            swap(k, target, n, first, n, swaps, forwards)
            solve(b"L", b"L", b"N", b"U", n, k, one, matrix, n, target, n)
            solve(b"L", b"U", b"N", b"N", n, k, one, matrix, n, target, n)


# -- triangles ------------------------------------------------------------------------------------


def _trsm(operands: list[Memory], results: list[Memory], said: tuple[str, ...]) -> None:
    (a, b), (x,) = operands, results
    side = b"R" if "left" in said else b"L"
    triangle = b"U" if "lower" in said else b"L"
    form = b"C" if "adjoint" in said else b"T" if "transposed" in said else b"N"
    diagonal = b"U" if "unit" in said else b"N"
    if _many_small(a):
        matrix = a.tensor()
        matrix = {b"C": matrix.mH, b"T": matrix.mT, b"N": matrix}[form]
        torch.linalg.solve_triangular(
            matrix.mT,
            b.tensor().mT,
            upper=("lower" in said) == (form == b"N"),
            left="left" not in said,
            unitriangular="unit" in said,
            out=x.tensor().mT,
        )
        return
    columns, rows = map(number, b.dims[-2:])
    n, one, solve = number(a.dims[-1]), scalar(1, a.dtype), routine("trsm", a.dtype)
    _copy(b, x)
    for matrix, target in _each(a, x):
        solve(side, triangle, form, diagonal, rows, columns, one, matrix, n, target, rows)


def _run(operands: list[Memory], results: list[Memory], direct: Direct) -> None:
    """Run small problems on one thread; see NOTE [threads of OpenBLAS]."""
    if not any(r.size for r in results):  # an empty batch, or empty matrices
        return
    if max(operands[0].dims[-2:]) < _ROWS_FOR_THREADS:
        with one_thread:
            direct(operands, results)
    else:
        direct(operands, results)


_words = (*((w, "") for w in ("left", "lower", "unit")), ("transposed", "adjoint", ""))
_triangular = [tuple(filter(None, words)) for words in itertools.product(*_words)]
_routines: dict[str, Direct] = {
    "potrf lower": functools.partial(_potrf, upper=False),
    "potrf upper": functools.partial(_potrf, upper=True),
    "getrf": _getrf,
    "getrs": functools.partial(_getrs, adjoint=False),
    "getrs_adjoint": functools.partial(_getrs, adjoint=True),
    "gesv": functools.partial(_gesv, adjoint=False),
    "gesv_adjoint": functools.partial(_gesv, adjoint=True),
    **{" ".join(("trsm", *w)): functools.partial(_trsm, said=w) for w in _triangular},
}
ROUTINES: dict[str, Direct] = {
    name: functools.partial(_run, direct=direct) for name, direct in _routines.items()
}
"""The routines by name."""
