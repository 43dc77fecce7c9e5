"""Operations at values with a meaning of their own, which no sample of torch's database has.

Labels to ignore, rows of padding, -1 for "none", empty segments and bags, reductions of nothing,
ties, poles, points outside of an image, sizes of one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
INF, NAN = float("inf"), float("nan")
REDUCTIONS = ("none", "mean", "sum")
DIVIDING = ("mse_loss", "smooth_l1_loss")  # by 0, in torch's rules for batches
TWO_ARGUMENTS = """
    mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy
    binary_cross_entropy_with_logits soft_margin_loss kl_div poisson_nll_loss hinge_embedding_loss
""".split()


def f64(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ints(*values: Any) -> Tensor:
    return torch.tensor(values)


def some(*shape: int) -> Tensor:
    """Distinct numbers of both signs, the same in each run."""
    n = torch.Size(shape).numel()
    return (torch.arange(n, dtype=torch.float64) * 0.7).sin().mul(2).round(decimals=3).view(shape)


@dataclasses.dataclass(frozen=True)
class Case:
    """``f(*floats, *fixed)``: derivatives are by the first, and batches are of all.

    Attributes:
        right: what eager torch is to compute instead, where it is wrong itself.
        batched: whether the fixed arguments are legal in another order, too.
        smooth: whether torch has a derivative.
    """

    f: Callable[..., Any]
    floats: tuple[Tensor, ...]
    fixed: tuple[Tensor, ...] = ()
    right: Callable[..., Any] | None = None
    batched: bool = True
    rtol: float = 1e-9
    smooth: bool = True
    elementwise: bool = False


CASES: dict[str, Case] = {}


def case(
    name: str, f: Callable[..., Any], *args: Tensor, fixed: tuple[Tensor, ...] = (), **options: Any
) -> None:
    """Add a case. Integers are fixed, and come after the floating-point numbers."""
    assert name not in CASES, name
    floats = tuple(a for a in args if a.is_floating_point())
    rest = tuple(a for a in args if not a.is_floating_point())
    CASES[name] = Case(f, floats, (*rest, *fixed), **options)


def _options(**choices: tuple[Any, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All combinations, with names."""
    for values in itertools.product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        words = (f"{k}={'given' if isinstance(v, Tensor) else v}" for k, v in chosen.items())
        yield ", ".join(words), chosen


