"""Compiling ahead of time: the process, and other compilers.

No libtpu here: scripts take the place of the worker, and do what a worker should not.
"""

import contextlib
import dataclasses
import io
import json
import os
import select
import signal
import subprocess
import sys

import pytest

import xfunc as xf
from tests.internals.aot.aot_worker import ANSWERS, HERE, MADE, compile_it, lower
from tests.internals.aot.aot_worker import asked as asked
from tests.internals.aot.aot_worker import folder as folder
from tests.internals.aot.aot_worker import worker as worker
from xfunc.aot import cache, client, compilers
from xfunc.aot.compilers import Compiler
from xfunc.errors import CompileError


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "import os; os.abort()",
            r"by SIGABRT while compiling step; its last words:\n  \| \(none\)",
        ),
        ("import os; os.kill(os.getpid(), 9)", r"by SIGKILL(.|\n)*Hint: .*After SIGKILL"),
        ("import os; os.kill(os.getpid(), 11)", r"by SIGSEGV"),
        ("import no_such_package", r"with status 1(.|\n)*ModuleNotFoundError: .*no_such_package"),
        ("pass", r"with status 0"),
        (
            "import sys; print('noise', 'F0101 1.cc:5] a', '    @ 0x1 f', sep='\\n'); sys.exit(3)",
            r"with status 3 .*\n  \| F0101 1\.cc:5\] a\n  at ",
        ),
    ],
)
def test_worker_without_answer_raises(worker, script, says):
    worker(script)
    with pytest.raises(CompileError, match=f"libtpu ended {says}"):
        compile_it()


def test_worker_environment(worker, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_flag_of_the_cpu=1")
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v4-8")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--mine=1 --xla_latency_hiding_scheduler_rerun=3")
    worker(ANSWERS.format(report=MADE, text=""))
    environment = json.loads(compile_it().executable)
    assert "XLA_FLAGS" not in environment
    assert "TPU_ACCELERATOR_TYPE" not in environment
    assert environment["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"
    flags = environment["LIBTPU_INIT_ARGS"].split()
    assert flags[:2] == ["--mine=1", "--xla_latency_hiding_scheduler_rerun=3"]
    assert len(flags) == 1 + len(client._FLAGS)


@pytest.mark.torch_xla
@pytest.mark.parametrize("version", [5, 6])
def test_worker_flags_equal_torch_xla(version, monkeypatch):
    import torch_xla  # pyright: ignore[reportMissingImports]

    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    ours = client._flags(f"v{version}e").split()
    monkeypatch.setattr(torch_xla.tpu, "version", lambda: version)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "")
    torch_xla._setup_libtpu_flags()
    assert sorted(ours) == sorted(os.environ["LIBTPU_INIT_ARGS"].split())


def test_worker_ends_on_interrupt(worker, folder, monkeypatch):
    pid = str(folder / "pid")
    worker(f"import os, time; open({pid!r}, 'w').write(str(os.getpid())); time.sleep(99)")

    @contextlib.contextmanager
    def interrupt(what):
        def tick():
            if (folder / "pid").exists() and (folder / "pid").read_text():
                raise KeyboardInterrupt

        yield tick

    monkeypatch.setattr(client, "_progress", interrupt)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        compile_it()
    with pytest.raises(ProcessLookupError, match="No such process"):
        os.kill(int((folder / "pid").read_text()), signal.SIG_DFL)


def test_worker_ends_with_its_input(tmp_path):
    os.mkfifo(tmp_path / "request.json")  # Nobody will ever write to it.
    command = [sys.executable, "-P", str(client._WORKER), str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    process.communicate(timeout=60)
    assert process.returncode == 1


def test_worker_starts_without_torch():
    look = f"import runpy, sys; runpy.run_path({str(client._WORKER)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", look], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"torch", "xfunc", "jax"}.isdisjoint(done.stdout.split())


