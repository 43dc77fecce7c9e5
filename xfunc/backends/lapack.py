"""Matrix factorisations by LAPACK, on the CPU.

XLA expresses factorisations as loops, as it must where there is no LAPACK. `use_lapack` is the last
pass over a program that runs on the CPU: it replaces them with host calls to torch's own routines,
which never appear in programs for other devices or in printed programs.

NOTE [matrices without a factor]: a program can't raise, so where LAPACK finds no factor the results
are NaN. Iterative routines are never given a matrix that is not finite: some would never end.

NOTE [threads]: iterative routines consist of many short parallel regions. In a thread of XLA,
several threads take two to four times as long for them as one, up to about 1,000 rows.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from xfunc.backends import host_calls, scipy_lapack, solvers
from xfunc.graph.composite import operation_of
from xfunc.hlo import Shape
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.contents import Contents
from xfunc.hlo.edit import remove_computations

Tensor = torch.Tensor
_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def use_lapack(proto: pb.HloModuleProto) -> None:
    """Use LAPACK for all supported operations of a module, in place."""
    composites = {c.id: operation_of(c.name) for c in proto.computations}
    called = set[str]()
    for c in proto.computations:
        for i in c.instructions:
            name = _routine(i, composites)
            if name is not None:
                del i.called_computation_ids[:]
                host_calls.become_host_call(i, f"lapack {name}")
                called.add(name)
    if called & solvers.ROUTINES.keys():
        scipy_lapack.load()
    _drop_uncalled(proto)


def _routine(i: pb.HloInstructionProto, composites: dict[int, str | None]) -> str | None:
    """The name of the host function that can replace an instruction, if there is one."""
    first = i.shape.tuple_shapes[0] if i.shape.tuple_shapes else i.shape
    name = None
    if i.opcode == "call":
        name = composites[i.called_computation_ids[0]]
    elif i.opcode == "cholesky":
        name = f"potrf {'lower' if i.cholesky_options.lower else 'upper'}"
    elif i.opcode == "triangular-solve":
        options = i.triangular_solve_options
        words = (
            ("left", options.left_side),
            ("lower", options.lower),
            ("unit", options.unit_diagonal),
            ("transposed", options.transpose_a == pb.TriangularSolveOptions.TRANSPOSE),
            ("adjoint", options.transpose_a == pb.TriangularSolveOptions.ADJOINT),
        )
        name = " ".join(["trsm", *(word for word, said in words if said)])
    elif i.custom_call_target == "Eigh":
        # lower, sort, and two numbers for XLA's own algorithm
        lower = i.backend_config.startswith(b"1")
        name = f"eigh {'L' if lower else 'U'}"
    elif i.custom_call_target in ("Qr", "ProductOfElementaryHouseholderReflectors"):
        name = i.custom_call_target
    if name is None or Shape.from_proto(first).dtype not in _DTYPES:
        return None
    return name


def _drop_uncalled(proto: pb.HloModuleProto) -> None:
    """Remove computations that nothing calls any more."""
    contents, used = Contents(proto), {proto.entry_computation_id}
    for c in reversed(proto.computations):  # callers before callees
        if c.id in used:
            used.update(contents.called(c))
    remove_computations(proto, {c.id for c in proto.computations} - used)


def _register(name: str) -> Callable[[host_calls.Function], host_calls.Function]:
    def put(function: host_calls.Function) -> host_calls.Function:
        host_calls.register(f"lapack {name}", function)
        return function

    return put


_openmp = ctypes.PyDLL(None)  # torch's OpenMP, if it has one


@contextlib.contextmanager
def _one_thread(a: Tensor, rows: int) -> Iterator[None]:
    """Keep matrices of fewer rows on this thread alone; see NOTE [threads]."""
    if a.shape[-2] >= rows or not hasattr(_openmp, "omp_set_num_threads"):
        yield
        return
    before = _openmp.omp_get_max_threads()
    _openmp.omp_set_num_threads(1)
    try:
        yield
    finally:
        _openmp.omp_set_num_threads(before)


def _iterated(
    routine: Callable[[Tensor], Sequence[Tensor]], a: Tensor, results: Sequence[Tensor]
) -> None:
    """Run an iterative routine; see NOTE [matrices without a factor]."""
    bad = ~a.isfinite().all(-1).all(-1)
    if bad.any():
        a = torch.where(bad[..., None, None], 0, a)
    try:
        with _one_thread(a, 1024):
            found = routine(a)
    except torch.linalg.LinAlgError:
        if a.ndim > 2:
            for k in range(a.shape[0]):
                _iterated(routine, a[k], [r[k] for r in results])
            return
        found = [torch.full_like(r, torch.nan) for r in results]
    for r, f in zip(results, found, strict=True):
        r.copy_(f)
        if bad.any():
            r[bad] = torch.nan


@_register("svd")
def _svd(operands: list[Tensor], results: list[Tensor]) -> None:
    full = (
        results[0].shape[-1] == results[0].shape[-2]
        and results[2].shape[-1] == results[2].shape[-2]
    )
    _iterated(lambda a: torch.linalg.svd(a, full_matrices=full), operands[0], results)


@_register("svdvals")
def _svdvals(operands: list[Tensor], results: list[Tensor]) -> None:
    _iterated(lambda a: [torch.linalg.svdvals(a)], operands[0], results)


@_register("eig")
def _eig(operands: list[Tensor], results: list[Tensor]) -> None:
    _iterated(torch.linalg.eig, operands[0], results)


@_register("eigvals")
def _eigvals(operands: list[Tensor], results: list[Tensor]) -> None:
    _iterated(lambda a: [torch.linalg.eigvals(a)], operands[0], results)


def _eigh(operands: list[Tensor], results: list[Tensor], uplo: str) -> None:
    vectors, values = results
    _iterated(lambda a: torch.linalg.eigh(a, UPLO=uplo), operands[0], [values, vectors])


for _letter in ("L", "U"):
    _register(f"eigh {_letter}")(functools.partial(_eigh, uplo=_letter))


@_register("Qr")
def _qr(operands: list[Tensor], results: list[Tensor]) -> None:
    with _one_thread(operands[0], 512):
        found = torch.geqrf(operands[0])
    for r, f in zip(results, found, strict=True):
        r.copy_(f)


@_register("ProductOfElementaryHouseholderReflectors")
def _reflections(operands: list[Tensor], results: list[Tensor]) -> None:
    with _one_thread(operands[0], 512):
        results[0].copy_(torch.linalg.householder_product(*operands))


@_register("order")
def _order(operands: list[Tensor], results: list[Tensor]) -> None:
    (pivots,), (order,) = operands, results
    m = order.shape[-1]
    like = torch.empty(*pivots.shape[:-1], m, pivots.shape[-1])
    swaps, _, _ = torch.lu_unpack(like, pivots, unpack_data=False)
    order.copy_(swaps.argmax(-2))


def _ldl(operands: list[Tensor], results: list[Tensor], hermitian: bool) -> None:
    found = torch.linalg.ldl_factor_ex(operands[0], hermitian=hermitian)
    for r, f in zip(results, found, strict=True):
        r.copy_(f)


def _ldl_solve(operands: list[Tensor], results: list[Tensor], hermitian: bool) -> None:
    results[0].copy_(torch.linalg.ldl_solve(*operands, hermitian=hermitian))


for _hermitian, _word in ((False, ""), (True, " hermitian")):
    _register(f"ldl{_word}")(functools.partial(_ldl, hermitian=_hermitian))
    _register(f"ldl_solve{_word}")(functools.partial(_ldl_solve, hermitian=_hermitian))


for _routine_name, _direct in solvers.ROUTINES.items():
    host_calls.register_direct(f"lapack {_routine_name}", _direct)
