"""The TPU compilers: libtpu in this environment, or a newer one in an environment of its own."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

from xfunc import config
from xfunc.aot import cache
from xfunc.core import children
from xfunc.errors import CompileError, fail, shown

PACKAGES = ("jax", "jaxlib", "libtpu")
_PINNED = dict(zip(PACKAGES, ("0.7.1", "0.7.1", "0.0.21"), strict=True))
_CHOICES = (
    "set it to 'pinned', to 'newest' after `python -m xfunc.aot`, or to a Python that has jax and "
    "libtpu."
)
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
        CompileError: it is not installed, or not in the pinned version.
    """
    name: object = config.tpu_compiler
    if not isinstance(name, (str, os.PathLike)):
        fail(ValueError, f"config.tpu_compiler is {shown(name)}, no name and no path", _CHOICES)
    if name == "pinned":
        return Compiler(sys.executable, _pinned())
    python = interpreter() if name == "newest" else Path(name)
    if name == "newest" and not python.exists():
        fail(
            CompileError,
            "the newest TPU compiler is not installed",
            "python -m xfunc.aot installs it, in an environment of its own.",
        )
    return Compiler(str(python), _versions(python))


def interpreter() -> Path:
    """The Python of the environment with the newest compiler, whether or not it exists."""
    return cache.folder().with_name("newest-libtpu") / "bin" / "python"


def install(python: str) -> Compiler:
    """Install the newest jax and libtpu that a Python can load, in an environment of their own.

    An existing environment is upgraded.

    Args:
        python: the interpreter to make the environment with.

    Raises:
        CompileError: the interpreter has no ``venv``, or pip fails; what they said is on the
            terminal.
    """
    ours = interpreter()
    commands = [
        [python, "-m", "venv", str(ours.parent.parent)],
        [str(ours), "-m", "pip", "install", "--upgrade", "jax", "libtpu"],
    ]
    for command in commands:
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            fail(
                CompileError,
                f"the newest TPU compiler could not be installed: {error}",
                "give a Python that has venv and can reach a package index: --python PATH.",
            )
    return Compiler(str(ours), _versions(ours))


def _pinned() -> tuple[str, ...]:
    """The versions in this environment, after checking them."""
    found = list[str]()
    for package, version in _PINNED.items():
        try:
            found.append(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            problem = f"compiling for a TPU needs {package}, which is not installed"
        else:
            if found[-1] == version or found[-1].startswith(f"{version}."):
                continue
            problem = f"compiling for a TPU needs {package} {version}, and {found[-1]} is installed"
        fail(CompileError, problem, "pip install 'xfunc[aot]', or set xfunc.config.tpu_compiler.")
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
            f"config.tpu_compiler is {shown(config.tpu_compiler)}, which did not say within "
            f"{_SECONDS:g} s what it has installed, so it was ended",
            "start it by hand, to see what it waits for.",
        )
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        stderr = (getattr(error, "stderr", None) or b"").decode(errors="replace")
        said = (stderr or str(error)).strip().splitlines()[-1:]
        fail(
            CompileError,
            f"config.tpu_compiler is {shown(config.tpu_compiler)}, which cannot compile for TPUs: "
            f"{''.join(said)}",
            _CHOICES,
        )
