"""Settings that must stand before torch_xla starts its client, and fixtures of many tests.

The tests in the folders `SHARDED` run on 8 virtual devices, all others on one. A process has one
number of devices for good, so each kind is a run of its own, and ``python -m tests`` is both.
pytest by itself takes those on 8 devices if it is given nothing else, and the others otherwise.
Those in ``tests/llama/extras`` need more libraries than the others: `make test-extras` runs them.

`tests.support.tiers` says which tests run in which tier.
"""

import os
import random
import zlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support import tiers
from tests.support.fresh import Server

os.environ.setdefault("PJRT_DEVICE", "CPU")

# Compiling is about eight times faster so. Right for tests, never for timings.
FAST = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
JAXLIB = tuple(map(int, version("jaxlib").split(".")[:2]))
# A sweep compiles fusions as users have them. Newer XLA ends a process that sets this flag.
FASTER = ["--xla_cpu_use_fusion_emitters=false"] if JAXLIB < (0, 11) else []

TESTS = Path(__file__).parent
SHARDED = (TESTS / "sharding", TESTS / "internals" / "sharding")
ONE_DEVICE = (TESTS / "llama", TESTS / "internals" / "llama")  # rows of a batch go to all devices
EXTRAS = TESTS / "llama" / "extras"
LEFT_OUT = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=tiers.TIERS, default="test", help="which tests to run")
    parser.addoption("--backend", choices=("torch_xla", "pjrt"), help="the runtime of programs")
    parser.addoption("--device-count", type=int, help="the number of virtual devices")
    parser.addoption("--seed", type=int, default=0, help="the seed of what sweeps draw")
    parser.addoption("--sharded", choices=("only", "none"), help="only tests on 8 devices, or none")


def pytest_configure(config: pytest.Config) -> None:
    """Choose XLA's flags, the backend, the number of devices, and the tests that are for it."""
    config.addinivalue_line("markers", "slow: in sweeps only")
    config.addinivalue_line("markers", "sample(n, seed): one case in n, the others in sweeps only")
    config.addinivalue_line("markers", "quick(n, seed): in `make quick`, too, or one case in n")
    config.addinivalue_line("markers", "torch_xla: takes torch_xla's runtime, and is quick with it")
    config.addinivalue_line("markers", "one_device: about one device; left out on several")
    flags = os.environ.get("XLA_FLAGS", "").split()
    given = {flag.partition("=")[0] for flag in flags}
    wanted = FAST if config.getoption("--tier") == "sweep" else [*FAST, *FASTER]
    flags += [flag for flag in wanted if flag.partition("=")[0] not in given]
    os.environ["XLA_FLAGS"] = " ".join(flags)
    if choice := config.getoption("--backend"):
        os.environ["XFUNC_BACKEND"] = choice
    os.environ.setdefault("XFUNC_BACKEND", "pjrt")
    _choose_devices(config)


def _choose_devices(config: pytest.Config) -> None:
    here = config.invocation_params.dir
    paths = {arg: (here / arg.partition("::")[0]).resolve() for arg in config.args}
    sharded = [arg for arg, path in paths.items() if any(map(path.is_relative_to, SHARDED))]
    others = [arg for arg in paths if arg not in sharded]
    inside = [
        str(folder)
        for folder in SHARDED
        if folder.exists() and any(folder.is_relative_to(paths[arg]) for arg in others)
    ]
    part, count = config.getoption("--sharded"), config.getoption("--device-count")
    if part == "only":
        config.args = [*sharded, *inside]
    elif part == "none":
        config.args = others
    elif sharded and others and (count or 1) < 8:
        folders = " and ".join(str(folder.relative_to(TESTS.parent)) for folder in SHARDED)
        raise pytest.UsageError(
            f"the tests in {folders} run on 8 devices and the others on one: name them in runs of "
            "their own, use `python -m tests`, or run all of them with --device-count 8"
        )
    if count is None:
        count = 8 if part == "only" or (sharded and not others) else 1
    os.environ["CPU_NUM_DEVICES"] = str(count)
    if part and getattr(config.option, "lf", False) and config.cache:
        failed = config.cache.get("cache/lastfailed", {})
        names = [(TESTS.parent / name.partition("::")[0]) for name in failed]
        on_8 = [any(map(name.is_relative_to, SHARDED)) for name in names]
        if failed and (part == "only") not in on_8:
            config.args = []  # pytest would run all: it knows of no failure among these
    if not config.args:
        pytest.exit(
            f"none of these tests is for {count} device(s)", pytest.ExitCode.NO_TESTS_COLLECTED
        )
    config.stash[LEFT_OUT] = bool(inside) and part is None and count < 8


