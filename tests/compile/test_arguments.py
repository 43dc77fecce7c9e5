"""Arguments of `jit`: static ones, Python numbers, keywords, and wrong ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.functions import scaled, vector

pytestmark = pytest.mark.usefixtures("cleared")


SCALED: Any = scaled  # for calls that its types refuse


# ------------------------------------------------------------------------------ static arguments


@dataclasses.dataclass(frozen=True)
class Config:
    power: int
    names: tuple[str, ...] = ()


def _by_config(x: torch.Tensor, config: Any, *rest: Any, flag: Any = False) -> torch.Tensor:
    y = x**config.power if isinstance(config, Config) else x * float(config)
    return y + 1 if flag is True else y


def test_jit_static_arguments_keyed_by_value_and_type() -> None:
    f = xf.jit(_by_config, static_argnums=1, static_argnames="flag")
    traces = 0
    for config, flag, new in [
        (Config(2), False, True), (Config(2), False, False), (Config(3), False, True),
        (Config(3), True, True), (1, False, True), (1.0, False, True), (True, False, True),
        (1, 1, True), (1, True, True), (1, False, False),
    ]:  # fmt: skip
        want = _by_config(vector(), config, flag=flag)
        got = f(vector(), config, flag=flag)
        torch.testing.assert_close(xf.device_get(got), want)
        traces += new
        assert f.cache_info().traces == traces, (config, flag)


def test_jit_static_argument_by_position_or_name() -> None:
    f = xf.jit(scaled, static_argnums=1)
    for _ in range(2):
        assert f(vector(), 3).tolist() == f(vector(), k=3).tolist() == [3.0, 6.0, 9.0]
    assert f(vector()).tolist() == [2.0, 4.0, 6.0]
    g = xf.jit(scaled, static_argnames=("k",))
    assert g(vector(), 3).tolist() == g(k=3, x=vector()).tolist() == [3.0, 6.0, 9.0]
    h = xf.jit(scaled, static_argnums=-1)
    assert h(vector(), 3).tolist() == [3.0, 6.0, 9.0]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: xf.jit(SCALED, static_argnums=1)(vector(), [1]), ValueError, "not hashable.*list"),
        (lambda: xf.jit(SCALED, static_argnames="k")(vector(), k={}), ValueError, "'k'.*hashable"),
        (lambda: xf.jit(SCALED, static_argnums=5), ValueError, "none at 5"),
        (lambda: xf.jit(SCALED, static_argnames="z"), ValueError, "no parameter 'z'"),
        (lambda: xf.jit(SCALED, donate_argnums=5), ValueError, "none at 5"),
        (lambda: xf.jit(SCALED, donate_argnames="z"), ValueError, "no parameter 'z'"),
        (lambda: xf.jit(SCALED, static_argnums=1, donate_argnums=1), ValueError, "both static"),
        (lambda: xf.jit(SCALED)("text"), TypeError, r"'text' \(a str\) as x\n"),
        (lambda: xf.jit(SCALED)({"a": [1, object()]}), TypeError, r"as x\['a'\]\[1\]\n"),
        (lambda: xf.jit(SCALED)(vector(), k=len), TypeError, r" as k\n"),
        (lambda: xf.jit(lambda *a: a)(1, "b"), TypeError, r"'b'.* as a\[1\]|argument 1"),
        (lambda: xf.jit(SCALED)(), TypeError, "missing 1 required.*'x'"),
        (lambda: xf.jit(SCALED)(1, 2, 3), TypeError, "takes from 1 to 2|positional"),
        (lambda: xf.jit(SCALED)(vector(), z=1), TypeError, "unexpected keyword.*'z'"),
        (lambda: xf.jit(SCALED, static_argnums=1)(1, 2, 3), TypeError, "positional"),
        (lambda: xf.jit(SCALED, static_argnums=1)(vector(), torch.zeros(3)), ValueError, "static"),
    ],
)  # fmt: skip
def test_jit_wrong_arguments(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


MODULE = torch.nn.Linear(3, 3)
WRONG = {
    "xf.functional": lambda: MODULE,
    "optimizers.md": lambda: torch.optim.SGD(MODULE.parameters()),
    "(pass|make it) a list": MODULE.parameters,
    "NumPy arrays": object,
}
TAKERS: dict[str, Callable[[Any], object]] = {
    "jit": xf.jit(lambda x: x),
    "vmap": xf.vmap(lambda x: x),
    "grad": xf.grad(lambda x: x),
    "vjp": lambda x: xf.vjp(lambda a: a, x),
    "jvp": lambda x: xf.jvp(lambda a: a, (x,), (x,)),
    "linearize": lambda x: xf.linearize(lambda a: a, x),
    "hessian": xf.hessian(lambda x: x),
    "scan": lambda x: xf.scan(lambda c, _: (c, None), x, torch.ones(2)),
    "cond": lambda x: xf.cond(torch.tensor(True), torch.sin, torch.cos, x),
    "device_put": xf.device_put,
    "jit of grad": xf.jit(xf.grad(lambda x: x)),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("hint", WRONG)
def test_transforms_refuse_non_arrays(taker: str, hint: str) -> None:
    """The hint says what to pass in its place."""
    with pytest.raises(TypeError, match=f"Hint: .*{hint}"):
        TAKERS[taker](WRONG[hint]())


def test_jit_wrong_arguments_name_the_line() -> None:
    for call in (
        lambda: xf.jit(SCALED)({"a": "text"}),
        lambda: xf.jit(SCALED, static_argnums=1)(vector(), [1]),
        lambda: xf.jit(SCALED, static_argnums=7),
        lambda: xf.jit(lambda x: x["b"].nonzero())({"b": vector()}),
    ):
        line = call.__code__.co_firstlineno
        with pytest.raises(
            (TypeError, ValueError, NotImplementedError), match=f"test_arguments.py:{line}"
        ):
            call()


# ------------------------------------------------------------------------------- dynamic arguments


def test_jit_python_numbers_are_dynamic() -> None:
    f = xf.jit(lambda x: x)
    for value, dtype in [
        (2, torch.int64), (3, torch.int64), (2.0, torch.float32), (3.5, torch.float32),
        (True, torch.bool), (False, torch.bool), (1j, torch.complex64), (2j, torch.complex64),
        (-(2**63), torch.int64), (float("inf"), torch.float32),
    ]:  # fmt: skip
        got = f(value)
        assert got.dtype == dtype
        assert got.item() == value
    assert f.cache_info().traces == 4
    g = xf.jit(scaled)
    for k in range(5):
        assert g(vector(), k).tolist() == [k, 2.0 * k, 3.0 * k]
    assert g.cache_info().traces == 1


def test_jit_keyword_arguments() -> None:
    def total(*args: Any, **kwargs: Any) -> Any:
        return sum(args) + sum(v * len(k) for k, v in kwargs.items())

    f = xf.jit(total)
    assert f(vector(), aa=vector(), b=vector()).tolist() == [4.0, 8.0, 12.0]
    assert f(vector(), b=vector(), aa=vector()).tolist() == [4.0, 8.0, 12.0]
    assert f(b=vector(), aa=vector()).tolist() == [3.0, 6.0, 9.0]
    assert f(vector(), vector()).tolist() == [2.0, 4.0, 6.0]
    g = xf.jit(lambda x, y: x - y)
    assert g(y=vector(), x=vector() * 3).tolist() == g(vector() * 3, vector()).tolist()


@pytest.fixture
def double() -> Iterator[None]:
    """float64 as torch's default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
