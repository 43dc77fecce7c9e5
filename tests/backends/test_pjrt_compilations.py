"""JAX compiles each program once, and none that it finds on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.backends.test_pjrt import close
from tests.support.compilations import compilations

pytestmark = pytest.mark.usefixtures("pjrt", "executables_not_kept")
X = torch.tensor([1.0, 2.0])


@pytest.fixture
def compiled(pjrt: None, executables_not_kept: None) -> Iterator[Callable[[], int]]:
    """How many programs JAX has compiled since the test began."""
    xf.jit(lambda: torch.zeros(1))()  # What is compiled once for all programs is compiled now.
    with compilations() as count:
        yield count


def test_jit_compiles_once_per_program(compiled: Callable[[], int]) -> None:
    init = xf.jit(lambda: (torch.ones(3), torch.zeros((), dtype=torch.int64)))
    step = xf.jit(lambda state, x: (state[0] * x, state[1] + 1), donate_argnums=0)
    read = xf.jit(lambda w: w * 2)
    state = init()
    assert compiled() == 1
    for _ in range(3):
        state = step(state, torch.full((3,), 2.0))
    assert compiled() == 2
    torch.testing.assert_close(xf.device_get(state), (torch.full((3,), 8.0), torch.tensor(3)))
    changed = read(state[0])
    changed[0] = 5.0
    loaded = xf.export.deserialize(xf.export.serialize(read.lower(torch.ones(3))))
    for given in (torch.ones(3), xf.device_put(torch.ones(3)), changed, read(changed)):
        torch.testing.assert_close(read(given).cpu(), given.cpu() * 2)
        torch.testing.assert_close(loaded(given).cpu(), given.cpu() * 2)
    assert compiled() == 4


@pytest.fixture
def folder(executables_not_kept: None, tmp_path: Path) -> Path:
    xf.jit(lambda: torch.zeros(1))()  # What is compiled once for all programs is compiled now.
    xf.config.set_compilation_cache_dir(tmp_path)
    return tmp_path


def run(fun: Callable[..., Any], *args: torch.Tensor) -> tuple[int, Any]:
    """How often XLA compiles, as in another process, and the result."""
    import jax

    jax.clear_caches()
    xf.clear_caches()
    with compilations() as count:
        found = xf.device_get(xf.jit(fun)(*args))
        return count(), found


def test_compilation_cache_exchanged_files_are_ignored(folder: Path) -> None:
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


def test_compilation_cache_ignores_scopes_and_lines(folder: Path) -> None:
    def at(line: int, scope: str) -> Callable[[torch.Tensor], torch.Tensor]:
        code = f"def fun(x):\n    with xf.named_scope('{scope}'):\n        return torch.tanh(x) * 9"
        names: dict[str, Any] = {"xf": xf, "torch": torch}
        exec(compile("\n" * line + code, str(folder / "model.py"), "exec"), names)
        return names["fun"]

    for line, scope, wanted in [(1, "a", 1), (9, "a", 0), (9, "b", 0)]:
        compiles, found = run(at(line, scope), X)
        assert compiles == wanted
        torch.testing.assert_close(found, torch.tanh(X) * 9)


def test_compilation_cache_keeps_programs(tmp_path: Path) -> None:
    import jax

    def run(donate: int | None = None) -> int:
        """How often XLA compiles."""
        x = xf.device_put(torch.ones(3))
        with compilations() as count:
            double = xf.jit(lambda x: (x.sin() * 0.125, x.sum()), donate_argnums=donate)
            close(double(x), (torch.ones(3).sin() * 0.125, torch.tensor(3.0)))
            stage = double.lower(torch.ones(3)).compile()
            assert stage.memory_analysis().argument_size_in_bytes == 12
            found = count()
        jax.clear_caches()
        xf.clear_caches()
        return found

    assert run() == 1
    xf.config.set_compilation_cache_dir(tmp_path / "programs")
    assert [run(), run(), run()] == [1, 0, 0]
    assert [run(0), run(0)] == [1, 0], "Another program."
    first, _ = sorted((tmp_path / "programs").iterdir())
    first.write_bytes(first.read_bytes()[:-1])
    first.with_name("other").touch()
    assert sorted([run() + run(0), run() + run(0)]) == [0, 1], "A damaged file is written anew."
    xf.config.set_compilation_cache_dir(tmp_path / "programs" / "other")
    message = "compiled programs cannot be kept in .*other: .*exists"
    with pytest.warns(UserWarning, match=message):
        assert run() == 1
    assert run() == 1
    xf.config.set_compilation_cache_dir("")
    assert run() == 1


def test_memory_analysis_of_program_found_on_disk(folder: Path) -> None:
    import jax

    def fun(x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x @ x).values.cumsum(0)

    x = torch.ones(32, 32)
    made = xf.jit(fun).lower(x).compile().memory_analysis()
    jax.clear_caches()
    xf.clear_caches()
    with compilations() as count:
        again = xf.jit(fun).lower(x).compile().memory_analysis()
    assert count() == 0
    assert again == made
    assert made.temp_size_in_bytes is not None
    assert made.temp_size_in_bytes >= 4096
