"""Operations whose derivatives are replaced too: see `registry.composition`."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch._decomp import decomposition_table

from xfunc.ops.registry import batched, composition, is_nested
from xfunc.torchlib.unbatched import distances

Tensor = torch.Tensor

# torch's own decompositions of operations whose derivative is an operation of its own.
for _name in ("glu", "soft_margin_loss", "_weight_norm_interface"):
    composition(_name)(decomposition_table[getattr(torch.ops.aten, _name).default])


@composition("mvlgamma", when=is_nested)
def mvlgamma(x: Tensor, p: int) -> Tensor:
    """torch's derivative changes its argument in place, to what more examples have than it."""
    steps = torch.arange(p, dtype=x.dtype, device=x.device) / 2
    return (x.unsqueeze(-1) - steps).lgamma().sum(-1) + p * (p - 1) * math.log(math.pi) / 4


_ZEROS, _REFLECTION = 0, 2
_NEAREST, _BICUBIC = 1, 2


def _places(coords: Tensor, size: int, align_corners: bool) -> Tensor:
    """Pixels, as real numbers, that coordinates from -1 to 1 stand for."""
    return (coords + 1) / 2 * (size - 1) if align_corners else ((coords + 1) * size - 1) / 2


def _padded(at: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    """The places that stand for those outside.

    Where torch clips a place, to the first or last pixel's or beyond it, its derivative is 0.
    """
    if padding == _ZEROS:
        return at
    if padding == _REFLECTION:
        low, span = (0.0, size - 1) if align_corners else (-0.5, size)
        if span == 0:
            return torch.zeros_like(at)
        away = (at - low).abs()
        extra, is_even = away.fmod(span), (away / span).floor().remainder(2) == 0
        at = torch.where(is_even, extra + low, span - extra + low)
    return torch.where((at > 0) & (at < size - 1), at, at.detach().clamp(0, size - 1))


def _cubic(t: Tensor) -> tuple[Tensor, ...]:
    """Weights of the pixels at -1, 0, 1 and 2 for a place at ``t``, from 0 to 1."""

    def near(d: Tensor) -> Tensor:
        return (1.25 * d - 2.25) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((-0.75 * d + 3.75) * d - 6) * d + 3

    return far(1 + t), near(t), near(1 - t), far(2 - t)


@composition("grid_sampler_2d")
@composition("grid_sampler_3d")
def grid_sampler(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    sizes = x.shape[2:]
    coords = grid.flatten(1, -2).unbind(-1)[::-1]  # the grid's first is the place in the last

    def side(coords: Tensor, size: int) -> list[tuple[Tensor, Tensor | None]]:
        """Pixels beside the places along one dimension, and their weights."""
        at = _places(coords, size, align_corners)
        if mode == _BICUBIC:
            low = at.floor()
            beside = (_padded(low + k, size, padding, align_corners) for k in (-1, 0, 1, 2))
            return [*zip(beside, _cubic(at - low), strict=True)]
        at = _padded(at, size, padding, align_corners)
        if mode == _NEAREST:
            return [(at.round(), None)]
        low = at.floor()
        return [(low, low + 1 - at), (low + 1, at - low)]

    sides = [side(c, n) for c, n in zip(coords, sizes, strict=True)]
    corners = [
        [(at, (at >= 0) & (at < n), weight) for at, weight in side]
        for side, n in zip(sides, sizes, strict=True)
    ]
    pixels, image = x.flatten(2).mT, torch.arange(x.shape[0], device=x.device)[:, None]
    total = None
    for corner in itertools.product(*corners):
        inside = functools.reduce(torch.logical_and, [within for _, within, _ in corner])
        index = torch.zeros_like(image)
        for (at, _, _), n in zip(corner, sizes, strict=True):
            index = index * n + torch.where(inside, at, 0).long()
        weight = math.prod((w for _, _, w in corner if w is not None), start=inside.to(x.dtype))
        # Both: what is outside may be NaN, and so may the pixel that stands in for it.
        pixel = torch.where(inside[..., None], pixels[image, index], 0)
        term = pixel * torch.where(inside, weight, 0)[..., None]
        total = term if total is None else total + term
    assert total is not None
    return total.mT.unflatten(2, grid.shape[1:-1])


def _edges(name: str, spatial: int, check: Callable[[Tensor, int, int, int], None] | None) -> None:
    """Padding with elements of the array: torch's decomposition, which checks no sizes."""
    pad = decomposition_table[getattr(torch.ops.aten, name).default]

    @composition(name)
    def run(x: Tensor, padding: Sequence[int]) -> Tensor:
        if 0 in x.shape[-spatial - 1 :]:
            raise RuntimeError(f"{name} needs sizes other than 0, but got: input {[*x.shape]}")
        for k in range(min(spatial, x.ndim)):
            low, high = padding[2 * k], padding[2 * k + 1]
            if check is not None:
                check(x, k, low, high)
            size, letter = x.shape[-1 - k], "WHD"[k]
            if (out := size + low + high) < 1:
                raise RuntimeError(
                    f"input ({letter}: {size}) is too small. Calculated output {letter}: {out}"
                )
        return pad(x, padding)


def _check_reflection(x: Tensor, k: int, low: int, high: int) -> None:
    dim = x.ndim - 1 - k
    if not max(low, high) < x.shape[dim]:
        raise RuntimeError(
            f"Argument #{4 + 2 * k}: Padding size should be less than the corresponding input "
            f"dimension, but got: padding ({low}, {high}) at dimension {dim} of input {[*x.shape]}"
        )


for _n in (1, 2, 3):
    _edges(f"reflection_pad{_n}d", _n, _check_reflection)
    _edges(f"replication_pad{_n}d", _n, None)


@composition("istft")
def istft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    # torch's own checks that the windows sum to a nonzero value everywhere.
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    real = x.dtype.to_real()
    w = torch.ones(width, dtype=real, device=x.device) if window is None else window
    left = (n_fft - width) // 2
    w = torch.nn.functional.pad(w, (left, n_fft - width - left))
    single = x.ndim == 2
    frames = (x[None] if single else x).transpose(1, 2)
    norm = "ortho" if normalized else None
    if return_complex:
        frames = torch.fft.ifft(frames, norm=norm)
    elif onesided is False:
        frames = torch.fft.ifft(frames, norm=norm).real
    else:
        half = frames[..., : n_fft // 2 + 1]
        frames = torch.fft.irfft(half, n_fft, norm=norm)
    total = n_fft + hop * (frames.shape[1] - 1)
    y = torch.ops.aten.unfold_backward(frames * w, [frames.shape[0], total], 1, n_fft, hop)
    squares = (w * w).expand(1, frames.shape[1], n_fft)
    envelope = torch.ops.aten.unfold_backward(squares, [1, total], 1, n_fft, hop)
    start = n_fft // 2 if center else 0
    end = total - (n_fft // 2 if center else 0) if length is None else min(start + length, total)
    y = y[:, start:end] / envelope[:, start:end]
    if length is not None and length > end - start:
        y = torch.nn.functional.pad(y, (0, length - (end - start)))
    return y[0] if single else y


composition("cdist")(distances)


@composition("pdist")
def pdist(x: Tensor, p: float = 2) -> Tensor:
    n = x.shape[0]
    whole = distances(x, x, p).reshape(-1)
    # Row i of the upper triangle is a slice of the flat matrix.
    return torch.cat([whole[:0], *(whole[i * n + i + 1 : (i + 1) * n] for i in range(n))])


@composition("max_pool2d")
def max_pool2d(x: Tensor, *args: object) -> Tensor:
    return torch.ops.aten.max_pool2d_with_indices(x, *args)[0]


@composition("max_pool3d")
def max_pool3d(x: Tensor, *args: object) -> Tensor:
    return torch.ops.aten.max_pool3d_with_indices(x, *args)[0]


def _are_real(x: Tensor, y: Tensor) -> bool:
    return not (x.is_complex() or y.is_complex())


def _sum_of_exponentials(name: str, scale: float) -> None:
    """torch takes ``1 / (1 + exp(y - x))`` as the slope: differentiating it again gives 0 * inf
    where the exponential overflows.
    """

    @composition(name, when=_are_real)
    def run(x: Tensor, y: Tensor) -> Tensor:
        dtype = torch.result_type(x, y)
        wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
        x, y = torch.broadcast_tensors(x.to(wide), y.to(wide))
        is_first = x >= y
        most, least = torch.where(is_first, x, y), torch.where(is_first, y, x)
        # Not a number: here, the tangent of a scalar times one would be of float64.
        factor = torch.full((), scale, dtype=wide, device=x.device)
        # Two equal infinities are their sum, and its slopes are NaN: 0 * inf, the exponential's.
        same = (x == y) & x.isinf()
        apart = torch.where(same, -(x.abs() + y.abs()), least - most)
        apart = apart * torch.where(same, torch.inf, factor)
        return (most + torch.log1p(torch.exp(apart)) / factor).to(dtype)


_sum_of_exponentials("logaddexp", 1.0)
_sum_of_exponentials("logaddexp2", math.log(2))


@batched("select_scatter")
def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    # torch 2.9 repeats a batch's derivative with respect to `src` for each position along `dim`.
    places = torch.arange(x.shape[dim], device=x.device)
    along = [-1 if d == dim % x.ndim else 1 for d in range(x.ndim)]
    here = (places == index % x.shape[dim]).reshape(along)
    return torch.where(here, src.unsqueeze(dim % x.ndim), x).to(x.dtype)


# These have no forward-mode derivative.


@composition("cholesky")
def cholesky(a: Tensor, upper: bool = False) -> Tensor:
    return torch.linalg.cholesky(a, upper=upper)


@composition("ormqr")
def ormqr(
    a: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    m, k = a.shape[-2], tau.shape[-1]
    at = -2 if left else -1
    if k != min(other.shape[at], a.shape[-1]):
        wanted = f"min(other.shape[{at}], input.shape[-1])"
        raise RuntimeError(f"torch.ormqr: tau.shape[-1] must be equal to {wanted}")
    square = torch.nn.functional.pad(a[..., :k], (0, m - k))
    q = torch.linalg.householder_product(square, tau)
    q = q.mH if transpose else q
    return q @ other if left else other @ q


@composition("native_dropout_backward")
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return grad * mask * scale


@composition("one_hot")
def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    # torch reads the labels, except on the devices that it knows.
    if x.dtype is not torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if num_classes == -1:
        num_classes = int(x.max().item()) + 1
    elif num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    classes = torch.arange(num_classes, device=x.device)
    return (x.unsqueeze(-1) == classes).to(torch.int64)


_attention = "_scaled_dot_product_flash_attention_for_cpu"
_decomposed_attention = decomposition_table[getattr(torch.ops.aten, _attention).default]


@composition(_attention)
def attention_on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """In torch's decomposition, the weights are in the place of their logarithmic sums."""
    out, _ = _decomposed_attention(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )
    with torch.no_grad():
        wide = torch.float64 if query.dtype is torch.float64 else torch.float32
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = query.to(wide) @ key.to(wide).mT * factor
        if is_causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
            scores = scores.masked_fill(~allowed, -torch.inf)
        if attn_mask is not None:
            scores = scores + attn_mask
        return out, scores.logsumexp(-1).detach()
