"""Rules of real functions that XLA has no instruction for, composed as its libraries compose them.

`xfunc.ops.inverses` has kernels of the inverse functions for complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from xfunc.graph import build
from xfunc.graph.build import add, binary, compare, divide, multiply, select, subtract, unary
from xfunc.graph.node import Node
from xfunc.rules.elementwise import widened
from xfunc.rules.operands import Operand, as_node, inexact, pair
from xfunc.tracer.placeholders import Placeholder
from xfunc.tracer.table import rule

Unary = Callable[[Node], Node]


def _real(name: str, function: Unary, also_complex: bool = False) -> None:
    """The rule of a function of real numbers; integers become floating."""

    @rule(name)
    def run(x: Placeholder) -> Node:
        n = as_node(x, inexact(x.dtype))
        if n.type.dtype.is_complex and not also_complex:
            return NotImplemented
        return widened(function)(n)


def _one(n: Node) -> Node:
    return build.full(1, n.type)


def _exp(n: Node) -> Node:
    return unary("exponential", n)


def _scaled(opcode: str) -> Unary:
    """Half the sum or difference of ``exp(x)`` and ``exp(-x)``, where they do not overflow."""
    log_half = math.log(0.5)

    def run(n: Node) -> Node:
        up, down = _exp(add(n, log_half)), _exp(add(unary("negate", n), log_half))
        return binary(opcode, up, down)

    return run


def _sinh(n: Node) -> Node:
    if n.type.dtype.is_complex:
        return _scaled("subtract")(n)
    near = unary("exponential-minus-one", n)
    small = multiply(add(near, divide(near, add(near, 1))), 0.5)
    return select(compare(unary("abs", n), 1, "LT"), small, _scaled("subtract")(n))


_real("sinh", _sinh, also_complex=True)
_real("cosh", _scaled("add"), also_complex=True)
_real("atan", lambda n: binary("atan2", n, 1))
_real(
    "asin",
    lambda n: multiply(
        binary("atan2", n, add(unary("sqrt", multiply(subtract(_one(n), n), add(n, 1))), 1)), 2
    ),
)


def _acos(n: Node) -> Node:
    root = unary("sqrt", multiply(subtract(_one(n), n), add(n, 1)))
    out = multiply(binary("atan2", root, add(n, 1)), 2)
    return select(compare(n, -1, "EQ"), math.pi, out)


_real("acos", _acos)


def _log1p(n: Node) -> Node:
    return unary("log-plus-one", n)


def _asinh(n: Node) -> Node:
    size = unary("abs", n)
    root = unary("sqrt", add(multiply(size, size), 1))
    # log1p(x + x^2 / (1 + sqrt(x^2 + 1))), which keeps the digits of small numbers
    near = _log1p(add(size, divide(multiply(size, size), add(root, 1))))
    far = add(unary("log", size), math.log(2))
    large = math.sqrt(torch.finfo(n.type.dtype).max)
    out = select(compare(size, large, "GE"), far, near)
    return select(compare(n, 0, "EQ"), n, multiply(unary("sign", n), out))


def _acosh(n: Node) -> Node:
    large = math.sqrt(torch.finfo(n.type.dtype).max)
    far = add(unary("log", n), math.log(2))
    # log1p(t + sqrt(2 t + t^2)), of t = x - 1
    t = subtract(n, 1)
    near = _log1p(add(t, unary("sqrt", add(multiply(t, 2), multiply(t, t)))))
    out = select(compare(n, large, "GE"), far, near)
    return select(compare(n, 1, "LT"), math.nan, out)


def _atanh(n: Node) -> Node:
    out = multiply(subtract(_log1p(n), _log1p(unary("negate", n))), 0.5)
    return select(compare(unary("abs", n), 1, "GT"), math.nan, select(compare(n, 0, "EQ"), n, out))


_real("asinh", _asinh)
_real("acosh", _acosh)
_real("atanh", _atanh)
_real("log1p", _log1p)


# -- the error function ---------------------------------------------------------------------------


def polynomial(n: Node, coefficients: Sequence[float]) -> Node:
    """By Horner's rule, from the highest power on."""
    out = build.full(coefficients[0], n.type)
    for c in coefficients[1:]:
        out = add(multiply(out, n), c)
    return out


# Cephes' ndtr.c and ndtrf.c.
_ERFC_P = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0,
    4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2,
    9.34528527171957607540e2, 1.02755188689515710272e3, 5.57535335369399327526e2,
)  # fmt: skip
_ERFC_Q = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2,
    9.75708501743205489753e2, 1.82390916687909736289e3, 2.24633760818710981792e3,
    1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip
_ERFC_R = (
    5.64189583547755073984e-1, 1.27536670759978104416e0, 5.01905042251180477414e0,
    6.16021097993053585195e0, 7.40974269950448939160e0, 2.97886665372100240670e0,
)  # fmt: skip
_ERFC_S = (
    1.0, 2.26052863220117276590e0, 9.39603524938001434673e0, 1.20489539808096656605e1,
    1.70814450747565897222e1, 9.60896809063285878198e0, 3.36907645100081516050e0,
)  # fmt: skip
_ERFC_NEAR = (
    2.326819970068386e-2, -1.387039388740657e-1, 3.687424674597105e-1, -5.824733027278666e-1,
    6.210004621745983e-1, -4.944515323274145e-1, 3.404879937665872e-1, -2.741127028184656e-1,
    5.638259427386472e-1,
)  # fmt: skip
_ERFC_FAR = (
    -1.047766399936249e1, 1.297719955372516e1, -7.495518717768503e0, 2.921019019210786e0,
    -1.015265279202700e0, 4.218463358204948e-1, -2.820767439740514e-1, 5.641895067754075e-1,
)  # fmt: skip


