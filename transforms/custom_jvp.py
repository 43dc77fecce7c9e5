# torch declares the rules of a Function with specific argument lists.
# pyright: reportIncompatibleMethodOverride=false
"""`custom_jvp`: a function with its own rule for both modes of differentiation.

NOTE [rules that call their function on a tangent]: for a linear function one writes the rule
``return f(x), f(dx)``. Reverse mode transposes the rule: there `f(dx)` is differentiated through
its own operations, because its rule would call `f` on a tangent without end. JAX does so for any
function with a rule.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeAlias, TypeVar, cast

import torch

from xfunc import tree
from xfunc.cache.programs import FunctionCache
from xfunc.core.avals import Aval, aval_of, batched
from xfunc.core.locations import described
from xfunc.core.types import AutogradContext
from xfunc.errors import TreeMismatchError, fail, kind_of
from xfunc.program.bind import bind, or_zeros
from xfunc.program.call import Call, CallReverseRule
from xfunc.program.primitive import Dims, Primitive, ReverseRule, Rule, Tensor
from xfunc.program.program import TracedProgram, differentiable
from xfunc.remat.policies import everything_saveable
from xfunc.stages.checks import Fun, as_results, check_same, is_pair
from xfunc.torchlib import functorch
from xfunc.torchlib.eager import is_eager
from xfunc.torchlib.values import is_tracked
from xfunc.trace import tracing
from xfunc.trace.tracing import Trace
from xfunc.transforms.custom import CustomFunction, Parts
from xfunc.tree import PyTree

P = ParamSpec("P")
R = TypeVar("R")
Tensors: TypeAlias = tuple[Tensor, ...]


def custom_jvp(
    fun: Callable[P, R],
    nondiff_argnums: int | Sequence[int] = (),
    nondiff_argnames: str | Sequence[str] = (),
) -> CustomJvp[P, R]:
    """Give `fun` a forward-mode rule, which is set with ``defjvp``.

    ::

        @xf.custom_jvp
        def f(x, y): ...

        @f.defjvp
        def rule(primals, tangents):
            (x, y), (dx, dy) = primals, tangents
            return f(x, y), ...                 # the output and its tangent, linear in dx and dy

    Reverse mode transposes the rule.

    Args:
        fun: a pure function of trees of tensors.
        nondiff_argnums: positions of arguments that are not arrays; the rule receives them first,
            in their order.
        nondiff_argnames: names of such arguments.

    Returns:
        A function of the same arguments, with the results of `fun`. Its method ``defjvp(rule)``
        sets the rule; ``defjvps(*rules)`` sets it as one rule for each argument.

    Raises:
        TypeError: the function is called without a rule, or closes over a value that is being
            differentiated.
        TreeMismatchError: the result of the rule does not fit that of `fun`.

    Source: ``jax.custom_jvp``.
    """
    return CustomJvp(fun, nondiff_argnums, nondiff_argnames)


class CustomJvp(CustomFunction[P, R]):
    """The result of `custom_jvp`."""

    kind, define = "custom_jvp", "defjvp"

    def defjvp(self, rule: Fun) -> Fun:
        """Give the rule; see `custom_jvp`. Returns it, so that this is a decorator too."""
        self._set_rules(rule)
        return rule

    def defjvps(self, *rules: Callable[..., object] | None) -> None:
        """Give a rule for each argument: ``rule(tangent, output, *args) -> tangent of the output``.

        The tangents are added; None means that the output does not depend on the argument.
        """

        function = cast("Callable[..., R]", self)

        def rule(*given: PyTree) -> tuple[R, PyTree]:
            *nondiff, primals, tangents = given
            args = self._whole(primals, nondiff)
            out = function(*args)
            parts = [
                r(t, out, *args) for r, t in zip(rules, tangents, strict=True) if r is not None
            ]
            total = tree.map(torch.zeros_like, out)
            for part in parts:
                total = tree.map(torch.add, total, part)
            return out, total

        self._set_rules(rule)

    def apply(self, *args: P.args, **kwargs: P.kwargs) -> R:
        diff, nondiff = self._arguments(args, kwargs)
        leaves, structure = tree.flatten(diff)
        if (trace := tracing.current()) is not None:
            trace.has_rule = True
        smooth = [i for i, x in enumerate(leaves) if differentiable(x)]

        primal = self._primal(nondiff)

        def push(xs: object, dots: Sequence[Tensor]) -> tuple[PyTree, list[Tensor]]:
            return self._push(nondiff, xs, dots, smooth, structure)

        if self._is_transposed(leaves):
            return primal(*diff) if is_eager() else self._unwatched(primal, diff, nondiff)
        if is_eager():
            return _eager(primal, push, leaves, structure, smooth)
        if not any(is_tracked(x) or functorch.has_tangent(x) for x in leaves):
            return self._unwatched(primal, diff, nondiff)
        inputs = Parts(leaves, self.__name__)
        f, out_tree, f_uses = inputs.add_part(
            self._part(self._primal_fun, "primal"), primal, diff, nondiff
        )
        given = diff, [aval_of(leaves[i]) for i in smooth]
        g, g_tree, g_uses = inputs.add_part(
            self._part(self._rules[0], "rule"), push, given, nondiff
        )
        rule_tree = g_tree.children()[0]
        check_same(
            tree.unflatten(rule_tree, g.outputs[: rule_tree.num_leaves]),
            tree.unflatten(out_tree, f.outputs),
            what=f"what {described(self._rules[0])} and {self.__name__} return",
            name=self.__name__,
            root="output",
            hint="return (output, tangent) from the rule, with the function's output.",
        )
        own = tuple(range(len(leaves)))
        primitive = JvpRule(
            self.__name__, f, g, (*own, *f_uses), tuple(smooth), g_uses, len(leaves), inputs.avals
        )
        return tree.unflatten(out_tree, bind(primitive, inputs.flat))

    def _is_transposed(self, leaves: Sequence[Tensor]) -> bool:
        """Whether these are tangents of this function's own rule, which is being transposed."""
        for cache, trace, watching in _thread.transposed:
            if cache is self.staged.cache:
                # A nested trace inherits the gradients that are being taken.
                here = watching if trace is tracing.current() else {0}
                if here & _levels(leaves):
                    return True
        return False

    def _push(
        self,
        nondiff: Sequence[object],
        xs: object,
        dots: Sequence[Tensor],
        smooth: list[int],
        structure: tree.Structure,
    ) -> tuple[PyTree, list[Tensor]]:
        """The rule: outputs, and the tangents of the floating ones."""
        full = [torch.zeros_like(x) for x in tree.leaves(xs)]
        for i, d in zip(smooth, dots, strict=True):
            full[i] = d
        given = tree.unflatten(structure, full)
        watching = _levels(dots) - _levels(tree.leaves(xs))
        before = _thread.transposed
        if watching:
            here = self.staged.cache, tracing.current(), watching
            _thread.transposed = (*before, here)
        try:
            result = self._rules[0](*nondiff, xs, given)
        finally:
            _thread.transposed = before
        name = f"{self.__name__}: the rule {described(self._rules[0])}"
        if not is_pair(result):
            fail(
                TreeMismatchError,
                f"{name} returned {kind_of(result)}, not a pair",
                "return (output, tangent of the output).",
            )
        out, dot = as_results(result[0], name), as_results(result[1], name, "tangent")
        outs, dots_out = tree.leaves(out), tree.leaves(dot)
        want = out
        if len(outs) == len(dots_out):  # Tangents given for integers do not matter.
            pairs = zip(outs, dots_out, strict=True)
            like = [o if differentiable(o) else d for o, d in pairs]
            want = tree.unflatten(tree.structure(out), like)
        check_same(
            dot,
            want,
            what="the tangent and the output",
            name=name,
            root="tangent",
            hint="return a tangent of the output's structure, shapes and dtypes.",
        )
        picked = zip(outs, dots_out, strict=True)
        return out, [d for o, d in picked if differentiable(o)]


