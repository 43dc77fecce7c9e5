"""Errors of torch, translated to errors of xfunc."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from xfunc.core.avals import short
from xfunc.core.locations import Location, in_user_code, raised_at
from xfunc.errors import (
    ConcretizationError,
    PurityError,
    UnsupportedOpError,
    XfuncError,
    format_error,
)
from xfunc.graph.node import NoSuchTypeError
from xfunc.torchlib import functorch, global_flags, torch_functions
from xfunc.torchlib.derivatives import no_derivative
from xfunc.torchlib.in_place import REPLACED
from xfunc.torchlib.torch_functions import Kind, operation_name
from xfunc.torchlib.values import tensors_in
from xfunc.tracer.placeholders import NoDataError

# torch's messages about an autograd.Function that a transform cannot handle, and their meaning.
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
    "attempting to call Tensor.requires_grad_()": (
        "torch.autograd does not follow values that vmap batches, and torch.autograd.functional "
        "none in a transform",
        "use xf.grad, xf.vjp or xf.jacrev of a function instead.",
    ),
    "Error while setting up backward hooks": (
        "torch sets up backward hooks of modules by the graph of autograd, which traced values do "
        "not show",
        "use Tensor.register_hook in the module's forward, or xf.custom_vjp.",
    ),
    "input_is_complex == grad_is_complex": (
        "torch has no derivative here: it makes a complex one of what is real (the second "
        "derivative of linalg.eigh of complex numbers, for one)",
        "use linalg.eigvalsh if the eigenvectors are not needed, or xf.custom_vjp.",
    ),
    "please try to rewrite the `as_strided` call": (
        "as_strided within vmap reads beyond the memory of one example, whose elements may lie "
        "apart in the batch",
        "index the elements: x.reshape(-1)[positions], or use x.unfold.",
    ),
    "You must implement the jvp function": (
        "a torch.autograd.Function has no rule for forward-mode differentiation",
        "give the class a `jvp` staticmethod, or use xf.custom_jvp.",
    ),
}

# torch's messages about in-place changes that differentiation or batching cannot handle.
_CHANGES = {
    "modified by an inplace operation": (
        "a value that a derivative is computed from is changed in place after it was used",
        "change a copy: y = x.clone(), and then y += 1.",
    ),
    "function that returns multiple views": (
        "one of several views (of unbind, split or chunk) of a value that is differentiated is "
        "changed in place, which torch does not follow",
        "change a part by its index: x[0] -= 1, or write x.select(0, 0).sub_(1).",
    ),
    "vmap: inplace arithmetic(self, *extra_args) is not possible": (
        "values, or tangents, that differ between the examples of a vmap are written into a tensor "
        "that they share (hessian and jacfwd map over tangents)",
        "compute a new tensor: x = x * y instead of x *= y.",
    ),
    "expected all tensors to be on the same device, not on": (
        "traced values are written into a tensor of the CPU, or used with one",
        "make that tensor without device=, or pass it as an argument.",
    ),
    "vmap: called random operation": (
        "torch may draw from its global random generator in this operation, and so does not map it",
        "map it with xf.map in place of xf.vmap.",
    ),
    "cannot mutate tensors with frozen storage": REPLACED,
    "cannot resize variables": REPLACED,
    "aten::set_(self": REPLACED,
}

# torch's messages where a function cannot take a traced value for data.
_WITHOUT_DATA = {
    "meta converter nyi": (  # by torch.compile
        "torch.compile, which torch's control flow needs too, was given traced values",
        "call the function itself, which is compiled with the rest; or use xf.cond, xf.while_loop "
        "or xf.scan.",
    ),
    "Cannot pack tensors on": (
        "a traced value was exchanged through DLPack, but it has no data",
        "return the value and exchange it outside; a function of JAX runs in a program by "
        "xf.call_jax.",
    ),
    "failed in the TorchScript interpreter": (
        "TorchScript ran an operation of a traced value with a tensor that it holds itself",
        "call the module or function that the script was made from.",
    ),
    "isFunctionalTensor(base_) INTERNAL ASSERT": (
        "torch.func.functionalize was applied in traced code",
        "leave it out: what is traced has no in-place operations.",
    ),
    "NestedTensorImpl storage must be": (
        "a nested tensor was made of traced values, but XLA has only arrays of one shape",
        "pad the values to one shape, and mask the rest.",
    ),
}

# For a custom operation that a transform cannot handle: the name, what is missing, the hint.
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
    "vmap: We do not support batching operators that can output dynamic shape",
    "vmap: Attempted to vmap over `mask` in torch.masked_select",
)


TRANSLATED = (RuntimeError, BufferError, UserWarning)
"""The types of errors that `refusal_of` knows."""


def refusal_of(
    func: object,
    error: Exception,
    name: str,
    at: Location | None,
    given: Iterable[object] = (),
    static: str = "it as a static argument",
) -> XfuncError | None:
    """The error of xfunc for a refusal by torch or a rule; None for any other error.

    `given` are the arguments of `func` after the first; `static` suggests a static argument.
    """
    if isinstance(error, XfuncError) or not isinstance(error, TRANSLATED):
        return None
    message = str(error)
    without = re.match(global_flags.NO_RULE, message)
    if without is not None:
        return no_derivative(without[1], name, at)
    if isinstance(error, UserWarning):
        return None
    for says, (problem, hint) in (_FUNCTION_RULES | _CHANGES | _WITHOUT_DATA).items():
        if says in message:
            return UnsupportedOpError(format_error(problem, hint, function=name, at=at))
    for pattern, lacks, hint in _OPERATION_RULES:
        found = re.search(pattern, message)
        if found:
            what = f"{found[1].removeprefix('aten::')} has {lacks}"
            return UnsupportedOpError(format_error(what, hint, function=name, at=at))
    if any(says in message for says in _READS_IN_VMAP):
        what = "the code" if func is None else operation_name(func)
        return ConcretizationError(
            format_error(
                f"{what} reads batched values to make a choice, a number or a shape, but a "
                "traced value has no data",
                "compute with tensors (torch.where instead of `if`, or of x[mask]), or pass what "
                "is read as a static argument.",
                function=name,
                at=at,
            )
        )
    if "would mutate a captured Tensor" in message or "a leaf Variable that requires" in message:
        what = "the code" if func is None else operation_name(func)
        return PurityError(
            format_error(
                f"{what} changes in place an argument, or a tensor from outside the function",
                "compute a new tensor and return it (x = x + 1 instead of x += 1).",
                function=name,
                at=at,
            )
        )
    if isinstance(error, NoSuchTypeError):
        what = "the code" if func is None else operation_name(func)
        return UnsupportedOpError(
            format_error(
                f"{what} makes complex numbers of float16 (torch.complex32), which XLA does not "
                "support",
                "convert to float32 first: x.float().",
                function=name,
                at=at,
            )
        )
    if not isinstance(error, NoDataError) and "to be on cpu, but it" not in message:
        return None
    numbers = any(isinstance(x, torch.Tensor) and x.ndim == 0 for x in given)
    if func is not None and (numbers or torch_functions.reads_sizes(func)):
        return ConcretizationError(
            format_error(
                f"{operation_name(func)} reads a traced value as a size, an index or a number, "
                "but a traced value has no data",
                f"pass {static}, or compute with tensors of fixed size.",
                function=name,
                at=at,
            )
        )
    if func is None:
        return ConcretizationError(
            format_error(
                "the code reads a traced value, but a traced value has no data",
                "compute with tensors, or return the value and read it outside.",
                function=name,
                at=at,
            )
        )
    return UnsupportedOpError(
        format_error(
            f"{operation_name(func)} has no lowering to XLA, or a result whose shape depends "
            "on data",
            "write it with other torch operations, or call it outside the traced function.",
            function=name,
            at=at,
        )
    )


STATE = (
    "pass the state of the module through the function: apply, params, buffers = "
    "xf.functional(module), and apply(params, buffers, x) returns (result, new buffers); or call "
    "module.eval() if its statistics are not to change."
)
"""The hint where a module that is closed over changes its buffers."""
OF_JAX = "use torch's function; or call JAX's as one operation: xf.call_jax(jnp.sin, x)[0]."
"""The hint where a function of JAX was given a traced value."""
_ATTRIBUTES = {
    "at": "write xf.at(x)[index].set(y), and .add(y), .get() and so on.",
    "astype": "write x.to(dtype).",
    "block_until_ready": "write xf.block_until_ready(x), outside of traced functions.",
    "sharding": "write xf.sharding_of(x), outside of traced functions.",
    "weak_type": "tensors have no weak types.",
    "aval": "write xf.ShapeDtypeStruct(x.shape, x.dtype).",
}
"""Attributes of JAX's arrays, and their equivalents for tensors."""


