"""The environment variables that the runtime of torch_xla sets."""

import os
from pathlib import Path

import pytest

from xfunc.backends import flags
from xfunc.backends.torch_xla import runtime


@pytest.mark.torch_xla
def test_environment_ignores_torch_xla_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime.xla()
    ours = {name: value for name, (_, value) in runtime._set.items()}
    monkeypatch.setattr(runtime, "_set", {"A": (None, "1"), "B": ("x", "2"), "C": ("x", "3")})
    for name, value in {"A": "1", "B": "2", "C": "4"}.items():
        monkeypatch.setenv(name, value)
    found = runtime.environment()
    assert "A" not in found
    assert (found["B"], found["C"]) == ("x", "4")
    assert all(os.environ[name] == value for name, value in ours.items())


def test_keep_programs_sets_persistent_cache_off_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "")  # So that it is restored.
    monkeypatch.delenv("XLA_PERSISTENT_CACHE_PATH")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(flags, "compiled_programs", None)  # of the tests themselves
    for device, wanted in {"CPU": None, "TPU": str(tmp_path / "torch_xla")}.items():
        monkeypatch.setenv("PJRT_DEVICE", device)
        runtime._keep_programs()
        assert os.environ.get("XLA_PERSISTENT_CACHE_PATH") == wanted
