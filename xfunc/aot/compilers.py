"""The TPU compilers: libtpu in this environment, or in that of another Python."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

from xfunc import config
from xfunc.core import children
from xfunc.errors import CompileError, fail, short_repr

PACKAGES = ("jax", "jaxlib", "libtpu")
_CHOICES = "set it to 'installed', or to the path of a Python that has jax and libtpu."
_ASK = (
    "import importlib.metadata as m, json, sys;"
    "print(json.dumps([m.version(p) for p in sys.argv[1:]]))"
)
_SECONDS = 60.0  # for an answer that takes a tenth of a second


@dataclasses.dataclass(frozen=True)
class Compiler:
    """A libtpu, and the Python that it runs in.

    Attributes:
        python: the interpreter.
        versions: of `PACKAGES`.
    """

    python: str
    versions: tuple[str, ...]

    def __str__(self) -> str:
        jax, _, libtpu = self.versions
        return f"libtpu {libtpu} (jax {jax})"


def chosen() -> Compiler:
    """The compiler that `xfunc.config.tpu_compiler` names.

    Raises:
        ValueError: the setting is no name and no path.
        CompileError: it is not installed.
    """
    name: object = config.tpu_compiler
    if not isinstance(name, (str, os.PathLike)):
        fail(
            ValueError, f"config.tpu_compiler is {short_repr(name)}, no name and no path", _CHOICES
        )
    if name == "installed":
        return Compiler(sys.executable, _installed())
    python = Path(name)
    return Compiler(str(python), _versions(python))


def _installed() -> tuple[str, ...]:
    """The versions in this environment."""
    found = list[str]()
    for package in PACKAGES:
        try:
            found.append(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            fail(
                CompileError,
                f"compiling for a TPU needs {package}, which is not installed",
                "pip install 'jax[tpu]', or set xfunc.config.tpu_compiler.",
            )
    return tuple(found)


def _versions(python: Path) -> tuple[str, ...]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    try:
        done = children.run([python, "-P", "-c", _ASK, *PACKAGES], b"", kept, _SECONDS)
        done.check_returncode()
        return tuple(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        fail(
            CompileError,
            f"config.tpu_compiler is {short_repr(config.tpu_compiler)}, which did not say within "
            f"{_SECONDS:g} s what it has installed, so it was ended",
            "start it by hand, to see what it waits for.",
        )
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        stderr = (getattr(error, "stderr", None) or b"").decode(errors="replace")
        said = (stderr or str(error)).strip().splitlines()[-1:]
        fail(
            CompileError,
            f"config.tpu_compiler is {short_repr(config.tpu_compiler)}, "
            "which cannot compile for TPUs: "
            f"{''.join(said)}",
            _CHOICES,
        )
