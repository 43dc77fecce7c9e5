"""Operations whose forward-mode derivative in torch 2.9 differs from the reverse-mode one.

NOTE [slopes at ties]: where two operands are equal, `fmax`, `clamp` with tensors and others have a
slope on either side, or from torch 2.14 on a half of each. torch's forward-mode formulas choose a
different one from its reverse-mode formulas, which are the ones its users know. For `logcumsumexp`
torch divides by a number that is 1e-12 too large. Operations composed of others here have the
derivatives of those.

NOTE [steps have no tangent]: the slope of `floor` is 0 wherever it is anything. torch's forward
mode makes that a tangent of zeros, which the next formula may multiply by an infinite slope;
its reverse mode, like JAX's transforms, does not follow the argument at all.

NOTE [derivatives of derivatives]: some forward-mode formulas use results that torch assumes have
no derivative, such as the factors that `solve` returns. When such a formula is differentiated
again, they count as constants, in eager torch 2.9 too. Under nested differentiation these
operations are composed of others, whose factors do have a derivative. The eigenvector formulas
divide by zero and replace the results with zeros, which makes their own derivative NaN.

NOTE [Hermitian arguments]: `cholesky` and `eigh` read one triangle of a matrix that is Hermitian.
Their derivatives are those of functions of its Hermitian part, as JAX's are: torch's reverse-mode
gradients are Hermitian, while its forward-mode rules take any change of the matrix as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import forward_ad

from xfunc.core import torch_versions
from xfunc.ops.cumulative import scan_along
from xfunc.ops.linalg import sign_of
from xfunc.ops.registry import composition, differentiable, is_nested, is_pushed, is_twice
from xfunc.rules.operands import HALF
from xfunc.torchlib import functorch

Tensor = torch.Tensor


def _is_real_and_pushed(x: Tensor, **options: object) -> bool:
    return not x.is_complex() and is_pushed(x)


def _step(name: str) -> None:
    """See NOTE [steps have no tangent]."""
    base, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, base), overload or "default")

    @composition(name, when=_is_real_and_pushed)
    def still(x: Tensor, **options: object) -> object:
        return op(x.detach(), **options)


for _name in ("ceil", "floor", "round", "round.decimals", "trunc", "sign", "sgn"):
    _step(_name)


def _alike(*tensors: Tensor) -> list[Tensor]:
    dtype = torch.result_type(*tensors[:2])
    for t in tensors[2:]:
        dtype = torch.promote_types(dtype, t.dtype)
    return [t.to(dtype) for t in tensors]


def _is_pushed_and_shares_ties(x: Tensor, y: Tensor) -> bool:
    return is_pushed(x) and torch_versions.shares_ties()


@composition("fmax", when=is_pushed)
def fmax(x: Tensor, y: Tensor) -> Tensor:
    x, y = _alike(x, y)
    greater = torch.where((x >= y) | y.isnan(), x, y)
    return torch.where(x == y, x / 2 + y / 2, greater) if torch_versions.shares_ties() else greater


@composition("fmin", when=_is_pushed_and_shares_ties)
def fmin(x: Tensor, y: Tensor) -> Tensor:
    x, y = _alike(x, y)
    return torch.where(x == y, x / 2 + y / 2, torch.where((x < y) | y.isnan(), x, y))


@composition("maximum", when=is_pushed)
def maximum(x: Tensor, y: Tensor) -> Tensor:
    x, y = _alike(x, y)
    either = torch.where(x > y, x, x + y)  # NaN
    return torch.where(x == y, x / 2 + y / 2, torch.where(x < y, y, either))


@composition("minimum", when=is_pushed)
def minimum(x: Tensor, y: Tensor) -> Tensor:
    x, y = _alike(x, y)
    either = torch.where(x < y, x, x + y)  # NaN
    return torch.where(x == y, x / 2 + y / 2, torch.where(x > y, y, either))


@composition("_prelu_kernel", when=is_pushed)
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    return torch.where(x > 0, x, weight * x)


@composition("clamp.Tensor", when=is_pushed)
def clamp(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    if torch_versions.shares_ties():
        return _clamp_sharing_ties(x, min, max)
    if min is None:
        assert max is not None
        x, max = _alike(x, max)
        return torch.where(x <= max, x, torch.where(x > max, max, torch.nan))
    if max is None:
        x, min = _alike(x, min)
        return torch.where(x >= min, x, torch.where(x < min, min, torch.nan))
    x, min, max = _alike(x, min, max)
    below, above = (x < min) & (min < max), (x > max) | (max < min)
    ends = torch.where(below, min, torch.where(above, max, torch.nan))
    same = torch.where((x < min) & (min == max), min.detach(), ends)  # neither bound's slope
    return torch.where((x >= min) & (x <= max), x, same)


def _clamp_sharing_ties(x: Tensor, min: Tensor | None, max: Tensor | None) -> Tensor:
    if min is None or max is None:
        below = x if min is None else maximum(x, min)
        return below if max is None else minimum(below, max)
    x, min, max = _alike(x, min, max)
    alone = torch.where(x > max, max, torch.where(x < max, min, x))  # where it is min == max
    is_alone = (min == max) & ~x.isnan()
    return torch.where(is_alone, alone, minimum(maximum(x, min), max))


def _is_half_and_twice(x: Tensor, y: Tensor) -> bool:
    return x.dtype in HALF and functorch.differentiates_twice((x, y))


@composition("hypot", when=_is_half_and_twice)
def hypot(x: Tensor, y: Tensor) -> Tensor:
    # torch's formulas subtract numbers of half precision that are nearly equal.
    return torch.hypot(x.float(), y.float()).to(torch.result_type(x, y))


def _is_pushed_or_twice(x: Tensor, dim: int) -> bool:
    # torch's rule takes logarithms of cotangents: its derivative is NaN next to -inf.
    return is_pushed(x) or functorch.differentiates_twice((x,))


@composition("logcumsumexp", when=_is_pushed_or_twice)
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    if not x.ndim or not x.numel():
        return x.clone()
    if x.is_complex():
        return scan_along(lambda a, b: (torch.logaddexp(a[0], b[0]),), (x,), dim)[0]
    if x.dtype in HALF:
        return logcumsumexp(x.float(), dim).to(x.dtype)
    still = x.detach()
    one = torch.where(x.isinf(), 0, x - still).exp()
    most, total = scan_along(_exp_added, (still, one), dim)
    # Where all are -inf nothing changes. Next to +inf the tangent is undefined: the derivative of
    # sqrt at 0 yields the NaN.
    change = torch.where(most == torch.inf, total - total.detach(), 1)
    unknown = torch.where(most == torch.inf, (change * change).sqrt(), 0)
    return torch.where(most.isinf(), most + unknown, most + total.log())


def _exp_added(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Sums of exponentials, each as the greatest exponent and the sum with it factored out."""
    most = torch.maximum(a[0], b[0])
    below, above = (torch.where(m == most, 0, m - most).exp() for m in (a[0], b[0]))
    return most, a[1] * below + b[1] * above