def pytest_sessionstart() -> None:
    _keep_executables()


def _keep_executables() -> None:
    """Let the next run load executables, found by their HLO and all versions, outside the checkout.

    torch_xla's runtime cannot load those that it has compiled for the CPU.
    """
    if os.environ.get("XFUNC_BACKEND") == "pjrt":
        import xfunc as xf

        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        xf.config.set_compilation_cache_dir(Path(cache) / "xfunc" / "tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what nobody named: pytest does not ask about paths that are."""
    if collection_path == EXTRAS:
        return True
    if collection_path in SHARDED and int(os.environ["CPU_NUM_DEVICES"]) < 8:
        return True
    if collection_path in SHARDED and config.getoption("--sharded") == "none":
        return True
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if config.getoption("--tier") == "quick" and is_test:
        return None if tiers.may_be_quick(collection_path, _also_quick()) else True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for another backend; and what is of another tier, unless it is named."""
    kept = [*items]
    if os.environ["XFUNC_BACKEND"] != "torch_xla":
        kept = [item for item in kept if not item.get_closest_marker("torch_xla")]
    if os.environ["CPU_NUM_DEVICES"] != "1":
        kept = [item for item in kept if not _is_of_one_device(item)]
    named = any("::" in arg for arg in config.args)
    if not (named or config.option.keyword or getattr(config.option, "lf", False)):
        kept = tiers.select(kept, config.option.tier, _also_quick())
    remaining = {id(item) for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in remaining])
    items[:] = kept


def _also_quick() -> str | None:
    """The mark of tests that are quick with the backend in use."""
    return "torch_xla" if os.environ.get("XFUNC_BACKEND", "torch_xla") == "torch_xla" else None


def _is_of_one_device(item: pytest.Item) -> bool:
    inside = any(map(item.path.is_relative_to, ONE_DEVICE))
    return inside or item.get_closest_marker("one_device") is not None


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.stash[LEFT_OUT]:
        terminalreporter.write_line(
            "Not run: the tests on 8 devices. `python -m tests` runs all.", yellow=True
        )


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """Random numbers of a test do not depend on the tests before it."""
    import numpy as np
    import torch

    number = zlib.crc32(request.node.nodeid.encode())
    torch.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """What a sweep draws its programs with; 0 otherwise."""
    return pytestconfig.option.seed


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Runs code in processes of its own, without the seconds that importing torch takes."""
    server = Server(tmp_path_factory.mktemp("fresh"))
    yield server
    server.stop()


@pytest.fixture(scope="module", autouse=True)
def _few_programs() -> Iterator[None]:
    """A process that runs many tests keeps below Linux's limit of memory maps, about 65,000."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        import xfunc as xf

        xf.clear_caches()


@pytest.fixture
def cleared() -> None:
    """Nothing is cached when the test begins."""
    import xfunc as xf

    xf.clear_caches()


@pytest.fixture
def executables_not_kept() -> Iterator[None]:
    """XLA compiles what the test runs, whatever an earlier run has kept; it may choose a folder."""
    import xfunc as xf

    xf.config.set_compilation_cache_dir(None)
    yield
    xf.config.set_compilation_cache_dir(None)
    _keep_executables()


@pytest.fixture
def alive_afterwards() -> Iterator[None]:
    """What the test has done to xfunc and to torch_xla does not show in what comes next."""
    from tests.survive.hostile_functions import assert_alive

    yield
    assert_alive()


@pytest.fixture
def pjrt() -> Iterator[None]:
    """JAX's runtime runs the programs of the test."""
    import xfunc as xf

    xf.config.set_backend("pjrt")
    yield
    xf.config.set_backend(os.environ.get("XFUNC_BACKEND", "torch_xla"))
