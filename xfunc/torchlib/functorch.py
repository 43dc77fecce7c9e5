"""The private APIs of torch.func that xfunc depends on, all in one place."""

# torch does not declare these in its type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch._C import _functorch
from torch._functorch import autograd_function, eager_transforms
from torch._functorch import vmap as torch_vmap
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch._functorch.pyfunctorch import (
    retrieve_current_functorch_interpreter,
    temporarily_clear_interpreter_stack,
)
from torch.autograd import forward_ad
from torch.fx.experimental import const_fold, proxy_tensor
from torch.utils import _pytree as torch_pytree

from xfunc import tree
from xfunc.core.counted import Counted
from xfunc.core.torch_versions import load_tangents_of_compositions
from xfunc.core.types import AutogradContext
from xfunc.torchlib import global_flags
from xfunc.tree import Leaf

Tensor = torch.Tensor
T = TypeVar("T")
A = TypeVar("A")


class Level(Protocol):
    """An active transform."""

    def key(self) -> object: ...
    def level(self) -> int: ...


class Rule(Protocol):
    """A function with custom rules, as `apply_here` takes it."""

    def forward(self, *args: Tensor) -> Sequence[Tensor]:
        """Run the function."""
        ...

    def keep(self, args: Sequence[Tensor], outputs: Sequence[Tensor], /) -> Sequence[Tensor]:
        """The values that `backward` and `jvp` get as `kept`."""
        ...

    def backward(
        self, n: int, kept: Sequence[Tensor], cts: Sequence[Tensor | None], /
    ) -> Sequence[Tensor | None]:
        """The cotangents of the n arguments."""
        ...

    def jvp(
        self, kept: Sequence[Tensor], tangents: Sequence[Tensor | None], /
    ) -> Sequence[Tensor | None]:
        """The tangents of the outputs."""
        ...


Batched = Callable[
    [tuple[int | None, ...], int, list[Tensor]],
    tuple[Sequence[Tensor], Sequence[int | None]],
]
"""Takes batch dimensions, their size and batched tensors; returns results and their dimensions."""


class _Thread(threading.local):
    own_gradient = False
    # See NOTE [the apply of torch 2.14].
    unlifted: Any = None
    lifted: Any = None
    is_opened = False


_thread = _Thread()

GRAD: object = _functorch.TransformType.Grad
JVP: object = _functorch.TransformType.Jvp
VMAP: object = _functorch.TransformType.Vmap
FUNCTIONALIZE: object = _functorch.TransformType.Functionalize

_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded

any_requires_grad: Callable[..., bool] = torch._C._any_requires_grad
"""Whether any of several tensors requires a gradient."""


def any_dual(*tensors: Tensor) -> bool:
    """Whether torch's own forward mode, outside of transforms, gives one of several a tangent."""
    # Inference mode leaves autograd out; in transforms only the keys tell so.
    if forward_ad._current_level < 0 or _is_excluded(_AUTOGRAD):
        return False
    return any(forward_ad.unpack_dual(innermost(t), level=0).tangent is not None for t in tensors)


WRAP: Sequence[tuple[types.ModuleType, str]] = (
    (torch_vmap, "_add_batch_dim"),
    (eager_transforms, "_wrap_for_grad"),
    (eager_transforms, "_wrap_functional_tensor"),
)
"""The functions with which the transforms of torch.func wrap the tensors that they are given."""

UNWRAP: tuple[types.ModuleType, str] = (eager_transforms, "_unwrap_for_grad")
"""The function with which they unwrap results."""


def recomputed_first(unwrap: Callable[..., Any], tensor: Tensor, level: int) -> Tensor:
    """`UNWRAP` of a tensor, in traced code.

    torch recomputes a view whose base has changed when it is asked what made the view. The pullback
    of torch.func.vjp asks when the level is closed; below others, that is an internal error.
    """
    with torch._C.DisableTorchFunction():
        tensor.grad_fn  # noqa: B018
    return unwrap(tensor, level)


MAKE_FX: tuple[type, str] = (proxy_tensor._MakefxTracer, "trace")
"""The method with which make_fx makes its graph."""
DISALLOW: tuple[types.ModuleType, str] = (eager_transforms, "lazy_dynamo_disallow")
"""The function with which torch.func.linearize takes those that make its graph."""


