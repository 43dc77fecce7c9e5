"""From a Python function and its arguments to a program, once per key; then only the program.

`Staged` finds or makes the program of a function for given argument trees. `Transform` is the base
of what `jit`, `grad`, `vmap` and the rest return: called with real tensors it stages itself and
runs as one executable; called inside a trace it traces into it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import operator
import threading
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import optree
import torch

from xfunc import cache, config, effects, functorch, identity, runtime, tracing, tree, values
from xfunc.avals import NUMBERS, Aval, aval_of
from xfunc.bind import bind, differentiations
from xfunc.cache import FunctionCache, Key
from xfunc.call import Call
from xfunc.effects import Effect
from xfunc.errors import report, shown
from xfunc.globals import Globals
from xfunc.guards import collect_guards, depend_on
from xfunc.identity import Wrapper
from xfunc.literals import literal
from xfunc.locations import Location, function_name, in_user_code, user_location
from xfunc.lowering import count_compiles
from xfunc.program import Program, differentiable

_AVAL = operator.attrgetter("shape", "dtype")
_IS_XLA = operator.attrgetter("is_xla")
_REQUIRES_GRAD = operator.attrgetter("requires_grad")
_TENSOR_ONLY = {torch.Tensor}
_switches = threading.local()


@contextlib.contextmanager
def disable_jit(disable: bool = True) -> Iterator[None]:
    """Run transforms eagerly, operation by operation, on whatever device the tensors are on."""
    before = getattr(_switches, "eager", False)
    _switches.eager = disable
    try:
        yield
    finally:
        _switches.eager = before


def is_eager() -> bool:
    """Whether `disable_jit` is in force."""
    return getattr(_switches, "eager", False)


@dataclasses.dataclass(eq=False)
class Entry:
    """A cached program and how to call it.

    Attributes:
        program: of the flattened function.
        out_tree: the structure of its results.
        captures: for each capture, where to find it: among the tensors that the function holds
            (an index), or as itself.
        donated: flat arguments whose buffers the program may take over.
        effects: to be had when it has run; their tensors are the program's last outputs.
    """

    program: Program
    call: Call
    out_tree: tree.Structure
    captures: tuple[int | torch.Tensor, ...]
    donated: frozenset[int] = frozenset()
    effects: tuple[Effect, ...] = ()
    _run: runtime.Executable | None = None
    _inputs: tuple[int, ...] = ()
    _consts: tuple[torch.Tensor, ...] = ()

    @property
    def outputs(self) -> tuple[Aval, ...]:
        """Avals of the results, without what the effects take."""
        outs = self.program.outputs
        return outs[: len(outs) - sum(e.size for e in self.effects)]

    def result(self, outs: Sequence[torch.Tensor]) -> Any:
        """The tree of results; has the effects."""
        if self.effects:
            outs = effects.take(self.effects, outs)
        return self.out_tree.unflatten(outs)

    def inputs(self, leaves: list[torch.Tensor], held: Sequence[torch.Tensor]) -> list[Any]:
        """Arguments and captures, in the program's order."""
        if not self.captures:
            return leaves
        found = [held[c] if isinstance(c, int) else c for c in self.captures]
        if tracing.current() is None:
            found = [runtime.to_device(t) for t in found]
        return [*leaves, *found]

    def run(self, leaves: list[torch.Tensor], held: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Call the program with tensors on the device, outside of any trace."""
        flat = self.inputs(leaves, held)
        if functorch.top_level() is not None or (
            torch.is_grad_enabled() and any(map(_REQUIRES_GRAD, flat))
        ):
            # An autograd engine that ran before the device client started has no thread for it.
            functorch.run_backward_in_this_thread()
            return bind(self.call, flat)
        run = self._run
        if run is None:
            lowering = self.program.lowering
            if not lowering.outputs:
                return []
            run = self._run = lowering.executable(self.donated)
            self._inputs = tuple(lowering.inputs[i] for i in run.order)
            self._consts = lowering.held()
        if self._consts:
            flat = [*flat, *self._consts]
        if not self.donated:
            return run([flat[i] for i in self._inputs])
        return self._run_donating(run, flat)

    def _run_donating(
        self, run: runtime.Executable, flat: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        donated = self.donated
        if len(set(map(id, flat))) < len(flat):
            ids = [id(flat[i]) for i in donated]
            others = {id(t) for i, t in enumerate(flat) if i not in donated}
            if len(set(ids)) < len(ids) or not others.isdisjoint(ids):
                raise ValueError(
                    report(
                        f"{self.program.name} was given one tensor twice, once to be donated",
                        "pass a copy (t.clone()), or do not donate that argument.",
                        at=user_location(),
                    )
                )
        outputs = run([flat[i] for i in self._inputs])
        for i in donated:
            t = flat[i]
            if type(t) is torch.Tensor:
                t.__class__ = _Donated
        return outputs


class _Donated(torch.Tensor):
    """A tensor whose buffer a program has taken over."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "__repr__":
            return "<donated tensor>"
        raise RuntimeError(
            report(
                "this tensor was donated to a jitted function, which has reused its buffer",
                "use the function's result instead, or leave the argument out of donate_argnums.",
                at=user_location(),
            )
        )


class Staged:
    """The programs of one function.

    Args:
        fun: called as ``fun(*args, **kwargs)`` to trace it.
        value: what the function counts as in the cache (`fun`, if None).
        arrays_only: whether arguments that are neither tensors nor numbers are an error; if not,
            they count by value.
    """

    def __init__(self, fun: Callable[..., Any], value: Any = None, arrays_only: bool = False):
        self.fun = fun
        self.arrays_only = arrays_only
        self.value = fun if value is None else value
        self.name = function_name(fun if value is None else value)
        self._constant = identity.is_constant(self.value)
        # The value of a function that holds nothing that can change, once it has been taken.
        self.known_value: tuple[Hashable, list[torch.Tensor]] | None = None

    @functools.cached_property
    def cache(self) -> FunctionCache:
        """The cache, shared with every function of the same skeleton."""
        return cache.cache_of(self.value)

    def labels(
        self, structure: tree.Structure, fixed: tuple[tuple[int, Any], ...] = ()
    ) -> list[str]:
        """Key paths of the flat arguments: ``params['layers'][0]``."""
        try:
            names = list(inspect.signature(self.value).parameters)
        except (TypeError, ValueError):
            names = []
        skip = {i for i, _ in fixed}
        accessors = structure.accessors()
        return [_path(a, names) for i, a in enumerate(accessors) if i not in skip]

    def function_value(self) -> tuple[Hashable, list[torch.Tensor]]:
        """See `xfunc.identity.function_value`."""
        found = identity.function_value(self.value)
        if self._constant:
            self.known_value = found
        return found

    def find(
        self,
        structure: tree.Structure,
        avals: tuple[Any, ...],
        wrt: tuple[bool, ...] | None,
        *,
        static: Hashable = None,
        **options: Any,
    ) -> tuple[Entry, list[torch.Tensor]]:
        """The entry for arguments of a structure and avals, and the tensors the function holds.

        `static` is a further part of the key; see `make` for the rest.
        """
        value, held = self.known_value or self.function_value()
        key = (value, structure, avals, static, _modes())
        entry = self.cache.find(key)
        if entry is None:
            entry = self.make(key, held, wrt, **options)
        return entry, held

    def make(
        self,
        key_parts: tuple[Any, ...],
        held: list[torch.Tensor],
        wrt: tuple[bool, ...] | None,
        *,
        call: Callable[..., Any] | None = None,
        fixed: tuple[tuple[int, Any], ...] = (),
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
            fixed: leaves of the structure that are no arrays, by position; part of the key.
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
        store.missed(key)
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
        store.globals = store.globals or Globals()
        named = store.globals.watch(self.value)
        before = store.globals.snapshot()
        with _being_traced(self, key), collect_guards() as guards:
            if named:
                depend_on(store.globals)
            if wrt is not None and any(wrt):
                program.joint(wrt, zeros)
            else:
                program.trace()
        run[0] = later
        store.globals.note_changes(before)
        collects = [identity.let_change(f) for e in had for f in e.functions]
        if identity.note_changes(self.value, places) or any(collects):
            value, held = self.function_value()
            key = key._replace(values=value)
        slots = {id(t): i for i, t in enumerate(held)}
        captures = tuple(slots.get(id(c), c) for c in program.captures)
        entry = Entry(program, primitive(program), out_tree[0], captures, donated(), tuple(had))
        # A value of an enclosing trace that the key does not see is good for this trace only.
        if not any(isinstance(c, torch.Tensor) and _is_tracer(c) for c in captures):
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


def as_outputs(name: str, outs: Sequence[Any], structure: tree.Structure) -> list[torch.Tensor]:
    """The leaves that a traced function returned, as traced tensors."""
    made = []
    for i, o in enumerate(outs):
        if isinstance(o, torch.Tensor):
            trace = tracing.current()
            if trace is not None:
                o = trace.lift(o)
                o = literal(o) if o.device.type == "cpu" else o
            made.append(o)
        elif type(o) in NUMBERS and not (type(o) is int and abs(o) >= 2**63):
            made.append(torch.full((), o, dtype=NUMBERS[type(o)], device=runtime.device()))
        else:
            path = structure.accessors()[i].codify("output")
            raise TypeError(
                report(
                    f"{name} returned {shown(o)} (a {type(o).__name__}) at {path}",
                    "return tensors, numbers or None, in any tree of tuples, lists, dicts and "
                    "registered classes.",
                    at=user_location(),
                )
            )
    return made


def _is_tracer(t: torch.Tensor) -> bool:
    trace = tracing.current()
    return trace is not None and trace.is_inside(t)


_tracing_now = threading.local()


@contextlib.contextmanager
def _being_traced(staged: Staged, key: Key) -> Iterator[None]:
    stack = _tracing_now.__dict__.setdefault("stack", [])
    stack.append((staged.cache, key))
    before = count_compiles(None)
    try:
        yield
    finally:
        count_compiles(before)
        stack.pop()


def _check_no_recursion(staged: Staged, key: Key) -> None:
    if (staged.cache, key) in _tracing_now.__dict__.get("stack", ()):
        raise RecursionError(
            report(
                f"{staged.name} calls itself, with arguments of the same shapes, while it is "
                "being traced: the trace would never end",
                "use xf.scan for a loop of fixed length, or make the depth a static argument.",
                at=user_location(),
            )
        )


def _modes() -> Hashable:
    """Global settings of torch that change what is traced."""
    if torch.is_autocast_enabled("xla"):
        return (torch.get_default_dtype(), torch.get_autocast_dtype("xla"))
    return torch.get_default_dtype()


def prepare(
    staged: Staged, leaves: list[Any], structure: tree.Structure
) -> tuple[list[torch.Tensor], tuple[tuple[int, Any], ...]]:
    """Argument leaves as tensors that a program can take, and those that are no arrays."""
    trace = tracing.current()
    made: list[torch.Tensor] = []
    fixed: list[tuple[int, Any]] = []
    for i, x in enumerate(leaves):
        if type(x) in NUMBERS:
            dtype = NUMBERS[type(x)]
            if type(x) is int and not -(2**63) <= x < 2**63:
                raise OverflowError(
                    report(
                        f"{staged.labels(structure)[i]} of {staged.name} is {x}, too large for an "
                        "int64",
                        "make the argument static.",
                        at=user_location(),
                    )
                )
            if trace is None:
                made.append(runtime.to_device(torch.tensor(x, dtype=dtype)))
            else:
                made.append(torch.full((), x, dtype=dtype, device=runtime.device()))
        elif isinstance(x, torch.Tensor):
            if trace is not None:
                made.append(trace.lift(x))
            else:
                if not _IS_XLA(x):
                    values.check_array(x, staged.name, staged.labels(structure)[i])
                made.append(runtime.to_device(x))
        elif staged.arrays_only:
            raise TypeError(
                report(
                    f"{staged.name} was given {shown(x)} (a {type(x).__name__}) as "
                    f"{staged.labels(structure)[i]}",
                    "pass tensors and Python numbers (torch.from_numpy for arrays); register your "
                    "own class with xf.tree.register; make anything else static with "
                    "static_argnums or static_argnames; of an object's method, write "
                    "jit(obj.method).",
                    at=user_location(),
                )
            )
        else:
            fixed.append((i, x))
    return made, tuple(fixed)


def _path(accessor: optree.PyTreeAccessor, names: Sequence[str]) -> str:
    """A key path in ``(args, kwargs)``, as the user knows it."""
    if len(accessor) < 2:
        return "the arguments"
    which, first = accessor[0].entry, accessor[1].entry
    rest = accessor[2:].codify("")
    if which == 1:
        return f"{first}{rest}"
    return f"{names[first]}{rest}" if first < len(names) else f"argument {first}{rest}"


class Transform(Wrapper):
    """A transformed function: see the transform that made it."""

    def __init__(self, fun: Callable[..., Any], options: Hashable, name: str):
        if not callable(fun):
            raise TypeError(
                report(
                    f"{name} was given {shown(fun)}, which is not callable",
                    f"pass a function: {name}(f)(x) rather than {name}(f(x)).",
                    at=user_location(),
                )
            )
        self.fun, self.options = fun, options
        functools.update_wrapper(self, fun, updated=())
        self.__name__ = self.__qualname__ = f"{name}({function_name(fun)})"
        self._staged = Staged(self.apply, value=self)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Trace into the enclosing trace (or run eagerly)."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(tracing._thread, "trace", None) is not None or is_eager():
            return self.apply(*args, **kwargs)
        try:
            return run_staged(self._staged, args, kwargs)
        except Exception as error:
            raise hide_library_frames(error) from error.__cause__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


def run_staged(
    staged: Staged,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static: Hashable = None,
    **options: Any,
) -> Any:
    """Call a staged function with real tensors."""
    with runtime.lock:
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
                static = (static, identity.function_value(fixed)[0])
                options["fixed"] = fixed
        avals = tuple(map(_AVAL, leaves))
        value, held = staged.known_value or staged.function_value()
        store = staged.cache
        key = (value, structure, avals, static, _modes())
        entry = store.find(key)
        if entry is None:
            entry = staged.make(key, held, watched(leaves), effects_allowed=True, **options)
        if entry._run is None and inspect_result is None:
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
    **options: Any,
) -> Any:
    """Call a staged function inside a trace: one call of its program."""
    leaves, structure = tree.flatten((args, kwargs))
    leaves, fixed = prepare(staged, leaves, structure)
    if fixed:
        static = (static, identity.function_value(fixed)[0])
    entry, held = staged.find(
        structure,
        avals_of(leaves),
        watched(leaves),
        static=static,
        fixed=fixed,
        effects_allowed=True,
        **options,
    )
    return entry.result(bind(entry.call, entry.inputs(leaves, held)))


def hide_library_frames(error: Exception) -> Exception:
    """The exception with the frames of xfunc and torch taken out of its traceback."""
    if not config.hide_library_frames:
        return error
    entry, kept = error.__traceback__, []
    while entry is not None:
        if in_user_code(entry.tb_frame.f_code):
            kept.append(entry)
        entry = entry.tb_next
    trail: types.TracebackType | None = None
    for e in reversed(kept):
        trail = types.TracebackType(trail, e.tb_frame, e.tb_lasti, e.tb_lineno)
    return error.with_traceback(trail)


def avals_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Abstract arguments as they stand in a key."""
    return tuple((tuple(aval_of(x).shape), x.dtype) for x in leaves)
