"""`jit`: stage a function into one compiled program per kind of arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast, overload

import torch

from xfunc import tree
from xfunc.backends.placement import record_sharding
from xfunc.cache.programs import CacheInfo
from xfunc.core import ambient
from xfunc.core.locations import function_name
from xfunc.core.types import Sharding
from xfunc.errors import ShardingError, fail, format_error, kind_of, short_repr
from xfunc.sharding.jit_shardings import as_arguments, constrained, hashable, in_order
from xfunc.sharding.prefix import shardings_of
from xfunc.sharding.spec import NamedSharding
from xfunc.stages import stages
from xfunc.stages.compiler_options import Option, refuse_inside
from xfunc.stages.compiler_options import compiler_options as checked_options
from xfunc.stages.options import PLAIN, Options
from xfunc.stages.staging import Staged, call_in_trace, run_staged
from xfunc.stages.transformed import CallableOrLambda, Transform
from xfunc.symbolic import budget, lowered
from xfunc.symbolic.abstract import is_symbolic
from xfunc.symbolic.dynamic import Dynamic
from xfunc.torchlib.eager import is_eager
from xfunc.transforms.named_arguments import Names, Nums, in_call, resolve
from xfunc.tree import PyTree

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Settings(TypedDict, total=False):
    """The keyword arguments of `jit`."""

    static_argnums: Nums
    static_argnames: Names
    donate_argnums: Nums
    donate_argnames: Names
    in_shardings: object
    out_shardings: object
    dynamic_shapes: object
    buckets: object
    memory_limit: int | None
    compiler_options: Mapping[str, Option] | None


@overload
def jit(fun: CallableOrLambda[P, R], **settings: Unpack[_Settings]) -> Jit[P, R]: ...
@overload
def jit(**settings: Unpack[_Settings]) -> _Decorator: ...
def jit(
    fun: Callable[..., object] | None = None,
    *,
    static_argnums: Nums = None,
    static_argnames: Names = None,
    donate_argnums: Nums = None,
    donate_argnames: Names = None,
    in_shardings: object = None,
    out_shardings: object = None,
    dynamic_shapes: object = None,
    buckets: object = None,
    memory_limit: int | None = None,
    compiler_options: Mapping[str, Option] | None = None,
) -> Jit[..., PyTree] | _Decorator:
    """Compile `fun` for each structure, shape and dtype of its arguments, and run only that.

    The Python code of `fun` runs once per kind of arguments, on abstract tensors. Python numbers
    among the arguments become 0-d tensors (int: int64, bool, float: torch's default dtype, and
    complex numbers of that width). Inside another traced function, `fun` becomes one call of its
    program.

    Args:
        fun: a pure function of trees of tensors; without it, `jit` is a decorator with arguments.
        static_argnums: positions of arguments that are compared by value; any hashable objects.
        static_argnames: names of such arguments.
        donate_argnums: positions of arguments whose memory the program may reuse for its results;
            they can't be used afterwards.
        donate_argnames: names of such arguments.
        in_shardings: how the arguments are sharded over the devices of a mesh: a tree of
            `NamedSharding`, `PartitionSpec` (on the mesh in use) and None (as they are) that is a
            prefix of the tuple of positional arguments that are not static. An argument that is not
            sharded yet gets this sharding; one that is must have it.
        out_shardings: how the result is sharded, a prefix of its tree.
        dynamic_shapes: which dimensions of the arguments vary: a prefix tree of the tuple of
            positional arguments, or of a dict of arguments by name. It has None for fixed
            arguments, or a tuple with a `Dim` (or an expression of Dims), a number or None for each
            dimension. One program is then used for all sizes of a bucket, with exact results.
        buckets: the sizes to compile for: a list, ``"auto"`` (powers of 2, the default), or a dict
            of these by `Dim`.
        compiler_options: options of XLA by name, for the backend ``"pjrt"``; see its page. They are
            for the outermost `jit`. Not together with `dynamic_shapes` or `memory_limit`.
        memory_limit: bytes that the program may hold on each device, arguments included. The
            fastest policy with which it fits, from keeping everything to keeping nothing or, for a
            TPU, to keeping it in the host's memory, is applied to all its checkpoints and scans; a
            function that has neither is differentiated as if it were a checkpoint. None: no limit.

    Returns:
        A function of the same arguments that returns the result of `fun`; or, without `fun`, a
        decorator that makes one.

    Raises:
        TypeError: an argument is neither static nor a tree of tensors and numbers.
        ValueError: a static argument is not hashable; a call in a traced function has
            compiler_options.
        PurityError: `fun` mutates an argument or draws from the global random generator.
        ConcretizationError: `fun` reads the value of an argument.
        OutOfMemoryError: nothing fits the memory limit; the error gives the smallest limit that
            would suffice.
        ShardingError: a sharding does not fit its array, or an argument has another.
        TreeMismatchError: the shardings or the dynamic shapes are not tree prefixes.
        ShapeError: an argument does not have the size that `dynamic_shapes` declares.

    Source: ``jax.jit``.
    """
    if fun is None:
        return functools.partial(
            jit,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            dynamic_shapes=dynamic_shapes,
            buckets=buckets,
            memory_limit=memory_limit,
            compiler_options=compiler_options,
        )
    return Jit(
        fun,
        (static_argnums, static_argnames),
        (donate_argnums, donate_argnames),
        (in_shardings, out_shardings),
        (dynamic_shapes, buckets),
        memory_limit,
        compiler_options,
    )


class _Decorator(Protocol):
    def __call__(self, fun: Callable[P, R], /) -> Jit[P, R]: ...


class Jit(Transform[P, R]):
    """The result of `jit`: call it like the function."""

    def __init__(
        self,
        fun: Callable[P, R],
        static: tuple[Nums, Names],
        donate: tuple[Nums, Names],
        shardings: tuple[object, object],
        dynamic: tuple[object, object] = (None, None),
        memory_limit: int | None = None,
        compiler: Mapping[str, Option] | None = None,
    ):
        self._static = resolve(fun, *static)
        self._donate = resolve(fun, *donate)
        self._in, self._out = shardings
        self._out_shardings: dict[Hashable, list[Sharding | None]] = {}
        self._is_sharded = self._in is not None or self._out is not None
        budget.check(memory_limit, f"jit({function_name(fun)})")
        self.compiler = checked_options(compiler, f"jit({function_name(fun)})")
        if self.compiler and (dynamic[0] is not None or memory_limit is not None):
            other = "memory_limit" if dynamic[0] is None else "dynamic_shapes"
            problem = f"jit({function_name(fun)}) has compiler_options together with {other}"
            fail(ValueError, problem, "give only one of the two.")
        is_plain = self._static == self._donate == ((), ()) and not self._is_sharded
        self._is_plain = is_plain and memory_limit is None and not self.compiler
        if both := set(self._static[0]) & set(self._donate[0]):
            fail(
                ValueError,
                f"jit({function_name(fun)}): argument {min(both)} is both static and donated",
                "only arrays can be donated: take it out of one of the two.",
            )
        options: tuple[Hashable, ...] = (self._static, self._donate, self.compiler)
        options += (hashable(self._in), hashable(self._out)) if self._is_sharded else ()
        super().__init__(fun, options, "jit")
        self.__name__ = self.__qualname__ = function_name(fun)
        self._staged = Staged(fun, value=self, arrays_only=True)
        shapes, buckets = dynamic
        if shapes is None and buckets is not None:
            fail(
                ValueError,
                f"jit({function_name(fun)}) has buckets, but no dynamic dimension",
                "declare dynamic_shapes.",
            )
        if self._static != ((), ()) or self._is_sharded or shapes is not None or memory_limit:
            self._staged.repeats = False
        self._dynamic = self._memory_budget = None
        self._buckets, self._bytes = buckets, memory_limit
        if shapes is not None:
            self._dynamic = Dynamic(self._staged, shapes, buckets, memory_limit)
        elif memory_limit is not None:
            self._memory_budget = budget.Limit(self._staged, memory_limit)

    def apply(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if is_eager():
            return self.fun(*args, **kwargs)
        if self.compiler:
            refuse_inside(self._staged.name)
        given, named, options = self._split(args, kwargs)
        # Inside a program, XLA reuses memory automatically.
        return call_in_trace(self._staged, given, named, options._replace(donated=frozenset))

    def inside(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> PyTree:
        return self.apply(*args, **kwargs)

    def run(self, args: tuple[object, ...], kwargs: dict[str, object]) -> PyTree:
        if self._is_plain and self._dynamic is None:
            return run_staged(self._staged, args, kwargs)
        given, named, options = self._split(args, kwargs)
        if self._in is not None and self._dynamic is None:
            given = self._divided(given, named)
        result = self._run_within_budget(given, named, options)
        return result if self._out is None else self._noted(result)

    def _run_within_budget(
        self, args: tuple[object, ...], kwargs: dict[str, object], options: Options
    ) -> PyTree:
        if self._dynamic is not None:
            divide = None if self._in is None else self._divided
            wanted = () if self._in is None else self._wanted_by_all(args, kwargs)
            return self._dynamic.run(args, kwargs, options, divide, wanted)
        if self._memory_budget is None:
            return run_staged(self._staged, args, kwargs, options)
        call = budget.Call(args, kwargs, options, self._wanted_by_all(args, kwargs))
        with ambient.overridden(self._memory_budget.override(call)):
            return run_staged(self._staged, args, kwargs, options)

    def _split(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object], Options]:
        """Arguments without the static ones, and the options that stage them."""
        options = PLAIN._replace(compiler=self.compiler) if self.compiler else PLAIN
        if self._static != ((), ()):
            nums = self._static_places(args)
            names = [n for n in self._static[1] if n in kwargs]
            given: list[tuple[int | str, object]] = [(i, args[i]) for i in nums]
            given += [(n, kwargs[n]) for n in names]
            for where, value in given:
                self._check_hashable(where, value)
            fun = self.fun
            args = tuple(None if i in nums else a for i, a in enumerate(args))
            kwargs = {n: v for n, v in kwargs.items() if n not in names}

            def call(*dynamic: object, **named: object) -> object:
                full = list(dynamic)
                for where, value in given:
                    if isinstance(where, int):
                        full[where] = value
                    else:
                        named[where] = value
                return fun(*full, **named)

            static = tuple((w, _kind(v), v) for w, v in given)
            options = options._replace(static=static, call=call)
        if self._is_sharded:
            self._check_positional(kwargs)
            call = constrained(options.call or self.fun, self._wanted, self._out)
            options = options._replace(call=call)
        if self._donate != ((), ()):
            options = options._replace(donated=lambda: self._donated_leaves(args, kwargs))
        return args, kwargs, options

    def _static_places(self, args: tuple[object, ...]) -> list[int]:
        return in_call(self._static[0], len(args), self._staged.name, "static_argnums")

    def _check_positional(self, kwargs: dict[str, object]) -> None:
        if self._in is not None and kwargs:
            fail(
                ShardingError,
                f"{self._staged.name} has in_shardings, which apply to positional "
                f"arguments, but was given {next(iter(kwargs))!r} by keyword",
                "pass all arguments by position.",
            )

    def _divided(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        """The arguments, sharded as `in_shardings` says."""
        return as_arguments(args, self._wanted(args), self._staged, kwargs)

    def _wanted(self, args: tuple[object, ...]) -> list[NamedSharding | None]:
        """The sharding of each leaf of the positional arguments; None: unchanged."""
        if self._in is None:
            return [None] * tree.structure(args).num_leaves
        static = self._static_places(args)
        dynamic = tuple(a for i, a in enumerate(args) if i not in static)
        return in_order(self._in, dynamic, self._staged.name)

    def _wanted_by_all(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[object]:
        """The sharding of each leaf of all arguments; None: unchanged."""
        found = self._wanted(args) if self._in is not None else []
        rest = tree.structure((args, kwargs)).num_leaves - len(found)
        return [*found, *[None] * rest]

    def _noted(self, result: T) -> T:
        """The result, with `out_shardings` recorded for `xf.sharding_of`."""
        leaves, structure = tree.flatten(result)
        key = (structure, ambient.mesh())
        if key not in self._out_shardings:
            found = shardings_of(self._out, result, "out_shardings", "the result")
            self._out_shardings[key] = [s for s, _ in found]
        for x, s in zip(leaves, self._out_shardings[key], strict=True):
            # A result that was cut to its exact size may not be divisible.
            fits = self._dynamic is None or (
                isinstance(s, NamedSharding) and s.divides(tuple(x.shape))
            )
            if s is not None and fits:
                record_sharding(x, s)
        return result

    def _donated_leaves(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> frozenset[int]:
        nums = in_call(self._donate[0], len(args), self._staged.name, "donate_argnums")
        sizes = [(i in nums, a) for i, a in enumerate(args)]
        sizes += [(n in self._donate[1], kwargs[n]) for n in sorted(kwargs)]
        found, k = list[int](), 0
        for donated, x in sizes:
            n = tree.structure(x).num_leaves
            found += range(k, k + n) if donated else ()
            k += n
        return frozenset(found)

    def _check_hashable(self, where: int | str, value: object) -> None:
        try:
            if isinstance(value, torch.Tensor):
                raise TypeError("a tensor's hash does not go by value")
            hash(value)
        except TypeError:
            raise ValueError(
                format_error(
                    f"static argument {where!r} of {self._staged.name} is not hashable by value: "
                    f"{short_repr(value)} ({kind_of(value)})",
                    "pass a tuple instead of a list, a frozen dataclass instead of a dict; or "
                    "leave the argument dynamic.",
                )
            ) from None

    # -- inspection -----------------------------------------------------------------------------

    def without_compiler(self) -> Callable[..., object]:
        """A copy without compiler options, for make_hlo and eval_shape."""
        return Jit(self.fun, self._static, self._donate, (self._in, self._out))

    def trace(self, *args: object, **kwargs: object) -> stages.Traced:
        """Trace for these arguments (tensors, numbers, `ShapeDtypeStruct`); runs nothing."""
        if is_symbolic(args, kwargs):
            lowered.refuse_trace(self._staged.name)
        given, named, options = self._split(args, kwargs)
        call = budget.Call(given, named, options, self._wanted_by_all(given, named))
        if self._memory_budget is None:
            return call.trace(self._staged)
        with ambient.overridden(self._memory_budget.override(call)):
            return call.trace(self._staged)

    def lower(self, *args: object, **kwargs: object) -> stages.Lowered:
        """Trace for these arguments, and return the HLO.

        With a `memory_limit`, the values kept for the backward pass are chosen later: when the
        program is read or compiled, and for the devices that it is compiled for.

        `ShapeDtypeStruct`s with a `Dim` in their shapes give a `LoweredRange`: the program of each
        bucket, to be inspected, compiled, or exported.
        """
        if is_symbolic(args, kwargs):
            given, named, options = self._split(args, kwargs)
            wanted = self._wanted_by_all(given, named)
            # A `LoweredRange`, which few callers ask for: as `Lowered | LoweredRange`, the result
            # would have no method that a type checker lets the others use.
            planning = None
            if self._bytes is not None:
                chooser = self._dynamic or self._memory_budget
                assert chooser is not None
                planning = budget.Planning(self._bytes, chooser.note)
            result: Any = lowered.lower(
                self._staged, given, named, options, self._buckets, wanted, planning
            )
            return result
        if self._memory_budget is not None:
            given, named, options = self._split(args, kwargs)
            wanted = self._wanted_by_all(given, named)
            return self._memory_budget.lowered(budget.Call(given, named, options, wanted))
        return self.trace(*args, **kwargs).lower()

    def cache_info(self) -> CacheInfo:
        """Counters: hits, misses, traces, compiles, and the number of programs kept."""
        return self._staged.cache.info()

    def clear_cache(self) -> None:
        """Forget this function's programs and reset its counters."""
        self._staged.cache.clear()

    def explain(self) -> str:
        """Hits, misses, the last miss, and the buckets used so far."""
        chooser = self._dynamic or self._memory_budget
        info, why = self.cache_info(), self._staged.cache.explained()
        counts = ", ".join(f"{v} {k}" for k, v in info._asdict().items())
        text = f"{self._staged.name}: {counts}\n{why}"
        if chooser is not None:
            text = f"{text}\n{chooser.explain()}"
        return text.rstrip()


def _kind(value: object) -> Hashable:
    """What equal static arguments may differ in: types of numbers, also in tuples, and -0.0."""
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        return type(items), *map(_kind, items)
    return (type(value), repr(value)) if isinstance(value, float | complex) else type(value)
