"""Cases of `tests.support.special_values` of layers: windows, images, padding, masks."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F

from tests.support.special_values import INF, NAN, case, f64, ints, some

Tensor = torch.Tensor


def _pooling() -> None:
    x = some(1, 2, 7, 7).round().clamp(-1, 1)  # many ties
    holes = torch.where(x > 0.5, -INF, x)
    for padding, stride, ceil in itertools.product((0, 1), (1, 2, 3), (False, True)):
        kw: dict[str, Any] = {"padding": padding, "stride": stride, "ceil_mode": ceil}
        name = f"padding={padding}, stride={stride}, ceil_mode={ceil}"
        case(f"max_pool2d {name}", lambda x, kw=kw: F.max_pool2d(x, 3, **kw), holes)
        case(f"max_pool1d with places, {name}",
             lambda x, kw=kw: F.max_pool1d(x, 3, return_indices=True, **kw), x[0])  # fmt: skip
        case(f"max_pool3d {name}", lambda x, kw=kw: F.max_pool3d(x, (2, 3, 3), **kw), holes)
        for counts in (True, False):
            case(
                f"avg_pool2d {name}, {counts}",
                lambda x, kw=kw, c=counts: F.avg_pool2d(x, 3, count_include_pad=c, **kw),
                x,
            )
    case("avg_pool2d divisor_override", lambda x: F.avg_pool2d(x, 3, divisor_override=1), x)
    case("max_pool2d dilated", lambda x: F.max_pool2d(x, 3, 1, 1, 2, return_indices=True), x)
    case("max_pool2d of NaN", lambda x: F.max_pool2d(x, 2), torch.where(x > 0.5, NAN, x))
    for n in (1, 2, 3):
        name = f"{n}d"
        y = some(*(1, 1, 6, 4, 4)[: 2 + n])
        pool: Any = getattr(F, f"max_pool{n}d")
        unpool: Any = getattr(F, f"max_unpool{n}d")

        def back(x: Tensor, pool: Any = pool, unpool: Any = unpool) -> Tensor:
            top, places = pool(x, 2, return_indices=True)
            return unpool(top, places, 2)

        case(f"max_unpool{name} of max_pool", back, y)
        adaptive: Any = getattr(F, f"adaptive_max_pool{n}d")
        case(f"adaptive_max_pool{name}", lambda x, f=adaptive: f(x, 3, return_indices=True), y)
        case(f"adaptive_avg_pool{name} to 1",
             lambda x, n=n: getattr(F, f"adaptive_avg_pool{n}d")(x, 1), y)  # fmt: skip
    case("max_unpool2d output_size",
         lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), (2, 2),
                                  output_size=(7, 7)),
         some(1, 1, 7, 7))  # fmt: skip
    case("adaptive_avg_pool2d None", lambda x: F.adaptive_avg_pool2d(x, (None, 1)), x)  # pyright: ignore[reportArgumentType]
    for p in (1.0, 2.0, 3.0):
        case(
            f"lp_pool1d of zeros, {p}",
            lambda x, p=p: F.lp_pool1d(x, p, 2),
            f64([[0, 0, 1, 0, 2, 3]]),
        )


def _windows() -> None:
    for name, kw in {
        "overlapping": {"kernel_size": 2, "stride": 1},
        "apart": {"kernel_size": 2, "stride": 3},
        "padded": {"kernel_size": 3, "padding": 2, "stride": 2},
        "dilated": {"kernel_size": 2, "dilation": 2},
    }.items():
        case(f"unfold {name}", lambda x, kw=kw: F.unfold(x, **kw), some(1, 2, 5, 4))
        n = F.unfold(some(1, 1, 5, 4), **kw).shape[-1]
        rows = 2 * kw["kernel_size"] ** 2
        case(f"fold {name}", lambda x, kw=kw: F.fold(x, (5, 4), **kw), some(1, rows, n))
    for size, step in ((3, 1), (2, 3), (1, 1), (5, 2)):
        case(
            f"Tensor.unfold {size}, {step}", lambda x, a=size, b=step: x.unfold(1, a, b), some(2, 5)
        )
    for mode in ("reflect", "replicate", "circular", "constant"):
        case(f"pad {mode} to the edge", lambda x, m=mode: F.pad(x, (3, 3), m), some(1, 2, 4))
        case(f"pad {mode}, negative", lambda x, m=mode: F.pad(x, (-1, 2), m), some(1, 2, 4))
        case(
            f"pad {mode} of one row", lambda x, m=mode: F.pad(x, (1, 1, 0, 0), m), some(1, 1, 1, 3)
        )
    case("pad to nothing", lambda x: F.pad(x, (-2, -2)), some(2, 4))
    for k in (-5, -1, 0, 1, 5):
        case(f"tril {k}", lambda x, k=k: (x.tril(k), x.triu(k)), some(2, 3))
    case("diag_embed", lambda x: torch.diag_embed(x, offset=-2), some(2, 3))
    case("roll beyond the size", lambda x: x.roll((7, -5), (0, 1)), some(2, 3))
    case("cat with legacy nothing", lambda x, y: torch.cat([x, y, x]), some(2, 3), some(0))
    case("index -1, None, ...", lambda x: (x[-1, None, ..., -2:], x[:, [-1, 0]]), some(2, 3))
    case("index_select nothing", lambda x, i: x.index_select(0, i), some(2, 3), ints()[:0].long())
    case(
        "gather of nothing",
        lambda x, i: x.gather(1, i),
        some(2, 3),
        torch.zeros(2, 0, dtype=torch.long),
    )
    case("take -1", lambda x, i: x.take(i), some(2, 3), ints(-1, -6, 0))
    case(
        "put -1",
        lambda x, v, i: x.put(i, v, accumulate=True),
        some(2, 3),
        some(3),
        ints(-1, -6, -1),
    )
    case("index_fill -1", lambda x, i: x.index_fill(1, i, 7.0), some(2, 3), ints(-1, 0))
    case(
        "index_add of nothing",
        lambda x, s, i: x.index_add(0, i, s),
        some(2, 3),
        some(0, 3),
        ints()[:0].long(),
    )
    case("split with 0", lambda x: torch.split(x, [0, 3, 0]), some(3, 2))
    case("repeat 0", lambda x: x.repeat(2, 0), some(2, 3))
    case("conv1d of nothing", lambda x, w: F.conv1d(x, w), some(0, 2, 4), some(3, 2, 2))
    case(
        "conv_transpose1d output_padding",
        lambda x, w: F.conv_transpose1d(x, w, stride=3, padding=1, output_padding=2),
        some(1, 2, 4),
        some(2, 3, 2),
    )


def _images() -> None:
    images: dict[Any, torch.Tensor] = {
        1: some(1, 2, 5),
        2: some(1, 2, 5, 4),
        3: some(1, 1, 3, 4, 2),
    }
    single: dict[Any, torch.Tensor] = {
        1: some(1, 2, 1),
        2: some(1, 2, 1, 1),
        3: some(1, 1, 1, 1, 1),
    }
    modes = {
        "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "area": (1, 2, 3),
        "linear": (1,), "bilinear": (2,), "bicubic": (2,), "trilinear": (3,),
    }  # fmt: skip
    for mode, dimensions in modes.items():
        corners = (False, True) if "linear" in mode or mode == "bicubic" else (None,)
        for n, align, size in itertools.product(dimensions, corners, (1, 2, 7)):
            kw = {"size": size, "mode": mode, "align_corners": align}
            name = f"interpolate {mode} {n}d to {size}, align_corners={align}"
            case(name, lambda x, kw=kw: F.interpolate(x, **kw), images[n])
            case(f"{name}, from 1", lambda x, kw=kw: F.interpolate(x, **kw), single[n])
        kw = {"scale_factor": 1.7, "mode": mode, "align_corners": corners[-1]}
        for again in (True, False):
            case(f"interpolate {mode} by a factor, {again}",
                 lambda x, kw=kw, a=again: F.interpolate(x, **kw, recompute_scale_factor=a),
                 images[dimensions[0]])  # fmt: skip
        if mode in ("bilinear", "bicubic"):
            for size in (1, 3, 9):
                case(
                    f"interpolate {mode} antialias to {size}",
                    lambda x, m=mode, s=size: F.interpolate(x, s, mode=m, antialias=True),
                    images[2],
                )
    points = f64(-1.0, 1.0, 0.0, -1.5, 1.2, -3.7, 9.0, 0.35)
    grids = {
        2: torch.stack(torch.meshgrid(points, points, indexing="ij"), -1)[None],
        3: torch.stack(torch.meshgrid(points[:3], points[3:6], points[5:], indexing="ij"), -1)[
            None
        ],
    }
    for padding, align in itertools.product(("zeros", "border", "reflection"), (False, True)):
        kw: dict[str, Any] = {"padding_mode": padding, "align_corners": align}
        for (n, grid), mode in itertools.product(grids.items(), ("bilinear", "nearest", "bicubic")):
            if n == 3 and mode == "bicubic":
                continue
            name = f"grid_sample{'' if n == 2 else ' 3D'} {mode}"
            case(
                f"{name}, {padding}, align_corners={align}",
                lambda x, g, kw=kw, m=mode: F.grid_sample(x, g, m, **kw),
                images[n],
                grid,
            )
            case(
                f"{name} of one pixel, {padding}, align_corners={align}",
                lambda x, g, kw=kw, m=mode: F.grid_sample(x, g, m, **kw),
                single[n],
                grid,
            )
    for align in (False, True):
        case(
            f"affine_grid of one pixel, {align}",
            lambda t, a=align: F.affine_grid(t, [1, 1, 1, 3], align_corners=a),
            some(1, 2, 3),
        )
        case(
            f"affine_grid, {align}",
            lambda t, a=align: F.affine_grid(t, [1, 1, 2, 3], align_corners=a),
            some(1, 2, 3),
        )


def _layers() -> None:
    flat = torch.full((2, 4, 3), 2.0, dtype=torch.float64)
    case("layer_norm of equal numbers", lambda x: F.layer_norm(x, (3,)), flat)
    case("layer_norm of one", lambda x: F.layer_norm(x, (1,)), some(2, 1))
    case("rms_norm of zeros", lambda x: F.rms_norm(x, (3,)), flat * 0)
    case("group_norm of equal numbers", lambda x: F.group_norm(x, 2), flat)
    case("batch_norm of equal numbers", lambda x: F.batch_norm(x, None, None, training=True), flat)
    case("instance_norm of equal numbers", lambda x: F.instance_norm(x), flat)
    case(
        "batch_norm variance 0",
        lambda x, m, v: F.batch_norm(x, m, v),
        flat,
        fixed=(some(4), some(4) * 0),
    )
    case("local_response_norm of zeros", lambda x: F.local_response_norm(x, 3), flat * 0)
    case("dropout 0", lambda x: F.dropout(x, 0.0), some(3))
    case("glu at 0", F.glu, f64(0, 1, 0, 800))
    case("softmin of infinities", lambda x: F.softmin(x, 0), f64(INF, 1, 2))
    q, k = some(1, 2, 3, 4), some(1, 2, 5, 4)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1], mask[2, :3] = False, False
    case(
        "attention with a row masked",
        lambda q, k, m: F.scaled_dot_product_attention(q, k, k, m),
        q,
        k,
        mask,
        batched=False,
    )
    bias = torch.zeros(3, 5, dtype=torch.float64).masked_fill(~mask, -INF)
    case(
        "attention with a row of -inf",
        lambda q, k, m: F.scaled_dot_product_attention(q, k, k, m),
        q,
        k,
        bias,
    )
    case(
        "attention causal, not square",
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        q,
        k,
    )
    case(
        "attention over nothing",
        lambda q, k: F.scaled_dot_product_attention(q, k, k),
        q,
        k[:, :, :0],
    )
    case("attention scale 0", lambda q, k: F.scaled_dot_product_attention(q, k, k, scale=0.0), q, k)


_pooling()
_windows()
_images()
_layers()
