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
# places are written to twice, or the second derivative is 0.
WITHOUT_DERIVATIVE = frozenset(
    [
        "as_strided_scatter",
        *(f"nn.functional.max_unpool{n}d" for n in (1, 2, 3)),
        "nn.functional.linear_cross_entropy.chunked_none",
    ]
)

# Of these, a masked number counts as minus infinity: nothing depends on it. Eager torch's second
# derivative is 0 * inf there, which is NaN.
ZERO_BEHIND_A_MASK = frozenset(["masked.logaddexp"])

# A factor by which the results of these are less certain than others: what they divide by is zero
# up to rounding, or the derivative is (of two numbers, normalised).
ILL_CONDITIONED = {
    "linalg.det": 1e3,
    "native_batch_norm": 10.0,
    "_native_batch_norm_legit": 10.0,
    "linalg.householder_product": 10.0,
    "corrcoef": 10.0,
}

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
    # The imaginary part, up to multiples of 2 pi: it depends on the order of the sums.
    "logcumsumexp": lambda r: r.exp() if r.is_complex() else r,
}


def compare(
    name: str,
    found: Any,
    expected: Any,
    exact: Any = None,
    otherwise: Any = None,
    derivative: bool = False,
) -> str | None:
    """How two results of an operation differ, or None.

    Args:
        name: of the operation.
        found: the result in question.
        expected: what eager torch returns.
        exact: the same with more digits: a number near it will do, or one that is not much further
            from it than what eager torch returns.
        otherwise: the same in another way: this will do as a whole, or for what is not finite.
        derivative: whether these are derivatives, and not its values.
    """
    loose = ILL_CONDITIONED.get(name, 1.0)
    if name in INVARIANTS and not derivative:
        found, expected, exact, otherwise = (
            None if r is None else INVARIANTS[name](r) for r in (found, expected, exact, otherwise)
        )
    ours, theirs = xf.tree.leaves(found), xf.tree.leaves(expected)
    exacts, others = xf.tree.leaves(exact), xf.tree.leaves(otherwise)
    if len(ours) != len(theirs):
        return f"{len(ours)} results, not {len(theirs)}"
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(b, torch.Tensor):
            if a != b:
                return f"{a!r}, not {b!r}"
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{a.dtype}{[*a.shape]}, not {b.dtype}{[*b.shape]}"
        if name.split(".")[0] in UNDETERMINED:
            continue
        if derivative and name in ZERO_BEHIND_A_MASK:
            b = torch.where(b.isnan() & (a == 0), a, b)
        problem = _difference(
            a, b, exacts[k] if exacts else None, others[k] if others else None, loose
        )
        if problem is not None:
            return problem
    return None


def _difference(
    a: torch.Tensor,
    b: torch.Tensor,
    exact: torch.Tensor | None,
    otherwise: torch.Tensor | None,
    loose: float,
) -> str | None:
    b = b.detach().resolve_conj().resolve_neg()
    rtol, scale = (loose * x for x in TOLERANCES.get(b.dtype, SINGLE))

    def near(c: torch.Tensor, error: float = 0.0) -> torch.Tensor:
        atol = max(rtol / 10, scale * _greatest(c, 1.0), 2 * error)
        return torch.isclose(a, c.to(b.dtype), rtol, atol, equal_nan=True)

    atol = max(rtol / 10, scale * _greatest(b, 1.0))
    try:
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
        return None
    except AssertionError as error:
        problem = " ".join(str(error).split())[:300]
    right = near(b)
    if exact is not None:
        right |= near(exact, _greatest(b - exact, 0.0))
        if b.is_floating_point() and _greatest(exact, 0.0) > torch.finfo(b.dtype).max:
            right |= ~b.isfinite()  # The numbers leave their range, on the way as well.
    if otherwise is not None:
        right |= near(otherwise) & (near(otherwise).all() | ~b.isfinite())
    return None if right.all() else problem


def _greatest(x: torch.Tensor, default: float) -> float:
    """The greatest of the finite numbers of an array."""
    finite = x[x.isfinite()].to(torch.complex128).abs()
    return finite.max().item() if finite.numel() else default
