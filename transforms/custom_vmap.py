"""`custom_vmap`: a function with its own rule for `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, ParamSpec, TypeAlias, TypeVar, cast

from xfunc import tree
from xfunc.backends.devices import to_device
from xfunc.core.wrappers import Bundle
from xfunc.errors import UnsupportedOpError, fail
from xfunc.program.bind import bind
from xfunc.program.primitive import Dims, Tensor
from xfunc.stages.arguments import avals_of
from xfunc.stages.checks import Fun
from xfunc.stages.options import Options
from xfunc.stages.staging import call_in_trace
from xfunc.stages.transformed import CallableOrLambda
from xfunc.torchlib import functorch
from xfunc.torchlib.eager import disable_jit, is_eager
from xfunc.torchlib.values import is_tracked
from xfunc.transforms.custom import CustomFunction
from xfunc.transforms.custom_vmap_primitive import Mapped, Rule, refuse_reverse
from xfunc.transforms.map import map as map_
from xfunc.tree import PyTree

P = ParamSpec("P")
R = TypeVar("R")
Batched: TypeAlias = tuple[list[Tensor], list[int | None]]  # and where the batch is


def custom_vmap(fun: Callable[P, R]) -> CustomVmap[P, R]:
    """`fun`, with a rule given by ``def_vmap`` that `vmap` calls in its place.

    ::

        @xf.custom_vmap
        def f(x, y): ...

        @f.def_vmap
        def rule(axis_size, in_batched, x, y):
            return f_of_many(x, y), True        # the outputs, and which of them are batched

    `in_batched` is a list with a tree of bools for each argument: whether each leaf has an
    additional first axis of length `axis_size`. The second result is a tree of bools like the
    output. Under nested vmaps the rule is called for the innermost one, and is batched by the
    others.

    Forward mode differentiates `fun`, and the rule in its place under `vmap`. Reverse mode only
    differentiates rules that `vmap` has applied, as in JAX; for more, decorate the function with
    `custom_vjp` on top.

    Args:
        fun: a pure function of trees of tensors.

    Returns:
        A function of the same arguments, with the results of `fun`. Its method ``def_vmap(rule)``
        sets the rule.

    Raises:
        TypeError: the function is called without a rule, or closes over a value that `vmap` maps.
        TreeMismatchError: the result of the rule does not fit that of `fun`.
        UnsupportedOpError: reverse mode differentiates it where `vmap` has not replaced it.

    Source: ``jax.custom_batching.custom_vmap``.
    """
    return CustomVmap(fun)


def sequential_vmap(f: CallableOrLambda[P, R]) -> CustomVmap[P, R]:
    """`f`, which `vmap` calls for one example after another, in a loop.

    For functions without a batching rule, or that need too much memory for all examples at once.

    Args:
        f: a pure function of trees of tensors.

    Returns:
        A function of the same arguments, with the results of `f`.

    Source: ``jax.custom_batching.sequential_vmap``.
    """
    one = custom_vmap(cast("Callable[P, R]", f))

    function = cast("Callable[..., R]", one)

    def rule(_: int, in_batched: list[object], *args: object) -> tuple[R, PyTree]:
        leaves, structure = tree.flatten(args)
        flags = tree.leaves(tuple(in_batched))

        def call(xs: list[Tensor]) -> R:
            each = iter(xs)
            full = [next(each) if b else x for x, b in zip(leaves, flags, strict=True)]
            return function(*tree.unflatten(structure, full))

        out = map_(call, [x for x, b in zip(leaves, flags, strict=True) if b])
        return out, tree.map(lambda _: True, out)

    one.def_vmap(rule)
    return one


class CustomVmap(CustomFunction[P, R]):
    """The result of `custom_vmap`."""

    kind, define = "custom_vmap", "def_vmap"

    def __init__(self, fun: Fun):
        super().__init__(fun, (), ())

    def def_vmap(self, rule: Fun) -> Fun:
        """Give the rule; see `custom_vmap`. Returns it, so that this is a decorator too."""
        self._set_rules(rule)
        return rule

    def apply(self, *args: P.args, **kwargs: P.kwargs) -> R:
        given, _ = self._arguments(args, kwargs)
        leaves, structure = tree.flatten(given)
        levels = functorch.levels()
        if not is_eager() or levels[-1:] == [functorch.VMAP]:
            return self._applied(leaves, structure)
        if functorch.VMAP not in levels:
            return self._primal_fun(*given)
        # The tangents of rules are found where programs are bound, here as elsewhere.
        functorch.run_backward_in_this_thread()
        with disable_jit(False):
            out = self._applied([to_device(x) for x in leaves], structure)
        return tree.map(lambda x: x.to(leaves[0].device), out)

    def _applied(self, leaves: list[Tensor], structure: tree.Structure) -> PyTree:
        given = tree.unflatten(structure, leaves)
        part = self._part(self._primal_fun, "primal")
        if functorch.top_level() is None and not any(map(is_tracked, leaves)):
            return call_in_trace(part, given, {}, check_captures=self._check_unwatched)
        form = tree.structure((given, {}))
        with disable_jit(False):
            entry, held = part.find(form, avals_of(leaves), options=Options(effects_allowed=True))
        rule = Rule(self.__name__, self._rules[0], structure, entry.out_tree, entry.outputs)
        value = Bundle((self._rules[0], self._primal_fun))
        primitive = Mapped(rule, value, entry.program)
        flat = entry.inputs(leaves, held)
        # Called here, and not where primitives are bound, because a rule may have its own effects
        # and errors.
        if functorch.levels()[-1:] == [functorch.VMAP]:
            outs = functorch.below_vmap(self._below_vmap(primitive, structure), flat)
        else:
            if entry.effects:
                self._refuse_effects()
            outs = bind(primitive, flat)
        return tree.unflatten(entry.out_tree, outs)

    def _below_vmap(
        self, primitive: Mapped, structure: tree.Structure
    ) -> Callable[[Dims, int, Sequence[Tensor]], Batched]:
        def call(dims: Dims, n: int, xs: Sequence[Tensor]) -> Batched:
            if any(d is not None for d in dims):
                return primitive.batch(dims, n, xs)
            given = tree.unflatten(structure, xs[: structure.num_leaves])
            apply: Fun = self.apply
            outs = tree.leaves(apply(*given))
            return outs, [None] * len(outs)

        return call

    def _refuse_effects(self) -> NoReturn:
        fail(
            UnsupportedOpError,
            f"a callback (xf.debug) is inside {self.__name__}, a custom_vmap function that is "
            "being differentiated",
            "return the value, and print it outside.",
        )

    def _check_unwatched(self, captures: Sequence[Tensor]) -> None:
        if any(map(is_tracked, captures)):
            refuse_reverse(self.__name__)