def explain_usage(error: BaseException, name: str) -> None:
    """Add a note to an error of user code that takes a traced value for an array of JAX."""
    said = "\n".join([str(error), *getattr(error, "__notes__", ())])
    if "Hint: " in said:
        return
    if isinstance(error, AttributeError) and isinstance(error.obj, torch.Tensor):
        hint = _ATTRIBUTES.get(error.name or "")
        if hint is not None:
            problem = f"{error.name} is an attribute of JAX's arrays, not of tensors"
            error.add_note(format_error(problem, hint, function=name, at=raised_at(error)))
    elif isinstance(error, TypeError) and "'jaxlib." in said:
        hint = "make a tensor of the array first: torch.from_dlpack(array)."
        problem = "an array of JAX stands beside a traced value"
        error.add_note(format_error(problem, hint, function=name, at=raised_at(error)))
    elif isinstance(error, TypeError) and _OF_ARRAYS.search(said):
        problem = "torch's operators take an array only on their right, and do not compare with one"
        hint = "make a tensor of the array: torch.from_numpy(array)."
        error.add_note(format_error(problem, hint, function=name, at=raised_at(error)))
    elif isinstance(error, TypeError) and (found := _OF_NUMBERS.search(said)):
        func = found["func"] or found["clamp"]
        problem = f"{func} takes only a number there, not a value that is differentiated"
        hint = "compute with tensors: x + alpha * y, torch.where."
        if found["clamp"]:
            hint = "make all bounds tensors: x.clamp(torch.tensor(0.0), bound)."
        error.add_note(format_error(problem, hint, function=name, at=raised_at(error)))
    elif (
        isinstance(error, TypeError)
        and "torch." in said
        and ("jax" in said.lower() or _is_raised_in_jax(error))
    ):
        problem = "a function of JAX was given a traced value"
        error.add_note(format_error(problem, OF_JAX, function=name, at=raised_at(error)))


