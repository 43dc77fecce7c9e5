"""`functional`: a torch module as a pure function of its parameters and buffers.

NOTE [a module on loan]: a call lends the module the tensors that it was given, runs it, and puts
back every attribute of every submodule. Working on a copy would miss other references to the
module: bound methods, hooks, parametrizations, plain lists of layers.

NOTE [dependencies of a trace]: a call of a module depends on its tensors and on its attributes: its
mode, a dropout rate, hooks. Each call inside a trace leaves a guard (see `xfunc.core.guards`). It
compares the attributes with their previous values by identity (see `xfunc.cache.mutation_guard`);
only if one differs are they all evaluated.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from xfunc import tree
from xfunc.backends.devices import to_device
from xfunc.backends.lock import lock, turn
from xfunc.cache.fingerprint import StateFingerprinter
from xfunc.cache.mutation_guard import MutationGuard, swapped_modules
from xfunc.core import guards
from xfunc.core.avals import NUMBERS
from xfunc.core.wrappers import Wrapper
from xfunc.errors import TreeMismatchError, UnsupportedOpError, fail, kind_of
from xfunc.torchlib import functorch, values
from xfunc.torchlib.replacements import replacement
from xfunc.trace import tracing
from xfunc.tree import PyTree

Tensors = dict[str, torch.Tensor]
Places = dict[str, list[tuple[nn.Module, str]]]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_OWN = frozenset(vars(nn.Module())) - {"training"}  # The attributes that every module has.
_CONTAINERS = [name for name, value in vars(nn.Module()).items() if isinstance(value, (dict, set))]


def functional(module: nn.Module) -> tuple[Apply, Tensors, Tensors]:
    """A module as a pure function, and the tensors that it is a function of.

    Args:
        module: any torch module. Neither this nor any call of `apply` changes it.

    Returns:
        ``(apply, params, buffers)``. `params` and `buffers` are copies, on the device, of the
        module's parameters and buffers (persistent or not), in dicts by name as in
        ``module.named_parameters()``. A tensor with several names (tied weights) appears once,
        under the first. ``apply(params, buffers, *args, **kwargs) -> (out, new_buffers)`` is
        ``module(*args, **kwargs)`` with these tensors in place of its own, and the buffers as the
        forward pass left them. The mode, training or evaluation, is that of the module at the time
        of the call.

    Raises:
        TypeError: `module` is not a module.
        UnsupportedOpError: the module has tensors without data (on the meta device, or of a lazy
            module not initialised yet), or Python code can't run it piece by piece (ScriptModule,
            DataParallel, the result of torch.compile).

    Source: ``torch.func.functional_call``, ``flax.nnx.split``.
    """
    name = _check_module(module)
    tensors = [
        {n: vars(owner)[kind][a] for n, ((owner, a), *_) in _places(module, kind).items()}
        for kind in ("_parameters", "_buffers")
    ]
    for label, tensor in (tensors[0] | tensors[1]).items():
        _check_tensor(tensor, label, name)
    with torch.no_grad():
        params, buffers = ({n: _copy(t) for n, t in named.items()} for named in tensors)
    return Apply(module), params, buffers


class Apply(Wrapper):
    """``(params, buffers, *args, **kwargs) -> (out, new_buffers)``: see `functional`."""

    def __init__(self, module: nn.Module):
        self.module = module
        with lock.unless_refused():
            self.fun, self.options = _forward(module), StateFingerprinter().value(module)
        self.__name__ = self.__qualname__ = f"functional({type(module).__name__})"
        self._guard = _Guard(module)

    def __call__(
        self, params: Tensors, buffers: Tensors, /, *args: object, **kwargs: object
    ) -> tuple[PyTree, Tensors]:
        guards.depend_on(self._guard)
        if tracing.current() is None:
            args, kwargs = _beside((params, buffers), args, kwargs)
        outside = _Replacing() if tracing.current() is None else contextlib.nullcontext()
        with lock.for_run(), _alone(self.module), _swap_state(self.module), outside:
            self._lend("_parameters", params)
            places = self._lend("_buffers", self._own(buffers, (args, kwargs, params)))
            out = self.module(*args, **kwargs)
            new = {n: getattr(*found[0]) for n, found in places.items()}
        if tracing.current() is not None:
            _check_output(out, self.__name__)
        return out, new

    def __repr__(self) -> str:
        return f"<{self.__name__}: (params, buffers, *args, **kwargs) -> (out, new_buffers)>"

    def _own(self, buffers: Tensors, beside: object) -> Tensors:
        """Buffers that the forward pass may change in place, for each example under vmap."""
        zero: Any = 0
        if functorch.VMAP in functorch.levels() and self.module.training:
            given = [t for t in tree.leaves(beside) if isinstance(t, torch.Tensor)]
            zero = sum(t.detach().new_zeros(()) for t in given if functorch.is_batched(t))
        if isinstance(zero, int):
            return {n: t.clone() for n, t in buffers.items()}
        return {n: t + zero.to(t.dtype) for n, t in buffers.items()}

    def _lend(self, kind: str, tensors: Mapping[str, object]) -> Places:
        places = _places(self.module, kind)
        if places.keys() != tensors.keys():
            names = "parameters" if kind == "_parameters" else "buffers"
            lines = [f"the {names} given to {self.__name__} are not those of the module"]
            lines += [f"  missing: {n}" for n in places.keys() - tensors.keys()]
            lines += [f"  unknown: {n}" for n in tensors.keys() - places.keys()]
            fail(
                TreeMismatchError,
                "\n".join(lines),
                "pass dicts with the names that xf.functional returned, in the order "
                "apply(params, buffers, ...).",
            )
        for name, found in places.items():
            for owner, attribute in found:
                vars(owner)[kind][attribute] = tensors[name]
        return places


class _Guard:
    """A guard for the attributes of a module: see NOTE [dependencies of a trace]."""

    def __init__(self, module: nn.Module):
        self._module = module
        self._states: dict[Hashable, guards.State] = {}
        self._watch: MutationGuard | None = None
        self._state: guards.State | None = None

    def __call__(self) -> Hashable:
        # Swapped modules hold values of a trace, which a guard would keep.
        if swapped_modules and not swapped_modules.keys().isdisjoint(self._module.modules()):
            return self._look()[0]
        if self._watch is None or not self._watch.is_unchanged():
            self._state, walk = self._look()
            self._watch = walk.watch()
        return self._state

    def _look(self) -> tuple[guards.State, StateFingerprinter]:
        """The state of the module, and the visit to it."""
        walk, values = StateFingerprinter(), []
        for name, module in self._module.named_modules():
            own = swapped_modules.get(module, vars(module))
            hooks = [h for kind in _HOOKS for h in own[kind].values()]
            attributes = [(k, walk.value(v)) for k, v in own.items() if k not in _OWN]
            kind = walk.class_state(type(module))
            values.append((name, (kind, *attributes, ("hooks", walk.all(hooks)))))
            walk.mutables += [module, *(own[kind] for kind in ("_modules", *_HOOKS))]
        value = tuple(values)
        state = self._states.setdefault(value, guards.State(value))
        if len(self._states) > guards.MAX_STATES:
            del self._states[next(iter(self._states))]
        return state, walk


_users: dict[nn.Module, tuple[int, nn.Module]] = {}
"""By module on loan, the thread that has it and the module that it is a part of."""


@contextlib.contextmanager
def _alone(module: nn.Module) -> Iterator[None]:
    """A block in which no other thread has a part of the module on loan."""
    if not lock.is_shared:
        yield
        return
    here, parts = threading.get_ident(), [*module.modules()]
    with contextlib.ExitStack() as stack:
        while True:
            with lock:
                users = filter(None, map(_users.get, parts))
                other = next((whole for thread, whole in users if thread != here), None)
                if other is None:
                    new = [p for p in parts if p not in _users]
                    _users.update(dict.fromkeys(new, (here, module)))
                    break
            with turn(("a loan", id(other)), alone=True):
                pass
        try:
            stack.enter_context(turn(("a loan", id(module)), alone=True))
            yield
        finally:
            with lock:
                for part in new:
                    del _users[part]


@contextlib.contextmanager
def _swap_state(module: nn.Module) -> Iterator[None]:
    """Allow any assignment to a module, and restore it afterwards."""
    before = {m: dict(vars(m)) for m in module.modules()}
    new = before.keys() - swapped_modules.keys()
    try:
        with lock:  # Other threads look at modules with the lock, and at `swapped_modules`.
            swapped_modules.update((m, before[m]) for m in new)
            _detach(before)
        yield
    finally:
        with lock:
            for part, old in before.items():
                vars(part).clear()
                vars(part).update(old)
            for part in new:
                del swapped_modules[part]


def _detach(modules: Iterable[nn.Module]) -> None:
    """Copy the modules' containers, so that assignments do not change the old ones.

    Some modules register hooks when they first run, or keep results in a dict.
    """
    copies: dict[int, dict[Any, Any]] = {}  # Modules may share a dict.
    for part in modules:
        now = vars(part)
        for kind in _CONTAINERS:
            now[kind] = now[kind].copy()
        for name, value in now.items():
            if type(value) is dict and name not in _OWN:
                now[name] = copies.setdefault(id(value), value.copy())
        now.pop("_compiled_call_impl", None)  # it is compiled for other devices
        # torch_xla's GRU, which replaces torch's if torch_xla was imported first.
        scanned = getattr(sys.modules.get("torch_xla.experimental.gru"), "GRU", None)
        if scanned is not None and type(part).forward is scanned.forward:
            now["forward"] = super(scanned, part).forward  # its own scan can't be traced


class _Replacing(TorchFunctionMode):
    """Makes calls outside a trace also run the versions that suit the device."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return replacement(func)(*args, **(kwargs or {}))