def without_graph(disallow: Callable[..., Any], function: Callable[..., Any]) -> Any:
    """`DISALLOW` of a function, in traced code: there linearize computes without a graph."""
    if function is proxy_tensor.make_fx:
        return lambda push: lambda tangents: lambda *given: push(given)
    if function is const_fold.split_const_subgraphs:
        return lambda push: lambda *given: torch_pytree.tree_leaves(push(*given))
    return disallow(function)


is_wrapped: Callable[[object], bool] = _functorch.is_functorch_wrapped_tensor
unwrapped: Callable[[Tensor], Tensor] = _functorch.get_unwrapped
unwrap_if_dead: Callable[[Tensor], Tensor] = _functorch.unwrap_if_dead
is_transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Whether any transform is active."""
top_level: Callable[[], Level | None] = _functorch.peek_interpreter_stack
swap_contents: Callable[[Tensor, Tensor], None] = torch._C._swap_tensor_impl


def bottom_level() -> contextlib.AbstractContextManager[object]:
    """A block below all active transforms."""
    return _NOTHING if top_level() is None else temporarily_clear_interpreter_stack()


_NOTHING = contextlib.nullcontext()


def run_backward_in_this_thread() -> None:
    """From now on, backward passes started by this thread run in it."""
    torch._C._set_multithreading_enabled(False)


def never_compile(fun: types.FunctionType) -> None:
    """Keep torch.compile from compiling a function and what it calls, without importing dynamo."""
    dynamo = torch._C._dynamo.eval_frame
    skip = dynamo._FrameAction.SKIP
    dynamo.set_code_exec_strategy(fun.__code__, dynamo._FrameExecStrategy(skip, skip))
    vars(fun)["_torchdynamo_disable"] = True  # and from inlining it


def levels() -> list[object]:
    """The kinds of the active transforms, outermost first."""
    return [level.key() for level in _functorch.get_interpreter_stack() or ()]


def level() -> int:
    """The number of the innermost active transform."""
    top = top_level()
    assert top is not None
    return top.level()


def is_batched_here(t: Tensor) -> bool:
    """Whether a tensor is batched by the innermost transform, a vmap."""
    return _functorch.is_batchedtensor(t) and _functorch.maybe_get_level(t) == level()


def may_require_grad(t: Tensor) -> bool:
    """Whether the innermost transform differentiates, and a tensor is a value of its level."""
    top = top_level()
    return top is not None and top.key() != VMAP and _functorch.maybe_get_level(t) == top.level()


def innermost(t: Tensor) -> Tensor:
    """A tensor without the wrappers of all levels: all examples of a batch at once."""
    while is_wrapped(t):
        t = unwrapped(t)
    return t


def is_leaf(t: Tensor) -> bool:
    """Whether a tensor is a leaf of plain autograd.

    To answer this, torch recomputes a view whose base has changed since. Above the bottom level
    that is an internal error of torch 2.9.
    """
    with bottom_level():
        return t.is_leaf


def layers(t: Tensor) -> Iterator[Tensor]:
    """A tensor, what it wraps, and so on."""
    yield t
    while is_wrapped(t):
        t = unwrapped(t)
        yield t


def is_batched(t: Tensor) -> bool:
    """Whether a tensor is batched at any level."""
    return any(map(_functorch.is_batchedtensor, layers(t)))


def vmap(fun: Callable[..., T], dims: Sequence[int | None], args: Sequence[Tensor]) -> T:
    """``torch.func.vmap(fun, dims)(*args)``; at least one of the dims is not None."""
    # A batch dimension that is not the first gives each example its own strides, and forward mode
    # copies a tangent with other strides by an operation that has no lowering.
    moved = [a.movedim(d, 0) if d else a for a, d in zip(args, dims, strict=True)]
    in_dims = tuple(None if d is None else 0 for d in dims)
    return torch.func.vmap(fun, in_dims=in_dims)(*moved)


def vjp(
    fun: Callable[..., object], *primals: Tensor
) -> tuple[Any, Callable[[object], tuple[Tensor, ...]], Any]:
    """torch.func.vjp of ``fun(*primals) -> (out, aux)``: (out, pullback, aux)."""
    empty = [False]
    made: Any = torch.func.vjp(_never_empty(fun, empty), *primals, has_aux=True)
    out, pull, aux = made
    if empty[0]:
        return (), lambda _: tuple(map(torch.zeros_like, primals)), aux

    def own_pull(cts: object) -> tuple[Tensor, ...]:
        with own_gradient():
            return pull(cts)

    return out, own_pull, aux


def _never_empty(fun: Callable[..., object], empty: list[bool]) -> Callable[..., object]:
    """The function, with its first argument as its output if it has none, which torch.func refuses.

    `empty`: is told whether it has none.
    """

    def some(*xs: Tensor) -> object:
        found: Any = fun(*xs)
        empty[:] = [isinstance(found[0], tuple) and not found[0]]
        return (xs[:1], found[1]) if empty[0] else found

    return some


@contextlib.contextmanager
def own_gradient() -> Iterator[None]:
    """A block in which xfunc itself, not the user's code, takes a gradient."""
    before = takes_own_gradient()
    _thread.own_gradient = True
    global_flags.put_filters_first()  # Another thread may have left a `catch_warnings` meanwhile.
    try:
        yield
    finally:
        _thread.own_gradient = before


