"""The folder of compiled programs, among the flags that XLA reads when it starts."""

from pathlib import Path

import pytest

import xfunc as xf
from xfunc.backends import flags

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("executables_not_kept")]


@pytest.mark.parametrize("nothing", [None, ""])
def test_config_cache_dir_is_made_absolute(
    nothing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        for folder in "compiled", Path("compiled"):
            xf.config.set_compilation_cache_dir(folder)
            assert flags.compiled_programs == str(tmp_path / "compiled")
    finally:
        xf.config.set_compilation_cache_dir(nothing)
    assert flags.compiled_programs is None
