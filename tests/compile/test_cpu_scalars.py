"""An array of the CPU without dimensions is a number to torch, next to arrays of any device."""

from __future__ import annotations

import pytest
import torch

import xfunc as xf

OPERATIONS = """
    add sub mul div pow remainder fmod maximum minimum fmax fmin atan2 hypot copysign nextafter
    xlogy logaddexp floor_divide heaviside gcd lcm eq lt ge bitwise_and bitwise_left_shift
    bitwise_right_shift logical_or true_divide
""".split()
INTEGERS = {"gcd", "lcm", "bitwise_and", "bitwise_left_shift", "bitwise_right_shift"}
FLOATING = {"nextafter", "hypot", "logaddexp"}


@pytest.mark.parametrize("name", OPERATIONS)
def test_binary_operation_with_cpu_scalar(name: str) -> None:
    operation = getattr(torch, name)
    for dtype in (torch.int32, torch.float32):
        if name in (FLOATING if dtype is torch.int32 else INTEGERS):
            continue
        x, two = torch.arange(1, 7).reshape(2, 3).to(dtype), torch.tensor(2, dtype=dtype)
        found = xf.jit(lambda x, o=operation, t=two: (o(x, t), o(t, x)))(x)
        torch.testing.assert_close(xf.device_get(found), (operation(x, two), operation(two, x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bool])
@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
def test_bitwise_shift_of_non_integers_is_refused(name: str, dtype: torch.dtype) -> None:
    """XLA ends the process on them."""
    x = torch.ones(3).to(dtype)
    with pytest.raises(xf.errors.UnsupportedOpError, match=rf"torch.{name} .* shifts integers"):
        xf.jit(lambda x: getattr(torch, name)(x, x))(x)


X = torch.tensor([1.0, 2.0, 3.0])
MADE_THERE = {
    "where": lambda x, c: torch.where(x > 1, x, c),
    "the condition of where": lambda x, c: torch.where(c > 1, x, 0),
    "cat": lambda x, c: torch.cat([x, c]),
    "stack": lambda x, c: torch.stack((x, c)),
    "lerp": lambda x, c: torch.lerp(x, c, 0.5),
    "addcmul": lambda x, c: torch.addcmul(x, c, c),
    "gather": lambda x, c: x.gather(0, c.long()),
    "an index": lambda x, c: x[c.long()],
    "copy_": lambda x, c: x.clone().copy_(c),
    "a batch": lambda x, c: torch.vmap(lambda v: torch.where(v > 1, v, c))(x),
}


def test_jit_array_made_on_cpu_inside_function() -> None:
    """It is moved to where the others are."""
    made = lambda: torch.tensor([0.0, 2.0, 1.0], device="cpu")  # noqa: E731
    expected = {name: f(X, made()) for name, f in MADE_THERE.items()}
    for transform in (xf.jit, lambda f: lambda x: xf.jvp(f, (x,), (x,))[0]):
        found = transform(lambda x: {name: f(x, made()) for name, f in MADE_THERE.items()})(X)
        torch.testing.assert_close(xf.device_get(found), expected)
    assert xf.grad(lambda x: torch.where(x > 1, x, made()).sum())(X).tolist() == [0, 1, 1]