def takes_own_gradient() -> bool:
    """Whether this thread is in such a block."""
    return _thread.own_gradient


# NOTE [the level of forward mode]: torch has one level of forward mode for all threads, which the
# outermost jvp opens and ends, and with it the tangents of all others. It counts the jvps of all
# threads, too. So of several threads the first one opens the level, and the last one ends it.
@contextlib.contextmanager
def _opened_forward_level() -> Iterator[None]:
    if eager_transforms.JVP_NESTING:  # It is open.
        yield
        return
    level = _NOTHING if forward_ad._current_level >= 0 else forward_ad.dual_level()
    eager_transforms.JVP_NESTING += 1  # So torch does not open it.
    try:
        with level:
            yield
    finally:
        eager_transforms.JVP_NESTING -= 1


_forward_level = Counted(_opened_forward_level)


@contextlib.contextmanager
def one_forward_level() -> Iterator[None]:
    """A block in which several threads may use forward mode: see NOTE [the level of forward mode].

    It takes effect in all threads.
    """
    nesting = eager_transforms.jvp_increment_nesting

    @contextlib.contextmanager
    def jvp_increment_nesting() -> Iterator[int]:
        with _forward_level, nesting() as level:
            yield level

    eager_transforms.jvp_increment_nesting = jvp_increment_nesting
    try:
        yield
    finally:
        eager_transforms.jvp_increment_nesting = nesting


def jvp(
    fun: Callable[..., tuple[T, A]], primals: tuple[object, ...], tangents: tuple[object, ...]
) -> tuple[T, T, A]:
    """torch.func.jvp of ``fun(*primals) -> (out, aux)``: (out, tangents, aux)."""
    empty = [False]
    load_tangents_of_compositions()
    made: Any = torch.func.jvp(_never_empty(fun, empty), primals, tangents, has_aux=True)
    out, dots, aux = made
    if empty[0]:
        nothing: Any = ()
        return nothing, nothing, aux
    # Some of torch's rules (renorm, frexp) give narrow dtypes float32 tangents.
    return out, tree.map(lambda o, t: t.to(o.dtype), out, dots), aux


def intercept_operands(
    lift: Callable[[tuple[Any, ...]], tuple[Any, ...]], is_tracing: Callable[[], bool]
) -> None:
    """Pass the operands of every ``torch.autograd.Function`` through `lift` first.

    ``Function.apply`` passes no function mode, so traced code could give it a tensor from outside
    without the trace seeing it. Inside torch.func's transforms, it calls an operator, which passes
    the mode. Outside of them, ``apply`` itself takes its operands from a function of torch: so they
    are lifted even if it was bound before xfunc was imported.

    Args:
        lift: takes and returns operands.
        is_tracing: whether `lift` has something to do.
    """
    if hasattr(torch.autograd.function, "_call_custom_function_call"):  # from torch 2.14 on
        _intercept_in_c(lift, is_tracing)
        return
    unwrap = torch._functorch.utils.unwrap_dead_wrappers
    torch._functorch.utils.unwrap_dead_wrappers = lambda args: unwrap(lift(args))