def test_python_numbers_with_float64_as_the_default_dtype() -> None:
    x = 0.1  # which float32 rounds
    f: Any = xf.jit(lambda x, c: (x * torch.ones(2), c, 0.2, 1j))
    made, given, returned, imaginary = f(x, x + 1j)
    assert made.dtype == returned.dtype == torch.float64
    assert given.dtype == imaginary.dtype == torch.complex128
    assert made.tolist() == [0.1, 0.1]
    assert given.item() == 0.1 + 1j
    assert returned.item() == 0.2
    assert xf.grad(lambda x: x * x)(0.1).item() == 0.2
    assert xf.jvp(lambda x: x * 3, (0.1,), (0.1,))[1].item() == 0.1 * 3
    carry, _ = xf.scan(lambda c, _: (c * 2, None), 0.1, length=3)
    assert carry.item() == 0.8
    assert f.trace(0.1, 1j).in_avals[0].dtype == torch.float64
    assert xf.eval_shape(lambda x: x, 0.1).dtype == torch.float64


def test_python_numbers_after_a_change_of_the_default_dtype() -> None:
    f = xf.jit(lambda x: x * torch.ones(2))
    assert f(0.1).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert f(0.1).tolist() == [0.1, 0.1]
    finally:
        torch.set_default_dtype(torch.float32)
    assert f(0.1).dtype == torch.float32