_OF_NUMBERS = re.compile(
    r"(?P<func>\w+)\(\): argument '\w+'( \(position \d+\))? must be (Number|float), not Tensor"
    r"|(?P<clamp>clamp\w*|clip\w*)\(\) received an invalid combination of arguments - got .*Tensor"
)
"""The messages of torch for a tensor that stands for a number, and requires a gradient."""
_OF_ARRAYS = re.compile(
    r"'numpy.ndarray' and '(Tensor|Parameter)'|'(Tensor|Parameter)' and 'numpy.ndarray'"
    "|Concatenation operation is not implemented for NumPy arrays"
)
"""The messages of Python and NumPy for an operator that neither operand supports."""


def module_running_with(tensor: torch.Tensor) -> tuple[torch.nn.Module, str] | None:
    """The running module that holds a tensor, and the tensor's name in it."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, torch.nn.Module):
            for name, held in (*module.named_buffers(), *module.named_parameters()):
                if held is tensor:
                    return module, name
        frame = frame.f_back
    return None


def _end_of(error: BaseException) -> types.TracebackType | None:
    end = error.__traceback__
    while end is not None and end.tb_next is not None:
        end = end.tb_next
    return end


def _is_raised_in_jax(error: BaseException) -> bool:
    end = _end_of(error)
    module = str(end.tb_frame.f_globals.get("__name__")) if end else ""
    return module.partition(".")[0] == "jax"


def explain(
    error: Exception, func: object, args: Sequence[object], kwargs: Mapping[str, object], name: str
) -> Exception:
    """The exception for an error of an operation: torch's own, if torch refuses the arguments too.

    It gets a note: the operation, its arguments and the user's line. Errors raised by user code,
    those that have a note, and those that have a hint and are not torch's, stay as they are.
    """
    innermost = _end_of(error)
    if innermost is None or in_user_code(innermost.tb_frame.f_code):
        return error
    if isinstance(error, XfuncError) or getattr(error, "__notes__", None):
        return error
    shown = [*map(_show, args), *(f"{k}={_show(v)}" for k, v in kwargs.items())]
    hint = "make the shapes and dtypes match; `print(x)` in the function shows those of x."
    refusal = _refusal_of_torch(func, args, kwargs, error)
    if "\nHint: " in str(error) and (refusal is None or str(refusal) == str(error)):
        return error
    if refusal is None:
        hint = (
            "torch itself takes arguments like these, so this is a defect of xfunc: please report "
            "it; until it is mended, write it with other operations, or run it outside of traced "
            "functions."
        )
    elif refusal is not error and type(refusal) in _OF_TORCH:
        error = type(refusal)(str(refusal))
    problem = f"raised by {operation_name(func)}({', '.join(shown)})"
    error.add_note(format_error(problem, hint, function=name))
    return error


_OF_TORCH = RuntimeError, IndexError, TypeError, ValueError
_MOST_ELEMENTS = 1 << 16  # of arguments that torch is asked about; larger ones are without data


def _refusal_of_torch(
    func: object, args: Sequence[object], kwargs: Mapping[str, object], unknown: Exception
) -> Exception | None:
    """torch's exception for arguments of these shapes and dtypes; None if torch takes them.

    `unknown` if that cannot be found out.
    """
    others = Kind.FOREIGN, Kind.RANDOM, Kind.BACKWARD  # which do more than compute
    if func is torch.autograd.grad or torch_functions.kind_of(func) in others:
        return unknown
    few = sum(t.numel() for t in tensors_in(args, kwargs)) <= _MOST_ELEMENTS
    device = torch.device("cpu" if few else "meta")

    def like(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return torch.zeros(x.shape, dtype=x.dtype, device=device)
        if isinstance(x, torch.device):
            return device
        return type(x)(map(like, x)) if type(x) in (tuple, list) else x

    with torch._C.DisableTorchFunction(), functorch.bottom_level():
        try:
            given, named = like(tuple(args)), {k: like(v) for k, v in kwargs.items()}
            func(*given, **named)  # type: ignore[operator]
        except Exception as refusal:
            return refusal
    return None if few else unknown


def _show(x: object) -> str:
    """An argument of an operation as text, without reading the data of a traced value."""
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