def test_compilers_missing_packages(monkeypatch):
    monkeypatch.setattr(compilers, "PACKAGES", ("jax", "no-such-package"))
    says = r"needs no-such-package, which is not installed\n  at .*\nHint: pip install 'jax\[tpu\]'"
    with pytest.raises(CompileError, match=says):
        compilers.chosen()


# -- other compilers ------------------------------------------------------------------------------


@pytest.fixture
def another(tmp_path):
    """Makes a Python that has packages of its own, by name and version."""

    def make(path, **numbers):
        packages = tmp_path / "packages"
        for name, number in numbers.items():
            found = packages / f"{name}-{number}.dist-info"
            found.mkdir(parents=True)
            (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n")
            with (found / "METADATA").open("a") as file:
                file.write(f"Version: {number}\n")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
        path.chmod(0o755)
        return path

    return make


NEWER = {"jax": "9.1", "jaxlib": "9.1", "libtpu": "0.0.99"}


def test_compilers_of_another_python(another, asked, tmp_path, monkeypatch):
    path = another(tmp_path / "python", **NEWER)
    monkeypatch.setattr(xf.config, "tpu_compiler", str(path))
    assert compilers.chosen() == Compiler(str(path), ("9.1", "9.1", "0.0.99"))
    assert lower().compile("v6e-1").compiler == "libtpu 0.0.99 (jax 9.1)"


def test_compilers_given_python(another, worker, tmp_path, monkeypatch):
    path = another(tmp_path / "python", **NEWER)
    monkeypatch.setattr(xf.config, "tpu_compiler", str(path))
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    worker(ANSWERS.format(report=MADE, text=""))
    found = compile_it(compilers.chosen())
    assert json.loads(found.executable)["PYTHONPATH"] == str(tmp_path / "packages")


def test_compilers_have_separate_results(worker):
    for compiler in (HERE, dataclasses.replace(HERE, versions=("0.7.1", "0.7.1", "0.0.22"))):
        worker(ANSWERS.format(report=MADE, text=""))
        compile_it(compiler)
    assert len([*cache.folder().iterdir()]) == 2


def assert_ended(pids):
    for pid in map(int, pids.read_text().split()):
        with contextlib.suppress(ProcessLookupError):  # It is gone altogether.
            handle = os.pidfd_open(pid)
            ended = select.select([handle], [], [], 60)[0]
            os.close(handle)
            assert ended, f"process {pid} goes on"


def test_compilers_without_answer_raise(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "never")  # Nobody will ever write to it.
    pids = tmp_path / "pids"
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\ncat {tmp_path}/never & echo $$ $! > {pids}\nwait\n")
    path.chmod(0o755)
    monkeypatch.setattr(xf.config, "tpu_compiler", str(path))
    monkeypatch.setattr(compilers, "_SECONDS", 3.0)
    says = r"\.\.\., which did not say within 3 s what it has installed, so it was ended"
    with pytest.raises(CompileError, match=rf"{says}\n  at .*\nHint: start it by hand"):
        compilers.chosen()
    assert_ended(pids)


def test_worker_timeout_ends_processes(worker, folder):
    pids = folder / "pids"
    worker(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(99)"
    )
    says = r"libtpu 0\.0\.21 \(jax 0\.7\.1\) did not finish compiling step for v6e:1x1 within 3 s"
    with pytest.raises(
        CompileError, match=rf"{says}, so its process was ended\n  at .*\nHint: allow"
    ):
        compile_it(timeout=3.0)
    assert_ended(pids)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_worker_progress(worker, monkeypatch):
    worker(ANSWERS.format(report=MADE, text=""))
    said = Terminal()
    monkeypatch.setattr(sys, "stderr", said)
    compile_it()
    assert said.getvalue().startswith("\rcompiling step for v6e:1x1: 0 s")
    assert said.getvalue().endswith("\r\x1b[K")
    elsewhere = io.StringIO()
    monkeypatch.setattr(sys, "stderr", elsewhere)
    compile_it(module=b"another")
    assert elsewhere.getvalue() == ""
