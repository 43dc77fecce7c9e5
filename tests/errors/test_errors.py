"""The full text of each error (the cases are in `messages`), notes, and settings."""

import inspect
import linecache
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.errors import page as error_page
from tests.errors.messages.case import Case
from tests.errors.page import SECTIONS
from xfunc import errors

pytestmark = pytest.mark.quick

CASES = [case for section in SECTIONS for case in section.cases]
BUILTINS = {
    "ConcretizationError": TypeError,
    "PurityError": ValueError,
    "LeakError": RuntimeError,
    "TreeMismatchError": TypeError,
    "UnsupportedOpError": NotImplementedError,
    "ShardingError": ValueError,
    "ShapeError": ValueError,
    "CompileError": RuntimeError,
    "OutOfMemoryError": errors.CompileError,
    "ExecutionError": RuntimeError,
    "DamagedCheckpointError": ValueError,
    "CheckpointWriteError": OSError,
}


def run(code: str, namespace: dict[str, object], file: str) -> None:
    """Run code of an example under a name of its own, so that messages can quote its lines."""
    linecache.cache[file] = (len(code), None, code.splitlines(True), file)
    exec(compile(code, file, "exec", dont_inherit=True), namespace)


@pytest.mark.quick(2, seed=0)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_error_message(case: Case) -> None:
    name = case.message.partition(":")[0]
    namespace: dict[str, object] = {"torch": torch, "xf": xf, "__name__": "example"}
    with pytest.raises(Exception, match=r".") as caught:
        run(case.broken, namespace, "example.py")
    error = caught.value
    said = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    pattern = r"[^\n]*".join(map(re.escape, case.message.split("...")))
    assert re.fullmatch(pattern, said), f"expected\n{case.message}\nbut it says\n{said}"
    builtin = BUILTINS.get(name)
    assert builtin is None or isinstance(error, builtin)
    # After an error everything works: what the message advises, and any other call.
    run(case.mended, namespace, "mended.py")
    assert AFTER(torch.ones(2)).tolist() == [2.0, 2.0]


AFTER = xf.jit(lambda x: x + 1)


def test_error_class_has_documented_example() -> None:
    classes = {
        n for n, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)
    }
    assert {*BUILTINS} == classes - {"XfuncError"}
    shown = {case.message.partition(":")[0] for case in CASES}
    shown.add("ExecutionError")  # It takes a process that ends: test_distributed_initialize.py.
    assert shown >= {*BUILTINS, "TypeError", "ValueError", "RuntimeError"}


def test_error_message_ends_with_hint() -> None:
    ours = [c.message for c in CASES if "your own code" not in c.what.lower()]
    assert [m for m in ours if not m.splitlines()[-1].startswith("Hint: ")] == []


def test_errors_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "errors.md"
    stale = "run `python -m tests.errors.page > docs/errors.md`"
    assert page.read_text(encoding="utf-8") == error_page.page(), stale


def test_out_of_memory_error_bytes_of_oversized_result() -> None:
    with pytest.raises(errors.OutOfMemoryError, match="the results of huge take") as caught:
        xf.jit(huge)(1.0)
    assert caught.value.required_bytes == 4 * 2**40
    assert caught.value.limit_bytes is not None
    assert 2**20 < caught.value.limit_bytes < 2**42


def huge(x: torch.Tensor | float) -> torch.Tensor:
    return torch.zeros(2**20, 2**20) + x


def test_user_exception_gets_no_note() -> None:
    mine = ValueError("mine")

    def hook(_: torch.Tensor) -> None:
        raise mine

    def raises_in_a_hook(x: torch.Tensor) -> torch.Tensor:
        y = 2 * x
        y.register_hook(hook)
        return y.sum()

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise mine

    for function in (raises_in_a_hook, fails):
        with pytest.raises(ValueError, match=r"^mine$") as caught:
            xf.grad(function)(torch.ones(3))
        assert caught.value is mine
        assert not hasattr(mine, "__notes__")


def test_torch_error_note_shows_arguments() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x, x[:1]], dim=1)

    with pytest.raises(
        RuntimeError, match=r"Cannot concatenate|stack expects each tensor to be equal size"
    ) as caught:
        xf.jit(wrong)(torch.ones(3, 4))
    (note,) = caught.value.__notes__
    assert note.startswith("raised by torch.stack([float32[3,4], float32[1,4]], dim=1) (while")

    def wrong_index(x: torch.Tensor) -> torch.Tensor:
        return x[1:2, ..., ::2, 0, 0, 0]

    with pytest.raises(IndexError, match="too many indices") as caught:
        xf.jit(wrong_index)(torch.ones(3, 4))
    assert "Tensor.__getitem__(float32[3,4], (1:2, ..., ::2, 0, 0, 0))" in caught.value.__notes__[0]


def test_torch_error_reraised_gets_one_note() -> None:
    def stubborn(x: torch.Tensor) -> torch.Tensor:
        try:
            return x @ x
        except RuntimeError:
            raise

    with pytest.raises(
        RuntimeError, match=r"matrix-multiply|mat1 and mat2 shapes cannot be multiplied"
    ) as caught:
        xf.grad(xf.jit(stubborn))(torch.ones(2, 3))
    assert len(caught.value.__notes__) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        ("x" * 100, "'" + 56 * "x" + "..."),
        (torch.ones(2, 2).numpy(), "array([[1., 1.], [1., 1.]], dtype=float32)"),
    ],
)
def test_shown_value_fits_one_line(value: object, text: str) -> None:
    assert errors.short_repr(value) == text


def test_config_setting_invalid_or_late_raises() -> None:
    here = re.escape(__file__)
    with pytest.raises(ValueError, match=rf"set_platform was given 'gpu'\n  at {here}.*\nHint:"):
        xf.config.set_platform("gpu")
    with pytest.raises(ValueError, match=rf"set_cpu_devices was given 0\n  at {here}.*\nHint:"):
        xf.config.set_cpu_devices(0)
    AFTER(torch.ones(2))
    with pytest.raises(RuntimeError, match=rf"client had started\n  at {here}.*\nHint:"):
        xf.config.set_cpu_devices(2)


def deeper(x: torch.Tensor) -> torch.Tensor:
    return deeper(x + 1)


def interrupted(x: torch.Tensor) -> torch.Tensor:
    # A process started in the background may ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    return x


def exits(x: torch.Tensor) -> torch.Tensor:
    raise SystemExit(3)


@pytest.mark.parametrize("transform", [xf.jit, xf.grad, xf.vmap], ids=lambda t: t.__name__)
@pytest.mark.parametrize(
    ("function", "kind", "says"),
    [
        (deeper, RecursionError, "maximum recursion depth"),
        (interrupted, KeyboardInterrupt, r"^$"),
        (exits, SystemExit, "3"),
    ],
)
def test_trace_stopping_exception_propagates(
    transform: Any, function: Any, kind: type[BaseException], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        transform(function)(torch.ones(3))
    assert type(caught.value) is kind
    assert AFTER(torch.ones(2)).tolist() == [2.0, 2.0]


def test_jit_generator_inside_function() -> None:
    def rows(x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield from (row * 2 for row in x)

    assert [r.tolist() for r in xf.jit(lambda x: list(rows(x)))(torch.ones(2, 1))] == [[2.0], [2.0]]
