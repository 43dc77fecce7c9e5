"""Random numbers of Python and NumPy, and the clock, are refused: each call would repeat them."""

from __future__ import annotations

import datetime
import os
import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from random import randint
from time import strftime
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
X = torch.ones(3)

generator = np.random.default_rng(0)
own_random = random.Random(0)
held = random.Random(0).random  # a bound method


class Noise:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.rng.normal()


def helper(x: Tensor) -> Tensor:
    scale = np.random.uniform(1.0, 2.0)
    return x * scale


def _seeded_again() -> float:
    own = random.Random(0)
    own.seed()
    return own.random()


captured, legacy = np.random.default_rng(1), np.random.RandomState(0)
DRAWS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "np.random.rand": (lambda x: x * np.random.rand(), "NumPy's global random generator is drawn"),
    "np.random.normal, an array": (
        lambda x: x + torch.from_numpy(np.random.normal(size=3)),
        "NumPy's global random generator",
    ),
    "np.random in a helper": (helper, "NumPy's global random generator"),
    "np.random in a loop": (lambda x: sum(x * np.random.rand() for _ in range(3)), "NumPy's"),
    "random.random": (lambda x: x * random.random(), "Random.random is called"),
    "random.randint": (lambda x: x * random.randint(1, 9), "random.randint is called"),
    "randint": (lambda x: x * randint(1, 9), "random.randint is called"),
    "random.shuffle": (lambda x: x * random.sample([1, 2, 3], 1)[0], "random.sample is called"),
    "a global generator": (lambda x: x * generator.random(), r"made before \(Generator\)"),
    "a closed-over RandomState": (lambda x: x * legacy.rand(), r"made before \(RandomState\)"),
    "a closed-over generator": (lambda x: x * captured.random(), r"made before \(Generator\)"),
    "a generator of an object": (Noise(), r"made before \(Generator\)"),
    "a Random": (lambda x: x * own_random.gauss(0, 1), "random.gauss is called"),
    "a bound method": (lambda x: x * held(), "Random.random is called"),
    "an unseeded generator": (lambda x: x * np.random.default_rng().random(), "getrandbits"),
    "an unseeded Random": (lambda x: x * random.Random().random(), "made without a seed"),
    "seeded by the system": (lambda x: x * _seeded_again(), "made without a seed"),
    "SystemRandom": (lambda x: x * random.SystemRandom().random(), "random.random is called"),
    "secrets": (lambda x: x * secrets.randbelow(3), "secrets.randbelow|randbelow is called"),
    "uuid": (lambda x: x * len(str(uuid.uuid4())), "uuid.uuid4 is called"),
    "urandom": (lambda x: x * os.urandom(1)[0], r"os\.urandom is called"),
    "time.time": (lambda x: x * time.time(), r"time\.time is called"),
    "time.time_ns": (lambda x: x * time.time_ns(), r"time\.time_ns is called"),
    "localtime": (lambda x: x * time.localtime().tm_sec, r"time\.localtime is called"),
    "gmtime": (lambda x: x * time.gmtime().tm_sec, r"time\.gmtime is called"),
    "strftime": (lambda x: x * int(time.strftime("%S")), r"time\.strftime is called"),
    "ctime": (lambda x: x * len(time.ctime()), r"time\.ctime is called"),
    "asctime": (lambda x: x * len(time.asctime()), r"time\.asctime is called"),
    "strftime, of a name": (lambda x: x * int(strftime("%Y")), r"time\.strftime is called"),
    "arguments in a tuple": (lambda x: x * time.gmtime(*()).tm_sec, r"time\.gmtime is called"),
    "datetime": (lambda x: x * datetime.datetime.now().year, "datetime.now is called"),
    "datetime, of a zone": (
        lambda x: x * datetime.datetime.now(datetime.UTC).year,
        "datetime.now is called",
    ),
    "date": (lambda x: x * datetime.date.today().year, "date.today is called"),
}


@pytest.mark.parametrize("name", DRAWS)
def test_jit_of_function_that_draws(name: str) -> None:
    f, message = DRAWS[name]
    expected = rf"({message})(.|\n)*while tracing(.|\n)*at .*test_draws.py:\d+(.|\n)*Hint: "
    with pytest.raises(xf.errors.PurityError, match=expected):
        xf.jit(f)(X)
    with pytest.raises(xf.errors.PurityError, match=expected):
        xf.grad(lambda x: xf.vmap(f)(x[None]).sum())(X)
    with xf.disable_jit():
        xf.jit(f)(X)


def test_error_names_the_line_that_draws() -> None:
    def f(x: Tensor) -> Tensor:
        y = x + 1
        scale = np.random.rand()
        z = y * 2
        return z * scale

    line = f.__code__.co_firstlineno + 2
    with pytest.raises(xf.errors.PurityError, match=rf"test_draws.py:{line} in f: scale = np"):
        xf.jit(f)(X)


def _own_generators(x: Tensor) -> Tensor:
    return x * np.random.default_rng(3).random() * random.Random(3).random()


class Dataset:
    """Holds a generator that the traced method does not draw from."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def draw(self) -> float:
        return self.rng.random() + np.random.rand() + random.random()

    def scale(self, x: Tensor) -> Tensor:
        return x * 2


def _measured(x: Tensor) -> Tensor:
    start = time.perf_counter()
    y = x * 2
    assert time.perf_counter() >= start
    return y if time.time is not None else x


def _dated(x: Tensor) -> Tensor:
    second = time.gmtime(3).tm_sec + time.localtime(5.0).tm_sec
    year = time.strftime("%Y", time.gmtime(0)) + time.asctime(time.gmtime(0)) + time.ctime(9)
    return x * second * len(year) * datetime.datetime.fromtimestamp(7).second


@pytest.mark.parametrize("f", [_own_generators, Dataset().scale, _measured, _dated])
def test_jit_of_function_without_a_clock_or_a_generator_of_others(
    f: Callable[..., Tensor],
) -> None:
    assert torch.equal(xf.jit(f)(X).cpu(), f(X))


def test_callbacks_may_draw() -> None:
    like = xf.ShapeDtypeStruct((3,), torch.float32)

    def f(x: Tensor) -> Tensor:
        return xf.pure_callback(lambda x: x * np.random.rand(), like, x)

    assert xf.jit(f)(X).shape == (3,)


def test_another_thread_may_draw_meanwhile() -> None:
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            np.random.rand()
            random.random()

    def f(x: Tensor) -> Tensor:
        for _ in range(100):
            x = torch.sin(x)
        return x if x.ndim else x * np.random.rand()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        assert xf.jit(f)(X).shape == (3,)
    finally:
        stop.set()
        thread.join()
