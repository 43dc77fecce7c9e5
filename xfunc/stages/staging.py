"""From a Python function and its arguments to a program, once per key; after that, the program.

`Staged` finds or makes the program of a function for given argument trees. With real tensors it
runs as one executable (`run_staged`); inside a trace it is a call (`call_in_trace`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Protocol, TypeAlias

import optree
import torch

from xfunc import tree
from xfunc.backends import active
from xfunc.backends.lock import lock, turn
from xfunc.backends.protocol import Runtime
from xfunc.cache import draws, frozen, identity, programs
from xfunc.cache.changes import Changed
from xfunc.cache.globals import Guards
from xfunc.cache.key import Key, Static
from xfunc.cache.programs import LOG, FunctionCache
from xfunc.core import ambient, size_questions
from xfunc.core.avals import Aval, AvalKey
from xfunc.core.guards import collect_guards, depend_on
from xfunc.core.locations import Location, function_name
from xfunc.core.paths import Labels, path_of
from xfunc.core.wrappers import Part
from xfunc.program.bind import ad_depth, bind
from xfunc.program.program import TracedProgram, differentiable
from xfunc.stages import fast_path, recursion
from xfunc.stages.arguments import as_outputs, avals_of, prepare
from xfunc.stages.entry import Entry
from xfunc.stages.options import PLAIN, Fixed, Options
from xfunc.torchlib import values
from xfunc.torchlib.storageless import check_surroundings
from xfunc.trace import effects, tracing
from xfunc.trace.effects import Effect
from xfunc.trace.lowering import count_compiles
from xfunc.tree import Function, Leaf, PyTree

ExtraDeps: TypeAlias = tuple[tuple[Hashable, Hashable], ...]
# The fields of `Key`, in its order.
KeyParts: TypeAlias = tuple[
    Hashable, tree.Structure, tuple[AvalKey, ...], Static | None, Hashable, ExtraDeps
]
_AVAL = operator.attrgetter("shape", "dtype")


class Staged:
    """The programs of one function.

    Args:
        fun: called as ``fun(*args, **kwargs)`` to trace it.
        value: identifies the function in the cache; `fun` if None.
        arrays_only: whether arguments that are neither tensors nor numbers are an error; if not,
            they are compared by value.
        static_scalars: for each flat argument, whether a Python number stays static.

    Attributes:
        repeats: whether calls may be like the last one; see NOTE [calls like the last one] in
            `xfunc.stages.fast_path`.
        caller: identifies this object there.
    """

    def __init__(
        self,
        fun: Function,
        value: object = None,
        arrays_only: bool = False,
        static_scalars: Callable[[tree.Structure], Sequence[bool]] | None = None,
    ):
        self.fun, self.static_scalars = fun, static_scalars
        self.arrays_only = arrays_only
        self.value = fun if value is None else value
        self.name = function_name(fun if value is None else value)
        self.function_value = identity.FunctionValue(self.value)
        self.repeats, self.caller = True, object()

    @functools.cached_property
    def cache(self) -> FunctionCache:
        """The cache, shared with every function with the same `code_key`."""
        return programs.cache_of(self.value)

    @functools.cached_property
    def parameters(self) -> list[str]:
        """The names of the function's parameters that each take one argument by position."""
        fun = self.value.fun if isinstance(self.value, Part) else self.value
        if not callable(fun):
            return []
        try:
            parameters = inspect.signature(fun).parameters.values()
        except (TypeError, ValueError):
            return []
        by_position = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        return [p.name for p in parameters if p.kind in by_position]

    def labels(self, structure: tree.Structure, fixed: Fixed = ()) -> Labels:
        """Key paths of the flat arguments: ``params['layers'][0]``."""
        parameters, skip = self.parameters, {i for i, _ in fixed}

        def made() -> list[str]:
            accessors = structure.accessors()
            return [path_of(a, parameters) for i, a in enumerate(accessors) if i not in skip]

        return Labels(made)

    def key_of(
        self, structure: tree.Structure, avals: tuple[AvalKey, ...], options: Options
    ) -> tuple[KeyParts, list[torch.Tensor]]:
        """The fields of the `Key` of a call, and the tensors that the function holds."""
        if options.fixed or options.extra_deps or ambient.named_axes() or ambient.global_hooks():
            value, others, held = self._values(options)
        else:  # nearly always
            others = ()
            value, held = self.function_value()
        return (value, structure, avals, options.static, ambient.context_key(), others), held

    def _values(self, options: Options) -> tuple[Hashable, ExtraDeps, list[torch.Tensor]]:
        """The values of the function and of its other dependencies, and the tensors they hold."""
        value, held = self.function_value()
        if ambient.named_axes():  # The function may hold their indices without our knowing.
            held = [*held, *(axis.held() for axis in ambient.named_axes())]
        hooks = [("a hook of all modules", hook) for hook in ambient.global_hooks()]
        extra_deps = (*options.fixed, *options.extra_deps, *hooks)
        return (
            (value, *identity.values_of_extra_deps(extra_deps, held))
            if extra_deps
            else (value, (), held)
        )

    def find(
        self,
        structure: tree.Structure,
        avals: tuple[AvalKey, ...],
        wrt: tuple[bool, ...] | None = None,
        options: Options = PLAIN,
    ) -> tuple[Entry, list[torch.Tensor]]:
        """The entry for arguments of a structure and avals, and the tensors the function holds.

        See `make` for `wrt`.
        """
        with lock:
            key, held = self.key_of(structure, avals, options)
            entry = self.cache.find(key)
            if entry is None:
                entry = self.make(key, held, wrt, options)
            return entry, held

    def make(
        self,
        key_parts: KeyParts,
        held: list[torch.Tensor],
        wrt: tuple[bool, ...] | None,
        options: Options,
    ) -> Entry:
        """Trace the function for a new key, or wait for the thread that is doing so.

        The caller holds `lock`.

        Args:
            key_parts: the fields of `Key`.
            held: the tensors that the function holds.
            wrt: for a first-order gradient, the arguments it is taken with respect to: then the
                first run makes the joint program.
            options: the options in the key.
        """
        check_surroundings(self.name)
        key = Key(*key_parts)
        recursion.check(self.name, self.cache, key)
        with turn((self.cache, key)):
            found = self.cache.find(key) if lock.is_shared else None
            return found or self._made(key, held, wrt, options)

    def _made(
        self,
        key: Key,
        held: list[torch.Tensor],
        wrt: tuple[bool, ...] | None,
        options: Options,
    ) -> Entry:
        run, fixed = [options.call or self.fun], options.fixed
        allowed = options.effects_allowed  # The program must not hold `options`: see `frozen`.
        later = frozen.snapshot_closure(run[0])
        store, name = self.cache, self.name
        store.missed(key, self.parameters)
        avals = [Aval(tuple(shape), dtype) for shape, dtype in key.avals]
        labels = self.labels(key.tree, fixed)
        for i, a in enumerate(avals):
            if a.dtype not in values.SUPPORTED:
                values.check_array(a, self.name, labels[i])
        out_tree: list[tree.Structure] = []
        had: list[Effect] = []

        def flat(*leaves: torch.Tensor) -> list[torch.Tensor]:
            store.traces += 1
            full: list[object] = list(leaves)
            for i, x in fixed:
                full.insert(i, x)
            args, kwargs = tree.unflatten(key.tree, full)
            with effects.collected(allowed) as found:
                outs, structure = tree.flatten(run[0](*args, **kwargs))
            out_tree[:], had[:] = [structure], found.effects
            return [*as_outputs(name, outs, structure), *found.tensors]

        program = TracedProgram(self.name, flat, avals, labels)
        program.defined_at = definition(self.value)
        places = identity.places_of(self.value)
        store.globals = store.globals or Guards()
        named = store.globals.of(self.value, key.tree)
        before, kinds = named.snapshot(), identity.class_contents(self.value)
        reach = before[0]
        held_by = (*identity.mutables_in(self.value), *reach.walk.mutables)
        drawn = draws.watching(name, reach.places, reach.mentioned, held_by)
        with recursion.being_traced(store, key), collect_guards() as guards:
            if named:
                depend_on(named)
            with draws.refused(drawn):
                if wrt is not None and any(wrt):
                    program.joint(wrt, options.zeros)
                else:
                    program.trace()
        changed = named.note_changes(before) | identity.note_changes(self.value, places)
        changed |= Changed.any(cls.note_changes(contents) for cls, contents in kinds.items())
        collects = [identity.let_change(f) for e in had for f in e.functions]
        if Changed.VOLATILE in changed or any(collects):
            value, others, held = self._values(options)
            key = key._replace(values=value, extra_deps=others)
        run[0] = frozen.as_it_was(later)
        slots = {id(t): i for i, t in enumerate(held)}
        others = [c for c in program.captures if id(c) not in slots]
        copies = iter(identity.detached(others, self.value, before[0].walk.mutables))
        program.captures = [c if id(c) in slots else next(copies) for c in program.captures]
        captures = tuple(slots.get(id(c), c) for c in program.captures)
        questions, left = size_questions.taken_from(guards)
        entry = Entry(
            program,
            options.primitive(program),
            out_tree[0],
            captures,
            options.donated(),
            tuple(had),
            options.compiler,
            questions,
        )
        # A value of an enclosing trace that is not in the key is valid in this trace only; see also
        # NOTE [flags] in `xfunc.cache.changes`.
        passing = any(isinstance(c, torch.Tensor) and _is_tracer(c) for c in captures)
        if not passing and Changed.FLAGS not in changed:
            store.add(key, entry, left)
            if (trace := tracing.current()) is not None:
                trace.keep_tokens([*held, *program.captures], self.value)
        return entry


