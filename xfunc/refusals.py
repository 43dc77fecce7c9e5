"""torch_xla's and torch's refusals, as errors of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from xfunc import purity, switches
from xfunc.avals import short
from xfunc.errors import (
    CompileError,
    ConcretizationError,
    OutOfMemoryError,
    PurityError,
    UnsupportedOpError,
    XfuncError,
    report,
)
from xfunc.locations import Location, in_user_code, user_location

# What torch says of an autograd.Function that a transform cannot take, and what that means.
_FUNCTION_RULES = {
    "must override the setup_context staticmethod": (
        "a torch.autograd.Function whose forward takes ctx cannot be transformed",
        "split it into forward(*inputs) and setup_context(ctx, inputs, output), or use "
        "xf.custom_vjp.",
    ),
    "but it does not have vmap support": (
        "a torch.autograd.Function has no rule for batching",
        "set `generate_vmap_rule = True` in the class, or use xf.custom_vjp.",
    ),
    "input_is_complex == grad_is_complex": (
        "torch has no derivative here: it makes a complex one of what is real (the second "
        "derivative of linalg.eigh of complex numbers, for one)",
        "use linalg.eigvalsh if the eigenvectors are not needed, or xf.custom_vjp.",
    ),
    "You must implement the jvp function": (
        "a torch.autograd.Function has no rule for forward-mode differentiation",
        "give the class a `jvp` staticmethod, or use xf.custom_jvp.",
    ),
}

# What torch says of changes in place that no derivative or batch can follow.
_REPLACED = (
    "Tensor.set_ or Tensor.resize_ gives a tensor other memory, which a transform cannot follow",
    "make a new tensor: x = y.clone(), or x = x.reshape(...).",
)
_CHANGES = {
    "modified by an inplace operation": (
        "a value that a derivative is computed from is changed in place after it was used",
        "change a copy: y = x.clone(), and then y += 1.",
    ),
    "cannot mutate tensors with frozen storage": _REPLACED,
    "cannot resize variables": _REPLACED,
    "aten::set_(self": _REPLACED,
}

# Of an operation of its own that a transform cannot take: the name, what is missing, the repair.
_OPERATION_RULES = (
    (
        r"Trying to use forward AD with (\S+) that does not support it",
        "no derivative in forward mode",
        "differentiate in reverse mode (xf.grad, xf.vjp, xf.jacrev), or give a function that calls "
        "it a rule with xf.custom_jvp.",
    ),
    (
        r"Batching rule not implemented for (\S+?)[;.,]? ",
        "no rule for batching",
        "write it with other torch operations, or use xf.map in place of vmap.",
    ),
    (
        r"vmap over (\S+) isn't supported",
        "no rule for batching",
        "write it with other torch operations, or use xf.map in place of vmap.",
    ),
    (
        r"vmap: we do not yet support (aten::\w+)",
        "no rule for batching",
        "write it with other torch operations, or use xf.map in place of vmap.",
    ),
    (
        r"derivative for '?(\S+?)(?:: \w+)?'? is not implemented",
        "no derivative",
        "write it with other torch operations, or give a function that calls it a rule with "
        "xf.custom_vjp.",
    ),
)

_READS_IN_VMAP = (
    "vmap: It looks like you're calling .item() on a Tensor",
    "vmap: It looks like you're either (1) calling .item() on a Tensor",
    "vmap: It looks like you're attempting to use a Tensor in some data-dependent control flow",
    "vmap: We do not support batching operators that can support dynamic shape",
)


def refusal_of(
    func: Any, error: Exception, name: str, at: Location | None, given: Iterable[Any] = ()
) -> XfuncError | None:
    """torch_xla's refusal to execute, as an error of ours; None for any other error.

    `given` are the arguments of `func` beside the first.
    """
    if isinstance(error, XfuncError) or not isinstance(error, (RuntimeError, UserWarning)):
        return None
    message = str(error)
    without = re.match(switches.NO_RULE, message)
    if without is not None:
        return no_derivative(without[1], name, at)
    if isinstance(error, UserWarning):
        return None
    for says, (problem, repair) in (_FUNCTION_RULES | _CHANGES).items():
        if says in message:
            return UnsupportedOpError(report(problem, repair, function=name, at=at))
    for pattern, lacks, repair in _OPERATION_RULES:
        found = re.search(pattern, message)
        if found:
            what = f"{found[1].removeprefix('aten::')} has {lacks}"
            return UnsupportedOpError(report(what, repair, function=name, at=at))
    if any(says in message for says in _READS_IN_VMAP):
        what = "the code" if func is None else operation_name(func)
        return ConcretizationError(
            report(
                f"{what} reads values of a batch, for a choice, a number or a shape; a traced "
                "value has no data",
                "compute with tensors (torch.where instead of `if`, or of x[mask]), or pass what "
                "is read as a static argument.",
                function=name,
                at=at,
            )
        )
    if "would mutate a captured Tensor" in message or "a leaf Variable that requires" in message:
        what = "the code" if func is None else operation_name(func)
        return PurityError(
            report(
                f"{what} changes in place an argument, or a tensor from outside the function",
                "compute a new tensor and return it (x = x + 1 instead of x += 1).",
                function=name,
                at=at,
            )
        )
    unlowered = _UNLOWERED.match(message)
    if unlowered is not None:
        of, why = unlowered.groups()
        what = "a number" if of == "prim::Constant" else of.removeprefix("aten::")
        return UnsupportedOpError(
            report(
                f"{what} cannot be written for XLA: {why}",
                "give numbers within the range of the dtype (torch.iinfo, torch.finfo), and "
                "operands of the dtypes that the operation takes.",
                function=name,
                at=at,
            )
        )
    if any(t in message for t in _COMPLEX_HALF):
        what = "the code" if func is None else operation_name(func)
        return UnsupportedOpError(
            report(
                f"{what} makes complex numbers of float16 (torch.complex32), which XLA does not "
                "have",
                "convert to float32 first: x.float().",
                function=name,
                at=at,
            )
        )
    refused = ("Unexpected execution happens", "tensor_data", "HasValue()", "to be on cpu, but it")
    if not any(r in message for r in refused):
        return None
    numbers = any(isinstance(x, torch.Tensor) and x.ndim == 0 for x in given)
    if func is not None and (numbers or purity.reads_sizes(func)):
        return ConcretizationError(
            report(
                f"{operation_name(func)} reads a traced value, as a size, an index or a number; a "
                "traced value has no data",
                "make it a static argument (static_argnums, static_argnames), or compute with "
                "tensors of fixed size.",
                function=name,
                at=at,
            )
        )
    if func is None:
        return ConcretizationError(
            report(
                "the code reads a traced value, or synchronises (torch_xla.sync); a traced value "
                "has no data",
                "compute with tensors, or return the value and read it outside.",
                function=name,
                at=at,
            )
        )
    return UnsupportedOpError(
        report(
            f"{operation_name(func)} has no lowering to XLA, or a result whose shape depends "
            "on data",
            "write it with other torch operations, or call it outside the traced function.",
            function=name,
            at=at,
        )
    )


def no_derivative(operation: str, name: str, at: Location | None) -> UnsupportedOpError:
    """The error of a derivative that torch would take for zero."""
    return UnsupportedOpError(
        report(
            f"{operation} has no derivative, and its arguments are being differentiated",
            "give it one (xf.custom_vjp, xf.custom_jvp, torch.library.register_autograd), or pass "
            "x.detach() to it, whose derivative is zero.",
            function=name,
            at=at,
        )
    )


def explain(
    error: Exception, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> None:
    """Note on an error of torch's own which operation met it, on what, and where.

    The error itself stays as it is; what the user's own code raised gets no note.
    """
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None or in_user_code(innermost.tb_frame.f_code):
        return
    if isinstance(error, XfuncError) or getattr(error, "__notes__", None):
        return
    shown = [*map(_show, args), *(f"{k}={_show(v)}" for k, v in kwargs.items())]
    error.add_note(
        report(
            f"raised by {operation_name(func)}({', '.join(shown)})",
            "make shapes, dtypes and sizes fit; `print(x)` in the function shows those of x.",
            function=name,
            at=user_location(),
        )
    )


def _show(x: Any) -> str:
    """An argument of an operation; never by way of a traced value's data."""
    if isinstance(x, torch.Tensor):
        return short(x)
    if isinstance(x, (tuple, list)):
        inside = ", ".join(map(_show, x))
        return f"[{inside}]" if isinstance(x, list) else f"({inside})"
    if isinstance(x, slice):
        parts = (x.start, x.stop) if x.step is None else (x.start, x.stop, x.step)
        return ":".join("" if p is None else _show(p) for p in parts)
    if isinstance(x, (int, float, complex, str, type(None), torch.dtype, torch.device)):
        return repr(x)
    return "..." if x is ... else type(x).__name__


