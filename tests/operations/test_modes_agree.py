"""Forward and reverse mode give the same derivatives: at ties, zeros, masks, places out of bounds.

For ``J``, the Jacobian of an operation at a point, and two fixed directions ``v`` and ``w``, the
two modes give ``w @ (J @ v)`` and ``(w @ J) @ v``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import xfunc as xf
from benchmarks import operations
from benchmarks.operations.cases import Case, arrays, as_real, is_smooth, samples_of
from benchmarks.operations.compare import WITHOUT_DERIVATIVE

Tensor = torch.Tensor

CHUNKS = 160
SAMPLES = 12

REFUSALS = (
    xf.errors.UnsupportedOpError,
    xf.errors.PurityError,
    xf.errors.ConcretizationError,
)


def _whole(t: Tensor) -> Tensor:
    return torch.nan_to_num(t.round()).clamp(-2, 2) + 0.0


def _far(t: Tensor) -> Tensor:
    """Integers of which every third one is out of bounds, on either side."""
    at = torch.arange(t.numel(), device=t.device).reshape(t.shape)
    return torch.where(at % 3 == 1, 10_000, torch.where(at % 6 == 2, -10_000, t)).to(t.dtype)


def _signed_zeros(t: Tensor) -> Tensor:
    at = torch.arange(t.numel(), device=t.device).reshape(t.shape)
    return torch.where(at % 2 == 0, 0.0, -0.0).to(t.dtype)


def _infinities(t: Tensor) -> Tensor:
    """Infinity and minus infinity in every third place."""
    at = torch.arange(t.numel(), device=t.device).reshape(t.shape)
    return torch.where(at % 6 == 1, math.inf, torch.where(at % 6 == 4, -math.inf, t))


def _of_integers(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda t: t if _is_mask(t) or not t.numel() else change(t)


POINTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "of the sample": (torch.clone, torch.clone),
    "whole numbers": (_whole, torch.clone),
    "zeros": (torch.zeros_like, torch.clone),
    "zeros of both signs": (_signed_zeros, torch.clone),
    "ones": (torch.ones_like, torch.clone),
    "infinities": (_infinities, torch.clone),
    "masks of False": (torch.clone, lambda t: torch.zeros_like(t) if _is_mask(t) else t),
    "masks of True": (torch.clone, lambda t: torch.ones_like(t) if _is_mask(t) else t),
    "first place": (torch.clone, _of_integers(torch.zeros_like)),
    "last place": (torch.clone, _of_integers(lambda t: torch.full_like(t, t.max().item()))),
    "place -1": (torch.clone, _of_integers(lambda t: torch.full_like(t, -1))),
    "out of bounds": (torch.clone, _of_integers(_far)),
}
"""What becomes of the operands with derivatives, and of the integers and masks beside them."""

ILLEGAL = ("first place", "place -1", "out of bounds")
TO_ONE_PLACE = ("first place", "last place")

# Where there is nothing to compare.
ROUNDED = ("bfloat16", "half")  # the modes round in different places
ZEROS = ("zeros", "zeros of both signs")
# No derivative at matrices that have no inverse, which LU and QR factors may miss by rounding.
SINGULAR = ("lu_solve", "qr", "linalg.lu_solve", "linalg.qr")
# Neither at the origin; nor has a variance of nothing whose correction is below 0.
NOWHERE = {"atan2": (*ZEROS, "whole numbers"), "masked.var": ("masks of False",)}
NOWHERE |= dict.fromkeys(SINGULAR, (*ZEROS, "ones"))
KEEP_ONE = (  # Of several values that are written to one place, one is kept: see docs/autodiff.md.
    "scatter",
    "index_copy",
    "index_put",
    "put",
    *(f"nn.functional.max_unpool{n}d.grad" for n in (1, 2, 3)),
)


def _is_undefined(name: str, point: str, forward: float, reverse: float) -> bool:
    if point in NOWHERE.get(name, TO_ONE_PLACE if name in KEEP_ONE else ()):
        return True
    is_number = math.isfinite(forward), math.isfinite(reverse)
    # Beside an infinity one of the modes may give NaN: see docs/operations.md.
    return not all(is_number) and (point == "infinities" or name in SINGULAR)


def _is_mask(t: Tensor) -> bool:
    return t.dtype is torch.bool


def _direction(like: Tensor, start: float) -> Tensor:
    along = torch.arange(like.numel(), dtype=torch.float64)
    return torch.cos(1.3 * along + start).reshape(like.shape).to(like.dtype)


def _dot(xs: Any, ys: Any) -> Tensor:
    terms = [(x * y).sum().double() for x, y in zip(xs, ys, strict=True)]
    return torch.stack(terms).sum()


def _points(case: Case) -> Iterator[tuple[str, list[Tensor]]]:
    for name, (smooth, other) in POINTS.items():
        point = []
        for k, t in enumerate(case.tensors):
            if k in case.watched:
                real = smooth(as_real(t)).contiguous()
                point.append(torch.view_as_complex(real) if t.is_complex() else real)
            else:
                point.append(t if is_smooth(t) else other(t))
        changed = any(not torch.equal(p, t) for p, t in zip(point, case.tensors, strict=True))
        if changed or name == "of the sample":
            yield name, point


def _both(case: Case, tensors: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The derivatives along two directions in both modes, and whether the results are finite."""
    reals = case.reals(tensors)

    def f(*reals: Tensor) -> tuple[Tensor, ...]:
        full = list(tensors)
        for k, x in zip(case.watched, reals, strict=True):
            full[k] = torch.complex(x[..., 0], x[..., 1]) if full[k].is_complex() else x
        return tuple(as_real(a) for a in arrays(case(*full)) if is_smooth(a))

    v = tuple(_direction(x, 0.3) for x in reals)
    out, pushed = xf.jvp(f, tuple(reals), v)
    w = tuple(_direction(o, 0.0) for o in out)
    pulled = xf.vjp(f, *reals)[1](w)
    finite = torch.stack([o.isfinite().all() for o in out]).all()
    return _dot(pushed, w), _dot(pulled, v), finite


