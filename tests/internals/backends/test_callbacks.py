"""Host calls as on an accelerator, where they are JAX's own callbacks; here they run on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.inspect import test_host_callbacks as usual
from tests.support.fresh import Server
from xfunc.backends.pjrt import callbacks
from xfunc.errors import UnsupportedOpError

pytestmark = pytest.mark.usefixtures("pjrt")
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that were called."""
    xf.clear_caches()  # Programs of the tests of the usual way must not be used.
    made: list[str] = []
    run = callbacks._run

    def noted(name: str, *args: Any) -> Any:
        made.append(name)
        return run(name, *args)

    monkeypatch.setattr(callbacks, "through_jax", lambda: True)
    monkeypatch.setattr(callbacks, "_run", noted)
    return made


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("sent", [False, True], ids=["gpu", "tpu"])
@pytest.mark.parametrize("name", usual.CASES)
def test_callbacks_through_jax_results(
    name: str, sent: bool, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "are_sent", lambda: sent)
    got, want = usual.CASES[name]
    torch.testing.assert_close(got().cpu(), want)
    assert calls or name == "disable_jit"


def test_callbacks_through_jax_effects_once_per_run() -> None:
    usual.test_io_callback_runs_once_per_call()


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("dtype", usual.DTYPES, ids=str)
def test_callbacks_through_jax_every_dtype(dtype: torch.dtype, calls: list[str]) -> None:
    usual.test_pure_callback_dtypes(dtype)
    assert len(calls) >= 2  # XLA needs none for an array without elements


def test_callbacks_through_jax_for_lapack(calls: list[str]) -> None:
    x = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
    found = xf.jit(torch.linalg.eigvals)(x).cpu()
    torch.testing.assert_close(found, torch.linalg.eigvals(x))
    assert calls[0].startswith("lapack ")


def test_callbacks_through_jax_64_bit_values(calls: list[str]) -> None:
    import jax

    x = torch.tensor([1 << 40, 3])
    f = xf.jit(lambda x: xf.pure_callback(lambda x: x + 1, x, x) * 2)
    jax.config.update("jax_enable_x64", False)
    try:
        assert f(x).tolist() == [(1 << 41) + 2, 8]
    finally:
        jax.config.update("jax_enable_x64", True)
    assert len(calls) == 1


def test_callbacks_through_jax_read_donated_argument() -> None:
    seen: list[list[float]] = []

    def note(x: Tensor) -> Tensor:
        seen.append(x.tolist())
        return x * 3

    f = xf.jit(lambda x: xf.pure_callback(note, x, x) + x, donate_argnums=0)
    given = xf.jit(torch.neg)(torch.tensor([1.0, 2.0]))
    assert f(given).tolist() == [-4, -8]
    assert seen == [[-1, -2]]
    with pytest.raises(RuntimeError, match="donated"):
        _ = given + 1


def test_callbacks_on_unsupported_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedOpError, match="which is not possible on v6e"):
        xf.jit(usual.f).lower(usual.X).compile("tpu:v6e:2x2")
    monkeypatch.setattr(callbacks.client, "platform", lambda: "other")
    with pytest.raises(UnsupportedOpError, match=r"cannot call the host(.|\n)*backend \"pjrt\""):
        xf.jit(lambda x: usual.f(x))(usual.X)


@pytest.mark.usefixtures("executables_not_kept")
def test_callbacks_through_jax_programs_are_not_cached(tmp_path: Path) -> None:
    xf.config.set_compilation_cache_dir(tmp_path)
    xf.device_get(xf.jit(lambda x: usual.f(x))(usual.X))
    assert not list(tmp_path.glob("*.compiled"))
    xf.device_get(xf.jit(lambda x: x * 7)(usual.X))
    assert list(tmp_path.glob("*.compiled"))


# After a callback that fails, JAX's CPU client launches all programs of the process synchronously.
FAILS = """
import pytest, torch, xfunc as xf
from xfunc.backends.pjrt import callbacks
callbacks.through_jax = lambda: True
answers = [KeyError("no such row"), SystemExit(3), None]
seen = []
def fails(x):
    seen.append(x.tolist())
    error = answers.pop(0)
    if error is not None:
        raise error
    return x + 1
f = xf.jit(lambda x: xf.scan(lambda c, _: (xf.pure_callback(fails, c, c), None), x, length=3)[0])
with pytest.raises(KeyError, match="no such row") as raised:
    f(torch.ones(2))
assert raised.traceback[-1].name == "fails"
with pytest.raises(RuntimeError, match=r"a host call ended in SystemExit\\(3\\)"):
    f(torch.ones(2))
assert seen == [[1, 1]] * 2  # The program ended there.
answers += [None] * 2
assert f(torch.ones(2)).tolist() == [4, 4]
print("survived")
"""


def test_callbacks_through_jax_exception(fresh: Server) -> None:
    done = fresh.run(FAILS, env={"XFUNC_BACKEND": "pjrt"})
    assert (done.stdout, done.returncode) == ("survived\n", 0), done.stderr
