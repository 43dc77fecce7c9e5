"""The backend of JAX beside the user's own code for JAX."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.profiler
import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.usefixtures("pjrt")

THIRDS = torch.arange(6.0, dtype=torch.float64) / 3


@pytest.fixture
def of_32_bits(pjrt: None) -> Iterator[None]:
    """The user's code switches 64-bit values off after the start, and finds them off at the end."""
    config: Any = jax.config
    config.update("jax_enable_x64", False)
    yield
    assert jax.numpy.ones(3).dtype == "float32"
    config.update("jax_enable_x64", True)


tripled = xf.jit(lambda x: (x * 3, x.float().double() / 3, x.long() + 2**40))


@pytest.mark.usefixtures("of_32_bits")
@pytest.mark.parametrize("call", ["first", "second"])
def test_jit_64_bit_values_with_x64_off(call: str) -> None:
    """Of a program that was compiled before, or is now; on the way there, too."""
    if call == "second":
        config: Any = jax.config
        config.update("jax_enable_x64", True)
        tripled(THIRDS)
        config.update("jax_enable_x64", False)
    else:
        tripled.clear_cache()
    for given in (THIRDS, xf.device_put(THIRDS), tripled(THIRDS)[0] / 3):
        for got, want in zip(
            tripled(given),
            (THIRDS * 3, THIRDS.float().double() / 3, THIRDS.long() + 2**40),
            strict=True,
        ):
            torch.testing.assert_close(got.cpu(), want, rtol=1e-15, atol=0)


@pytest.mark.usefixtures("of_32_bits")
def test_jit_written_64_bit_tensor_with_x64_off() -> None:
    written = tripled(THIRDS)[2]
    written += 2**41
    assert xf.jit(lambda x: x - 2**41)(written).tolist() == [2**40, 2**40, 2**40, *[2**40 + 1] * 3]


def test_profiler_trace_after_failed_profile(tmp_path: Path, capfd: Any) -> None:
    """The folder is gone when JAX writes; the user's code raises; JAX records already."""
    folder = tmp_path / "gone"
    with pytest.raises(RuntimeError, match="gone"), xf.profiler.trace(folder):
        folder.rename(folder.with_name("elsewhere")).joinpath("../gone").write_text("a file")
    with pytest.raises(KeyError, match="mine"), xf.profiler.trace(tmp_path / "raised"):
        raise KeyError("mine")
    with jax.profiler.trace(tmp_path / "theirs"):
        capfd.readouterr()  # JAX itself says that it has not found tensorflow.
        with (
            pytest.raises(RuntimeError, match="JAX is already recording a profile"),
            xf.profiler.trace(tmp_path / "ours"),
        ):
            pass
        assert "tensorflow" not in capfd.readouterr().err
    capfd.readouterr()
    with xf.profiler.trace(tmp_path / "last"):
        pass
    assert "tensorflow" not in capfd.readouterr().err
    assert not [name for name in sys.modules if name.startswith("tensorflow")]
    for name in ("raised", "theirs", "last"):
        assert list((tmp_path / name).glob("plugins/profile/*/*.xplane.pb")), name
