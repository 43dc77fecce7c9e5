"""Common parts of functions with custom rules: arguments, and staging by parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import torch

from xfunc import tree
from xfunc.core.avals import aval_of, short
from xfunc.core.locations import described, function_name
from xfunc.core.wrappers import Bundle, Part
from xfunc.errors import fail, format_error
from xfunc.program.primitive import Tensor
from xfunc.program.program import TracedProgram
from xfunc.stages.checks import Fun, arrays, as_tensors, labels_of
from xfunc.stages.joined_inputs import SharedInputs
from xfunc.stages.options import Options
from xfunc.stages.staging import Staged, call_in_trace
from xfunc.stages.transformed import Transform
from xfunc.torchlib import functorch, values
from xfunc.tree import PyTree

_DEFINITIONS = frozenset(("defjvp", "defjvps", "defvjp", "def_vmap"))

P = ParamSpec("P")
R = TypeVar("R")


class CustomFunction(Transform[P, R]):
    """A function with a custom rule."""

    kind: str
    define: str

    def __init__(
        self,
        fun: Fun,
        nondiff_argnums: int | Sequence[int],
        nondiff_argnames: str | Sequence[str],
    ):
        nums = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        places = _places(fun, nondiff_argnames) if nondiff_argnames else ()
        self._nondiff = tuple(sorted({*nums, *places}))
        super().__init__(fun, self._nondiff, self.kind)
        self.__name__ = self.__qualname__ = function_name(fun)
        self._primal_fun = fun
        self._rules: tuple[Fun, ...] = ()

    def __getattr__(self, name: str) -> Fun:
        # If decorators are stacked, the outer one forwards the methods that define the inner one's
        # rule.
        inner = self.__dict__.get("_primal_fun")
        if name in _DEFINITIONS and isinstance(inner, CustomFunction):
            return getattr(cast("CustomFunction[..., PyTree]", inner), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _parts(self) -> tuple[Any, ...]:
        return *super()._parts(), {"_rules": self._rules}

    def _set_rules(self, *rules: Fun) -> None:
        for r in rules:
            if not callable(r):
                fail(
                    TypeError,
                    f"{self.__name__}.{self.define} was given {r!r}, which is not callable",
                    f"pass functions to {self.define}.",
                )
        self._rules = rules
        self.fun = Bundle((self._primal_fun, *rules))
        self._staged = Staged(self.apply, value=self, static_scalars=self.static_scalars)

    def static_scalars(self, structure: tree.Structure) -> Sequence[bool]:
        leaves = [object() for _ in range(structure.num_leaves)]
        args = _by_position(self._primal_fun, *tree.unflatten(structure, leaves))
        nondiff = [args[i] for i in self._nondiff if -len(args) <= i < len(args)]
        static = set(map(id, tree.leaves(nondiff)))
        return [id(x) in static for x in leaves]

    def _arguments(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[PyTree, ...], tuple[object, ...]]:
        """All arguments in order, merged from the differentiated and the other ones."""
        if not self._rules:
            fail(
                TypeError,
                f"{self.__name__} has no rule",
                f"give it one with {self.__name__}.{self.define}(...) before it is called.",
            )
        args = _by_position(self._primal_fun, args, kwargs)
        for i in self._nondiff:
            if not -len(args) <= i < len(args):
                fail(
                    ValueError,
                    f"{self.__name__} has nondiff_argnums={self._nondiff}, but was called with "
                    f"{len(args)} arguments",
                    "give positions of arguments.",
                )
        places = {i % len(args) for i in self._nondiff}
        nondiff = tuple(args[i] for i in sorted(places))
        for x in tree.leaves(nondiff):
            if isinstance(x, torch.Tensor):
                fail(
                    TypeError,
                    f"{self.__name__} was given a tensor ({short(x)}) in an argument of "
                    "nondiff_argnums",
                    "take it out of nondiff_argnums, and return None (custom_vjp) or a zero "
                    "tangent for it.",
                )
        diff = as_tensors(tuple(a for i, a in enumerate(args) if i not in places))
        labels = labels_of(self._primal_fun, args, [i for i in range(len(args)) if i not in places])
        arrays(tree.leaves(diff), f"{self.kind} function {self.__name__}", labels)
        return diff, nondiff

    def _whole(self, diff: Sequence[object], nondiff: Sequence[object]) -> list[object]:
        """The arguments as the function takes them."""
        return _together(diff, nondiff, self._nondiff)

    def _primal(self, nondiff: Sequence[object]) -> Callable[..., PyTree]:
        """The function of the arguments that are differentiated.

        The cached program refers to it, so it must not refer to the rules, which may hold values
        of a trace.
        """
        fun, places = self._primal_fun, self._nondiff
        return lambda *diff: fun(*_together(diff, nondiff, places))

    def _unwatched(
        self, primal: Fun, diff: tuple[object, ...], nondiff: tuple[object, ...]
    ) -> PyTree:
        """Call the function where nothing differentiates with respect to its arguments."""
        return call_in_trace(
            self._part(self._primal_fun, "primal"),
            diff,
            {},
            Options(extra_deps=labelled(nondiff), call=primal),
            check_captures=lambda captures: check_captures(self.__name__, captures),
        )

    def _part(self, fun: Fun, role: str) -> Staged:
        return Staged(fun, value=Part(fun, (self.kind, role)))


def _together(
    diff: Sequence[object], nondiff: Sequence[object], where: Sequence[int]
) -> list[object]:
    n = len(diff) + len(nondiff)
    places = {i % n for i in where}
    rest, fixed = iter(diff), iter(nondiff)
    return [next(fixed) if i in places else next(rest) for i in range(n)]


def _by_position(
    fun: Fun, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[object, ...]:
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):
        signature = None
    if signature is None:
        bound_args, bound_kwargs = args, kwargs
    else:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                format_error(
                    f"{described(fun)} was called with arguments that do not fit it: {error}",
                    f"its parameters are {', '.join(signature.parameters)}.",
                )
            ) from None
        bound.apply_defaults()
        bound_args, bound_kwargs = bound.args, bound.kwargs
    if bound_kwargs:
        fail(
            TypeError,
            f"{described(fun)} takes {', '.join(bound_kwargs)} by keyword only, which "
            "functions with custom rules do not support",
            "make it a positional parameter.",
        )
    return bound_args


def _places(fun: Fun, names: str | Sequence[str]) -> list[int]:
    """The positions of parameters."""
    known = list(inspect.signature(fun).parameters)
    wanted = (names,) if isinstance(names, str) else tuple(names)
    for name in wanted:
        if name not in known:
            fail(
                ValueError,
                f"{described(fun)} has no parameter {name!r}",
                f"its parameters are {', '.join(known)}.",
            )
    return [known.index(name) for name in wanted]


def labelled(nondiff: Sequence[object]) -> tuple[tuple[str, object], ...]:
    """Arguments that are not differentiated, with their names for messages."""
    return tuple((f"nondiff_argnums[{i}]", x) for i, x in enumerate(nondiff))


class Parts(SharedInputs):
    """The parts of a function with a rule, and their flat inputs."""

    def __init__(self, leaves: Sequence[Tensor], name: str):
        super().__init__(leaves)
        self._name = name

    def add_part(
        self, staged: Staged, fun: Fun, args: object, nondiff: tuple[object, ...]
    ) -> tuple[TracedProgram, tree.Structure, tuple[int, ...]]:
        """Stage a part for arguments: its program, its result's structure, where captures are."""
        leaves, structure = tree.flatten((args, {}))
        avals = tuple((tuple(aval_of(x).shape), x.dtype) for x in leaves)
        options = Options(extra_deps=labelled(nondiff), call=fun)
        entry, held = staged.find(structure, avals, options=options)
        uses = self.add(entry, leaves, held)
        check_captures(self._name, [self.flat[i] for i in uses])
        return entry.program, entry.out_tree, uses


def check_captures(name: str, captures: Sequence[Tensor]) -> None:
    """Raise if a function with a custom rule closes over a value that is being differentiated."""
    for c in captures:
        if values.is_tracked(c) or functorch.has_tangent(c):
            fail(
                TypeError,
                f"{name} closes over a value ({short(c)}) that is being differentiated, which "
                "its rule does not receive",
                "pass the value as an argument, or close over xf.stop_gradient of it.",
            )
