"""From a Python function and its arguments to a program, once per key; then only the program.

`Staged` finds or makes the program of a function for given argument trees. With real tensors it
runs as one executable (`run_staged`); inside a trace it is a call (`call_in_trace`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import optree
import torch

from xfunc import tree
from xfunc.backends.torch_xla import runtime
from xfunc.backends.torch_xla.lock import lock
from xfunc.cache import identity, programs
from xfunc.cache.changes import Changed
from xfunc.cache.globals import Guards
from xfunc.cache.misses import Key
from xfunc.cache.programs import FunctionCache
from xfunc.core import ambient
from xfunc.core.avals import Aval
from xfunc.core.guards import collect_guards, depend_on
from xfunc.core.locations import Location, function_name
from xfunc.core.paths import path_of
from xfunc.errors import fail
from xfunc.program.bind import bind, differentiations
from xfunc.program.call import Call
from xfunc.program.program import Program, differentiable
from xfunc.stages.arguments import as_outputs, avals_of, prepare
from xfunc.stages.entry import Entry
from xfunc.torchlib import values
from xfunc.trace import effects, tracing
from xfunc.trace.effects import Effect
from xfunc.trace.lowering import count_compiles

_AVAL = operator.attrgetter("shape", "dtype")
_IS_XLA = operator.attrgetter("is_xla")
_TENSOR_ONLY = {torch.Tensor}


class Staged:
    """The programs of one function.

    Args:
        fun: called as ``fun(*args, **kwargs)`` to trace it.
        value: what the function counts as in the cache (`fun`, if None).
        arrays_only: whether arguments that are neither tensors nor numbers are an error; if not,
            they count by value.
        stays: tells of the flat arguments of a structure where a Python number stays one.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        value: Any = None,
        arrays_only: bool = False,
        stays: Callable[[tree.Structure], Sequence[bool]] | None = None,
    ):
        self.fun, self.stays = fun, stays
        self.arrays_only = arrays_only
        self.value = fun if value is None else value
        self.name = function_name(fun if value is None else value)
        self.function_value = identity.FunctionValue(self.value)

    @functools.cached_property
    def cache(self) -> FunctionCache:
        """The cache, shared with every function of the same skeleton."""
        return programs.cache_of(self.value)

    @functools.cached_property
    def parameters(self) -> list[str]:
        """The names of the function's parameters."""
        try:
            return list(inspect.signature(self.value).parameters)
        except (TypeError, ValueError):
            return []

    def labels(
        self, structure: tree.Structure, fixed: tuple[tuple[int, Any], ...] = ()
    ) -> list[str]:
        """Key paths of the flat arguments: ``params['layers'][0]``."""
        skip = {i for i, _ in fixed}
        accessors = structure.accessors()
        return [path_of(a, self.parameters) for i, a in enumerate(accessors) if i not in skip]

    def values(
        self, beside: tuple[tuple[Hashable, Any], ...]
    ) -> tuple[Hashable, Hashable, list[torch.Tensor]]:
        """The values of the function and of what else its program depends on; tensors held."""
        value, held = self.function_value()
        if ambient.named_axes():  # Of these the function may hold the numbers without knowing.
            held = [*held, *(axis.held() for axis in ambient.named_axes())]
        if not beside:
            return value, (), held
        return value, *identity.values_beside(beside, held)

    def find(
        self,
        structure: tree.Structure,
        avals: tuple[Any, ...],
        wrt: tuple[bool, ...] | None,
        *,
        static: Hashable = None,
        beside: tuple[tuple[Hashable, Any], ...] = (),
        **options: Any,
    ) -> tuple[Entry, list[torch.Tensor]]:
        """The entry for arguments of a structure and avals, and the tensors the function holds.

        `static` is a further part of the key, and so is the value of what stands `beside` the
        function, whose tensors are held as well; see `make` for the rest.
        """
        value, others, held = self.values(beside)
        key = (value, structure, avals, static, ambient.modes(), others)
        entry = self.cache.find(key)
        if entry is None:
            entry = self.make(key, held, wrt, beside=beside, **options)
        return entry, held

    def make(
        self,
        key_parts: tuple[Any, ...],
        held: list[torch.Tensor],
        wrt: tuple[bool, ...] | None,
        *,
        call: Callable[..., Any] | None = None,
        fixed: tuple[tuple[int, Any], ...] = (),
        beside: tuple[tuple[Hashable, Any], ...] = (),
        donated: Callable[[], frozenset[int]] = frozenset,
        zeros: frozenset[int] = frozenset(),
        primitive: Callable[[Program], Call] = Call,
        effects_allowed: bool = False,
    ) -> Entry:
        """Trace the function for a new key.

        Args:
            key_parts: the fields of `Key`.
            held: the tensors that the function holds.
            wrt: which arguments a first-order gradient is taken of, if that is so: then the first
                run makes the joint program.
            call: what to trace instead of `fun` (with static arguments put back).
            fixed: leaves of the structure that are no arrays, by position.
            beside: what else the program depends on, `fixed` among it.
            donated: gives the flat arguments to donate.
            zeros: see `Program.joint`.
            primitive: how the program is applied.
            effects_allowed: whether the caller has the effects: see `Entry.result`.
        """
        key = Key(*key_parts)
        run = [call or self.fun]
        later = identity.frozen(run[0])
        store, name = self.cache, self.name
        _check_no_recursion(self, key)
        store.missed(key, self.parameters)
        avals = [Aval(tuple(shape), dtype) for shape, dtype in key.avals]
        labels = self.labels(key.tree, fixed)
        for a, label in zip(avals, labels, strict=True):
            values.check_array(a, self.name, label)
        out_tree: list[tree.Structure] = []
        had: list[Effect] = []

        def flat(*leaves: torch.Tensor) -> list[torch.Tensor]:
            store.traces += 1
            full = list(leaves)
            for i, x in fixed:
                full.insert(i, x)
            args, kwargs = tree.unflatten(key.tree, full)
            with effects.collected(effects_allowed) as found:
                outs, structure = tree.flatten(run[0](*args, **kwargs))
            out_tree[:], had[:] = [structure], found.effects
            return [*as_outputs(name, outs, structure), *found.tensors]

        program = Program(self.name, flat, avals, labels)
        program.defined_at = definition(self.value)
        places = identity.places_of(self.value)
        store.globals = store.globals or Guards()
        named = store.globals.of(self.value)
        before, kinds = named.snapshot(), identity.class_contents(self.value)
        with _being_traced(self, key), collect_guards() as guards:
            if named:
                depend_on(named)
            if wrt is not None and any(wrt):
                program.joint(wrt, zeros)
            else:
                program.trace()
        run[0] = later
        changed = named.note_changes(before) | identity.note_changes(self.value, places)
        changed |= Changed.any(cls.note_changes(contents) for cls, contents in kinds.items())
        collects = [identity.let_change(f) for e in had for f in e.functions]
        if Changed.VOLATILE in changed or any(collects):
            value, others, held = self.values(beside)
            key = key._replace(values=value, beside=others)
        slots = {id(t): i for i, t in enumerate(held)}
        captures = tuple(slots.get(id(c), c) for c in program.captures)
        entry = Entry(program, primitive(program), out_tree[0], captures, donated(), tuple(had))
        # A value of an enclosing trace that the key does not see is good for this trace only; and
        # see NOTE [flags] in `xfunc.cache.changes`.
        passing = any(isinstance(c, torch.Tensor) and _is_tracer(c) for c in captures)
        if not passing and Changed.FLAGS not in changed:
            store.add(key, entry, guards)
            if (trace := tracing.current()) is not None:
                trace.keep_tokens([*held, *program.captures], self.value)
        return entry


