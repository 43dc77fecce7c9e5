"""All pairs and triples of dtypes, of arrays, 0-d arrays and numbers: as in eager torch.

Each call has eager torch's dtype and value, or raises an error of the same kind.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, of casts and of `out`

Tensor = torch.Tensor
Function = Callable[..., Any]
DTYPES = (
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
NUMBERS = (True, 2, 1.5, 1 + 2j, 70000, -3)
INDEX = torch.tensor([2, 0, 1, 3])
MASK = torch.tensor([True, False, True, True])


def values(dtype: torch.dtype, place: int) -> Tensor:
    """Four numbers for an operand; those of the second are no zeros."""
    if dtype is torch.bool:
        return torch.tensor([True, place == 1, True, place != 2])
    if not dtype.is_floating_point and not dtype.is_complex:
        whole = [[3, -2, 1, 5], [2, 3, -1, 1], [1, 2, 3, -2]][place]
        return torch.tensor([abs(n) if dtype is torch.uint8 else n for n in whole], dtype=dtype)
    parts = [[1.5, -2.25, 0.5, 3.0], [0.75, 2.5, -1.25, 2.0], [1.25, 0.5, 2.0, -1.0]][place]
    real = torch.tensor(parts, dtype=dtype.to_real() if dtype.is_complex else dtype)
    return torch.complex(real, real.flip(0)) if dtype.is_complex else real


def calls(function: Function, places: int) -> dict[str, tuple[Function, tuple[Tensor, ...]]]:
    """A function's calls with operands of all dtypes and kinds."""
    made: dict[str, tuple[Function, tuple[Tensor, ...]]] = {}
    for dtypes in itertools.product(DTYPES, repeat=places):
        whole = [values(dtype, place) for place, dtype in enumerate(dtypes)]
        for scalars in itertools.product((False, True), repeat=places):
            names = [f"{'0-d ' * s}{d}" for s, d in zip(scalars, dtypes, strict=True)]
            operands = tuple(v[0] if s else v for v, s in zip(whole, scalars, strict=True))
            made[", ".join(names)] = (function, operands)
    if places == 2:
        for dtype, number in itertools.product(DTYPES, NUMBERS):
            x = values(dtype, 0)
            made[f"{dtype}, {number}"] = (lambda x, n=number: function(x, n), (x,))
            made[f"0-d {dtype}, {number}"] = (lambda x, n=number: function(x, n), (x[0],))
    return made


def outcome(function: Function, operands: Sequence[Tensor]) -> Any:
    """The result, or the type of the error and its text."""
    try:
        return function(*operands)
    except Exception as error:
        return type(error), str(error)


def is_error(result: Any) -> bool:
    return isinstance(result, tuple) and isinstance(result[0], type)


