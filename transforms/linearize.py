"""`linearize`: the derivative at a point, as a function to be called many times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar, overload

import torch

from xfunc import tree
from xfunc.core.locations import function_name
from xfunc.errors import LeakError, fail
from xfunc.program.bind import ad_depth, bind
from xfunc.program.call import Call
from xfunc.program.primitive import Tensor
from xfunc.program.program import TracedProgram, differentiable
from xfunc.remat.partition import Partition, split
from xfunc.remat.policies import everything_saveable
from xfunc.stages.arguments import avals_of, prepare
from xfunc.stages.checks import Fun, arrays, as_tensors, check_callable, labels_of, split_results
from xfunc.stages.staging import Staged
from xfunc.stages.transformed import CallableOrLambda
from xfunc.torchlib import functorch
from xfunc.torchlib.eager import is_eager
from xfunc.torchlib.storageless import check_surroundings
from xfunc.trace import tracing
from xfunc.transforms.jvp import push, tangents_of
from xfunc.transforms.vjp import WithAux
from xfunc.tree import PyTree

R = TypeVar("R")
Aux = TypeVar("Aux")


@overload
def linearize(
    fun: CallableOrLambda[..., R], *primals: object, has_aux: Literal[False] = False
) -> tuple[R, Callable[..., R]]: ...
@overload
def linearize(
    fun: CallableOrLambda[..., tuple[R, Aux]], *primals: object, has_aux: Literal[True]
) -> tuple[R, Callable[..., R], Aux]: ...
@overload
def linearize(fun: Fun, *primals: object, has_aux: bool) -> tuple[PyTree, ...]: ...
def linearize(fun: Fun, *primals: object, has_aux: bool = False) -> tuple[PyTree, ...]:
    """The value of `fun`, and its derivative there as a linear function.

    Like `jvp` without the tangents: what does not depend on them is computed once. At top level
    this part has run when `linearize` returns, and the linear function keeps its results.

    Args:
        fun: a function of trees of tensors.
        primals: its arguments.
        has_aux: whether `fun` returns ``(out, aux)``.

    Returns:
        ``(out, f_jvp)``, or ``(out, f_jvp, aux)``; ``f_jvp(*tangents)`` takes a tree like each
        argument and returns a tree like `out`.

    Source: ``jax.linearize``.
    """
    check_callable(fun, "linearize", "linearize(fun, *primals)")
    name = f"linearize({function_name(fun)})"
    if is_eager():
        out, aux = split_results(fun(*primals), fun, has_aux, name)
        linear = _EagerLinear(fun, primals, has_aux, name)
        return (out, linear, aux) if has_aux else (out, linear)
    args = primals if tracing.current() is None else as_tensors(primals)
    leaves, structure = tree.flatten((args, {}))
    staged = WithAux(fun, has_aux, "linearize").staged
    leaves, _ = prepare(Staged(fun, arrays_only=True), leaves, structure)
    leaves = arrays(leaves, name, labels_of(fun, args, range(len(args))))
    entry, held = staged.find(structure, avals_of(leaves))
    program, inputs = entry.program, entry.inputs(leaves, held)
    out_tree, aux_tree = entry.out_tree.children()
    wrt = tuple(i for i, x in enumerate(leaves) if differentiable(x))
    linear = Linear(name, program, inputs, tree.unflatten(structure, leaves)[0], wrt, out_tree)
    outs = linear.values
    n = out_tree.num_leaves
    out = tree.unflatten(out_tree, outs[:n])
    return (out, linear, tree.unflatten(aux_tree, outs[n:])) if has_aux else (out, linear)


class Linear:
    """The linear function that `linearize` returns: the derivative at a point.

    Attributes:
        values: outputs of the function at the point, flat.
    """

    def __init__(
        self,
        name: str,
        program: TracedProgram,
        inputs: list[Tensor],
        primals: tuple[object, ...],
        wrt: tuple[int, ...],
        out_tree: tree.Structure,
    ):
        self._name, self._program, self._inputs = name, program, inputs
        self._primals, self._wrt, self._out_tree = primals, wrt, out_tree
        self._trace = tracing.current()
        self._partition: Partition | None = None
        if not program.outputs:
            self.values = []
        elif self._trace is None and ad_depth(inputs) == 0:
            pushed = program.pushforward(wrt)
            self._partition = pushed.memo(
                "linearize",
                lambda: split(
                    pushed.lowering,
                    n_inputs=len(program.avals),
                    n_outputs=len(program.outputs),
                    policy=everything_saveable,
                ),
            )
            found = self._partition.forward.apply(inputs)
            n = len(program.outputs)
            self.values, self._residuals = found[:n], found[n:]
        else:
            self.values = bind(Call(program), inputs)

    def __call__(self, *tangents: object) -> PyTree:
        if self._trace is not None and not self._trace.is_open and tracing.current() is None:
            fail(
                LeakError,
                f"the linear function of {self._name} was called after the trace that made it "
                "ended",
                "call it inside the traced function, or call linearize outside of jit.",
            )
        check_surroundings(self._name)
        given, structure = tree.flatten((tangents, {}))
        given, _ = prepare(Staged(self.__call__), given, structure)
        leaves, primal_tree = tree.flatten(self._primals)
        tangents = tree.unflatten(structure, given)[0]
        dots = [d for d in tangents_of(leaves, primal_tree, tangents, self._name) if d is not None]
        outputs = self._program.outputs
        n = len(outputs)
        if not outputs:
            out_dots = []
        elif self._partition is not None and tracing.current() is None and ad_depth(dots) == 0:
            flat = {"input": self._inputs, "residual": self._residuals, "ct": dots}
            backward = self._partition.backward
            out_dots = (
                backward.apply([flat[kind][i] for kind, i in self._partition.sources])
                if backward.outputs
                else []
            )
        else:
            pushed = self._program.pushforward(self._wrt)
            out_dots = bind(Call(pushed), [*self._inputs, *dots])[n:]
        rest = iter(out_dots)
        full = [
            next(rest) if differentiable(o) else torch.zeros_like(v)
            for o, v in zip(outputs, self.values, strict=True)
        ]
        return tree.unflatten(self._out_tree, full[: self._out_tree.num_leaves])


functorch.never_compile(Linear.__call__)


class _EagerLinear:
    """The linear function under `disable_jit`."""

    def __init__(self, fun: Fun, primals: tuple[object, ...], has_aux: bool, name: str):
        self._fun, self._primals, self._has_aux, self._name = fun, primals, has_aux, name

    def __call__(self, *tangents: object) -> PyTree:
        def value(*args: object) -> PyTree:
            return split_results(self._fun(*args), self._fun, self._has_aux, self._name)[0]

        return push(value, as_tensors(self._primals), as_tensors(tangents), self._name)[1]
