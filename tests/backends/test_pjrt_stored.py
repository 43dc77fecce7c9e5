"""Compiled programs on disk: what finds them, and damaged files."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.compilations import compilations
from xfunc.backends.pjrt import stored

pytestmark = pytest.mark.usefixtures("pjrt")
X = torch.tensor([1.0, 2.0])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    xf.jit(lambda: torch.zeros(1))()  # What is compiled once for all programs is compiled now.
    xf.config.set_compilation_cache_dir(tmp_path)
    yield tmp_path
    xf.config.set_compilation_cache_dir("")


def run(fun: Callable[..., Any], *args: torch.Tensor) -> tuple[int, Any]:
    """How often XLA compiles, as in another process, and the result."""
    import jax

    jax.clear_caches()
    xf.clear_caches()
    with compilations() as count:
        found = xf.device_get(xf.jit(fun)(*args))
        return count(), found


def test_exchanged_files_are_not_used(folder: Path) -> None:
    programs: list[Callable[..., Any]] = [
        lambda x: x * 3 + 1,
        lambda x: x * 5 - 1,
        lambda x: (x, x.sum(), x > 1),  # of another structure
    ]
    files: list[Path] = []
    for fun in programs:
        run(fun, X)
        files += [p for p in folder.iterdir() if p not in files]
    contents = [file.read_bytes() for file in files]
    for file, data in zip(files, [*contents[1:], contents[0]], strict=True):
        file.write_bytes(data)
    for wanted in (1, 0):
        for fun in programs:
            compiles, found = run(fun, X)
            assert compiles == wanted
            torch.testing.assert_close(found, fun(X))


def test_what_cannot_be_read_is_written_anew(folder: Path) -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return x * 7 - 2

    run(fun, X)
    (file,) = folder.iterdir()
    data = b"\x80\x04\x8e" + b"\xff" * 8  # a pickle of bytes, longer than memory
    file.write_bytes(hashlib.sha256(file.stem.encode() + data).digest() + data)
    assert stored.load(file, [], []) is None
    for wanted in (1, 0):
        compiles, found = run(fun, X)
        assert compiles == wanted
        torch.testing.assert_close(found, fun(X))


def test_scopes_and_lines_do_not_count(folder: Path) -> None:
    def at(line: int, scope: str) -> Callable[[torch.Tensor], torch.Tensor]:
        code = f"def fun(x):\n    with xf.named_scope('{scope}'):\n        return torch.tanh(x) * 9"
        names: dict[str, Any] = {"xf": xf, "torch": torch}
        exec(compile("\n" * line + code, str(folder / "model.py"), "exec"), names)
        return names["fun"]

    for line, scope, wanted in [(1, "a", 1), (9, "a", 0), (9, "b", 0)]:
        compiles, found = run(at(line, scope), X)
        assert compiles == wanted
        torch.testing.assert_close(found, torch.tanh(X) * 9)