def check(made: Mapping[str, tuple[Function, tuple[Tensor, ...]]], one_in: int, seed: int) -> None:
    """Compare the dtypes and errors of all calls, and the values of one in so many."""
    wanted = {k: outcome(f, [x.clone() for x in xs]) for k, (f, xs) in made.items()}
    operands = {k: xs for k, (_, xs) in made.items()}
    errors: dict[str, Any] = {}

    def every(operands: dict[str, tuple[Tensor, ...]]) -> dict[str, Tensor]:
        found = {}
        for key, (function, _) in made.items():
            result = outcome(function, operands[key])
            if is_error(result):
                errors[key] = result
            elif is_error(wanted[key]):
                errors[key] = str(result.dtype)
            else:
                found[key] = result
        return found

    # XLA has neither torch.complex32 nor the torch.bcomplex32 of torch 2.14.
    known = {k: w for k, w in wanted.items() if is_error(w) or "complex32" not in str(w.dtype)}
    made = {k: made[k] for k in known}
    said = xf.eval_shape(every, operands)
    wrong = []
    for key, want in known.items():
        got = errors.get(key) or (said[key].dtype, said[key].shape)
        if is_error(want) and isinstance(got, str):
            # Where torch lacks a kernel, or looks at values, ours may have a result.
            if not any(words in want[1] for words in NO_DTYPE_ERRORS):
                wrong.append(f"{key}: {got}, where torch raises {want[1]}")
        elif is_error(want) != is_error(got):
            if "complex32" in got[1]:  # which it is computed in, and XLA does not have
                continue
            wrong.append(f"{key}: {got}, where torch has {want}")
        elif is_error(want):
            if not (issubclass(got[0], want[0]) or issubclass(want[0], got[0])):
                wrong.append(f"{key}: {got}, where torch raises {want}")
        elif got != (want.dtype, want.shape):
            wrong.append(f"{key}: {got}, where torch has {want.dtype}{[*want.shape]}")
    assert not wrong, "\n".join(wrong)
    chosen = random.Random(seed).sample(sorted(said), len(said) // one_in)
    if not chosen:
        return
    results = xf.jit(lambda xs: {k: made[k][0](*xs[k]) for k in chosen})(operands)
    for key, got in xf.device_get(results).items():
        halves = [t.dtype for t in (got, *operands[key]) if t.dtype in HALVES]
        rtol, atol = (2e-2, 1e-2) if halves else (1e-5, 1e-5)
        if not (got.is_floating_point() or got.is_complex()):
            rtol = atol = 0
        torch.testing.assert_close(
            got, known[key], rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, k=key: f"{k}: {m}"
        )


HALVES = (torch.bfloat16, torch.float16)
NO_DTYPE_ERRORS = ("not implemented for", "out of bounds", "out of range", "ZeroDivisionError")


def in_place(name: str, **options: Any) -> Function:
    return lambda x, *others: getattr(x.clone(), name)(*others, **options)


def augmented(name: str) -> Function:
    return lambda x, y: getattr(operator, name)(x.clone(), y)


def put(index: Any) -> Function:
    def run(x: Tensor, y: Any) -> Tensor:
        x = x.clone()
        x[index] = y
        return x

    return run


FUNCTIONS = (
    "add sub rsub mul div floor_divide remainder fmod pow float_power atan2 hypot maximum minimum "
    "fmax fmin eq lt logical_and bitwise_or bitwise_left_shift copysign nextafter logaddexp xlogy "
    "gcd ldexp heaviside dist outer dot inner clamp"
).split()
CHANGES = (
    "add_ sub_ mul_ div_ floor_divide_ remainder_ pow_ float_power_ atan2_ hypot_ eq_ lt_ "
    "logical_or_ bitwise_and_ copysign_ xlogy_ ldexp_ clamp_ clamp_min_ copy_ fill_"
).split()
LOSSES = "huber smooth_l1 mse l1 soft_margin poisson_nll hinge_embedding".split()
BINARY: dict[str, Function] = {
    **{name: getattr(torch, name) for name in FUNCTIONS},
    **{name: in_place(name) for name in CHANGES if name != "fill_"},
    **{name: augmented(name) for name in ("iadd", "imul", "itruediv", "ifloordiv", "ipow", "ior")},
    "add, alpha=2": lambda x, y: torch.add(x, y, alpha=2),
    "add, alpha=1.5": lambda x, y: torch.add(x, y, alpha=1.5),
    "sub, alpha=True": lambda x, y: torch.sub(x, y, alpha=True),
    "sub_, alpha=1.5": in_place("sub_", alpha=1.5),
    "div, trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "where": lambda x, y: torch.where(MASK[0], x, y),
    "cat": lambda x, y: torch.cat([x, y]),
    "mm": lambda x, y: x.reshape(-1, 1) @ y.reshape(1, -1),
    "lerp, 0.5": lambda x, y: torch.lerp(x, y, 0.5),
    "lerp_, 0.5": lambda x, y: x.clone().lerp_(y, 0.5),
    "x[1:3] =": lambda x, y: put(slice(0, 4))(x.expand(4), y),
    "x[index] =": lambda x, y: put(INDEX)(x.expand(4), y),
    "x[2] =": lambda x, y: put(2)(x.expand(4), y),
    "index_put_": lambda x, y: x.expand(4).clone().index_put_((INDEX,), y),
    "scatter_": lambda x, y: x.expand(4).clone().scatter_(0, INDEX, y.expand(4)),
    "index_add_": lambda x, y: x.expand(4).clone().index_add_(0, INDEX, y.expand(4)),
    "index_copy_": lambda x, y: x.expand(4).clone().index_copy_(0, INDEX, y.expand(4)),
    "index_fill_": lambda x, y: x.expand(4).clone().index_fill_(0, INDEX, y),
    "put_": lambda x, y: x.expand(4).clone().put_(INDEX, y.expand(4)),
    "masked_scatter_": lambda x, y: x.expand(4).clone().masked_scatter_(MASK, y.expand(4)),
    "linalg.solve": lambda x, y: torch.linalg.solve(torch.eye(4, dtype=x.dtype), y.expand(4)),
    "linear": lambda x, y: F.linear(x.expand(2, 4), y.expand(3, 4)),
    "linalg.cross": lambda x, y: torch.linalg.cross(x.expand(4)[:3], y.expand(4)[:3]),
    "masked_fill_": lambda x, y: x.expand(4).clone().masked_fill_(MASK, y),
    **{f"{name}_loss": getattr(F, f"{name}_loss") for name in LOSSES},
}
TERNARY: dict[str, Function] = {
    **{name: getattr(torch, name) for name in ("lerp", "addcmul", "addcdiv", "clamp", "where")},
    **{name: in_place(name) for name in ("lerp_", "addcmul_", "addcdiv_", "clamp_")},
    "addcmul, value=2": lambda x, y, z: torch.addcmul(x, y, z, value=2),
    "addmm": lambda x, y, z: torch.addmm(x.expand(4, 4), y.expand(4, 4), z.expand(4, 4)),
    "addmm_": lambda x, y, z: x.expand(4, 4).clone().addmm_(y.expand(4, 4), z.expand(4, 4)),
    "addmv": lambda x, y, z: torch.addmv(x.expand(4), y.expand(4, 4), z.expand(4)),
    "addr": lambda x, y, z: torch.addr(x, y.expand(4), z.expand(4)),
    "add, out": lambda x, y, z: torch.add(x.expand(4), y, out=z.expand(4).clone()),
    "div, out": lambda x, y, z: torch.div(x.expand(4), y, out=z.expand(4).clone()),
    "eq, out": lambda x, y, z: torch.eq(x.expand(4), y, out=z.expand(4).clone()),
}


@pytest.mark.sample(8, seed=0)
@pytest.mark.quick(6, seed=0)
@pytest.mark.parametrize("name", BINARY)
def test_binary_operation_of_every_pair_of_dtypes(name: str) -> None:
    check(calls(BINARY[name], 2), one_in=12, seed=len(name))


@pytest.mark.sample(8, seed=0)
@pytest.mark.parametrize("name", TERNARY)
def test_ternary_operation_of_triples_of_dtypes(name: str) -> None:
    made = calls(TERNARY[name], 3)
    kept = random.Random(name).sample(sorted(made), 1500)
    check({key: made[key] for key in kept}, one_in=30, seed=len(name))
