"""`vjp`: reverse-mode differentiation of a function with any outputs.

NOTE [pullbacks in bodies]: inside a trace, a pullback goes back through torch.func's graph of that
trace. A nested trace (a loop's body, a branch, a nested jit) cannot use the values of that graph.
There, the pullback is one call of a program ``(arguments, cotangent) -> gradients``, which
recomputes the residuals from the arguments. XLA moves the recomputation out of loops, since it does
not depend on the cotangent.

NOTE [pullbacks as trees]: a jitted function may return a pullback of its own. As a tree, a pullback
has the tensors of such a program as leaves: the arguments and the captures.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Literal, TypeAlias, TypeVar, overload

import torch

from xfunc import tree
from xfunc.cache import frozen, identity
from xfunc.core.avals import Aval
from xfunc.core.locations import function_name
from xfunc.core.wrappers import Part, Wrapper
from xfunc.errors import LeakError, fail
from xfunc.program import vma
from xfunc.program.bind import ad_depth, bind
from xfunc.program.call import Call
from xfunc.program.program import TracedProgram, differentiable
from xfunc.stages.arguments import prepare
from xfunc.stages.checks import (
    Fun,
    Tensor,
    as_tensors,
    check_callable,
    check_differentiable,
    check_floating,
    check_same,
    labels_of,
    split_results,
)
from xfunc.stages.staging import Staged, call_in_trace
from xfunc.stages.transformed import CallableOrLambda, Transform, own
from xfunc.torchlib import functorch
from xfunc.torchlib.eager import is_eager
from xfunc.torchlib.storageless import check_surroundings
from xfunc.trace import effects, tracing
from xfunc.tree import PyTree

R = TypeVar("R")
Aux = TypeVar("Aux")
Pull: TypeAlias = Callable[[tuple[Tensor, ...]], Sequence[Tensor]]
Parts: TypeAlias = Callable[[], tuple[TracedProgram, list[Tensor]]]
_Held: TypeAlias = tuple[Hashable, list[Tensor]]


@overload
def vjp(
    fun: CallableOrLambda[..., R], *primals: object, has_aux: Literal[False] = False
) -> tuple[R, Pullback]: ...
@overload
def vjp(
    fun: CallableOrLambda[..., tuple[R, Aux]], *primals: object, has_aux: Literal[True]
) -> tuple[R, Pullback, Aux]: ...
@overload
def vjp(fun: Fun, *primals: object, has_aux: bool) -> tuple[PyTree, ...]: ...
def vjp(fun: Fun, *primals: object, has_aux: bool = False) -> tuple[PyTree, ...]:
    """The value of `fun`, and the function that pulls a cotangent back to its arguments.

    Args:
        fun: a function of trees of floating or complex tensors.
        primals: its arguments.
        has_aux: whether `fun` returns ``(out, aux)``.

    Returns:
        ``(out, vjp_fn)`` or ``(out, vjp_fn, aux)``; ``vjp_fn(ct)`` takes a tree like `out` and
        returns a tuple of trees like `primals`. At top level the forward pass has run and its
        residuals are kept by `vjp_fn`, which may be called any number of times. Where torch's
        autograd differentiates the call (a primal requires a gradient, say), and where a jitted
        function returns it (see `fwd_and_bwd`), `vjp_fn` runs the forward pass again. Of complex
        numbers, cotangents are complex conjugates of JAX's, as in torch.

    Source: ``jax.vjp``.
    """
    check_callable(fun, "vjp", "vjp(fun, *primals)")
    name = f"vjp({function_name(fun)})"
    staged = tracing.current() is None and not is_eager()
    args = primals if staged else as_tensors(primals)
    leaves, structure = tree.flatten(args)
    if staged:
        leaves, _ = prepare(Staged(fun, arrays_only=True), leaves, tree.structure((args, {})))
    check_floating(leaves, labels_of(fun, args, range(len(args))), name)
    out_trees: list[tree.Structure] = []

    def flat(*xs: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        out = fun(*tree.unflatten(structure, xs))
        out, aux = split_results(out, fun, has_aux, name)
        outs, out_tree = tree.flatten(out)
        aux_leaves, aux_tree = tree.flatten(aux)
        out_trees[:] = [out_tree, aux_tree]
        check_differentiable(outs, out_tree, fun, name)
        return tuple(outs), tuple(aux_leaves)

    parts: Parts | None = None
    if staged:
        outs, pull, aux, parts = _run(WithAux(fun, has_aux, "vjp"), args, leaves, out_trees)
        check_differentiable(outs, out_trees[0], fun, name)
    else:
        outs, pull, aux = vma.vjp(flat, *leaves)
        outs, aux = own(outs), own(aux)
        if is_eager():
            pull = _bringing(pull, outs)
    out_tree, aux_tree = out_trees
    vjp_fn = Pullback(
        pull, name, structure, out_tree, [Aval(tuple(o.shape), o.dtype) for o in outs]
    )
    vjp_fn.parts = parts
    if tracing.current() is not None:
        bodies = vjp_fn.in_bodies = _InBodies(fun, args, has_aux)
        vjp_fn.parts = lambda: bodies.as_tree(leaves)
    out = tree.unflatten(out_tree, outs)
    return (out, vjp_fn, tree.unflatten(aux_tree, aux)) if has_aux else (out, vjp_fn)


class WithAux(Transform[..., PyTree]):
    """``fun`` with the result ``(out, aux)``, where aux is None without `has_aux`."""

    def __init__(self, fun: Fun, has_aux: bool, kind: str):
        self._has_aux, self._name = has_aux, f"{kind}({function_name(fun)})"
        super().__init__(fun, has_aux, kind)

    def apply(self, *args: object, **kwargs: object) -> tuple[PyTree, PyTree]:
        out = self.fun(*args, **kwargs)
        return split_results(out, self.fun, self._has_aux, self._name)


def _run(
    flat: WithAux, args: tuple[object, ...], leaves: list[Tensor], out_trees: list[tree.Structure]
) -> tuple[list[Tensor], Pull, list[Tensor], Parts]:
    """Run the forward pass on the device, and keep its residuals unless it is differentiated."""
    structure = tree.structure((args, {}))
    wrt = tuple(differentiable(x) for x in leaves)
    avals = tuple((tuple(x.shape), x.dtype) for x in leaves)
    entry, held = flat.staged.find(structure, avals, wrt)
    program, inputs = entry.program, entry.inputs(leaves, held)
    n = len(leaves)
    out_tree, aux_tree = entry.out_tree.children()
    out_trees[:] = [out_tree, aux_tree]
    n_out = out_tree.num_leaves
    full = (*wrt, *(False for _ in inputs[n:]))
    rule = Call(program).reverse_rule(full)
    watched = ad_depth(inputs) > 0
    if watched:
        values = bind(entry.call, inputs)
    else:
        values = rule.forward(inputs) if program.outputs else []
    outs, residuals = values[: len(program.outputs)], values[len(program.outputs) :]

    def pull(cts: tuple[Tensor, ...]) -> list[Tensor]:
        grads = [torch.zeros_like(x) for x in leaves]
        if not cts:
            return grads
        rest: tuple[None, ...] = (None,) * (len(outs) - n_out)
        if watched or ad_depth(cts):  # The backward pass alone has no derivative.
            present = tuple(i for i in range(n_out) if differentiable(program.outputs[i]))
            pullback = Call(program.pullback(tuple(range(n)), present))
            return bind(pullback, [*inputs, *(cts[i] for i in present)])
        for i, g in zip(rule.wrt, rule.backward(inputs, residuals, (*cts, *rest)), strict=True):
            grads[i] = grads[i] if g is None else g
        return grads

    return outs[:n_out], pull, outs[n_out:], lambda: (_pullback(program, n, n_out), inputs)


def _pullback(program: TracedProgram, n: int, n_out: int) -> TracedProgram:
    """Gradients of the first n inputs, from all inputs and cotangents of the first outputs."""
    return program.pullback(tuple(range(n)), tuple(range(n_out)))


def _bringing(pull: Pull, outs: Sequence[Tensor]) -> Pull:
    """A pullback that takes cotangents from anywhere to where the outputs are."""
    places = [o.device for o in outs]
    return lambda cts: pull(tuple(c.to(at) for c, at in zip(cts, places, strict=True)))


class _InBodies:
    """The pullback in traces within its own: see NOTE [pullbacks in bodies]."""

    def __init__(self, fun: Fun, args: tuple[object, ...], has_aux: bool):
        self._fun, self._args, self._has_aux = frozen.snapshot_closure(fun), args, has_aux
        # Values held by a transformed function are not copied.
        self._held = identity.function_value(fun) if isinstance(fun, Wrapper) else None

    def _check(self) -> None:
        fun = self._fun
        if self._held is not None and not _same(self._held, identity.function_value(fun)):
            fail(
                RuntimeError,
                f"what {function_name(fun)} closes over has changed since vjp was called, so that "
                "the pullback cannot be called in the body of a transform any more",
                "pass it as an argument, or call vjp inside the body.",
            )

    def as_tree(self, leaves: list[Tensor]) -> tuple[TracedProgram, list[Tensor]]:
        """See NOTE [pullbacks as trees]."""
        self._check()
        avals = tuple((tuple(x.shape), x.dtype) for x in leaves)
        staged = WithAux(self._fun, self._has_aux, "vjp").staged
        entry, held = staged.find(tree.structure((self._args, {})), avals)
        n_out = entry.out_tree.children()[0].num_leaves
        return _pullback(entry.program, len(leaves), n_out), entry.inputs(leaves, held)

    def __call__(self, ct: PyTree) -> list[Tensor]:
        fun, has_aux = self._fun, self._has_aux
        self._check()

        def pull(args: tuple[object, ...], ct: PyTree) -> PyTree:
            with effects.collected(True):  # They have happened in the forward pass.
                vjp_fn = vjp(fun, *args, has_aux=has_aux)[1]
            return vjp_fn(ct)

        staged = Staged(pull, value=Part(fun, ("pullback", has_aux)))
        return tree.leaves(call_in_trace(staged, (self._args, ct), {}))


def _same(one: _Held, two: _Held) -> bool:
    return one[0] == two[0] and all(map(operator.is_, one[1], two[1]))


class Pullback:
    """The function that `vjp` returns to pull cotangents back.

    Attributes:
        in_bodies: the pullback for nested traces.
        parts: see NOTE [pullbacks as trees]; None: it is a tree without leaves.
    """

    in_bodies: _InBodies | None = None
    parts: Parts | None = None

    def __init__(
        self,
        pull: Pull,
        name: str,
        structure: tree.Structure,
        out_tree: tree.Structure,
        outs: list[Aval],
    ):
        self._pull, self._name = pull, name
        self._structure, self._out_tree, self._outs = structure, out_tree, outs
        self._trace = tracing.current()

    def with_pull(self, pull: Pull) -> Pullback:
        """The same with another function of the flat cotangents."""
        return Pullback(pull, self._name, self._structure, self._out_tree, self._outs)

    def __call__(self, ct: object) -> tuple[PyTree, ...]:
        if self._trace is not None and not self._trace.is_open and tracing.current() is None:
            fail(
                LeakError,
                f"the pullback of {self._name} was called after the trace that made it ended",
                "call it inside the traced function, or call vjp outside of jit.",
            )
        check_surroundings(self._name)
        ct = as_tensors(ct)
        check_same(
            ct,
            tree.unflatten(self._out_tree, self._outs),
            what="the cotangent and the output",
            root="cotangent",
            name=self._name,
            hint="pass a tree like the output, for example torch.ones_like of each leaf.",
        )
        cts = tree.leaves(ct)
        if self._trace is None and tracing.current() is None and not is_eager():
            cts, _ = prepare(
                Staged(self.__call__, arrays_only=True), cts, tree.structure(((ct,), {}))
            )
        if self.in_bodies is not None and tracing.current() is not self._trace:
            grads = self.in_bodies(ct)
        else:
            grads = self._pull(tuple(cts))
        if self._trace is not None:
            grads = own(grads)
        return tuple(tree.unflatten(self._structure, grads))

    def flatten(self) -> tuple[list[Tensor], _Static]:
        """Its leaves and the rest; see NOTE [pullbacks as trees]."""
        if self.parts is None:
            return [], _Static(self, None)
        program, tensors = self.parts()
        return tensors, program.memo(
            ("pullback as a tree",), lambda: _Static(self._bare(), program)
        )

    def _bare(self) -> Pullback:
        """The same without tensors."""
        return Pullback(_no_pull, self._name, self._structure, self._out_tree, self._outs)


@dataclasses.dataclass(eq=False)
class _Static:
    """The static part of a pullback; `program` is None if `like` holds all of it."""

    like: Pullback
    program: TracedProgram | None


def _no_pull(cts: tuple[Tensor, ...]) -> Sequence[Tensor]:
    raise NotImplementedError


def _unflatten(static: _Static, children: Iterable[Tensor]) -> Pullback:
    like, program, tensors = static.like, static.program, list(children)
    if program is None:
        return like

    def pull(cts: tuple[Tensor, ...]) -> list[Tensor]:
        return bind(Call(program), [*tensors, *cts])

    result = like.with_pull(pull)
    result.parts = lambda: (program, tensors)
    return result


tree.register(Pullback, Pullback.flatten, _unflatten)
functorch.never_compile(Pullback.__call__)