def definition(fun: Any) -> Location | None:
    """Where a function is written."""
    code = getattr(identity.root_of(fun), "__code__", None)
    if code is None:
        return None
    return Location(code.co_filename, code.co_firstlineno, code.co_name)


def _is_tracer(t: torch.Tensor) -> bool:
    trace = tracing.current()
    return trace is not None and trace.is_inside(t)


class _Tracing(threading.local):
    keys: tuple[tuple[FunctionCache, Key], ...] = ()


_tracing = _Tracing()


@contextlib.contextmanager
def _being_traced(staged: Staged, key: Key) -> Iterator[None]:
    keys = _tracing.keys
    _tracing.keys = (*keys, (staged.cache, key))
    before = count_compiles(None)
    try:
        yield
    finally:
        count_compiles(before)
        _tracing.keys = keys


def _check_no_recursion(staged: Staged, key: Key) -> None:
    if (staged.cache, key) in _tracing.keys:
        fail(
            RecursionError,
            f"{staged.name} calls itself, with arguments of the same shapes, while it is "
            "being traced: the trace would never end",
            "use xf.scan for a loop of fixed length, or make the depth a static argument.",
        )


def run_staged(
    staged: Staged,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static: Hashable = None,
    **options: Any,
) -> Any:
    """Call a staged function with real tensors."""
    with lock:
        # Plain tensors are the common case of small functions, where flattening would show.
        if not kwargs and set(map(type, args)) == _TENSOR_ONLY:
            leaves, structure = list(args), _structure_of_leaves(len(args))
        else:
            given: Any = (args, kwargs)
            leaves, structure = optree.tree_flatten(given, namespace=tree.NAMESPACE)
        try:
            ready = all(map(_IS_XLA, leaves))
        except AttributeError:
            ready = False
        if not ready:
            if tree.adopt(leaves):
                leaves, structure = tree.flatten((args, kwargs))
            leaves, fixed = prepare(staged, leaves, structure)
            if fixed:
                options["fixed"] = options["beside"] = fixed
        avals = tuple(map(_AVAL, leaves))
        value, others, held = staged.values(options.get("beside", ()))
        store = staged.cache
        key = (value, structure, avals, static, ambient.modes(), others)
        entry = store.find(key)
        if entry is None:
            entry = staged.make(key, held, watched(leaves), effects_allowed=True, **options)
        if (entry.executable is None or runtime.device_count() > 1) and inspect_result is None:
            return _first_run(store, entry, leaves, held)
        if inspect_result is None:
            return entry.result(entry.run(leaves, held))
        result = entry.result(entry.run(leaves, held))
        inspect_result(staged.name, options.get("call") or staged.fun, args, kwargs, result)
        return result