def differences(name: str, op: Any) -> list[str]:
    """Where the modes disagree on an operation's samples, at each of the points."""
    found = []
    for number, sample in enumerate(samples_of(op, torch.float64, SAMPLES)):
        try:
            case = Case(op, sample)
            if not case.watched or not arrays(case(*[t.clone() for t in case.tensors])):
                continue
        except Exception:  # Not an array: sparse, for one.
            continue
        both = xf.jit(lambda tensors, case=case: _both(case, tensors))
        for point, tensors in _points(case):
            try:
                forward, reverse, finite = (x.item() for x in xf.device_get(both(tensors)))
            except REFUSALS:
                break
            except Exception as error:
                if point in ILLEGAL:  # LAPACK looks at pivots, for one.
                    continue
                found.append(f"{name} {number} {point}: {type(error).__name__} {error}"[:300])
                break
            if not finite or _is_undefined(name, point, forward, reverse):
                continue
            if math.isfinite(forward) != math.isfinite(reverse) or (
                math.isfinite(forward)
                and abs(forward - reverse) > 1e-6 * max(1, abs(forward), abs(reverse))
            ):
                found.append(f"{name} {number} {point}: {forward} {reverse}")
    return found


@pytest.mark.sample(160, seed=0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_forward_and_reverse_mode_agree_on_every_operation(chunk: int) -> None:
    found = []
    for name, op in [*operations.entries().items()][chunk::CHUNKS]:
        if name in WITHOUT_DERIVATIVE or name in ROUNDED:
            continue
        if torch.float64 in op.dtypes and op.supports_autograd:
            found += differences(name, op)
    assert not found
