"""The folder of compiled programs, among the flags that XLA reads when it starts."""

from pathlib import Path

import pytest

import xfunc as xf
from xfunc.backends import flags

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("executables_not_kept")]


@pytest.mark.parametrize("nothing", [None, ""])
def test_config_cache_dirs_are_made_absolute(
    nothing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = xf.config.set_compilation_cache_dir, xf.config.set_trace_cache_dir
    try:
        for folder in "compiled", Path("compiled"):
            for keep_in in settings:
                keep_in(folder)
            kept = flags.compiled_programs, xf.config.kept_traces
            assert kept == (str(tmp_path / "compiled"),) * 2
    finally:
        for keep_in in settings:
            keep_in(nothing)
    assert (flags.compiled_programs, xf.config.kept_traces) == (None, None)