# NOTE [the apply of torch 2.14] is written in C, and calls back into Python twice. A function with
# a `setup_context` has its operands bound to the names of its parameters, by a function of torch
# that can be replaced. One without, whose `forward` takes ctx, has not. So while operands are to be
# lifted it seems to have one. When its operands are to be bound, a transform is opened, for which
# `apply` calls the other function: it ends the transform and applies the function to what it lifts.
def _intercept_in_c(
    lift: Callable[[tuple[Any, ...]], tuple[Any, ...]], is_tracing: Callable[[], bool]
) -> None:
    module: Any = torch.autograd.function
    bind, call = module._bind_default_args, module._call_custom_function_call
    apply: Any = vars(torch.autograd.Function)["apply"]
    own: Callable[..., None] = module._SingleLevelFunction.setup_context

    class SetupContext:
        """In place of the ``setup_context`` of functions that have none."""

        def __get__(self, instance: object, owner: type | None = None) -> Callable[..., None]:
            is_lifted, _thread.lifted = owner is _thread.lifted, None
            is_function = owner is not None and issubclass(owner, torch.autograd.Function)
            if is_lifted or not is_function or is_transformed() or not is_tracing():
                return own
            _thread.unlifted = owner
            return functools.partial(own)

    def bind_and_lift(
        forward: object, args: tuple[object, ...], kwargs: dict[str, object] | None
    ) -> tuple[tuple[object, ...], dict[str, object] | None]:
        function, _thread.unlifted = _thread.unlifted, None
        if function is not None and function.forward == forward:
            _functorch._grad_increment_nesting()
            _thread.is_opened = True
            return args, kwargs
        args, kwargs = bind(forward, args, kwargs)
        return args if is_transformed() else lift(args), kwargs

    def end_and_call(
        function: Any, args: tuple[object, ...], kwargs: dict[str, object] | None
    ) -> object:
        is_opened, _thread.is_opened = _thread.is_opened, False
        if not is_opened:
            return call(function, args, kwargs)
        _functorch._grad_decrement_nesting()
        names, values = tuple(kwargs or ()), tuple((kwargs or {}).values())
        lifted = lift((*args, *values))
        _thread.lifted = function
        n = len(args)
        named = dict(zip(names, lifted[n:], strict=True))
        return apply.__get__(None, function)(*lifted[:n], **named)

    module._SingleLevelFunction.setup_context = SetupContext()
    module._bind_default_args, module._call_custom_function_call = bind_and_lift, end_and_call


CUSTOM_FUNCTION_CALL: Any = autograd_function.custom_function_call


def custom_function_call(
    function: type[torch.autograd.Function], *operands: object
) -> tuple[Leaf, ...]:
    """``function.apply(*operands)``, as a higher-order operator."""
    return CUSTOM_FUNCTION_CALL(function, *operands)


def zero_tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The value that torch treats as the absence of a tangent."""
    return torch._efficientzerotensor(shape, dtype=dtype, device=device)  # pyright: ignore[reportPrivateImportUsage]


def watched_here(t: Tensor) -> bool:
    """Whether the innermost transform, a grad or jvp, differentiates with respect to a tensor."""
    top = top_level()
    if top is None or not is_wrapped(t) or _functorch.maybe_get_level(t) != top.level():
        return False
    if top.key() == GRAD:
        return t.requires_grad
    return forward_ad.unpack_dual(t, level=0).tangent is not None


def constant_here(t: Tensor) -> Tensor:
    """A tensor that the innermost level takes for a constant, and the levels below do not."""
    top = top_level()
    if top is None:
        return t.detach()
    level = top.level()
    if not is_wrapped(t) or _functorch.maybe_get_level(t) != level:
        return t
    return _functorch._wrap_for_grad(_functorch._unwrap_for_grad(t, level), level)


def is_watched_at_this_level(t: Tensor) -> bool:
    """Whether the level of the autograd rule being applied watches a tensor."""
    return t.requires_grad or forward_ad.unpack_dual(t, level=0).tangent is not None


def apply_here(rule: Rule, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Apply a function with custom rules at the innermost level, a grad or jvp.

    Args:
        rule: its `forward` runs below the level.
        args: tensors of the innermost level.

    Unlike with torch's ``custom_function_call``, lower levels see the operations of `forward`, not
    the function itself.
    """
    interpreter = retrieve_current_functorch_interpreter()
    level = interpreter.level()
    n_args = len(args)  # The class below must not hold the arguments: it is a reference cycle.

    def forward(*args: Tensor) -> tuple[Tensor, ...]:
        lower = [_functorch._unwrap_for_grad(a, level) for a in args]
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), interpreter.lower():
            outputs = rule.forward(*lower)
        return tuple(_functorch._wrap_for_grad(o, level) for o in outputs)

    def setup_context(
        ctx: AutogradContext, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]
    ) -> None:
        kept = rule.keep(inputs, output)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for o in output if not _is_smooth(o)))
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    def backward(ctx: AutogradContext, *cts: Tensor | None) -> Sequence[Tensor | None]:
        kept = [unwrap_if_dead(t) for t in ctx.saved_tensors]
        return rule.backward(n_args, kept, [c if c is None else unwrap_if_dead(c) for c in cts])

    def jvp(ctx: AutogradContext, *tangents: Tensor | None) -> Sequence[Tensor | None]:
        return below_jvp(rule.jvp, ctx.saved_tensors, tangents)

    members: dict[str, object] = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(backward),
        "jvp": staticmethod(jvp),
    }
    here: Any = type("CustomRule", (torch.autograd.function._SingleLevelFunction,), members)
    # torch would see the tangent that an argument has at a lower level.
    own = [
        a if _functorch.maybe_get_level(a) == level else _functorch._wrap_for_grad(a, level)
        for a in args
    ]
    with enable_single_level_autograd_function():
        return here.apply(*own)