class Runnable(Protocol):
    """The object that `first_run` runs: an `Entry`, or a stand-in."""

    def run(self, leaves: list[torch.Tensor], held: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Call the program."""
        ...

    def result(self, outs: Sequence[torch.Tensor]) -> PyTree:
        """The tree of results."""
        ...


def definition(fun: object) -> Location | None:
    """Where a function is defined."""
    code = getattr(identity.root_of(fun), "__code__", None)
    if code is None:
        return None
    return Location(code.co_filename, code.co_firstlineno, code.co_name)


def _is_tracer(t: torch.Tensor) -> bool:
    trace = tracing.current()
    return trace is not None and trace.is_inside(t)


def run_staged(
    staged: Staged, args: tuple[object, ...], kwargs: dict[str, object], options: Options = PLAIN
) -> PyTree:
    """Call a staged function with real tensors."""
    check_surroundings(staged.name)
    where = active.runtime()
    if lock.is_shared and active.may_share(where):
        return active.using_runtime(where, _run_staged, where, staged, args, kwargs, options)
    with lock:
        if not lock.is_shared:
            return _run_staged(active.runtime(), staged, args, kwargs, options)
    return run_staged(staged, args, kwargs, options)  # The runtime has changed meanwhile.


def _run_staged(
    where: Runtime,
    staged: Staged,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    options: Options,
) -> PyTree:
    # Plain tensors are the common case of small functions, where the cost of flattening shows.
    avals = None if kwargs else where.avals(args)
    if avals is not None:
        leaves: list[Leaf] = list(args)
        structure = tree.structure_of_leaves(len(args))
    else:
        given: PyTree = (args, kwargs)
        leaves, structure = optree.tree_flatten(given, namespace=tree.NAMESPACE)
        avals = where.avals(leaves)
    usual, of_host = staged.repeats, ()
    if avals is None:
        of_host = [i for i, x in enumerate(leaves) if type(x) is not where.kind]
        usual = usual and all(type(leaves[i]) in where.takes for i in of_host)
        if tree.adopt(leaves):
            leaves, structure = tree.flatten((args, kwargs))
        leaves, fixed = prepare(staged, leaves, structure)
        if fixed:
            options = options._replace(fixed=fixed)
        avals = tuple(map(_AVAL, leaves))
    store = staged.cache
    with lock:
        key, held = staged.key_of(structure, avals, options)
        entry = store.find(key)
        if entry is None:
            options = options._replace(effects_allowed=True)
            entry = staged.make(key, held, requires_grad_mask(leaves), options)
        latest = store.latest
    if entry.executable is None or where.device_count() > 1:
        result = first_run(store, entry, leaves, held)
    else:
        result = entry.result(entry.run(leaves, held))
        if usual and not entry.captures and options.is_usual:
            with lock:
                fast_path.note(staged, latest, entry, structure, avals, of_host)
    inspected(staged, args, kwargs, options, result, entry, leaves, held)
    return result


def inspected(
    staged: Staged,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    options: Options,
    result: object,
    entry: Entry,
    leaves: list[torch.Tensor],
    held: Sequence[torch.Tensor],
) -> None:
    """Pass the result of a run to the hook that `ambient.inspect_results` installed.

    Only then does the entry that was run, with `leaves` and `held`, take over donated arguments.
    """
    if (inspect := ambient.inspector()) is not None:
        inspect(staged.name, options.call or staged.fun, args, kwargs, result)
        entry.mark_donated(leaves, held)


def first_run(
    store: FunctionCache,
    entry: Runnable,
    leaves: list[torch.Tensor],
    held: Sequence[torch.Tensor],
) -> PyTree:
    """Run an entry that may have to be compiled; counts compilations."""
    with counting_compiles(store):
        return entry.result(entry.run(leaves, held))


@contextlib.contextmanager
def counting_compiles(store: FunctionCache) -> Generator[None]:
    """Count compilations for a function."""

    def count() -> None:
        store.compiles += 1
        LOG.info("compiled %s", store.name)

    before = count_compiles(count)
    try:
        yield
    finally:
        count_compiles(before)


def requires_grad_mask(leaves: Sequence[torch.Tensor]) -> tuple[bool, ...] | None:
    """The arguments with respect to which a first-order gradient is being taken; None if there is
    none.
    """
    if ad_depth(leaves) != 1:
        return None
    return tuple(differentiable(x) and values.is_tracked(x) for x in leaves)


def call_in_trace(
    staged: Staged,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    options: Options = PLAIN,
    check_captures: Callable[[Sequence[torch.Tensor]], None] = lambda captures: None,
) -> PyTree:
    """Call a staged function inside a trace: one call of its program."""
    leaves, structure = tree.flatten((args, kwargs))
    leaves, fixed = prepare(staged, leaves, structure)
    options = options._replace(fixed=fixed, effects_allowed=True)
    entry, held = staged.find(structure, avals_of(leaves), requires_grad_mask(leaves), options)
    inputs = entry.inputs(leaves, held)
    check_captures(inputs[len(leaves) :])
    return entry.result(bind(entry.call, inputs))
