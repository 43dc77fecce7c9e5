"""Rules of elementwise operations.

NOTE [where narrow numbers are computed in float32]: torch computes each operation on bfloat16 and
float16 in float32 and rounds its result. So does a single XLA instruction; rules of several
instructions convert first (`widened`).

NOTE [integer arithmetic]: overflow wraps around, as in torch. Where torch raises an error for
division by zero, a compiled program can't: the quotient is -1 (all bits set) and the remainder is
the dividend, as in XLA and JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from xfunc.graph import build
from xfunc.graph.build import (
    Number,
    add,
    binary,
    compare,
    divide,
    multiply,
    select,
    subtract,
    unary,
)
from xfunc.graph.node import Node, array_type
from xfunc.rules import branches
from xfunc.rules.operands import (
    HALF,
    Operand,
    as_node,
    convert,
    dim_of,
    inexact,
    inexact_pair,
    is_inexact,
    kind_of,
    number,
    pair,
    promoted,
    rounded,
    scalar_type_name,
    together,
    wide,
    wide_together,
)
from xfunc.tracer.placeholders import Placeholder, node_of
from xfunc.tracer.table import base, rule

Unary = Callable[[Node], Node]


def widened(function: Callable[..., Node]) -> Callable[..., Node]:
    """A function of nodes of one dtype that computes half precision in float32."""

    def run(x: Node, *others: Any) -> Node:
        dtype = x.type.dtype
        if dtype not in HALF:
            return function(x, *others)
        up = [build.convert(n, torch.float32) if isinstance(n, Node) else n for n in (x, *others)]
        return build.convert(function(*up), dtype)

    return run


# -- arithmetic -----------------------------------------------------------------------------------


def _exact_factor(a: Operand, b: Operand) -> Node | None:
    """A factor or divisor of narrow numbers, in float32: torch does not round it to their dtype."""
    if type(a) is Placeholder and a.dtype in HALF and promoted(kind_of(a), kind_of(b)) is a.dtype:
        if isinstance(b, (int, float)):
            return build.constant(float(b), torch.float32)
        if isinstance(b, torch.Tensor) and b.dtype.is_floating_point and b.dtype is not a.dtype:
            return build.convert(node_of(b), torch.float32)
    return None


def _by_exact_factor(
    operation: Callable[[Node, Node], Node], a: Operand, b: Operand
) -> Node | None:
    """Narrow numbers multiplied or divided by such a factor, if it is one."""
    factor = _exact_factor(a, b)
    if factor is None or not isinstance(a, Placeholder):
        return None
    n = a.node
    made = operation(build.convert(n, torch.float32), build.broadcast(factor, n.type.dims))
    return build.convert(made, n.type.dtype)


def _as_and(a: Operand, b: Operand) -> Node:
    product = _by_exact_factor(multiply, a, b)
    if product is not None:
        return product
    x, y = pair(a, b)
    return Node("and" if x.type.dtype is torch.bool else "multiply", x.type, (x, y))


rule("mul.Tensor", "mul.Scalar")(_as_and)


def _greater_or_less(opcode: str) -> None:
    @rule(opcode)
    def run(a: Operand, b: Operand) -> Node:
        x, y = pair(a, b)
        if x.type.dtype.is_complex:
            return NotImplemented
        return Node(opcode, x.type, (x, y))


_greater_or_less("maximum")
_greater_or_less("minimum")


def _sum_rule(opcode: str) -> Callable[..., Node]:
    def run(a: Operand, b: Operand, alpha: Number = 1) -> Node:
        x, y = pair(a, b)
        dtype = x.type.dtype
        if type(alpha) is not bool and alpha == 1:
            return Node("or" if dtype is torch.bool else opcode, x.type, (x, y))
        if dtype is torch.bool:
            return Node("or", x.type, (x, y)) if alpha else x
        up = wide(dtype)
        x, y = build.convert(x, up), build.convert(y, up)
        alpha = rounded(alpha, dtype) if up is not dtype else alpha  # torch rounds no product
        y = multiply(y, number(alpha, up))
        return build.convert(Node(opcode, x.type, (x, y)), dtype)

    return run


_add, _difference = _sum_rule("add"), _sum_rule("subtract")
rule("add.Tensor", "add.Scalar")(_add)


@rule("sub.Tensor", "sub.Scalar")
def _sub(a: Operand, b: Operand, alpha: Number = 1) -> Node:
    masks = [kind_of(x)[0] in (torch.bool, bool) for x in (a, b)]
    if any(masks):
        which, use = "two bool tensors", "Use the `^` or `logical_xor()` operator instead."
        if not all(masks):
            which = "a bool tensor"
            use = "If you are trying to invert a mask, use the `~` or `logical_not()` operator "
            use += "instead."
        raise RuntimeError(f"Subtraction, the `-` operator, with {which} is not supported. {use}")
    return _difference(a, b, alpha)


@rule("rsub.Scalar", "rsub.Tensor")
def _rsub(a: Operand, b: Operand, alpha: Number = 1) -> Node:
    return _sub(b, a, alpha)


def _quotient(x: Node, y: Node) -> Node:
    out = divide(x, y)
    if not x.type.dtype.is_complex:
        return out
    # XLA multiplies by the reciprocal of a constant: NaN for zero. torch ignores the zero's sign.
    re, im = divide(build.real(x), 0.0), divide(build.imag(x), 0.0)
    return select(compare(y, 0, "EQ"), build.complex_(re, im), out)


@rule("div.Tensor", "div.Scalar", "true_divide.Tensor")
def _div(a: Operand, b: Operand) -> Node:
    quotient = _by_exact_factor(divide, a, b)
    if quotient is not None:
        return quotient
    x, y = inexact_pair(a, b)
    return _quotient(x, y)


@rule("reciprocal")
def _reciprocal(x: Placeholder) -> Node:
    n = as_node(x, inexact(x.dtype))
    return _quotient(build.full(1, n.type), n)


def _floor_of_floats(x: Node, y: Node) -> Node:
    """Floor division as in Python: from the remainder, which is exact."""
    rest = binary("remainder", x, y)
    quotient = divide(subtract(x, rest), y)
    quotient = select(_signs_differ(rest, y), subtract(quotient, 1), quotient)
    whole = unary("floor", quotient)
    late = compare(subtract(quotient, whole), 0.5, "GT")
    whole = select(late, add(whole, 1), whole)
    plain = divide(x, y)
    whole = select(compare(quotient, 0, "EQ"), _copysign(build.full(0, x.type), plain), whole)
    return select(compare(y, 0, "EQ"), plain, whole)


def _signs_differ(rest: Node, y: Node) -> Node:
    """Whether a remainder is not zero and has not the sign of the divisor."""
    apart = compare(compare(rest, 0, "LT"), compare(y, 0, "LT"), "NE")
    return build.and_(apart, compare(rest, 0, "NE"))


# NOTE [integers divided by zero]: XLA gives -1 as quotient, and the dividend as remainder. Where
# both operands are known, jaxlib 0.10 ends the process, for the least integer divided by -1, too.
def _of_integers(opcode: str, x: Node, y: Node) -> Node:
    dtype = x.type.dtype
    by = y.operands[0] if y.opcode == "broadcast" else y
    if dtype is torch.bool or (by.opcode == "constant" and by.params not in (0, -1)):
        return binary(opcode, x, y)
    zero = risky = compare(y, 0, "EQ")
    if dtype.is_signed:
        least = compare(x, torch.iinfo(dtype).min, "EQ")
        risky = build.or_(zero, build.and_(compare(y, -1, "EQ"), least))
    found = binary(opcode, x, select(risky, 1, y))
    by_zero = x if opcode == "remainder" else -1 if dtype.is_signed else torch.iinfo(dtype).max
    return select(zero, by_zero, found)


def _floor_of_integers(x: Node, y: Node) -> Node:
    quotient = _of_integers("divide", x, y)
    if not x.type.dtype.is_signed:
        return quotient
    down = _signs_differ(_of_integers("remainder", x, y), y)
    down = build.and_(down, compare(y, 0, "NE"))
    return subtract(quotient, build.convert(down, x.type.dtype))


@rule("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Node:
    if rounding_mode is None:
        return _div(a, b)
    dtype = promoted(kind_of(a), kind_of(b))
    if dtype.is_complex or dtype is torch.bool:
        return NotImplemented
    x, y = wide_together(dtype, a, b)
    if dtype.is_floating_point:
        out = unary_trunc(divide(x, y)) if rounding_mode == "trunc" else _floor_of_floats(x, y)
        return build.convert(out, dtype)
    return _of_integers("divide", x, y) if rounding_mode == "trunc" else _floor_of_integers(x, y)


@rule("floor_divide", "floor_divide.Scalar")
def _floor_divide(a: Operand, b: Operand) -> Node:
    return _div_mode(a, b, rounding_mode="floor")


def _rest(x: Node, y: Node) -> Node:
    if x.type.dtype.is_floating_point:
        return binary("remainder", x, y)
    return _of_integers("remainder", x, y)


@rule("fmod.Tensor", "fmod.Scalar")
def _fmod(a: Operand, b: Operand) -> Node:
    dtype = promoted(kind_of(a), kind_of(b))
    if dtype.is_complex or dtype is torch.bool:
        return NotImplemented
    x, y = wide_together(dtype, a, b)
    return build.convert(_rest(x, y), dtype)


@rule("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def _remainder(a: Operand, b: Operand) -> Node:
    dtype = promoted(kind_of(a), kind_of(b))
    if dtype.is_complex or dtype is torch.bool:
        return NotImplemented
    x, y = wide_together(dtype, a, b)
    rest = _rest(x, y)
    if dtype.is_signed:
        wrong = _signs_differ(rest, y)
        if not dtype.is_floating_point:
            wrong = build.and_(wrong, compare(y, 0, "NE"))
        rest = select(wrong, add(rest, y), rest)
    return build.convert(rest, dtype)


def _plus(name: str, combine: Callable[[Node, Node], Node]) -> None:
    @rule(name)
    def run(x: Operand, a: Operand, b: Operand, *, value: Number = 1) -> Node:
        dtype = promoted(kind_of(x), kind_of(a), kind_of(b))
        n, p, q = wide_together(dtype, x, a, b)
        if value != 1:
            p = multiply(p, number(value, p.type.dtype))
        return build.convert(add(n, combine(p, q)), dtype)


_plus("addcmul", multiply)
_plus("addcdiv", _quotient)


@rule("lerp.Scalar", "lerp.Tensor")
def _lerp(a: Placeholder, b: Placeholder, weight: Operand) -> Node:
    dtype = promoted(*[kind_of(t) for t in (a, b, weight) if isinstance(t, torch.Tensor)])
    if not is_inexact(dtype):
        return NotImplemented
    x, y, w = wide_together(dtype, a, b, weight)
    near = compare(unary_abs(w), 0.5, "LT")
    rest = subtract(y, x)
    low = add(x, multiply(w, rest))
    high = subtract(y, multiply(rest, subtract(build.full(1, w.type), w)))
    return build.convert(select(near, low, high), dtype)


# -- functions of one operand ---------------------------------------------------------------------


def _function(opcode: str, *names: str) -> None:
    """An XLA instruction; integers become floating."""

    @rule(*names)
    def run(x: Placeholder) -> Node:
        n = x.node
        if not is_inexact(n.type.dtype):
            n = convert(n, torch.get_default_dtype())
        if n.type.dtype.is_complex and opcode in ("log", "sqrt", "rsqrt"):
            return branches.logarithm(n) if opcode == "log" else branches.root(opcode, n)
        return Node(opcode, n.type, (n,))


for _name, _opcode in {
    "sin": "sine", "cos": "cosine", "tan": "tan", "tanh": "tanh", "exp": "exponential",
    "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt", "expm1": "exponential-minus-one",
    "sigmoid": "logistic",
}.items():  # fmt: skip
    _function(_opcode, _name)


@rule("erf")
def _erf(x: Placeholder) -> Node:
    n = as_node(x, inexact(x.dtype))
    return NotImplemented if n.type.dtype.is_complex else unary("erf", n)


def _whole(opcode: str, *names: str) -> None:
    """An XLA instruction that leaves integers alone."""

    @rule(*names)
    def run(x: Placeholder) -> Node:
        n = x.node
        if n.type.dtype.is_complex:
            return NotImplemented
        return Node(opcode, n.type, (n,)) if n.type.dtype.is_floating_point else n


_whole("floor", "floor")
_whole("ceil", "ceil")
_whole("round-nearest-even", "round")


def unary_trunc(x: Node) -> Node:
    """Round towards zero, with the sign of zero kept."""
    if not x.type.dtype.is_floating_point:
        return x
    return select(compare(x, 0, "LT"), unary("ceil", x), unary("floor", x))


@rule("trunc")
def _trunc(x: Placeholder) -> Node:
    return NotImplemented if x.dtype.is_complex else unary_trunc(x.node)


@rule("frac")
def _frac(x: Placeholder) -> Node:
    if x.dtype.is_complex:
        return NotImplemented
    return widened(lambda n: subtract(n, unary_trunc(n)))(x.node)


@rule("neg")
def _neg(x: Placeholder) -> Node:
    if x.dtype is torch.bool:
        raise RuntimeError("Negation, the `-` operator, on a bool tensor is not supported")
    return unary("negate", x.node)


def unary_abs(x: Node) -> Node:
    """The absolute value, real."""
    if x.type.dtype.is_complex:
        return Node("abs", array_type(x.type.dtype.to_real(), x.type.dims), (x,))
    return unary("abs", x) if x.type.dtype.is_signed else x


@rule("abs")
def _abs(x: Placeholder) -> Node:
    return unary_abs(x.node)


@rule("sign")
def _sign(x: Placeholder) -> Node:
    return NotImplemented if x.dtype.is_complex else _sgn(x)


@rule("sgn")
def _sgn(x: Placeholder) -> Node:
    n = x.node
    if n.type.dtype.is_complex:
        size = unary_abs(n)
        size = select(compare(size, 0, "EQ"), 1, size)
        return build.complex_(divide(build.real(n), size), divide(build.imag(n), size))
    if not n.type.dtype.is_signed or n.type.dtype is torch.bool:
        return n if n.type.dtype is torch.bool else convert(convert(n, torch.bool), n.type.dtype)
    if n.type.dtype.is_floating_point:  # NaN has the sign 0 in torch
        return select(compare(n, n, "NE"), 0, unary("sign", n))
    return unary("sign", n)


def _copysign(size: Node, sign: Node) -> Node:
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[size.type.dtype.itemsize]
    negative = compare(build.bitcast_convert(sign, bits), 0, "LT")
    size = unary("abs", size)
    return select(negative, unary("negate", size), size)


@rule("relu")
def _relu(x: Placeholder) -> Node:
    return NotImplemented if x.dtype.is_complex else binary("maximum", x.node, 0)


@rule("silu")
def _silu(x: Placeholder) -> Node:
    return widened(lambda n: multiply(n, unary("logistic", n)))(x.node)


@rule("threshold_backward")
def _threshold_backward(grad: Placeholder, x: Placeholder, threshold: Number) -> Node:
    g, n = pair(grad, x)
    return select(compare(n, number(threshold, n.type.dtype), "LE"), 0, g)


@rule("glu_jvp")
def _glu_jvp(out: Placeholder, x: Placeholder, tangent: Placeholder, dim: int) -> Node:
    dtype = x.dtype
    nodes = [build.convert(node_of(t), wide(dtype)) for t in (out, x, tangent)]
    dim = dim_of(dim, len(nodes[1].type.dims))
    size = nodes[1].type.dims[dim]
    gate = unary("logistic", build.slice_in(nodes[1], dim, size // 2, size))
    first, second = (build.slice_in(nodes[2], dim, k, k + size // 2) for k in (0, size // 2))
    rest = multiply(nodes[0], subtract(second, multiply(gate, second)))
    return build.convert(add(multiply(first, gate), rest), dtype)


@base("softshrink_backward", "hardshrink_backward")
def _shrink_backward(grad: Placeholder, x: Placeholder, lambd: Number) -> Node:
    g, n = pair(grad, x)
    limit = float(number(lambd, n.type.dtype).real)
    inside = build.and_(compare(n, -limit, "GE"), compare(n, limit, "LE"))
    return select(inside, 0, g)


@rule("isnan")
def _isnan(x: Placeholder) -> Node:
    n = x.node
    if n.type.dtype.is_complex:
        re, im = build.real(n), build.imag(n)
        return build.or_(compare(re, re, "NE"), compare(im, im, "NE"))
    if n.type.dtype.is_floating_point:
        return compare(n, n, "NE")
    return build.full(False, array_type(torch.bool, n.type.dims))


def conjugate(x: Node) -> Node:
    """The complex conjugate; real numbers as they are."""
    if not x.type.dtype.is_complex:
        return x
    return build.complex_(build.real(x), unary("negate", build.imag(x)))


@rule("conj", "_conj_physical", "_conj", "_conj_copy", "conj_physical")
def _conj(x: Placeholder) -> Node:
    return conjugate(x.node)


@rule("_neg_view_copy", "_neg_view")
def _neg_view(x: Placeholder) -> Node:
    return unary("negate", x.node)


@rule("complex")
def _complex(a: Placeholder, b: Placeholder) -> Node:
    p, q = (scalar_type_name(x.dtype) for x in (a, b))
    if not {a.dtype, b.dtype} <= {torch.float16, torch.float32, torch.float64}:
        raise RuntimeError(
            f"Expected both inputs to be Half, Float or Double tensors but got {p} and {q}"
        )
    if a.dtype is not b.dtype:
        raise RuntimeError(
            f"Expected object of scalar type {p} but got scalar type {q} for second argument"
        )
    return build.complex_(*pair(a, b))


# -- powers ---------------------------------------------------------------------------------------


@rule("pow.Tensor_Scalar")
def _pow_scalar(x: Placeholder, y: Number) -> Node:
    dtype = promoted(kind_of(x), kind_of(y))
    n = convert(x.node, dtype)
    if dtype.is_floating_point:
        if y == 2:
            return multiply(n, n)
        if y in (0.5, -0.5):  # NaN for -inf, as in torch
            return unary("sqrt" if y > 0 else "rsqrt", n)  # type: ignore[operator]
        return n if y == 1 else binary("power", n, number(y, dtype))
    if type(y) is int and not dtype.is_complex and dtype is not torch.bool:
        if y < 0:
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        return _whole_power(n, y)
    return _pow(x, y)


def _whole_power(n: Node, y: int) -> Node:
    """By repeated squaring."""
    out: Node | None = None
    while y:
        if y & 1:
            out = n if out is None else multiply(out, n)
        y >>= 1
        if y:
            n = multiply(n, n)
    return build.full(1, n.type) if out is None else out


@rule("pow.Tensor_Tensor", "pow.Scalar")
def _pow(a: Operand, b: Operand) -> Node:
    x, y = together(promoted(kind_of(a), kind_of(b)), a, b)
    dtype = x.type.dtype
    if dtype.is_complex:
        return _complex_power(x, y)
    if dtype.is_floating_point:
        return binary("power", x, y)
    if dtype is torch.bool and not (isinstance(a, Placeholder) and isinstance(b, Placeholder)):
        return build.or_(x, build.not_(y))
    return NotImplemented  # a loop over the bits: a kernel


def _complex_power(x: Node, y: Node) -> Node:
    out = branches.power(x, y)
    zero, re, im = compare(x, 0, "EQ"), build.real(y), build.imag(y)
    out = select(build.and_(zero, compare(y, 0, "EQ")), 1, out)
    below = build.and_(compare(re, 0, "LT"), compare(im, 0, "EQ"))
    out = select(build.and_(zero, below), complex(math.inf, math.nan), out)
    return select(build.and_(zero, compare(re, 0, "GT")), 0, out)


# -- bounds ---------------------------------------------------------------------------------------


def _clamped(x: Operand, least: Operand | None, most: Operand | None) -> Node:
    bounds = [b for b in (least, most) if b is not None]
    dtype = promoted(*map(kind_of, (x, *bounds)))
    is_maximum = len(bounds) == 1 and isinstance(bounds[0], torch.Tensor)
    if dtype.is_complex or (dtype is torch.bool and not is_maximum):
        return NotImplemented
    n, *found = together(dtype, x, *bounds)
    if least is not None:
        n = binary("maximum", n, found[0])
    return n if most is None else binary("minimum", n, found[-1])


@rule("clamp", "clamp.Tensor")
def _clamp(x: Operand, min: Operand | None = None, max: Operand | None = None) -> Node:
    return _clamped(x, min, max)


@rule("clamp_min", "clamp_min.Tensor")
def _clamp_min(x: Operand, min: Operand) -> Node:
    return _clamped(x, min, None)


@rule("clamp_max", "clamp_max.Tensor")
def _clamp_max(x: Operand, max: Operand) -> Node:
    return _clamped(x, None, max)


@rule("atan2")
def _atan2(a: Operand, b: Operand) -> Node:
    x, y = inexact_pair(a, b)
    return NotImplemented if x.type.dtype.is_complex else binary("atan2", x, y)


# -- slopes ---------------------------------------------------------------------------------------


@rule("tanh_backward")
def _tanh_backward(grad: Placeholder, out: Placeholder) -> Node:
    g, y = pair(grad, out)

    def slope(g: Node, y: Node) -> Node:
        rest = subtract(build.full(1, y.type), multiply(y, y))
        return multiply(g, conjugate(rest))

    return widened(slope)(g, y)


@rule("sigmoid_backward")
def _sigmoid_backward(grad: Placeholder, out: Placeholder) -> Node:
    g, y = pair(grad, out)

    def slope(g: Node, y: Node) -> Node:
        rest = multiply(y, subtract(build.full(1, y.type), y))
        return multiply(g, conjugate(rest))

    return widened(slope)(g, y)
