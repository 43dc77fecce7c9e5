"""Peers in processes of their own, perhaps of another Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def find_jax(python: str | None) -> str:
    """The Python for comparisons with JAX: the given one, or this one, which has JAX too."""
    return python or os.environ.get("XFUNC_JAX_PYTHON") or sys.executable


def environment_of(**more: str) -> dict[str, str]:
    """The variables that peers find: ours, and some more."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", **more}


def answer_of(python: str, module: str, *arguments: str, **environment: str) -> Any:
    """The last line that a module prints, as JSON.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(
        [python, "-m", module, *arguments],
        capture_output=True,
        text=True,
        env=environment_of(**environment),
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