def _check_output(out: object, name: str) -> None:
    """Raise unless a module returned a tree of arrays."""
    tree.flatten(out)  # Registers nodes for the classes that torch knows as nodes.
    for path, leaf in tree.leaves_with_path(out):
        if not isinstance(leaf, torch.Tensor) and type(leaf) not in NUMBERS:
            cached = type(leaf).__name__.endswith("Cache")
            fail(
                TypeError,
                f"{name} returned {f'{kind_of(leaf)}' if cached else repr(leaf)} at "
                f"output{path}, which is not a tree of tensors",
                "pass use_cache=False to the model."
                if cached
                else "register its class with xf.tree.register, or wrap the module in one that "
                "returns only tensors.",
            )


def _places(module: nn.Module, kind: str) -> Places:
    """The locations of a module's tensors, by the first name of each."""
    names: dict[int, str] = {}
    result: Places = {}
    for prefix, owner in module.named_modules():
        for attribute, tensor in vars(owner)[kind].items():
            if tensor is not None:
                name = f"{prefix}.{attribute}" if prefix else attribute
                result.setdefault(names.setdefault(id(tensor), name), []).append((owner, attribute))
    return result


def _beside(tensors: object, args: object, kwargs: object) -> Any:
    """The arguments of a call outside any trace, on the device where the tensors are."""
    given = next(iter(tree.leaves(tensors)), None)
    if given is None or given.device.type != "xla":
        return args, kwargs

    def move(x: object) -> object:
        return to_device(x) if isinstance(x, torch.Tensor) else x

    return tree.unflatten((found := tree.flatten((args, kwargs)))[1], map(move, found[0]))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tracing.current() is not None:
        return tensor.detach()
    given = tensor.detach()
    moved = to_device(given)
    return moved.clone() if moved is given else moved