def _label_losses() -> None:
    weight = f64(0.5, 0.0, 2.0, 1.0, 1.5)
    labels = {
        "some ignored": ints(2, -100, 1, 4),
        "all ignored": ints(-100, -100, -100, -100),
        "of weight 0": ints(1, 1, 1, 1),
    }
    for of, y in labels.items():
        for name, kw in _options(reduction=REDUCTIONS, weight=(None, weight)):
            case(f"nll_loss {of}, {name}", _put(F.nll_loss, kw), some(4, 5), y)
            for smoothing in (0.0, 0.2):
                kw = {**kw, "label_smoothing": smoothing}
                label = f"cross_entropy {of}, {name}, label_smoothing={smoothing}"
                case(label, _put(F.cross_entropy, kw), some(4, 5), y)
    for ignored, reduction in itertools.product((2, -1), REDUCTIONS):
        kw = {"ignore_index": ignored, "reduction": reduction, "weight": weight}
        y, name = ints(2, ignored, 1, 4), f"ignore_index={ignored}, {reduction}"
        case(f"nll_loss {name}", _put(F.nll_loss, kw), some(4, 5), y)
        case(f"nll_loss of one row, {name}", _put(F.nll_loss, kw), some(5), y[1])
        smooth = {**kw, "label_smoothing": 0.1}
        case(f"cross_entropy {name}", _put(F.cross_entropy, smooth), some(4, 5), y)
        case(f"cross_entropy of one row, {name}", _put(F.cross_entropy, smooth), some(5), y[1])
    deep = {"some": ints([0, -100, 2], [4, 1, -100]), "all": ints(*[[-100] * 3] * 2)}
    for of, y in deep.items():
        for reduction, w in itertools.product(REDUCTIONS, (None, weight)):
            kw: dict[str, Any] = {"reduction": reduction, "weight": w}
            name = f"{of} ignored, {reduction}" + (", weights" if w is not None else "")
            case(f"nll_loss 3d, {name}", _put(F.nll_loss, kw), some(2, 5, 3), y)
            case(f"nll_loss 4d, {name}", _put(F.nll_loss, kw), some(2, 5, 3, 1), y[..., None])
            kw = {**kw, "label_smoothing": 0.1}
            case(
                f"cross_entropy 4d, {name}",
                _put(F.cross_entropy, kw),
                some(2, 5, 3, 1),
                y[..., None],
            )
    for reduction, smoothing in itertools.product(REDUCTIONS, (0.0, 0.3)):
        kw = {"reduction": reduction, "label_smoothing": smoothing}
        p = f64([0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0.2] * 5, [0.5, 0, 0, 0.5, 0])
        name = f"cross_entropy of probabilities, {reduction}, label_smoothing={smoothing}"
        case(name, _put(F.cross_entropy, {**kw, "weight": weight}), some(4, 5), p)
    empty = torch.zeros(0, dtype=torch.int64)
    for reduction in REDUCTIONS:
        kw = {"reduction": reduction}
        case(f"nll_loss of nothing, {reduction}", _put(F.nll_loss, kw), some(0, 5), empty)
        case(f"cross_entropy of nothing, {reduction}", _put(F.cross_entropy, kw), some(0, 5), empty)
        impossible = f64([-INF, 0, 1], [0, -INF, 2])
        y = ints(1, 2)
        case(f"cross_entropy at -inf, {reduction}", _put(F.cross_entropy, kw), impossible, y)
        margins = ints([3, 0, -1, 1], [-1, 0, 1, 2], [0, 1, 2, 3], [-1] * 4)
        case(f"multilabel_margin_loss {reduction}",
             _put(F.multilabel_margin_loss, kw), some(4, 4), margins)  # fmt: skip
        for p in (1, 2):
            case(f"multi_margin_loss p={p}, {reduction}",
                 _put(F.multi_margin_loss, {**kw, "p": p, "weight": weight}),
                 some(4, 5), ints(0, 1, 4, 1))  # fmt: skip
        hot = f64([0, 1, 1], [0, 0, 0])
        case(f"multilabel_soft_margin_loss {reduction}",
             _put(F.multilabel_soft_margin_loss, kw), some(2, 3) * 50, hot)  # fmt: skip


