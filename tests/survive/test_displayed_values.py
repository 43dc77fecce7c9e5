"""Traced values that log records, debuggers, profilers and tracebacks hold: they are no leaks."""

from __future__ import annotations

import inspect
import io
import logging
import logging.handlers
import pdb
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.errors import LeakError

Tensor = torch.Tensor
X = torch.ones(3)
LOG = logging.getLogger("tests.displayed_values")


@pytest.fixture(autouse=True)
def _works_afterwards() -> Iterator[None]:
    yield
    assert xf.jit(lambda x: (x * 2).sum())(X).item() == 6
    assert xf.grad(lambda x: (x * x).sum())(X).tolist() == [2.0, 2.0, 2.0]


def test_logging_of_traced_values(caplog: pytest.LogCaptureFixture) -> None:
    def fun(x: Tensor) -> Tensor:
        y = x * 2
        LOG.info("y = %s", y)
        LOG.info("%(y)s and %(z)s", {"y": y, "z": [y + 1]}, extra={"more": (y,)})
        LOG.info(y)
        return y + 1

    with caplog.at_level(logging.INFO, LOG.name):
        for transformed in (fun, xf.checkpoint(fun), xf.jit(xf.vmap(fun))):
            assert xf.jit(transformed)(X).tolist() == [3.0, 3.0, 3.0]
        grad = xf.grad(lambda x: fun(x).sum())(X)
        assert grad.tolist() == [2.0, 2.0, 2.0]
        carry, _ = xf.scan(lambda c, x: (fun(c) + x, None), torch.zeros(()), X)
        assert carry.item() == 14
    assert "y = Traced<float32[3]>" in caplog.text
    record = next(r for r in caplog.records if r.args and r.msg == "y = %s")
    assert isinstance(record.args, tuple)
    with pytest.raises(LeakError, match="outlived its trace"):
        _ = record.args[0] + 1  # type: ignore[operator]


def test_records_that_are_formatted_later() -> None:
    out = io.StringIO()
    memory = logging.handlers.MemoryHandler(100, logging.CRITICAL, logging.StreamHandler(out))
    LOG.addHandler(memory)
    LOG.setLevel(logging.INFO)
    try:

        def fun(x: Tensor) -> Tensor:
            LOG.info("y = %s", x * 2)
            return x + 1

        assert xf.jit(fun)(X).tolist() == [2.0, 2.0, 2.0]
        memory.flush()
    finally:
        LOG.removeHandler(memory)
    assert "y = " in out.getvalue()


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("install", [sys.settrace, sys.setprofile])
def test_frames_that_a_profiler_keeps(install: Any) -> None:
    frames: list[types.FrameType] = []
    xf.clear_caches()  # The function is the same in each case.

    def note(frame: types.FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename == __file__:
            frames.append(frame)
        return note

    def fun(x: Tensor) -> Tensor:
        ys = [x * 2, x * 3]

        def inner() -> Tensor:
            return ys[0] + 1

        return inner()

    install(note)
    try:
        found = xf.jit(fun)(X)
    finally:
        install(None)
    assert found.tolist() == [3.0, 3.0, 3.0]
    assert frames
    kept = next(f for f in frames if f.f_code.co_name == "fun").f_locals["ys"]
    with pytest.raises(LeakError, match="outlived its trace"):
        _ = kept[0] + 1


def test_error_that_is_kept_with_its_traceback() -> None:
    errors: list[Exception] = []

    def fun(x: Tensor) -> Tensor:
        y = x * 2
        try:
            raise ValueError(f"of {y}")
        except ValueError as error:
            errors.append(error)
        return y + 1

    assert xf.jit(fun)(X).tolist() == [3.0, 3.0, 3.0]
    assert str(errors[0]) == "of Traced<float32[3]>"


def test_value_that_something_else_holds_too() -> None:
    class Keeper:
        value: Any = None

    keeper, frames = Keeper(), list[types.FrameType | None]()

    def fun(x: Tensor) -> Tensor:
        frames.append(inspect.currentframe())
        keeper.value = {"y": [x * 2]}
        return x + 1

    with pytest.raises(LeakError, match=r"float32\[3\] made by Tensor.mul, outlived its trace"):
        xf.jit(fun)(X)
    kept: list[Tensor] = []

    def appends(x: Tensor) -> Tensor:
        frames.append(inspect.currentframe())
        kept.append(x * 2)
        return x + 1

    with pytest.raises(LeakError, match="outlived its trace"):
        xf.jit(appends)(X)


COMMANDS = {
    "steps": "n\np z\nn\nw\na\nc\n",
    "display": "display y\nn\nn\nc\n",
    "frames": "u\np x\nd\npp locals()\nc\n",
    "assignment": "n\n!q = y * 2\np q\nc\n",
    "return": "n\nr\nn\nc\n",
}


@pytest.mark.sample(8, seed=1)
@pytest.mark.parametrize("transform", [xf.jit, xf.checkpoint, xf.vmap], ids=lambda t: t.__name__)
@pytest.mark.parametrize("name", COMMANDS)
def test_debugger_that_the_function_holds(name: str, transform: Any) -> None:
    """What a debugger has seen is no part of what a function depends on, either."""
    out, typed = io.StringIO(), io.StringIO(COMMANDS[name])
    debugger = pdb.Pdb(stdin=typed, stdout=out, nosigint=True, readrc=False)
    debugger.use_rawinput = False

    def fun(x: Tensor) -> Tensor:
        y = x * 2
        debugger.set_trace()
        z = y + 1
        return z * 2

    try:
        found = transform(fun)(X)
    finally:
        debugger.set_continue()
    assert found.tolist() == [6.0, 6.0, 6.0]
    assert "(Pdb)" in out.getvalue()


def test_debugger_that_keeps_all_frames() -> None:
    kept: list[Any] = []

    def note(frame: types.FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename == __file__:
            kept.append((frame, event, arg))
            return note
        return None

    def fun(x: Tensor) -> Tensor:
        values = iter([x * 2, x * 3])
        return x + next(values)

    sys.settrace(note)
    try:
        found = xf.jit(fun)(X)
    finally:
        sys.settrace(None)
    assert found.tolist() == [3.0, 3.0, 3.0]


def test_handler_that_the_function_holds() -> None:
    memory = logging.handlers.MemoryHandler(100, logging.CRITICAL)

    def fun(x: Tensor) -> Tensor:
        memory.emit(logging.LogRecord(LOG.name, logging.INFO, __file__, 1, "%s", (x * 2,), None))
        return x + 1

    assert xf.jit(fun)(X).tolist() == [2.0, 2.0, 2.0]
    assert len(memory.buffer) == 1