def _forward(module: nn.Module) -> Callable[..., object]:
    """The code that a module runs, which identifies it in caches and messages."""
    forward = inspect.unwrap(type(module).forward)
    return forward if isinstance(forward, types.FunctionType) else nn.Module.__call__


_REFUSED = {
    torch.jit.ScriptModule: "pass the module that it was made from.",
    torch.nn.DataParallel: "pass the module inside (.module).",
    torch.nn.parallel.DistributedDataParallel: "pass the module inside (.module).",
}


def _check_module(module: object) -> str:
    """Raise unless `functional` can take a module; returns its name for messages."""
    if not isinstance(module, nn.Module):
        fail(
            TypeError,
            f"xf.functional was given {module!r}, which is not a torch module",
            "pass an instance of torch.nn.Module; a plain function needs no conversion.",
        )
    name = type(module).__name__
    for part in module.modules():
        compiled = hasattr(part, "_orig_mod")
        hint = "pass the module inside (._orig_mod)." if compiled else None
        hint = hint or next((r for c, r in _REFUSED.items() if isinstance(part, c)), None)
        if hint is not None:
            fail(
                UnsupportedOpError,
                f"{name} holds {kind_of(part)}, whose Python code cannot be traced",
                hint,
            )
    return name


def _check_tensor(tensor: torch.Tensor, label: str, name: str) -> None:
    lazy = nn.parameter.is_lazy(tensor)
    if lazy or tensor.device.type == "meta":
        what = "is not initialised yet" if lazy else "is on the meta device, and has no data"
        hint = (
            "call the module once on an example before xf.functional."
            if lazy
            else "load it first, or make it with module.to_empty(device='cpu') and initialise it."
        )
        fail(UnsupportedOpError, f"{label} of {name} {what}", hint)
    values.check_array(tensor, name, label)