_COMPLEX_HALF = ("Type not supported: ComplexHalf", "input shape type not supported: f16")
_UNLOWERED = re.compile(
    r"Error while lowering: \S* (\S+),[^\n]*\n(?:Error|XLA builder error): ([^\n]*)"
)
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


def compile_error(name: str, message: str) -> CompileError:
    """The words of XLA, which refused a program or ran out of memory, as an error of ours."""
    space = _SPACE.search(message)
    if space and space[1] not in ("hbm", "host"):
        return CompileError(
            report(
                f"a part of {name} does not fit into a memory inside the chip: {message}",
                "give a kernel of your own smaller blocks, or raise its limit "
                "(compiler_options={'xla_tpu_scoped_vmem_limit_kib': ...}).",
                at=user_location(),
            )
        )
    for pattern in _OUT_OF_MEMORY:
        found = pattern.search(message)
        if found:
            given = found.groups()
            sizes = [
                int(float(n) * _UNITS[u]) for n, u in zip(given[::2], given[1::2], strict=True)
            ]
            return out_of_memory(f"{name} does not fit in memory: {message}", *sizes)
    return CompileError(
        report(
            f"XLA could not compile {name}: {message}",
            "write the operation that it names differently; if it names none, please report the "
            "program.",
            at=user_location(),
        )
    )


def out_of_memory(
    problem: str, required: int | None = None, limit: int | None = None
) -> OutOfMemoryError:
    """The error of a program that does not fit on the device."""
    text = report(
        problem,
        "use a smaller batch, xf.checkpoint (keep less for the backward pass), xf.scan over "
        "layers, or a narrower dtype.",
        at=user_location(),
    )
    return OutOfMemoryError(text, required, limit)


def operation_name(func: Any) -> str:
    """How to call a torch function in a message."""
    if func is None:
        return "an input"
    name = getattr(func, "__name__", repr(func))
    owner = getattr(func, "__self__", None)
    if name in ("__get__", "__set__") and owner is not None:
        return f"Tensor.{owner.__name__}"
    if hasattr(func, "__objclass__") or getattr(func, "__module__", None) == "torch._tensor":
        return f"Tensor.{name}"
    for module in ("linalg", "fft", "special"):  # torch.linalg.norm is called linalg_norm.
        if name.startswith(f"{module}_"):
            return f"torch.{module}.{name.removeprefix(f'{module}_')}"
    if not hasattr(torch, name) and hasattr(torch.nn.functional, name):
        return f"torch.nn.functional.{name}"
    return f"torch.{name}"