class _Thread(threading.local):
    # Rules being transposed: the cache, the trace, and the gradients taken of the tangents.
    transposed: tuple[tuple[FunctionCache, Trace | None, set[int]], ...] = ()


_thread = _Thread()


def _levels(tensors: Iterable[Tensor]) -> set[int]:
    """The gradients being taken of tensors; see `functorch.gradient_levels`."""
    return {level for t in tensors for level in functorch.gradient_levels(t)}


@dataclasses.dataclass(eq=False)
class JvpRule(Primitive):
    """The primitive; see `Primitive` for its methods.

    Attributes:
        primal: the function.
        push: from arguments and tangents of the floating ones to outputs and their tangents.
        primal_uses: the flat input that feeds each input of `primal`.
        smooth: the arguments that are floating.
        push_uses: the flat input that feeds each capture of `push`.
        n_args: how many flat inputs are arguments; the rest are captures, without tangent.
        avals: of the flat inputs.
    """

    name: str
    primal: TracedProgram
    push: TracedProgram
    primal_uses: tuple[int, ...]
    smooth: tuple[int, ...]
    push_uses: tuple[int, ...]
    n_args: int
    avals: tuple[Aval, ...]

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return self.primal.outputs

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        return self.primal.lowering.apply([args[i] for i in self.primal_uses])

    @property
    def rule(self) -> Rule:
        return _Rule(self)

    def of_push(
        self, args: Sequence[Tensor], tangents: Sequence[Tensor | None] | None = None
    ) -> list[Tensor]:
        """The inputs of `push`; a tangent None is zero."""
        given = tangents or (None,) * len(args)
        dots = [or_zeros(given[i], args[i]) for i in self.smooth]
        return [*args[: self.n_args], *dots, *(args[i] for i in self.push_uses)]

    @property
    def _dots(self) -> range:
        """Where the tangents are among the inputs of `push`."""
        return range(self.n_args, self.n_args + len(self.smooth))

    def reverse_rule(self, wrt: tuple[bool, ...]) -> ReverseRule:
        marked = tuple(i in self._dots for i in range(len(self.push.avals)))
        rule = CallReverseRule(self.push.joint(marked), everything_saveable, False)
        return _ReverseRule(self, rule)

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        outs = bind(Call(self.push), self.of_push(args, tangents))
        dots = iter(outs[len(self.outputs) :])
        return [next(dots) if differentiable(o) else None for o in self.outputs]

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        n = len(self.outputs)
        floats = [i for i, o in enumerate(self.outputs) if differentiable(o)]
        present = [k for k, i in enumerate(floats) if cts[i] is not None]
        own = tuple(self.n_args + self.smooth.index(i) for i in wrt)
        pull = self.push.pullback(own, tuple(n + k for k in present))
        given = [c for c in (cts[floats[k]] for k in present) if c is not None]
        return bind(Call(pull), [*self.of_push(args), *given])

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        return bind(self.batched(dims, n), args), [0] * len(self.outputs)

    def batched(self, dims: Dims, n: int) -> JvpRule:
        """The rule of the vmap."""
        own = tuple(dims[i] for i in self.smooth)
        of_push = (*dims[: self.n_args], *own, *(dims[i] for i in self.push_uses))
        return dataclasses.replace(
            self,
            primal=self.primal.batched(tuple(dims[i] for i in self.primal_uses), n),
            push=self.push.batched(of_push, n),
            avals=batched(self.avals, dims, n),
        )


