"""The running device: torch_xla's PJRT client, reached without going through its lazy tensors.

Everything here knows torch_xla and nothing above it. A program is compiled once from its HLO and
then only ever run; `Executable` is the seam behind which another runtime would stand.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import glob
import itertools
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from xfunc.avals import Aval
from xfunc.errors import CompileError, report
from xfunc.functorch import top_level
from xfunc.locations import user_location
from xfunc.refusals import compile_error, out_of_memory

if TYPE_CHECKING:
    from xfunc.placement import Placement


@functools.cache
def xla() -> ModuleType:
    """torch_xla's C++ module; the first call loads torch_xla and starts the device client."""
    if "PJRT_DEVICE" not in os.environ:
        # torch_xla guesses too, with a warning on every machine without an accelerator.
        chips = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
        os.environ["PJRT_DEVICE"] = "TPU" if chips else "CPU"
    flags = os.environ.get("XLA_FLAGS", "")
    if "--xla_cpu_enable_fast_min_max" not in flags:
        # By default XLA's CPU target drops NaN from maxima and minima, which torch does not.
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_enable_fast_min_max=false".strip()
    if os.environ["PJRT_DEVICE"] == "CPU" and _map_limit():  # See NOTE [memory maps].
        size = max(_map_limit() // _MAPS_OF_A_PROGRAM, 64)
        os.environ.setdefault("XLA_COMPILATION_CACHE_SIZE", str(size))
    if not {"PT_XLA_DEBUG", "PT_XLA_DEBUG_LEVEL"} & os.environ.keys():
        # Where torch_xla reports each reading that is refused; it would do so on stderr.
        os.environ.setdefault("PT_XLA_DEBUG_FILE", os.devnull)
    _make_room_for_devices()
    unpatched = "torch_xla" not in sys.modules
    before = torch.nn.GRU, torch.nn.utils.clip_grad_norm_
    import torch_xla

    if unpatched:  # It puts slower ones with fewer options in their place, for all of torch.
        torch.nn.GRU, torch.nn.utils.clip_grad_norm_ = before
    _use_all_devices()
    torch_xla.device()
    # The one look upwards: every way into torch_xla comes by here, and none may miss the kernels.
    from xfunc import ops

    ops.start()
    return torch_xla._XLAC


# NOTE [virtual devices]
# With several devices xfunc runs torch_xla in its SPMD mode: one program for all of them, and data
# that is not divided is copied to each. On the CPU the devices are threads of one pool, and one
# that waits in a collective for the others blocks its thread. If a program finds too few threads
# for all of its devices, it waits for ever, and XLA aborts the process. So the pool has several for
# each device (`NPROC`, which XLA reads when it starts), and a program is launched when the one
# before has ended (`_run_alone`).
_THREADS_PER_DEVICE = 4


def _make_room_for_devices() -> None:
    if os.environ["PJRT_DEVICE"] != "CPU":
        return
    count = os.environ.get("CPU_NUM_DEVICES", "1")
    if not count.isdecimal() or int(count) < 2:
        return
    wanted, given = _THREADS_PER_DEVICE * int(count), os.environ.get("NPROC", "")
    has_enough = given.isdecimal() and int(given) >= wanted
    if not has_enough:
        backend = sys.modules.get("torch_xla")
        if backend is not None and backend._XLAC._xla_runtime_is_initialized():
            raise RuntimeError(
                report(
                    f"torch_xla started before xfunc, with {count} CPU devices and too few threads "
                    "for them: their collectives would wait for each other for ever",
                    "use xfunc (or call xf.config.set_cpu_devices) before torch_xla, or set the "
                    f"environment variable NPROC={wanted}.",
                    at=user_location(),
                )
            )
        os.environ["NPROC"] = str(wanted)
    # XLA says of every program for several devices that its partitioner will be succeeded.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def _use_all_devices() -> None:
    """Have torch_xla run one program on all devices; see NOTE [virtual devices]."""
    from torch_xla import _XLAC as X
    from torch_xla import runtime as xr

    if X._xla_num_global_devices() == 1:
        os.environ.pop("XLA_USE_SPMD", None)  # a parent process's
    elif not xr.is_spmd():
        xr.use_spmd()


@functools.cache
def device_count() -> int:
    """The number of devices that programs run on."""
    return xla()._xla_num_global_devices()


def is_cpu() -> bool:
    """Whether programs run on the CPU."""
    xla()
    return os.environ["PJRT_DEVICE"] == "CPU"


# NOTE [memory maps]
# A program compiled for the CPU holds 30 memory maps, or 60 if it is large, and Linux gives a
# process 65530: torch_xla's cache of 2048 programs fills up later than that, and XLA dies with
# SIGSEGV when it gets no more. A smaller cache evicts in time; what it forgot is compiled again.
_MAPS_OF_A_PROGRAM = 100
_compiles = itertools.count(1)


@functools.cache
def _map_limit() -> int:
    """How many memory maps the process may have; 0 if that is not known."""
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/vm/max_map_count") as file:
        return int(file.read())
    return 0


def _check_maps(name: str) -> None:
    """Refuse to compile where XLA would die of it; see NOTE [memory maps]."""
    if next(_compiles) % 16 or not _map_limit() or os.environ["PJRT_DEVICE"] != "CPU":
        return
    with open("/proc/self/maps") as file:
        used = sum(1 for _ in file)
    if used > 0.95 * _map_limit():
        raise CompileError(
            report(
                f"{name} cannot be compiled: the process holds {used} memory maps, most of them of "
                f"programs compiled before, and Linux allows {_map_limit()}",
                "compile fewer programs in one process, or keep fewer: set the environment "
                "variable XLA_COMPILATION_CACHE_SIZE (now "
                f"{os.environ['XLA_COMPILATION_CACHE_SIZE']}) before the first trace.",
            )
        )


@functools.cache
def device() -> torch.device:
    """The device that programs run on."""
    xla()
    return sys.modules["torch_xla"].device()


@functools.cache
def builder() -> ModuleType:
    """torch_xla's bindings for HLO computations."""
    xla()
    from torch_xla.core import xla_builder

    return xla_builder


_RLock: Any = type(threading.RLock())


class _Lock(_RLock):
    """One lock for all that touches process-wide switches of torch_xla: traces and runs.

    A thread that a trace itself waits for would wait for ever; it is refused instead.
    """

    def __init__(self) -> None:
        super().__init__()
        self._refused = threading.local()

    @contextlib.contextmanager
    def refused(self) -> Iterator[None]:
        """Refuse it to this thread, which a program that is running waits for."""
        self._refused.now = True
        try:
            yield
        finally:
            self._refused.now = False

    def __enter__(self) -> None:
        if not self.acquire(False):
            self._wait()

    def _wait(self) -> None:
        if getattr(self._refused, "now", False):
            raise RuntimeError(
                "xfunc was called from a function that a running program calls, and that the "
                "program waits for\nRepair: compute there with numpy, or with torch on the CPU."
            )
        while not self.acquire(timeout=1.0):
            if self._holder_waits_for_a_thread():
                raise RuntimeError(
                    "xfunc was called from a thread that a function being traced in another "
                    "thread is waiting for\nRepair: make the call in the thread that traces, "
                    "or start the thread outside the traced function."
                )

    def _holder_waits_for_a_thread(self) -> bool:
        owner = re.search(r"owner=(\d+)", repr(self))
        frame = sys._current_frames().get(int(owner[1])) if owner else None
        waiting = (os.sep + "threading.py", os.sep + "queue.py", os.sep + "_base.py")
        return frame is not None and frame.f_code.co_filename.endswith(waiting)


lock = _Lock()


def placeholder(aval: Aval) -> torch.Tensor:
    """A tensor on the device that has no data."""
    return builder().create_placeholder_tensor(tuple(aval.shape), aval.dtype)


def _placed(holder: torch.Tensor, placement: Placement | None) -> torch.Tensor:
    """A placeholder of the same data, which a program takes as an input that lies so.

    Also where each device has the whole: XLA chooses for inputs of which nothing is said.

    torch_xla 2.9 refuses to mark a placeholder. But a sharding outlives that what it was put on is
    replaced in place, and goes over to the new data when torch_xla is next asked for it.
    """
    X = xla()
    marked = placeholder(Aval(tuple(holder.shape), holder.dtype))
    sharding = _replicated() if placement is None else placement.op_sharding
    X._xla_annotate_custom_sharding(marked, sharding)
    marked.copy_(holder)
    X._get_xla_sharding_spec(marked)
    return marked


@functools.cache
def _replicated() -> Any:
    return xla().OpSharding([], [], [], 0)


def user_computation(name: str, inputs: Sequence[torch.Tensor], computation: Any) -> list[Any]:
    """One lazy node that applies a computation."""
    return xla()._xla_user_computation(f"xfunc::{name}", list(inputs), computation)


def settle(tensors: Sequence[torch.Tensor]) -> None:
    """Give data to lazy tensors whose computation is still pending."""
    wait()
    xla()._xla_sync_multi(list(tensors), [str(device())], True, True)


class Executable:
    """A compiled program.

    Args:
        name: shown by profilers.
        computation: torch_xla's handle of the HLO.
        avals: of the module's parameters, in order.
        donated: parameters whose buffers the program may take over.
        placements: how the data of each parameter lies on the devices; none given: whole on each.
        calls_host: whether it calls functions of Python, and has the output that
            `xfunc.host_calls` adds to such programs.

    Attributes:
        order: the order in which the compiled program takes the parameters.
        graph: the name under which XLA knows the compiled program.
        inputs: what `order` means to whoever made it, as its own numbers of the parameters.
    """

    inputs: tuple[int, ...] = ()

    def __init__(
        self,
        name: str,
        computation: Any,
        avals: Sequence[Aval],
        donated: Sequence[int],
        placements: Sequence[Placement | None] = (),
        calls_host: bool = False,
    ):
        self._name, self._computation, self._calls_host = name, computation, calls_host
        self._avals, self._donated = tuple(avals), frozenset(donated)
        self._placements = tuple(placements) or (None,) * len(self._avals)
        self._compile()

    def _compile(self) -> None:
        X = xla()
        _check_maps(self._name)
        from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config

        bare = [placeholder(a) for a in self._avals]
        for i in self._donated:
            X._set_buffer_donation(bare[i], True)
        holders = bare
        if device_count() > 1:
            holders = [_placed(*x) for x in zip(bare, self._placements, strict=True)]
        with alias_with_buffer_donor_config(bool(self._donated)):
            outputs = user_computation(self._name, holders, self._computation)
            self._hash = X._get_graph_hash(outputs)
            try:
                _check_memory(self._name, outputs)
                if self._hash not in _graphs:
                    _graphs[self._hash] = _unused_name(self._name)
                self.graph = _graphs[self._hash]
                with _graph_name(self.graph):
                    X._xla_warm_up_cache(outputs, [])
            except Exception as error:  # torch_xla raises whatever XLA's status code maps to.
                # The traceback keeps this frame; placeholders in it would break the next trace.
                outputs.clear()
                holders.clear()
                bare.clear()
                if isinstance(error, CompileError):
                    raise
                raise compile_error(self._name, str(error)) from error
        ids, _ = X._get_tensors_xla_device_data_node(outputs)
        places = [X._get_tensors_xla_device_data_node([h])[0][0] for h in bare]
        self.order = tuple(places.index(i) for i in ids)
        self._launch = X._run_cached_graph if device_count() == 1 else _run_alone
        if self._calls_host:
            self._launch = _run_to_its_end

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on tensors of the device: the parameters, in the order that `order` lists them."""
        try:
            return self._launch(self._hash, inputs)
        except RuntimeError as error:
            return self._retry(inputs, error, 3)

    def _retry(
        self, inputs: Sequence[torch.Tensor], error: RuntimeError, times: int
    ) -> list[torch.Tensor]:
        message = str(error)
        if "pending ir" in message:  # Inputs made by lazy torch_xla operations.
            settle(inputs)
        elif "computation by hash" in message:  # Evicted from torch_xla's own cache.
            order = self.order
            self._compile()
            assert self.order == order
        elif "RESOURCE_EXHAUSTED" in message or "Out of memory" in message:
            raise compile_error(self._name, message) from error
        else:
            raise error
        try:
            return self._launch(self._hash, inputs)
        except RuntimeError as again:  # Computing pending inputs may itself evict the program.
            if times == 0:
                raise
            return self._retry(inputs, again, times - 1)


def _run_alone(graph: bytes, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a program when the one before has ended; see NOTE [virtual devices]."""
    wait()
    return xla()._run_cached_graph(graph, inputs)


failures: list[Exception] = []
"""What functions raised that programs called; the run that called them takes it from here."""


def _run_to_its_end(graph: bytes, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a program that calls functions; see NOTE [host calls and the interpreter's lock]."""
    failures.clear()
    outputs: list[torch.Tensor] = []
    try:
        *outputs, end = _run_alone(graph, inputs)
        xla()._xla_get_cpu_tensors([end])
    except RuntimeError:
        if not failures:
            raise
    if failures:
        raise failures[0]
    return outputs


def wait() -> None:
    """Wait until the virtual devices are idle; see NOTE [virtual devices]."""
    if is_cpu() and device_count() > 1:
        xla()._xla_wait_device_ops([])


def _check_memory(name: str, outputs: Sequence[torch.Tensor]) -> None:
    """Refuse results that the CPU's memory cannot hold.

    XLA would allocate them later, in a thread of its own: the kernel kills the process for it, or
    torch_xla 2.9 does, with SIGSEGV, when such a result is next used.
    """
    if os.environ["PJRT_DEVICE"] != "CPU":
        return
    required = sum(o.numel() * o.element_size() for o in outputs)
    limit = host_memory()
    if required > limit:
        raise out_of_memory(
            f"the results of {name} take {required} bytes, and the machine has {limit}",
            required,
            limit,
        )


@functools.cache
def host_memory() -> int:
    """Bytes of memory that this process may use."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            limits.append(int(file.read()))  # Not a number: no limit.
    return min(limits)


_graphs: dict[bytes, str] = {}  # Equal programs are compiled once, under the name of the first.
_names: collections.Counter[str] = collections.Counter()


def _unused_name(name: str) -> str:
    plain = re.sub(r"\W", "_", name)
    _names[plain] += 1
    return plain if _names[plain] == 1 else f"{plain}_{_names[plain]}"


@contextlib.contextmanager
def _graph_name(name: str) -> Iterator[None]:
    """Let torch_xla compile under a name."""
    before = xla()._get_current_graph_name()
    xla()._set_current_graph_name(name)
    try:
        yield
    finally:
        xla()._set_current_graph_name(before)


# Of the unsigned ones torch_xla makes signed ones, unless torch's dispatcher is asked.
_BY_DISPATCHER = frozenset({torch.uint16, torch.uint32, torch.uint64})


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's value on the device (differentiable), in a buffer of its own."""
    if tensor.device == device():
        return tensor
    if tensor.requires_grad or top_level() is not None or not is_data(tensor):
        return tensor.to(device())
    return uploaded(tensor)


def is_data(tensor: torch.Tensor) -> bool:
    """Whether `uploaded` takes a tensor on which nothing is recorded."""
    strided = tensor.is_cpu and tensor.layout is torch.strided
    return strided and tensor.dtype not in _BY_DISPATCHER


# NOTE [scalars of one's own]
# torch_xla gives equal 0-d tensors of the CPU one buffer, and remembers it. If that is donated, two
# of them in one call are a buffer donated twice, and the next one finds a buffer that is gone.
def uploaded(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor of the CPU on the device, in a buffer of their own."""
    return xla()._xla_tensors_from_aten([plain(tensor)], [str(device())])[0]


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values without the bits for "conjugate" and "negative", which torch_xla refuses."""
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def block() -> None:
    """Wait until everything launched has run."""
    xla()._xla_wait_device_ops([])  # of all devices