def with_gradient(
    value: Callable[..., Tensor],
    gradient: Callable[[Sequence[Tensor], Tensor], Sequence[Tensor | None]],
    *args: Tensor,
) -> Tensor:
    """``value(*args)``, in an autograd rule: at its level, with a derivative for reverse mode.

    Args:
        value: runs below the level.
        gradient: takes the arguments and the result, and a cotangent; returns a gradient of each
            argument. If that is differentiated again, then as it is composed.
        args: tensors of the level.
    """

    def forward(ctx: AutogradContext, *args: Tensor) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            found = value(*args)
        ctx.save_for_backward(*args, found)
        return found

    def backward(ctx: AutogradContext, ct: Tensor) -> Sequence[Tensor | None]:
        return gradient([unwrap_if_dead(t) for t in ctx.saved_tensors], unwrap_if_dead(ct))

    members: dict[str, object] = {
        "forward": staticmethod(forward),
        "backward": staticmethod(backward),
    }
    here: Any = type("WithGradient", (torch.autograd.function._SingleLevelFunction,), members)
    with enable_single_level_autograd_function():
        return here.apply(*args)


def is_recorded(*tensors: Tensor) -> bool:
    """Whether plain autograd, outside all levels, records what is computed of tensors."""
    return not levels() and torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def below_jvp(
    push: Callable[[Sequence[Tensor], Sequence[Tensor | None]], Sequence[Tensor | None]],
    kept: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
) -> Sequence[Tensor | None]:
    """``push(kept, tangents)``, run below the innermost level if that is a jvp.

    For the forward-mode rule of an autograd.Function: see NOTE [tangents of tangents].
    """
    top = top_level()
    if top is None or top.key() != JVP:
        return push(kept, tangents)
    interpreter = retrieve_current_functorch_interpreter()
    level = interpreter.level()
    inner = [_functorch._unwrap_for_grad(t, level) for t in kept]
    dots = [t if t is None else _functorch._unwrap_for_grad(t, level) for t in tangents]
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), interpreter.lower():
        found = push(inner, dots)
    return tuple(t if t is None else _functorch._wrap_for_grad(t, level) for t in found)


# NOTE [tangents of tangents]: torch 2.9 runs the `jvp` of an autograd.Function at the level that it
# is the rule of, where it drops the tangents that jvps at lower levels have given to its operands:
# of two nested jvps, the outer one would be zero. So `jvp` runs below that level, once: what it
# returns is wrapped again for the level.


class _ContextBelow:
    """The context of an autograd.Function, with tensors as the levels below see them."""

    def __init__(self, ctx: AutogradContext, saved: Sequence[Tensor], level: int):
        vars(self).update(_ctx=ctx, _level=level, saved_tensors=tuple(saved))

    def __getattr__(self, name: str) -> object:
        value: Any = getattr(self._ctx, name)
        if any(isinstance(x, Tensor) for x in tree.leaves(value)):
            return tree.map(self._unwrapped, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._ctx, name, value)

    def _unwrapped(self, value: object) -> object:
        return (
            _functorch._unwrap_for_grad(value, self._level) if isinstance(value, Tensor) else value
        )


_generate: Callable[..., Any] = autograd_function.generate_single_level_function


