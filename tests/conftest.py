"""Settings that must stand before torch_xla starts its client, and the `device` fixture.

The tests in ``tests/sharding`` run on 8 virtual devices, all others on one. A process has one
number of devices for good, so each kind is a run of its own, and ``python -m tests`` is both.
pytest by itself takes those in ``tests/sharding`` if it is given nothing else, and the others
otherwise. Those in ``tests/examples/extras`` need more libraries than the others: `make
test-extras` runs them.

Of a table marked ``sampled(n)``, an n-th runs each day (`tests.support.day`). With ``--rotate n``,
each file of the folders that are named runs once in n days; a file that is named always runs.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.day import DAY, is_due, is_file_due
from tests.support.fresh import Server

os.environ.setdefault("PJRT_DEVICE", "CPU")

# Compiling is about eight times faster so. Right for tests, never for timings.
QUICK = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
QUICKER = "--xla_cpu_use_fusion_emitters=false"  # with --all, fusions are compiled as users have it

SHARDED = Path(__file__).parent / "sharding"
EXTRAS = Path(__file__).parent / "examples" / "extras"
LEFT_OUT = pytest.StashKey[bool]()
NAMED = pytest.StashKey[set[Path]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--devices", choices=("1", "8"), help="only the tests for so many devices")
    parser.addoption("--backend", choices=("torch_xla", "pjrt"), help="what runs the programs")
    parser.addoption("--rotate", type=int, default=1, help="run each file once in so many days")
    parser.addoption("--all", action="store_true", help="every case of the tables that are sampled")


def pytest_configure(config: pytest.Config) -> None:
    """Choose XLA's flags, the number of devices, and the tests that are for it."""
    config.addinivalue_line("markers", "sampled(days): each case runs once in so many days")
    config.addinivalue_line("markers", "torch_xla: about torch_xla's runtime; not for others")
    flags = os.environ.get("XLA_FLAGS", "").split()
    given = {flag.partition("=")[0] for flag in flags}
    wanted = QUICK if config.getoption("--all") else [*QUICK, QUICKER]
    flags += [flag for flag in wanted if flag.partition("=")[0] not in given]
    os.environ["XLA_FLAGS"] = " ".join(flags)
    if backend := config.getoption("--backend"):
        os.environ["XFUNC_BACKEND"] = backend
    here = config.invocation_params.dir
    paths = {arg: (here / arg.partition("::")[0]).resolve() for arg in config.args}
    config.stash[NAMED] = set(paths.values())
    sharded = [arg for arg, path in paths.items() if path.is_relative_to(SHARDED)]
    others = [arg for arg in paths if arg not in sharded]
    around = any(SHARDED.is_relative_to(paths[arg]) for arg in others)
    devices = config.getoption("--devices")
    if devices is None:
        devices = "1" if others else "8"
        if sharded and others:
            raise pytest.UsageError(
                "the tests in tests/sharding run on 8 devices and the others on one: "
                "name them in runs of their own, or use `python -m tests`"
            )
    if devices == "8":
        config.args = [str(SHARDED)] if around else sharded
        os.environ["CPU_NUM_DEVICES"] = "8"
    else:
        config.args = others
    if config.getoption("--devices") and getattr(config.option, "lf", False):
        failed = config.cache.get("cache/lastfailed", {}) if config.cache else {}
        if failed and not any(("tests/sharding/" in name) == (devices == "8") for name in failed):
            config.args = []  # pytest would run all: it knows of no failure among these
    if not config.args:
        pytest.exit(
            f"none of these tests is for {devices} device(s)", pytest.ExitCode.NO_TESTS_COLLECTED
        )
    config.stash[LEFT_OUT] = around and devices == "1" and config.getoption("--devices") is None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path in (SHARDED, EXTRAS):
        return True  # unless it is named: then pytest does not ask
    if collection_path.is_dir():
        return None
    due = is_file_due(collection_path, config.option.rotate, config.stash[NAMED])
    return None if due else True


def pytest_report_header(config: pytest.Config) -> str:
    return f"tables are sampled for TESTS_DAY={DAY}; --all runs all of them"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for another backend; and what is not due today, unless it is named."""
    if os.environ.get("XFUNC_BACKEND", "torch_xla") != "torch_xla":
        own = [item for item in items if item.get_closest_marker("torch_xla")]
        config.hook.pytest_deselected(items=own)
        items[:] = [item for item in items if item not in own]
    chosen = config.option.keyword or getattr(config.option, "lf", False)
    if config.getoption("--all") or chosen or any("::" in arg for arg in config.args):
        return
    due, left_out = [], []
    for item in items:
        mark = item.get_closest_marker("sampled")
        (due if mark is None or is_due(item.name, *mark.args) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = due


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.stash[LEFT_OUT]:
        terminalreporter.write_line(
            "Not run: tests/sharding, which needs 8 devices. `python -m tests` runs all.",
            yellow=True,
        )


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Runs code in processes of its own, without the seconds that importing torch takes."""
    server = Server(tmp_path_factory.mktemp("fresh"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def device():
    """The device on which transformed functions run, with the kernels that xfunc gives it."""
    from xfunc.backends.torch_xla import runtime

    return runtime.device()


@pytest.fixture
def cleared() -> None:
    """Nothing is cached when the test begins."""
    import xfunc as xf

    xf.clear_caches()


@pytest.fixture
def alive_afterwards() -> Iterator[None]:
    """What the test has done to xfunc and to torch_xla does not show in what comes next."""
    from tests.support.hostile_functions.case import assert_alive

    yield
    assert_alive()


@pytest.fixture
def pjrt() -> Iterator[None]:
    """JAX's runtime runs the programs of the test."""
    import xfunc as xf
    from xfunc.backends import active

    before = active.runtime().name
    xf.config.set_backend("pjrt")
    yield
    xf.config.set_backend(before)
