"""Python in a process of its own, without the seconds that importing torch takes.

A server (this file run as a script) imports torch and xfunc, and runs each piece of code in a fork
of itself. torch_xla it does not import: xfunc says how it is to be loaded, and threads would not
live on in a fork. Nor is all that was imported taken down at the end of a
fork, which takes seconds as well. What depends on how Python starts needs `subprocess`.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Running:
    """A process that was started; `wait` for it."""

    def __init__(self, server: Server, pid: int, folder: Path):
        self._server, self._pid, self._folder = server, pid, folder

    def wait(self) -> subprocess.CompletedProcess[str]:
        status = self._server.ask({"wait": self._pid})
        out, err = (
            (self._folder / name).read_text(errors="replace") for name in ("stdout", "stderr")
        )
        return subprocess.CompletedProcess([], status, out, err)


class Server:
    """Starts processes.

    Args:
        folder: where what they print is kept.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def start(
        self,
        code: str,
        *args: object,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        seconds: int = 240,
    ) -> Running:
        """Run code as `python -W error -c` would, with arguments.

        Args:
            env: what the environment holds beside that of this process.
            seconds: after so many, the process is killed.
        """
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        request = {
            "code": code,
            "args": ["-c", *map(str, args)],
            "env": {**os.environ, **(env or {})},
            "cwd": str(cwd or os.getcwd()),
            "folder": str(folder),
            "seconds": seconds,
        }
        return Running(self, self.ask(request), folder)

    def run(self, code: str, *args: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """The exit status of some code, and what it printed."""
        return self.start(code, *args, **options).wait()

    def ask(self, request: dict[str, Any]) -> int:
        if self._process is None:
            path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "error", "-W", "ignore:`torch.jit.script`", __file__],
                env=os.environ | {"PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate()


def _serve() -> None:
    import markdown_it  # noqa: F401
    import pytest  # noqa: F401

    import xfunc  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]), flush=True)
        elif pid := os.fork():
            print(pid, flush=True)
        else:
            _become(request)


def _become(request: dict[str, Any]) -> None:
    signal.alarm(request["seconds"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(request["folder"], name), os.O_WRONLY | os.O_CREAT), number)
    sys.argv = request["args"]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    status = 0
    try:
        exec(compile(request["code"], "<string>", "exec", dont_inherit=True), vars(module))
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve()
