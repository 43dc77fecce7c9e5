"""Whether two results are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import xfunc as xf

# What these return is not determined: the shape and the dtype are compared.
UNDETERMINED = frozenset(
    "empty new_empty empty_like empty_strided empty_permuted new_empty_strided".split()
)

# Of these, eager torch takes a derivative that is not that of the values, or none is defined:
# places are written to twice.
WITHOUT_DERIVATIVE = frozenset(
    ["as_strided_scatter", *(f"nn.functional.max_unpool{n}d" for n in (1, 2, 3))]
)

# A factor by which the results of these are less certain than others: what they divide by is zero
# up to rounding.
ILL_CONDITIONED = {"linalg.det": 1e3}

# Relative to the number, and to the greatest in its array.
TOLERANCES = {
    torch.float64: (1e-6, 1e-8),
    torch.complex128: (1e-6, 1e-8),
    torch.bfloat16: (2e-2, 1e-2),
    torch.float16: (4e-3, 2e-3),
}
SINGLE = (1e-3, 2e-6)


def _product(*factors: torch.Tensor) -> torch.Tensor:
    out = factors[0]
    for f in factors[1:]:
        out = out @ f
    return out


def _usv(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if not u.numel() or not vh.numel():
        return ()
    k = s.shape[-1]
    return (_product(u[..., :k] * s.unsqueeze(-2), vh[..., :k, :]), u.mH @ u, vh @ vh.mH)


# Vectors of a decomposition are determined up to a factor: what they multiply to is compared.
INVARIANTS: dict[str, Callable[[Any], Any]] = {
    "linalg.eigh": lambda r: (r[0], _product(r[1] * r[0].unsqueeze(-2), r[1].mH)),
    "linalg.svd": lambda r: (r[1], *_usv(r[0], r[1], r[2])),
    "svd": lambda r: (r[1], *_usv(r[0], r[1], r[2].mH)),
    "svd_lowrank": lambda r: (r[1], *_usv(r[0], r[1], r[2].mH)),
    "pca_lowrank": lambda r: (r[1], *_usv(r[0], r[1], r[2].mH)),
    "linalg.qr": lambda r: (r[0].abs(), r[1].abs(), *([_product(*r)] if r[0].numel() else [])),
    "qr": lambda r: (r[0].abs(), r[1].abs(), _product(*r)),
    "geqrf": lambda r: r[0].triu().abs(),
}


def compare(
    name: str, found: Any, expected: Any, exact: Any = None, derivative: bool = False
) -> str | None:
    """How two results of an operation differ, or None.

    Args:
        name: of the operation.
        found: the result in question.
        expected: what eager torch returns.
        exact: the same found otherwise, or with more digits: being near either will do.
        derivative: whether these are derivatives, and not its values.
    """
    loose = ILL_CONDITIONED.get(name, 1.0)
    if name in INVARIANTS and not derivative:
        found, expected = INVARIANTS[name](found), INVARIANTS[name](expected)
        exact = None if exact is None else INVARIANTS[name](exact)
    ours, theirs = xf.tree.leaves(found), xf.tree.leaves(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} results, not {len(theirs)}"
    better = xf.tree.leaves(exact) if exact is not None else theirs
    for a, b, c in zip(ours, theirs, better, strict=True):
        if not isinstance(b, torch.Tensor):
            if a != b:
                return f"{a!r}, not {b!r}"
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{a.dtype}{[*a.shape]}, not {b.dtype}{[*b.shape]}"
        if name.split(".")[0] in UNDETERMINED:
            continue
        problem = _difference(a, b, loose)
        if problem is not None and c is not b and _difference(a, c.to(b.dtype), loose) is None:
            continue
        if problem is not None:
            return problem
    return None


def _difference(a: torch.Tensor, b: torch.Tensor, loose: float) -> str | None:
    b = b.detach().resolve_conj().resolve_neg()
    rtol, scale = (loose * x for x in TOLERANCES.get(b.dtype, SINGLE))
    finite = b[b.isfinite()].to(torch.complex128).abs()
    greatest = finite.max().item() if finite.numel() else 1.0
    atol = max(rtol / 10, scale * greatest)
    try:
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return None
