"""The status that functions registered with `atexit` are told, against the process's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import xfunc

PROGRAM = """
import atexit, contextlib, sys, threading
import exit_status
exit_status.begin()
atexit.register(lambda: print(exit_status.status()))
{}
"""
CAUGHT = """
try:
    sys.exit(3)
except SystemExit as error:
    assert type(error).__name__ == "SystemExit" and error.code == 3
"""
IN_CALLS = """
def inner():
    try:
        sys.exit(5)
    finally:
        print("cleaned up")

inner()
"""
IN_A_THREAD = """
thread = threading.Thread(target=sys.exit, args=(3,))
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("", 0),
        ("sys.exit()", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("sys.exit(259)", 3),
        ("sys.exit(-1)", 255),
        ("sys.exit(True)", 1),
        ("sys.exit('no data')", 1),
        ("sys.exit((2, 3))", 1),
        ("import argparse; argparse.ArgumentParser().parse_args(['--no'])", 2),
        (CAUGHT, 0),
        (CAUGHT + "sys.exit(4)", 4),
        ("with contextlib.suppress(SystemExit): sys.exit(3)", 0),
        (IN_CALLS, 5),
        (IN_A_THREAD, 0),
        ("exit_status.end(); assert sys.exit.__module__ == 'sys'", 0),
    ],
)
def test_exits_status_equals_process_status(code: str, status: int) -> None:
    folder = Path(xfunc.__file__).parent / "backends"  # So torch is not imported.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(code)], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
    assert done.stdout.splitlines()[-1] == str(status)
