"""Compiling ahead of time: names of topologies, what is asked, the process, the cache.

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
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.aot import __main__, cache, client, compilers, topology_of
from xfunc.aot.compilers import Compiler
from xfunc.aot.request import Request
from xfunc.backends.errors import compile_error
from xfunc.errors import CompileError, OutOfMemoryError

V6E = topology_of("v6e-1")
HERE = Compiler(sys.executable, ("0.7.1", "0.7.1", "0.0.21"))
MEMORY = {
    "argument_size_in_bytes": 7,
    "output_size_in_bytes": 5,
    "temp_size_in_bytes": 3,
    "alias_size_in_bytes": 2,
    "host_temp_size_in_bytes": 1,
}
MADE = {"memory": MEMORY, "cost": {"flops": 1.0}}

ANSWERS = """
import json, os, sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/result.zip", "w") as archive:
    archive.writestr("report.json", json.dumps({report!r}))
    archive.writestr("executable", json.dumps(dict(os.environ)))
    archive.writestr("hlo.pb", b"")
    archive.writestr("hlo.txt", {text!r})
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XFUNC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Put a script in place of the worker."""

    def replace(script):
        path = tmp_path / "script.py"
        path.write_text(script)
        monkeypatch.setattr(client, "_WORKER", path)

    return replace


def request(module=b"module", topology=V6E, options=None):
    return Request(module, (), (), (), topology, options or {})


def compile_it(compiler=HERE, timeout=None, **asked):
    return client.result_of(request(**asked), "step", compiler, timeout)


# -- names of topologies --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "name", "devices", "options"),
    [
        ("tpu:v6e:16x16", "v6e:16x16", 256, {}),
        ("tpu:v6e-256", "v6e:16x16", 256, {}),
        ("v6e-8", "v6e:2x4", 8, {}),
        ("v6e-1", "v6e:1x1", 1, {"chips_per_host_bounds": [1, 1, 1]}),
        ("v5litepod-16", "v5e:4x4", 16, {}),
        ("tpu:v5litepod:2x2", "v5e:2x2", 4, {}),
        ("v5p-8", "v5p:2x2x1", 4, {}),  # cores, of which a chip has two
        ("tpu:v5p-128", "v5p:4x4x4", 64, {}),
        ("tpu:v4:4x4x8_twisted", "v4:4x4x8_twisted", 128, {"chip_config_name": "megacore"}),
        ("v2:2x2", "v2:2x2", 8, {}),
        ("tpu7x:2x2x1", "tpu7x:2x2x1", 8, {}),  # cores, each with memory of its own
        ("tpu:tpu7x:4x4x4", "tpu7x:4x4x4", 128, {}),
    ],
)
def test_topologies(target, name, devices, options):
    topology = topology_of(target)
    assert (topology.name, topology.devices, topology.options) == (name, devices, options)


def test_memory_of_a_chip():
    assert topology_of("v6e-4").memory == 31.25 * 2**30
    assert topology_of("v2:2x2").memory is None


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("v6e-7", r"use one of v6e-1, v6e-4, .*, v6e-256, or give a grid: v6e:2x2"),
        ("v5p-9", r"use one of v5p-8, .*, v5p-12288, or give a grid: v5p:2x2x1"),
        ("v6e", "name a TPU: tpu:v6e:16x16"),
        ("v6e:0x2", "name a TPU"),
        ("gpu:h100", "name a TPU"),
        (256, "name a TPU"),
    ],
)
def test_targets_that_are_none(target, hint):
    with pytest.raises(ValueError, match=rf"unknown target '?{target}'?\n  at .*\nHint: .*{hint}"):
        topology_of(target)


# -- what is compiled -----------------------------------------------------------------------------


SHAPES = [xf.ShapeDtypeStruct(s, torch.float32) for s in ((8, 8), (4, 8, 8), (3,))]


def program(x, w, unused):
    def body(x, w):
        return torch.tanh(x @ w), None

    again = xf.checkpoint(lambda y: torch.exp(torch.sin(y)).sum())
    policy = xf.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    value, grads = xf.value_and_grad(
        lambda w: again(xf.scan(body, x, w, checkpoint_policy=policy)[0])
    )(w)
    return value, w - grads


def lower():
    return xf.jit(program, donate_argnums=1).lower(*SHAPES)


@pytest.fixture
def asked(monkeypatch):
    """The requests that are made, which are all answered with `MADE`."""
    found = []

    def answer(request, name, compiler, timeout):
        found.append(request)
        return client.Result(MADE, b"", b"", "", request)

    monkeypatch.setattr("xfunc.aot.compiled.result_of", answer)
    return found


def test_a_request(asked):
    compiled = lower().compile("v6e-1", {"xla_fast": 1})
    (made,) = asked
    assert (made.arguments, made.donated, made.options) == (("x", "w"), (1,), {"xla_fast": 1})
    assert compiled.memory_analysis().peak_memory_in_bytes == 7 + 5 - 2 + 3
    assert compiled.cost_analysis() == {"flops": 1.0}
    assert compiled.as_text() is None
    assert compiled.largest_buffers() == []


def test_what_is_for_a_tpu_stays_in_the_module(asked):
    lower().compile("v6e-1")
    assert b"annotate_device_placement" in asked[0].module
    assert b"opt-barrier" in asked[0].module


def test_lines_are_no_part_of_a_module(asked):
    source = Path(__file__).read_text()
    above = "\n" * 5 + source
    for text in (source, above):
        namespace: dict[str, Any] = {"__name__": __name__}
        exec(compile(text, __file__, "exec"), namespace)
        namespace["lower"]().compile("v6e-1")
    first, second = asked
    assert first.key() == second.key()
    assert [(file, line + 5) for file, line in first.lines] == [*second.lines]
    assert {file for file, _ in first.lines} == {__file__}


def test_keys_differ():
    asked = [
        request(),
        request(module=b"another"),
        request(topology=topology_of("v5e-1")),
        request(options={"xla_fast": 1}),
    ]
    keys = [r.key("1") for r in asked] + [asked[0].key("2")]
    assert len({*keys}) == len(keys)


# -- the process ----------------------------------------------------------------------------------


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
def test_a_process_that_does_not_answer(worker, script, says):
    worker(script)
    with pytest.raises(CompileError, match=f"libtpu ended {says}"):
        compile_it()


def test_environment(worker, monkeypatch):
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


@pytest.mark.parametrize("version", [5, 6])
def test_flags_are_those_of_torch_xla(version, monkeypatch):
    import torch_xla

    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    ours = client._flags(f"v{version}e").split()
    monkeypatch.setattr(torch_xla.tpu, "version", lambda: version)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "")
    torch_xla._setup_libtpu_flags()
    assert sorted(ours) == sorted(os.environ["LIBTPU_INIT_ARGS"].split())


def test_an_interrupt_ends_the_process(worker, folder, monkeypatch):
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


def test_the_worker_ends_with_its_input(tmp_path):
    os.mkfifo(tmp_path / "request.json")  # Nobody will ever write to it.
    command = [sys.executable, "-P", str(client._WORKER), str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    process.communicate(timeout=60)
    assert process.returncode == 1


def test_the_worker_starts_without_torch():
    look = f"import runpy, sys; runpy.run_path({str(client._WORKER)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", look], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"torch", "xfunc", "jax"}.isdisjoint(done.stdout.split())


@pytest.mark.parametrize(
    ("needed", "says"),
    [
        ({"no-such-package": "1"}, "needs no-such-package, which is not installed"),
        ({"torch": "1.0"}, r"needs torch 1\.0, and 2\.9\.0.* is installed"),
    ],
)
def test_packages_that_are_missing(needed, says, monkeypatch):
    monkeypatch.setattr(compilers, "_PINNED", needed)
    with pytest.raises(CompileError, match=rf"{says}\n  at .*\nHint: pip install 'xfunc\[aot\]'"):
        compilers.chosen()


# -- other compilers ------------------------------------------------------------------------------


@pytest.fixture
def another(tmp_path):
    """Makes a Python that has packages of its own, by name and version."""

    def make(path, **versions):
        packages = tmp_path / "packages"
        for name, version in versions.items():
            found = packages / f"{name}-{version}.dist-info"
            found.mkdir(parents=True)
            (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n")
            with (found / "METADATA").open("a") as file:
                file.write(f"Version: {version}\n")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
        path.chmod(0o755)
        return path

    return make


NEWER = {"jax": "9.1", "jaxlib": "9.1", "libtpu": "0.0.99"}


def test_the_newest_compiler(another, asked, monkeypatch):
    path = another(compilers.interpreter(), **NEWER)
    monkeypatch.setattr(xf.config, "tpu_compiler", "newest")
    assert compilers.chosen() == Compiler(str(path), ("9.1", "9.1", "0.0.99"))
    assert lower().compile("v6e-1").compiler == "libtpu 0.0.99 (jax 9.1)"


def test_a_compiler_by_its_python(another, worker, tmp_path, monkeypatch):
    path = another(tmp_path / "python", **NEWER)
    monkeypatch.setattr(xf.config, "tpu_compiler", str(path))
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    worker(ANSWERS.format(report=MADE, text=""))
    found = compile_it(compilers.chosen())
    assert json.loads(found.executable)["PYTHONPATH"] == str(tmp_path / "packages")


def test_a_compiler_has_results_of_its_own(worker):
    for compiler in (HERE, dataclasses.replace(HERE, versions=("0.7.1", "0.7.1", "0.0.22"))):
        worker(ANSWERS.format(report=MADE, text=""))
        compile_it(compiler)
    assert len([*cache.folder().iterdir()]) == 2


def test_compilers_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(xf.config, "tpu_compiler", "newest")
    with pytest.raises(
        CompileError, match=r"is not installed\n  at .*\nHint: python -m xfunc\.aot"
    ):
        lower().compile("v6e-1")
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho 'No package metadata was found for jax' >&2; exit 1\n")
    bare.chmod(0o755)
    for path, says in ((tmp_path / "none", "No such file"), (bare, "No package metadata")):
        monkeypatch.setattr(xf.config, "tpu_compiler", str(path))
        with pytest.raises(CompileError, match=f"cannot compile for TPUs: .*{says}(.|\n)*'pinned'"):
            lower().compile("v6e-1")


@pytest.mark.parametrize("setting", [None, 3])
def test_a_compiler_that_is_no_path(setting, monkeypatch):
    monkeypatch.setattr(xf.config, "tpu_compiler", setting)
    with pytest.raises(ValueError, match=rf"tpu_compiler is {setting}, no name(.|\n)*'pinned'"):
        lower().compile("v6e-1")


def test_installing(another, monkeypatch, capfd):
    ran = []

    def run(command, **options):
        if "venv" in command or "pip" in command:
            ran.append(command)
            another(compilers.interpreter(), **(NEWER if "pip" in command else {}))
            return subprocess.CompletedProcess(command, 0)
        return plain(command, **options)

    plain = subprocess.run
    monkeypatch.setattr(subprocess, "run", run)
    assert __main__.main(["--python", "python9"]) == 0
    ours = str(compilers.interpreter())
    assert ran == [
        ["python9", "-m", "venv", str(compilers.interpreter().parent.parent)],
        [ours, "-m", "pip", "install", "--upgrade", "jax", "libtpu"],
    ]
    assert "libtpu 0.0.99 (jax 9.1) in" in capfd.readouterr().out


def test_an_installation_that_fails(capfd):
    assert __main__.main(["--python", "/no/such/python"]) == 1
    said = capfd.readouterr().err
    assert "could not be installed: [Errno 2] No such file" in said
    assert "Hint: give a Python" in said


def test_a_compiler_that_takes_too_long(worker, folder):
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
    for pid in map(int, pids.read_text().split()):
        with contextlib.suppress(ProcessLookupError):  # It is gone altogether.
            handle = os.pidfd_open(pid)
            ended = select.select([handle], [], [], 60)[0]
            os.close(handle)
            assert ended, f"process {pid} goes on"


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), "1"])
def test_timeouts_that_are_none(timeout):
    with pytest.raises(ValueError, match=r"was given timeout=(.|\n)*Hint: give seconds, above 0"):
        lower().compile("v6e-1", timeout=timeout)


def test_a_timeout_without_a_target():
    with pytest.raises(ValueError, match=r"a timeout, but no target(.|\n)*Hint: leave it out"):
        lower().compile(timeout=10)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress(worker, monkeypatch):
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


# -- the cache ------------------------------------------------------------------------------------


def test_a_result_is_made_once(worker, monkeypatch):
    worker(ANSWERS.format(report=MADE, text=""))
    first = compile_it()
    monkeypatch.delattr(client, "_run")
    assert compile_it() == first
    assert [p.suffix for p in cache.folder().iterdir()] == [".zip"]


@pytest.mark.parametrize(
    ("report", "kept"),
    [
        (MADE, 1),
        ({"refusal": "RESOURCE_EXHAUSTED: too large"}, 1),
        ({"refusal": "INTERNAL: out of luck"}, 0),
        ({"unknown_topology": "none"}, 0),
    ],
)
def test_which_results_are_kept(worker, report, kept):
    worker(ANSWERS.format(report=report, text=""))
    assert compile_it().report == report
    assert len([*cache.folder().glob("*")]) == kept


def truncated(data):
    return data[: len(data) // 2]


def flipped(data):
    at = data.index(b"temp_size")
    return data[:at] + b"T" + data[at + 1 :]


@pytest.mark.parametrize("damage", [truncated, flipped, lambda data: b""])
def test_a_damaged_result_is_made_again(worker, damage):
    worker(ANSWERS.format(report=MADE, text=""))
    first = compile_it()
    (entry,) = cache.folder().iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert compile_it() == first
    assert zipfile.ZipFile(entry).testzip() is None


def test_the_oldest_results_go(worker, monkeypatch):
    worker(ANSWERS.format(report=MADE, text=""))
    compile_it(module=b"0")
    (entry,) = cache.folder().iterdir()
    size = entry.stat().st_size
    monkeypatch.setattr(cache, "LIMIT", 3 * size)
    for k, module in enumerate([b"1", b"2"], start=1):
        compile_it(module=module)
        for path in cache.folder().iterdir():
            age = path.stat()
            os.utime(path, (age.st_atime - 100, age.st_mtime - 100 * k))
    compile_it(module=b"0")  # It is the oldest, and is wanted again.
    compile_it(module=b"3")
    monkeypatch.setattr(client, "_run", lambda request, *_: pytest.fail(repr(request.module)))
    for module in (b"0", b"2", b"3"):
        compile_it(module=module)
    with pytest.raises(pytest.fail.Exception, match="b'1'"):
        compile_it(module=b"1")


def test_a_cache_that_cannot_be_written(worker, folder, monkeypatch):
    (folder / "file").touch()
    monkeypatch.setenv("XFUNC_CACHE_DIR", str(folder / "file"))
    worker(ANSWERS.format(report=MADE, text=""))
    assert compile_it().report == MADE


def test_where_the_cache_is(monkeypatch, folder):
    assert cache.folder() == folder / "cache" / "aot"
    monkeypatch.delenv("XFUNC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache.folder() == Path("/var/cache/xfunc/aot")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache.folder() == Path("/home/me/.cache/xfunc/aot")


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "required", "limit"),
    [
        (
            "RESOURCE_EXHAUSTED: Allocation (size=68719476736) would exceed memory "
            "(size=33822867456) :: #allocation7 [shape = 'bf16[64]', space=hbm, size = 0xff]",
            64 * 2**30,
            33822867456,
        ),
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: the program's usage (174.50G) exceeds "
            "available HBM (31.25G).",
            int(174.5 * 2**30),
            int(31.25 * 2**30),
        ),
        (
            "RESOURCE_EXHAUSTED: Compilation failure: Aborting compilation early because it's "
            "unlikely to have enough device memory. Requires 64.50G, has 31.25G available.",
            int(64.5 * 2**30),
            int(31.25 * 2**30),
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space host. Used 2.00T of 1.50T host.",
            2 * 2**40,
            3 * 2**39,
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 40.00G of 31.25G hbm. "
            "Largest allocations: 3M, space=vmem",
            40 * 2**30,
            int(31.25 * 2**30),
        ),
        ("RESOURCE_EXHAUSTED: No space left on device", None, None),
    ],
)
def test_out_of_memory_in_the_words_of_libtpu(said, required, limit):
    error = compile_error("step", said)
    assert isinstance(error, OutOfMemoryError)
    assert (error.required_bytes, error.limit_bytes) == (required, limit)


def test_out_of_memory_without_figures(worker):
    report = {"refusal": "RESOURCE_EXHAUSTED: no details\n\na list"}
    worker(ANSWERS.format(report=report, text=""))
    with pytest.raises(OutOfMemoryError, match=r"of a chip: RESOURCE_EXHAUSTED: no details\n  at"):
        xf.jit(program).lower(*SHAPES).compile("v6e-1")


@pytest.mark.parametrize(
    "said",
    [
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack for "
        "%fusion. Scoped allocation with size 17.00M and limit 16.00M exceeded scoped vmem limit",
        "RESOURCE_EXHAUSTED: Allocation (size=9) would exceed memory (size=8) :: [space=smem]",
    ],
)
def test_out_of_a_memory_inside_the_chip(said):
    error = compile_error("step", said)
    assert type(error) is CompileError
    assert str(error).startswith(f"a part of step does not fit into on-chip memory: {said}")