# Called after each run with the function's name, the function, its arguments and its result.
inspect_result: Callable[[str, Any, tuple[Any, ...], dict[str, Any], Any], None] | None = None


@functools.cache
def _structure_of_leaves(n: int) -> tree.Structure:
    return tree.structure(((0,) * n, {}))


def _first_run(
    store: FunctionCache, entry: Entry, leaves: list[torch.Tensor], held: Sequence[torch.Tensor]
) -> Any:
    def count() -> None:
        store.compiles += 1

    before = count_compiles(count)
    try:
        return entry.result(entry.run(leaves, held))
    finally:
        count_compiles(before)


def watched(leaves: Sequence[torch.Tensor]) -> tuple[bool, ...] | None:
    """Which arguments a gradient of first order is being taken of; None if there is none."""
    if differentiations(leaves) != 1:
        return None
    return tuple(differentiable(x) and values.is_tracked(x) for x in leaves)


def call_in_trace(
    staged: Staged,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static: Hashable = None,
    beside: tuple[tuple[Hashable, Any], ...] = (),
    check_captures: Callable[[Sequence[torch.Tensor]], None] = lambda captures: None,
    **options: Any,
) -> Any:
    """Call a staged function inside a trace: one call of its program."""
    leaves, structure = tree.flatten((args, kwargs))
    leaves, fixed = prepare(staged, leaves, structure)
    entry, held = staged.find(
        structure,
        avals_of(leaves),
        watched(leaves),
        static=static,
        fixed=fixed,
        beside=(*fixed, *beside),
        effects_allowed=True,
        **options,
    )
    inputs = entry.inputs(leaves, held)
    check_captures(inputs[len(leaves) :])
    return entry.result(bind(entry.call, inputs))