def _always(*args: object, **kwargs: object) -> bool:
    return True


def _is_pushed_within(*args: Tensor, **kwargs: object) -> bool:
    return is_pushed(*args) and is_nested(*args)


@composition("_linalg_solve_ex", when=is_nested)
def solve_ex(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    packed, pivots, info = torch.linalg.lu_factor_ex(a)
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    b = b.unsqueeze(-1) if vector else b
    x = torch.linalg.lu_solve(packed, pivots, b, left=left or vector)
    return (x.squeeze(-1) if vector else x), packed, pivots, info


def _is_pushed_or_has_no_rule(a: Tensor) -> bool:
    # torch's first- and second-order reverse rules check whether a complex matrix is singular. Its
    # third derivative is NaN in torch.func, where it takes a singular value decomposition, too.
    order = functorch.derivative_order((a,))
    return is_nested(a) or is_pushed(a) or order > 2 or (a.is_complex() and order > 1)


@composition("_linalg_det", when=_is_pushed_or_has_no_rule)
def det(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dot = None
    if not functorch.differentiates_twice((a,)):
        a, dot = _primal_and_tangent(a)
    packed, pivots, _ = torch.linalg.lu_factor_ex(a)
    sign, diagonal = sign_of(pivots, a), packed.diagonal(0, -2, -1)
    value = sign * diagonal.prod(-1)
    if dot is None:
        return value, packed, pivots
    # torch multiplies by the determinant itself, so that the slope at a singular matrix is 0.
    moved = torch.where(diagonal == 0, torch.finfo(a.dtype).eps, 0).to(a.dtype)
    turned = torch.linalg.lu_solve(packed + torch.diag_embed(moved), pivots, dot)
    scale = sign * (diagonal + moved).prod(-1)
    return _dual(value, scale * turned.diagonal(0, -2, -1).sum(-1)), packed, pivots


@composition("_linalg_slogdet", when=is_nested)
def slogdet(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    packed, pivots, _ = torch.linalg.lu_factor_ex(a)
    diagonal = packed.diagonal(0, -2, -1)
    sign = sign_of(pivots, a) * torch.sgn(diagonal).prod(-1)
    return sign, diagonal.abs().log().sum(-1), packed, pivots


# torch's forward-mode rules of these two read both triangles of the factor; the functions read one.
@composition("cholesky_solve", when=_always)
def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mH if upper else factor
    y = torch.linalg.solve_triangular(lower, b, upper=False)
    return torch.linalg.solve_triangular(lower.mH, y, upper=True)


@composition("cholesky_inverse", when=_always)
def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return cholesky_solve(identity.expand(factor.shape), factor, upper)


@composition("linalg_householder_product", when=_always)
def householder_product(reflectors: Tensor, scales: Tensor) -> Tensor:
    """``I - V T V^H`` with ``T = (I + D S)^-1 D``: S is the upper part of ``V^H V``, D the scales.

    torch's rule has a few operations for each column, which take long to compile.
    Source: Joffrain et al., "Accumulating Householder transformations, revisited", 2006.
    """
    rows, columns, k = *reflectors.shape[-2:], scales.shape[-1]
    start = torch.eye(rows, columns, dtype=reflectors.dtype, device=reflectors.device)
    start = start.expand(reflectors.shape)
    if not reflectors.numel() or not k:
        return start.clone()
    v = (reflectors.tril(-1) + start)[..., :k]
    unit = torch.eye(k, dtype=v.dtype, device=v.device)
    upper = unit + scales.unsqueeze(-1) * (v.mH @ v).triu(1)
    right = scales.unsqueeze(-1) * v[..., :columns, :].mH
    return start - v @ torch.linalg.solve_triangular(upper, right, upper=True, unitriangular=True)


@composition("cumprod", when=is_twice)
def cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    # torch's formula divides by the elements, and is a constant where one is zero.
    x = x if dtype is None else x.to(dtype)
    if not x.ndim or not x.numel():
        return x.clone()
    return scan_along(lambda a, b: (a[0] * b[0],), (x,), dim)[0]


@composition("cumprod_backward")
def cumprod_backward(grad: Tensor, x: Tensor, dim: int, output: Tensor) -> Tensor:
    """torch's formula for numbers that it can read; for those of a trace it has one for each place.

    Before the first zero, a derivative is the sum of this and all later products, without the
    element. That by the first zero goes on until the second one, and those after it are 0.
    """
    if not x.ndim or not x.numel():
        return grad
    if functorch.is_recorded(x):
        again = scan_along(lambda a, b: (a[0] * b[0],), (x,), dim)[0]
        return torch.autograd.grad(again, x, grad, create_graph=True)[0]
    dtype = x.dtype
    if dtype in HALF:
        grad, x, output = grad.float(), x.float(), output.float()
    zero = x == 0
    zeros = zero.cumsum(dim)
    leads, then = zeros == 0, zeros == 1
    products = torch.where(leads, grad * output.conj(), 0)
    later = products.flip(dim).cumsum(dim).flip(dim) / torch.where(zero, 1, x).conj()
    between = torch.where(then & ~zero, x, 1).cumprod(dim).conj()
    at_first = torch.where(then, grad * between, 0).sum(dim, keepdim=True)
    at_first = at_first * torch.where(leads, x, 1).prod(dim, keepdim=True).conj()
    return torch.where(leads, later, torch.where(then & zero, at_first, 0)).to(dtype)


def _pushed_vectors(turned: Tensor, eigenvalues: Tensor) -> Tensor:
    """The change of the eigenvectors, in their own basis: 0 along themselves."""
    same = torch.eye(eigenvalues.shape[-1], dtype=torch.bool, device=eigenvalues.device)
    apart = eigenvalues.unsqueeze(-2) - eigenvalues.unsqueeze(-1)
    return torch.where(same, 0, turned / torch.where(same, 1, apart))


def _hermitian(a: Tensor) -> Tensor:
    """The part that counts of a change of a Hermitian matrix: see NOTE [Hermitian arguments]."""
    return (a + a.mH) / 2


@differentiable("linalg_cholesky_ex")
def cholesky_ex(rule: Callable[..., object], a: Tensor, **options: object) -> object:
    if is_pushed(a):
        a, dot = _primal_and_tangent(a)
        a = _dual(a, _hermitian(dot))
    return rule(a, **options)


@composition("_linalg_eigh", when=is_pushed)
def eigh(a: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    a, dot = _primal_and_tangent(a)
    values, vectors = torch.linalg.eigh(a, UPLO)
    turned = vectors.mH @ _hermitian(dot) @ vectors
    value_dots = torch.real(turned.diagonal(0, -2, -1))
    vector_dots = vectors @ _pushed_vectors(turned, values)
    return _dual(values, value_dots), _dual(vectors, vector_dots)


@composition("linalg_eig", when=_is_pushed_within)
def eig(a: Tensor) -> tuple[Tensor, Tensor]:
    a, dot = _primal_and_tangent(a)
    values, vectors = torch.linalg.eig(a)
    turned = torch.linalg.solve(vectors, dot.to(vectors.dtype) @ vectors)
    vector_dots = vectors @ _pushed_vectors(turned, values)
    along = torch.real((vectors.conj() * vector_dots).sum(-2, keepdim=True))  # Their norm stays 1.
    value_dots = turned.diagonal(0, -2, -1)
    return _dual(values, value_dots), _dual(vectors, vector_dots - vectors * along)


def _primal_and_tangent(a: Tensor) -> tuple[Tensor, Tensor]:
    found = forward_ad.unpack_dual(a, level=0)
    assert found.tangent is not None
    return found.primal, found.tangent


def _dual(x: Tensor, dot: Tensor) -> Tensor:
    return forward_ad.make_dual(x, dot.clone(), level=0)
