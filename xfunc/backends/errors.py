"""XLA's messages about programs that it cannot compile or run, as xfunc's errors."""

from __future__ import annotations

import re

from xfunc.errors import CompileError, ExecutionError, OutOfMemoryError, format_error

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"
_OUT_OF_MEMORY = tuple(
    re.compile(text)
    for text in (
        rf"Used {_SIZE}i?B? of {_SIZE}i?B? (?:hbm|host)",  # the TPU's compiler
        r"Allocation \(size=(\d+)()\) would exceed memory \(size=(\d+)()\).* space=hbm",
        rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)",
        rf"unlikely to have enough device memory\. Requires {_SIZE}i?B?, has {_SIZE}i?B? avail",
        rf"Attempting to allocate {_SIZE}i?B?\..* There are {_SIZE}i?B? free",  # its allocator
        r"Out of memory allocating (\d+)() bytes",  # the CPU
        r"RESOURCE_EXHAUSTED",
        r"std::bad_alloc",
    )
)


_SPACE = re.compile(r"\bspace[ =](hbm|host|\w*mem|sflag)\b")  # vmem, smem: a kernel's own


_OTHER_PROCESS = re.compile(r"gloo|nccl|connection|peer\b|coordination|heartbeat", re.IGNORECASE)
_OPTION = re.compile(r"No such compile option: '(.*?)'|While setting option (\w+)")


def compile_error(name: str, message: str) -> CompileError:
    """The message of XLA, which refused a program or ran out of memory, as an error of xfunc."""
    space = _SPACE.search(message)
    if space and space[1] not in ("hbm", "host"):
        return CompileError(
            format_error(
                f"a part of {name} does not fit into on-chip memory: {message}",
                "give a kernel of your own smaller blocks, or raise its limit "
                "(compiler_options={'xla_tpu_scoped_vmem_limit_kib': ...}).",
            )
        )
    if (too_large := _too_large(name, message)) is not None:
        return too_large
    message = message.removeprefix("NOT_FOUND: ")  # JAX adds the class, torch_xla does not.
    hint = "rewrite the operation that it names; if it names none, please report the program."
    option = _OPTION.search(message)
    if option:
        hint = (
            f"leave the compiler option {option[1]!r} out, or give it the name that XLA has for it."
            if option[2] is None
            else f"give the compiler option {option[2]!r} a value that it takes, or leave it out."
        )
    return CompileError(format_error(f"XLA could not compile {name}: {message}", hint))


def run_error(name: str, message: str) -> ExecutionError | OutOfMemoryError:
    """XLA's message about a program that it has compiled, and that failed when it ran."""
    if (too_large := _too_large(name, message)) is not None:
        return too_large
    hint = "mend what the message names; if it names nothing of yours, please report the program."
    if _OTHER_PROCESS.search(message):
        hint = (
            "another process has ended or cannot be reached: see what it printed last, and start "
            "all of them again, from a checkpoint."
        )
    return ExecutionError(format_error(f"{name} failed while it ran: {message}", hint))


def _too_large(name: str, message: str) -> OutOfMemoryError | None:
    for pattern in _OUT_OF_MEMORY:
        found = pattern.search(message)
        if found:
            given = found.groups()
            sizes = [
                int(float(n) * _UNITS[u]) for n, u in zip(given[::2], given[1::2], strict=True)
            ]
            return out_of_memory(f"{name} does not fit in memory: {message}", *sizes)
    return None


def out_of_memory(
    problem: str, required: int | None = None, limit: int | None = None
) -> OutOfMemoryError:
    """The error of a program that does not fit on the device."""
    text = format_error(
        problem,
        "use a smaller batch, xf.checkpoint (keep less for the backward pass), xf.scan over "
        "layers, or a narrower dtype.",
    )
    return OutOfMemoryError(text, required, limit)