class _Rule(Rule):
    """Outputs and tangents by the rule, gradients by its transpose."""

    def __init__(self, primitive: JvpRule):
        self._primitive = primitive

    def forward(self, *args: Tensor) -> list[Tensor]:
        p = self._primitive
        return bind(Call(p.push), p.of_push(args))[: len(p.outputs)]

    def gradients(
        self, kept: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> tuple[Sequence[int], Sequence[Tensor]]:
        p = self._primitive
        return p.smooth, p.vjp(kept, cts, p.smooth)

    def jvp(
        self, kept: Sequence[Tensor], tangents: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        return tuple(
            t if t is None else t.clone(memory_format=torch.contiguous_format)
            for t in self._primitive.jvp(kept, tangents)
        )


@dataclasses.dataclass(eq=False)
class _ReverseRule:
    """First-order reverse mode: the transpose of the rule; see `ReverseRule`."""

    primitive: JvpRule
    pushed: CallReverseRule

    def __post_init__(self) -> None:
        p = self.primitive
        n = len(p.outputs)
        floats = [i for i, o in enumerate(p.outputs) if differentiable(o)]
        self.n_outputs = n
        self.wrt = tuple(p.smooth[i - p.n_args] for i in self.pushed.wrt)
        self.cts = tuple(floats[i - n] for i in self.pushed.cts if i >= n)

    def forward(self, args: Sequence[Tensor]) -> list[Tensor]:
        values = self.pushed.forward(self.primitive.of_push(args))
        return [*values[: self.n_outputs], *values[self.pushed.n_outputs :]]

    def backward(
        self, args: Sequence[Tensor], residuals: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        p = self.primitive
        floats = [c for c, o in zip(cts, p.outputs, strict=True) if differentiable(o)]
        given = [*(None for _ in p.outputs), *floats]
        return self.pushed.backward(p.of_push(args), residuals, given)

    def batched(self, dims: Dims, n: int) -> tuple[ReverseRule, Dims, Dims, Dims]:
        p = self.primitive
        own = (*dims[: p.n_args], *(dims[i] for i in p.smooth), *(dims[i] for i in p.push_uses))
        inner = _ReverseRule(p.batched(dims, n), self.pushed.batched(own, n)[0])
        return inner, dims, (0,) * self.n_outputs, (0,) * len(self.wrt)


def _eager(
    primal: Fun,
    push: Fun,
    leaves: list[Tensor],
    structure: tree.Structure,
    smooth: list[int],
) -> PyTree:
    """The rule under `disable_jit`."""
    if not any(is_tracked(x) or functorch.has_tangent(x) for x in leaves):
        return primal(*tree.unflatten(structure, leaves))
    trees: list[tree.Structure] = []

    def pushed(
        xs: Sequence[Tensor], dots: Sequence[Tensor | None]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
        full = [torch.zeros_like(xs[i]) if (d := dots[i]) is None else d for i in smooth]
        out, out_dots = push(tree.unflatten(structure, xs), full)
        outs, out_tree = tree.flatten(out)
        trees[:] = [out_tree]
        rest = iter(out_dots)
        return tuple(outs), tuple(next(rest) if differentiable(o) else None for o in outs)

    class Rule(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*xs: Tensor) -> Tensors:
            outs = pushed(xs, [None] * len(xs))[0]
            same = {id(x) for x in xs}
            return tuple(o.clone() if id(o) in same else o for o in outs)

        @staticmethod
        def setup_context(ctx: AutogradContext, inputs: Tensors, output: Tensors) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)
            ctx.mark_non_differentiable(*(o for o in output if not differentiable(o)))

        @staticmethod
        def backward(ctx: AutogradContext, *cts: Tensor | None) -> tuple[Tensor | None, ...]:
            xs = ctx.saved_tensors

            def linear(*dots: Tensor) -> tuple[tuple[Tensor, ...], tuple[()]]:
                given: list[Tensor | None] = [None] * len(xs)
                for i, d in zip(smooth, dots, strict=True):
                    given[i] = d
                return tuple(d for d in pushed(xs, given)[1] if d is not None), ()

            _, pull, _ = functorch.vjp(linear, *(torch.zeros_like(xs[i]) for i in smooth))
            grads = iter(pull(tuple(c for c in cts if c is not None and differentiable(c))))
            return tuple(next(grads) if i in smooth else None for i in range(len(xs)))

        @staticmethod
        def jvp(ctx: AutogradContext, *tangents: Tensor | None) -> Sequence[Tensor | None]:
            return pushed(ctx.saved_tensors, tangents)[1]

    outs = functorch.custom_function_call(Rule, *leaves)
    return tree.unflatten(trees[0], outs)
