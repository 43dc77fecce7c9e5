"""The process that compiles: starting it, watching it, and reading its result."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from xfunc.aot import cache
from xfunc.aot.compilers import Compiler
from xfunc.aot.request import Request
from xfunc.aot.result import UNREADABLE, Result
from xfunc.core.children import child
from xfunc.errors import CompileError, format_error

_WORKER = Path(__file__).with_name("worker.py")
_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # or a lock file kills a second process
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # no metadata server to query about this machine
    "TPU_WORKER_HOSTNAMES": "localhost",  # libtpu complains if it is missing
}
# The defaults that torch_xla 2.9 gives libtpu on a machine with TPUs.
_FLAGS = {
    "xla_tpu_use_enhanced_launch_barrier": "false",
    "xla_latency_hiding_scheduler_rerun": "1",
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
    "xla_tpu_enable_flash_attention": "false",
}
_FLAGS_V5 = {"xla_enable_async_all_gather": "true", "xla_enable_async_collective_permute": "true"}

_FATAL = re.compile(r"F\d{4} ")
# Stack traces of a crash, and complaints about a machine without a TPU.
_NOISE = re.compile(r"RAW: |^\s*@ |^PC: @|^\*\*\* Check|https://symbolize|could not determine TPU")


def result_of(
    request: Request, name: str, compiler: Compiler, timeout: float | None = None
) -> Result:
    """libtpu's result for a program, or its refusal; from the cache if it is there.

    Args:
        request: the program to compile.
        name: the program's, for messages.
        compiler: the libtpu to ask.
        timeout: seconds after which its process is ended; None: there is no limit.

    Raises:
        CompileError: libtpu ended without an answer, or took too long.
    """
    flags = _flags(request.topology.kind)
    key = request.key(*compiler.versions, flags, _WORKER.read_text())
    with contextlib.suppress(*UNREADABLE):
        result = Result.read(cache.path_of(key), request)
        cache.used(key)
        return result
    with tempfile.TemporaryDirectory(prefix="xfunc-aot-") as folder:
        path = _run(request, Path(folder), name, flags, compiler, timeout)
        result = Result.read(path, request)
        if result.is_final:
            cache.keep(key, path)
    return result


def _flags(kind: str) -> str:
    given = os.environ.get("LIBTPU_INIT_ARGS", "").split()
    known = {flag.lstrip("-").partition("=")[0] for flag in given}
    ours = _FLAGS | (_FLAGS_V5 if kind.startswith("v5") else {})
    return " ".join([*given, *(f"--{k}={v}" for k, v in ours.items() if k not in known)])


def _run(
    request: Request,
    folder: Path,
    name: str,
    flags: str,
    compiler: Compiler,
    timeout: float | None,
) -> Path:
    """Have the worker answer a request; returns the file with the answer."""
    (folder / "module.pb").write_bytes(request.module)
    (folder / "request.json").write_text(json.dumps(request.settings))
    # Settings for the running device, above all XLA_FLAGS, would change the program.
    # Settings of Python would lead another interpreter to this one's packages.
    others = ("JAX_", "TPU_", "XLA_") + ("PYTHON",) * (compiler.python != sys.executable)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(others)}
    command = [compiler.python, "-P", _WORKER, folder]
    env = kept | _ENVIRONMENT | {"LIBTPU_INIT_ARGS": flags}
    with (folder / "log").open("w") as log:
        start = time.monotonic()
        with (
            child(command, env, log) as worker,  # Its input closes if this process dies.
            _progress(f"compiling {name} for {request.topology.name}") as tick,
        ):
            while worker.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.wait(timeout=0.2)
                tick()
                if timeout is not None and time.monotonic() - start > timeout:
                    raise _too_slow(name, request, compiler, timeout)
    result = folder / "result.zip"
    if worker.returncode or not result.exists():
        raise _died(name, worker.returncode, (folder / "log").read_text(errors="replace"))
    return result


def _too_slow(name: str, request: Request, compiler: Compiler, timeout: float) -> CompileError:
    return CompileError(
        format_error(
            f"{compiler} did not finish compiling {name} for {request.topology.name} within "
            f"{timeout:g} s, so its process was ended",
            "allow it more time, or make the program smaller: scan over equal layers.",
        )
    )


def _died(name: str, status: int, log: str) -> CompileError:
    how = f"with status {status}"
    if status < 0:
        with contextlib.suppress(ValueError):
            how = f"by {signal.Signals(-status).name}"
    lines = [line for line in log.splitlines() if line.strip() and not _NOISE.search(line)]
    said = [line for line in lines if _FATAL.match(line)] or lines
    end = "\n".join(f"  | {line}" for line in [*dict.fromkeys(said)][-15:])
    return CompileError(
        format_error(
            f"libtpu ended {how} while compiling {name}; its last words:\n{end or '  | (none)'}",
            "use a smaller batch, leave out compiler options, or rewrite the operation that it "
            "names. After SIGKILL, which Linux sends to processes that use too much memory, use a "
            "larger machine.",
        )
    )


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[], None]]:
    """On a terminal, a line that shows the progress of a long step; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    start = time.monotonic()
    try:
        yield lambda: print(
            f"\r{what}: {time.monotonic() - start:.0f} s", end="", file=sys.stderr, flush=True
        )
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