def _erfc_tail(n: Node) -> Node:
    """``erfc(|x|)`` for ``|x| > 1``."""
    size = unary("abs", n)
    fall = _exp(unary("negate", multiply(n, n)))
    if n.type.dtype is torch.float64:
        near = divide(polynomial(size, _ERFC_P), polynomial(size, _ERFC_Q))
        far = divide(polynomial(size, _ERFC_R), polynomial(size, _ERFC_S))
        out = multiply(fall, select(compare(size, 8, "LT"), near, far))
    else:
        q = divide(_one(n), size)
        y = multiply(q, q)
        p = select(compare(size, 2, "LT"), polynomial(y, _ERFC_NEAR), polynomial(y, _ERFC_FAR))
        out = multiply(multiply(fall, q), p)
    return select(compare(fall, 0, "EQ"), 0, out)


def _erfc(n: Node) -> Node:
    tail = _erfc_tail(n)
    tail = select(compare(n, 0, "LT"), subtract(build.full(2, n.type), tail), tail)
    return select(compare(unary("abs", n), 1, "GT"), tail, subtract(_one(n), unary("erf", n)))


_real("erfc", _erfc)

# Giles, "Approximating the erfinv function", 2012.
_ERFINV_32 = (
    (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
     -0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
    (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
     -0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)  # fmt: skip
_ERFINV_64 = (
    (-3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18,
     1.115787767802518096e-17, -1.333171662854620906e-16, 2.0972767875968561637e-17,
     6.6376381343583238325e-15, -4.0545662729752068639e-14, -8.1519341976054721522e-14,
     2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
     1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08,
     4.2347877827932403518e-07, -1.3654692000834678645e-06, -1.3882523362786468719e-05,
     0.0001867342080340571352, -0.00074070253416626697512, -0.0060336708714301490533,
     0.24015818242558961693, 1.6536545626831027356),
    (2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07,
     1.8239629214389227755e-08, 1.5027403968909827627e-06, -4.013867526981545969e-06,
     2.9234449089955446044e-06, 1.2475304481671778723e-05, -4.7318229009055733981e-05,
     6.8284851459573175448e-05, 2.4031110387097893999e-05, -0.0003550375203628474796,
     0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066,
     -0.0037512085075692412107, 0.005370914553590063617, 1.0052589676941592334,
     3.0838856104922207635),
    (-2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09,
     -3.7894654401267369937e-09, 7.6157012080783393804e-09, -1.4960026627149240478e-08,
     2.9147953450901080826e-08, -6.7711997758452339498e-08, 2.2900482228026654717e-07,
     -9.9298272942317002539e-07, 4.5260625972231537039e-06, -1.9681778105531670567e-05,
     7.5995277030017761139e-05, -0.00021503011930044477347, -0.00013871931833623122026,
     1.0103004648645343977, 4.8499064014085844221),
)  # fmt: skip


def _erfinv(n: Node) -> Node:
    # Not log1p(-x * x), which loses digits near 1.
    w = unary("negate", add(_log1p(unary("negate", n)), _log1p(n)))
    if n.type.dtype is torch.float64:
        root = unary("sqrt", w)
        near = polynomial(subtract(w, 3.125), _ERFINV_64[0])
        middle = polynomial(subtract(root, 3.25), _ERFINV_64[1])
        far = polynomial(subtract(root, 5.0), _ERFINV_64[2])
        out = select(compare(w, 16.0, "LT"), middle, far)
        out = multiply(select(compare(w, 6.25, "LT"), near, out), n)
    else:
        near = polynomial(subtract(w, 2.5), _ERFINV_32[0])
        far = polynomial(subtract(unary("sqrt", w), 3.0), _ERFINV_32[1])
        out = multiply(select(compare(w, 5.0, "LT"), near, far), n)
    return select(compare(unary("abs", n), 1, "EQ"), multiply(n, math.inf), out)


_real("erfinv", _erfinv)


# -- sums of exponentials -------------------------------------------------------------------------


def _sum_of_powers(name: str, number: float) -> None:
    scale = math.log(number)

    def add_powers(x: Node, y: Node) -> Node:
        top = binary("maximum", x, y)
        # The same infinity twice is 0 apart.
        apart = select(compare(x, y, "EQ"), 0, unary("abs", subtract(x, y)))
        rest = _log1p(unary("exponential", multiply(apart, -scale)))
        return add(top, rest if number == math.e else multiply(rest, 1 / scale))

    @rule(name)
    def run(a: Operand, b: Operand) -> Node:
        x, y = pair(a, b)
        return widened(add_powers)(x, y) if x.type.dtype.is_floating_point else NotImplemented


_sum_of_powers("logaddexp", math.e)
_sum_of_powers("logaddexp2", 2)