def _generate_with_jvp_below(interpreter: Level, function: Any) -> Any:
    """torch's rule of an autograd.Function at one level: see NOTE [tangents of tangents]."""
    generated = _generate(interpreter, function)

    def jvp(ctx: AutogradContext, *tangents: Tensor | None) -> Any:
        single = False

        def push(kept: Sequence[Tensor], dots: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            nonlocal single
            pushed = function.jvp(_ContextBelow(ctx, kept, interpreter.level()), *dots)
            single = not isinstance(pushed, (tuple, list))
            return (pushed,) if single else pushed

        pushed = below_jvp(push, ctx.saved_tensors, tangents)
        return pushed[0] if single else pushed

    generated.jvp = staticmethod(jvp)
    return generated


autograd_function.generate_single_level_function = _generate_with_jvp_below


def below_vmap(fun: Batched, args: Sequence[Tensor]) -> list[Tensor]:
    """Run ``fun(dims, size, args) -> outputs, dims`` below the innermost level, a vmap."""
    interpreter = retrieve_current_functorch_interpreter()
    level = interpreter.level()
    peeled = [peel(a, level) for a in args]
    with interpreter.lower():
        dims = tuple(d for _, d in peeled)
        outs, out_dims = fun(dims, interpreter.batch_size(), [t for t, _ in peeled])
    return [
        o if d is None else _functorch._add_batch_dim(o, d, level)
        for o, d in zip(outs, out_dims, strict=True)
    ]


def _is_smooth(t: Tensor) -> bool:
    return t.dtype.is_floating_point or t.dtype.is_complex


def has_tangent(t: Tensor) -> bool:
    """Whether some jvp, at any level, differentiates along a tensor."""
    top = top_level()
    if top is None:
        return False
    if is_wrapped(t) and _functorch.maybe_get_level(t) == top.level():
        if top.key() == JVP and forward_ad.unpack_dual(t, level=0).tangent is not None:
            return True
        t = unwrapped(t)
    # Only the innermost level can be asked.
    with retrieve_current_functorch_interpreter().lower():
        return has_tangent(t)


def tangents(*given: Tensor) -> list[Tensor]:
    """The tangents of tensors, and the tangents of those, in the active jvps."""
    top = top_level()
    if top is None:
        return []
    found, lower = list[Tensor](), [*given]
    for k, t in enumerate(given):
        if is_wrapped(t) and _functorch.maybe_get_level(t) == top.level():
            if top.key() == JVP and (dot := forward_ad.unpack_dual(t, level=0).tangent) is not None:
                found.append(dot)
                lower.append(peel(dot, top.level())[0])
            lower[k] = unwrapped(t)
    with retrieve_current_functorch_interpreter().lower():
        return found + tangents(*lower)


def differentiates_pushes(args: Sequence[object]) -> bool:
    """Whether active forward mode is differentiated again, or differentiates something else."""
    return JVP in levels() and differentiates_twice(args)


def differentiates_twice(args: Sequence[object]) -> bool:
    """Whether there is differentiation within differentiation here."""
    return derivative_order(args) > 1


def derivative_order(args: Sequence[object]) -> int:
    """How many differentiations are within each other here."""
    found = levels()
    # Outside all levels, a program's first-order gradient is plain autograd's.
    tensors = (innermost(a) for a in args if isinstance(a, Tensor))
    return found.count(JVP) + found.count(GRAD) + any(t.requires_grad for t in tensors)


def level_numbers() -> list[int]:
    """The numbers of the active transforms, outermost first."""
    return [level.level() for level in _functorch.get_interpreter_stack() or ()]


def peel(t: Tensor, level: int) -> tuple[Tensor, int | None]:
    """A tensor without its wrapper for a level, and the position of its batch dimension, if any."""
    if not is_wrapped(t) or _functorch.maybe_get_level(t) != level:
        return t, None
    dim = _functorch.maybe_get_bdim(t) if _functorch.is_batchedtensor(t) else None
    return unwrapped(t), dim


def levels_of(t: Tensor) -> set[int]:
    """The numbers of the transforms, active or not, that have wrapped a tensor."""
    return {_functorch.maybe_get_level(x) for x in layers(t) if is_wrapped(x)}


def gradient_levels(t: Tensor) -> set[int]:
    """The numbers of the transforms that take gradients with respect to a tensor; 0: autograd."""
    with torch._C.DisableTorchFunction():
        return {
            _functorch.maybe_get_level(x) if is_wrapped(x) else 0
            for x in layers(t)
            if x.requires_grad
        }


def mapped_levels(t: Tensor) -> set[int]:
    """The numbers of the vmaps that map a tensor."""
    return {_functorch.maybe_get_level(x) for x in layers(t) if _functorch.is_batchedtensor(x)}