def _put(f: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """`f` with options, whose tensors go where the arguments are."""

    def call(x: Tensor, *rest: Tensor) -> Any:
        placed = {k: v.to(x.device) if isinstance(v, Tensor) else v for k, v in options.items()}
        return f(x, *rest, **placed)

    return call


def _losses() -> None:
    zero = f64(0.0, 1.0, 0.5, 0.0, 1.0)
    probability = f64(0.0, 1.0, 0.25, 1.0, 0.0)
    for reduction in REDUCTIONS:
        kw: dict[str, Any] = {"reduction": reduction}
        for name, more in _options(log_input=(True, False), full=(True, False)):
            case(f"poisson_nll_loss {name}, {reduction}", _put(F.poisson_nll_loss, kw | more),
                 f64(0.0, 1.0, 2.0, 0.5), f64(0.0, 1.0, 2.0, 5.0))  # fmt: skip
        case(f"gaussian_nll_loss variance 0, {reduction}",
             _put(lambda x, y, v, **kw: F.gaussian_nll_loss(x, y, v, full=True, **kw), kw),
             f64(0.0, 1.0, 2.0), f64(0.0, 2.0, 2.0), f64(0.0, 1e-9, 1.0))  # fmt: skip
        for log_target in (False, True):
            target = f64(-INF, 0.0, -1.0, 0.0) if log_target else f64(0.0, 1.0, 0.5, 0.0)
            case(f"kl_div log_target={log_target}, {reduction}",
                 _put(F.kl_div, kw | {"log_target": log_target}),
                 f64(-1.0, -2.0, 0.0, -3.0), target)  # fmt: skip
        case(f"binary_cross_entropy at 0 and 1, {reduction}",
             _put(lambda x, y, **kw: F.binary_cross_entropy(x, y, y * 2, **kw), kw),
             probability, fixed=(zero,), rtol=1e-8)  # fmt: skip  # torch's 1e-12 is of float32
        case(f"binary_cross_entropy_with_logits far out, {reduction}",
             _put(F.binary_cross_entropy_with_logits, kw | {"pos_weight": f64(0, 1, 2, 3, 0)}),
             f64(800.0, -800.0, 0.0, -800.0, 800.0), zero)  # fmt: skip
        sign = f64(1.0, -1.0, 1.0, -1.0)
        case(f"hinge_embedding_loss {reduction}",
             _put(F.hinge_embedding_loss, kw), f64(1.0, 1.0, 0.0, 2.0), sign)  # fmt: skip
        case(
            f"margin_ranking_loss at ties, {reduction}",
            _put(F.margin_ranking_loss, kw),
            f64(1.0, 1.0, 2.0, 2.0),
            f64(1.0, 1.0, 1.0, 3.0),
            sign,
        )
        case(
            f"soft_margin_loss far out, {reduction}",
            _put(F.soft_margin_loss, kw),
            f64(800.0, -800.0, 0.0, -700.0),
            fixed=(sign,),
        )
        case(f"cosine_embedding_loss at zero, {reduction}",
             _put(lambda x, y, **kw: F.cosine_embedding_loss(
                 x, y, torch.tensor([1.0, -1.0, 1.0], device=x.device), **kw), kw),
             f64([0, 0], [1, 0], [1, 2]), f64([1, 1], [0, 0], [1, 2]))  # fmt: skip
        case(f"triplet_margin_loss at equal points, {reduction}",
             _put(F.triplet_margin_loss, kw | {"swap": True}),
             f64([0, 0], [1, 2]), f64([0, 0], [1, 2]), f64([1, 1], [1, 2]))  # fmt: skip
        for beta in (0.0, 1.0):
            case(f"smooth_l1_loss beta={beta}, {reduction}",
                 _put(F.smooth_l1_loss, kw | {"beta": beta}),
                 f64(0.0, 1.0, -1.0, 3.0), f64(0.0, 0.0, 0.0, 3.0))  # fmt: skip
        for name in TWO_ARGUMENTS:
            case(f"{name} of nothing, {reduction}",
                 _put(getattr(F, name), kw), some(0), fixed=(some(0),),
                 smooth=name not in DIVIDING)  # fmt: skip


def _tables() -> None:
    table = some(6, 3)
    places = ints([0, 2, 5], [5, 5, 2])
    for name, kw in _options(padding_idx=(None, 0, 5, -1), scale_grad_by_freq=(False, True)):
        case(f"embedding {name}", _swapped(F.embedding, kw), table, places)
    case("embedding of nothing", _swapped(F.embedding, {"padding_idx": 1}), table, places[:0])
    offsets = {"empty bags": ints(0, 0, 2, 5, 5), "one bag": ints(0), "all": ints(6, 6)}
    flat = places.flatten()
    for (of, o), mode in itertools.product(offsets.items(), ("sum", "mean", "max")):
        o = torch.where(o > 0, o, 0)
        if of == "all":
            o = torch.cat([ints(0), o])
        for padding, last in itertools.product((None, 5), (False, True)):
            kw = {"mode": mode, "padding_idx": padding, "include_last_offset": last}
            name = f"embedding_bag {of}, {mode}, padding_idx={padding}, last={last}"
            ends = torch.cat([o, ints(6)]) if last else o
            case(name, _bags(kw), table, flat, ends, batched=False)
    for padding in (None, 5):
        for mode in ("sum", "mean", "max"):
            kw = {"mode": mode, "padding_idx": padding}
            case(f"embedding_bag 2d, {mode}, padding_idx={padding}",
                 _swapped(F.embedding_bag, kw), table, ints([5, 5, 5], [0, 5, 2]))  # fmt: skip
        kw = {"mode": "sum", "padding_idx": padding}
        case(f"embedding_bag of weights, padding_idx={padding}",
             _put(lambda w, s, x, o, **kw: F.embedding_bag(
                 x, w, o, per_sample_weights=s, **kw), kw),
             table, some(6), flat, ints(0, 0, 2, 6), batched=False)  # fmt: skip
        case(f"embedding_bag by weights alone, padding_idx={padding}",
             _put(lambda s, x, o, w, **kw: F.embedding_bag(
                 x, w, o, per_sample_weights=s, **kw), kw),
             some(6), flat, ints(0, 0, 2, 6), fixed=(table,), batched=False)  # fmt: skip
    for n in (6, 9):
        case(f"one_hot {n}", lambda x, y, n=n: F.one_hot(y, n) * x, some(1), places)


def _swapped(f: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    return lambda w, x: f(x, w, **options)


def _bags(options: dict[str, Any]) -> Callable[..., Any]:
    return lambda w, x, o: F.embedding_bag(x, w, o, **options)


def _scattered() -> None:
    base, places = f64(3.0, 2.0, -1.0, 0.0), ints(0, 0, 2, 0, 2)
    source = f64(3.0, 1.0, 0.0, 3.0, 0.0)
    for include in (True, False):
        for reduce in ("sum", "prod", "mean", "amax", "amin"):
            case(f"scatter_reduce {reduce}, include_self={include}",
                 lambda x, s, i, r=reduce, k=include: x.scatter_reduce(0, i, s, r, include_self=k),
                 base, source, places, right=_without_self(reduce, include))  # fmt: skip
        for reduce in ("prod", "mean", "amax", "amin"):
            case(f"index_reduce {reduce}, include_self={include}",
                 lambda x, s, i, r=reduce, k=include: x.index_reduce(0, i, s, r, include_self=k),
                 base, source, places, right=_without_self(reduce, include))  # fmt: skip
    case("index_put accumulate", lambda x, s, i: x.index_put((i,), s, accumulate=True),
         base, source, places)  # fmt: skip


def _without_self(reduce: str, include: bool) -> Callable[..., Any] | None:
    """torch counts what it leaves out among the equal maxima that share the derivative."""
    if include or reduce not in ("amax", "amin"):
        return None
    end = -INF if reduce == "amax" else INF
    return lambda x, s, i: x.index_fill(0, i, end).scatter_reduce(0, i, s, reduce)


def _edges() -> None:
    edges = f64(-1.0, 0.0, 0.0, 1.0, 2.0)
    values = f64(-INF, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0, INF, NAN)
    for right, out in itertools.product((False, True), (False, True)):
        kw = {"right": right, "out_int32": out}
        case(
            f"bucketize {right}, {out}",
            lambda x, e, kw=kw: torch.bucketize(x, e, **kw),
            values,
            edges,
        )
        case(f"searchsorted {right}, {out}",
             lambda x, e, kw=kw: torch.searchsorted(e, x, **kw), values, edges)  # fmt: skip
        case(f"searchsorted with a sorter, {right}, {out}",
             lambda x, e, i, kw=kw: torch.searchsorted(e, x, sorter=i, **kw),
             values, edges.flip(0), ints(4, 3, 2, 1, 0), batched=False)  # fmt: skip
    case("bucketize without edges", torch.bucketize, values, f64())
    case("searchsorted in rows", lambda x, e: torch.searchsorted(e, x),
         f64([0, NAN], [1, 5]), f64([0, 0, 1], [1, 1, 1]))  # fmt: skip
    inside = values[1:-2]
    for low, high in ((0.0, 0.0), (-1.0, 2.0), (1.0, 1.0)):
        for of, x in {"": inside, " of equal numbers": inside * 0 + 3}.items():
            name = f"{low}, {high}{of}"
            case(f"histc {name}", lambda x, a=low, b=high: torch.histc(x, 4, a, b), x)
            case(f"histogram {name}",
                 lambda x, w, a=low, b=high: torch.histogram(x, 3, range=(a, b), weight=w),
                 x, some(7), smooth=False)  # fmt: skip
    case("isin", lambda x, y: torch.isin(x, y), values, edges)


def _poles() -> None:
    x, y = (
        t.flatten()
        for t in torch.meshgrid(
            f64(0.0, 1.0, -1.0, 2.5, -2.0, INF, NAN), f64(0.0, 1.0, -1.0, 2.0, 0.5), indexing="ij"
        )
    )

    def each(name: str, f: Callable[..., Any], *floats: Tensor, **options: Any) -> None:
        case(name, f, *floats, elementwise=True, **options)

    for name in "xlogy copysign fmod remainder float_power pow hypot atan2".split():
        each(name, getattr(torch, name), x, y)
    for name in "heaviside nextafter floor_divide".split():
        each(name, getattr(torch, name), x, y, smooth=False)
    each("xlog1py", torch.special.xlog1py, x, y)
    each("division by 0", lambda x, y: x / y, x, y)
    each("addcdiv by 0", lambda x, y: torch.addcdiv(x, x, y), x, y)
    each("ldexp", lambda x, y: torch.ldexp(x, y.round()), x, y)
    ends = f64(0.0, -0.0, 1.0, -1.0, 0.5, INF, -INF, NAN)
    unary = "sinc angle sgn sign frac trunc logit erfinv asin acos atanh acosh rsqrt log1p log2"
    for name in unary.split():
        each(name, getattr(torch, name), ends)
    each("entr", torch.special.entr, ends)
    each("nan_to_num", lambda x: torch.nan_to_num(x, 7.0, posinf=1.0), ends)
    each("frexp", lambda x: torch.frexp(x)[0], ends)
    each("logit eps", lambda x: torch.logit(x, 0.25), ends)
    case("prelu at 0", F.prelu, f64(0.0, -0.0, 1.0, -1.0), f64(0.25))
    # torch's reverse mode takes the sign of 0 for the direction.
    case("polar at 0", lambda r, t: torch.view_as_real(torch.polar(r, t)), f64(0, 1), f64(0, 2),
         right=lambda r, t: torch.stack([r * t.cos(), r * t.sin()], -1))  # fmt: skip
    case("abs of complex 0", lambda r, t: torch.complex(r, t).abs(), f64(0, 1), f64(0, 2))


def _products() -> None:
    a, b = some(2, 3), some(3, 2)
    nan = torch.full((2, 2), NAN, dtype=torch.float64)
    for beta, alpha in ((0, 1), (1, 0), (0, 0)):
        kw = {"beta": beta, "alpha": alpha}
        c = nan if beta == 0 else some(2, 2)
        case(f"addmm {kw}", _put(torch.addmm, kw), c, a, b)
        case(f"addmv {kw}", _put(torch.addmv, kw), c[0], a, b[:, 0])
        case(f"addr {kw}", _put(torch.addr, kw), c, a[:, 0], b[0])
        case(f"baddbmm {kw}", _put(torch.baddbmm, kw), c[None], a[None], b[None])
        case(f"addbmm {kw}", _put(torch.addbmm, kw), c, a[None], b[None])
    case("matmul over nothing", torch.matmul, some(2, 0), some(0, 3))
    case("einsum over nothing", lambda x, y: torch.einsum("ij,jk->k", x, y), some(2, 0), some(0, 3))
    case("linear of nothing", F.linear, some(0, 3), some(2, 3))
    case("addmm over nothing", torch.addmm, some(2, 3), some(2, 0), some(0, 3))
    case("tensordot dims=0", lambda x, y: torch.tensordot(x, y, dims=0), some(2), some(3))
    case("matrix_power 0", lambda x: torch.linalg.matrix_power(x, 0), some(3, 3))
    case("matrix_power -1", lambda x: torch.linalg.matrix_power(x, -1), some(3, 3))
    singular = f64([1, 2, 0], [2, 4, 0], [0, 0, 1])
    # torch's reverse mode multiplies the inverse by 0; the derivative is the cofactors.
    case("det of a singular matrix", torch.linalg.det, singular, right=_triple_product)
    case("det of zeros", torch.linalg.det, torch.zeros(3, 3, dtype=torch.float64))
    case("det of nothing", torch.linalg.det, some(0, 0))
    case("pinv of a singular matrix", torch.linalg.pinv, f64([1, 0], [0, 0]))


def _triple_product(a: Tensor) -> Tensor:
    return torch.linalg.cross(a[..., 0, :], a[..., 1, :]).mul(a[..., 2, :]).sum(-1)


def _reductions() -> None:
    x = f64([1, NAN, 3], [NAN, NAN, NAN], [2, 2, -1])
    # torch divides by the elements.
    case("prod of NaN", lambda x: x.prod(1), x, right=lambda x: x[:, 0] * x[:, 1] * x[:, 2])
    for name in "amax amin nansum nanmean nanmedian median mean std var logsumexp".split():
        case(f"{name} of NaN", lambda x, n=name: _values(getattr(torch, n)(x, 1)), x)
        case(f"{name} of NaN, in all", lambda x, n=name: _of_all(n, x), x)
    for name in "sum mean nansum amax amin std var".split():
        case(f"{name} dim=()", lambda x, n=name: getattr(torch, n)(x, dim=()), some(2, 3))
    for name in "sum prod mean nanmean logsumexp var std".split():
        case(f"{name} of nothing", lambda x, n=name: getattr(torch, n)(x, 1), some(2, 0))
    for name in "cumsum cumprod cummax cummin logcumsumexp sort softmax log_softmax amax".split():
        case(
            f"{name} of a number", lambda x, n=name: _values(getattr(torch, n)(x, dim=0)), f64(2)[0]
        )
    for name in "kthvalue topk".split():
        case(f"{name} of a number", lambda x, n=name: getattr(torch, n)(x, 1)[0], f64(2)[0])
    case("topk k=0", lambda x: torch.topk(x, 0)[0], some(3))
    for name in "cummax cummin logcumsumexp cumprod cumsum".split():
        case(f"{name} of NaN and ties", lambda x, n=name: _values(getattr(torch, n)(x, 0)),
             f64(1, 1, -INF, 3, 3, NAN, 4), right=RUNNING.get(name))  # fmt: skip
    low = f64([-INF, -INF, -INF], [-INF, 0, 1], [INF, 0, 1], [NAN, 0, 1])
    for name in "softmax log_softmax logsumexp logcumsumexp".split():
        case(f"{name} of infinities", lambda x, n=name: getattr(torch, n)(x, 1), low,
             smooth=name != "logcumsumexp")  # fmt: skip  # 0 or NaN next to -inf
    for q, way in itertools.product(
        (0.0, 0.5, 1.0), ("linear", "lower", "higher", "midpoint", "nearest")
    ):
        case(
            f"quantile {q}, {way}",
            lambda x, q=q, w=way: torch.quantile(x, q, 1, interpolation=w),
            x,
        )
        case(f"nanquantile {q}, {way}",
             lambda x, q=q, w=way: torch.nanquantile(x, q, 1, interpolation=w), x)  # fmt: skip
    for correction in (0, 1, 3, 5):
        case(
            f"var correction={correction}",
            lambda x, c=correction: torch.var(x, 1, correction=c),
            some(2, 3),
        )
        case(
            f"std correction={correction}",
            lambda x, c=correction: torch.std(x, 1, correction=c),
            some(2, 3),
        )
    case("var of equal numbers", lambda x: torch.var(x, 1), torch.ones(2, 3, dtype=torch.float64))
    for p in (0, 1, 2, 3, 0.5, -1, INF, -INF):
        zeros = f64([0, 0, 0], [1, 1, 0], [-2, 2, 1])
        case(f"vector_norm {p}", lambda x, p=p: torch.linalg.vector_norm(x, p, 1), zeros)
        case(f"norm {p}", lambda x, p=p: torch.norm(x, p, 1), zeros)
    for p in (0.0, 1.0, 2.0, 1.5, INF):
        same = f64([0, 0], [1, 2], [1, 2], [3, 1])
        case(f"cdist {p} at equal points", lambda x, y, p=p: torch.cdist(x, y, p), same, same[1:])
        case(f"pdist {p} at equal points", lambda x, p=p: F.pdist(x, p), same)
        case(
            f"pairwise_distance {p}",
            lambda x, y, p=p: F.pairwise_distance(x, y, p),
            same,
            same.flip(0),
        )
        case(f"normalize {p} of zeros", lambda x, p=p: F.normalize(x, p), same)
        case(f"renorm {p}", lambda x, p=p: torch.renorm(x, p or 1, 0, 1.0), same)
    case("cosine_similarity of zeros", F.cosine_similarity, same, same.flip(0))
    case("trapezoid of one", torch.trapezoid, some(2, 1))
    case("diff beyond the size", lambda x: torch.diff(x, n=3), some(2, 2))
    case("count_nonzero dim=()", lambda x: torch.count_nonzero(x, dim=()), f64([0, 1, 2]))


def _running_logsumexp(x: Tensor) -> Tensor:
    """torch's derivative of each sum is NaN beside a later NaN or infinity."""
    return torch.stack([x[..., : n + 1].logsumexp(-1) for n in range(x.shape[-1])], -1)


RUNNING = {"logcumsumexp": _running_logsumexp}


def _values(found: Any) -> Any:
    return found if isinstance(found, Tensor) else found[0]


def _of_all(name: str, x: Tensor) -> Any:
    f = getattr(torch, name)
    return f(x, (0, 1)) if name == "logsumexp" else f(x)


_label_losses()
_losses()
_tables()
_scattered()
_edges()
_poles()
_products()
_reductions()
