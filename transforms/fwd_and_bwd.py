"""`fwd_and_bwd`: the two passes of reverse mode as functions, with residuals between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch

from xfunc import tree
from xfunc.core.avals import aval_of
from xfunc.core.wrappers import Part
from xfunc.errors import fail, kind_of
from xfunc.program.bind import ad_depth, bind
from xfunc.program.call import Call
from xfunc.program.primitive import ReverseRule
from xfunc.program.program import TracedProgram
from xfunc.stages.arguments import avals_of
from xfunc.stages.checks import (
    Fun,
    arrays,
    as_tensors,
    check_differentiable,
    check_floating,
    check_same,
    labels_of,
    not_chosen,
    select,
    split_results,
)
from xfunc.stages.staging import Staged
from xfunc.stages.transformed import Transform
from xfunc.torchlib.eager import is_eager
from xfunc.transforms.vjp import vjp
from xfunc.tree import PyTree


def fwd_and_bwd(
    fun: Fun, argnums: int | Sequence[int], has_aux: bool = False
) -> tuple[Transform[..., PyTree], Transform[..., PyTree]]:
    """The forward and the backward pass of a function, as two functions.

    ::

        fwd, bwd = xf.fwd_and_bwd(f, argnums=(0, 1))
        out, residuals = fwd(x, w)                  # f(x, w), and values for the backward pass
        grad_x, grad_w = bwd(residuals, ct)         # ct: a tree like out

    Unlike the function that `vjp` returns, `bwd` is traced once for all calls, and residuals are a
    tree of tensors: they may leave a jitted function, so that nothing is computed again.

    Args:
        fun: a function of trees of tensors with floating results.
        argnums: position or positions of the arguments to differentiate with respect to.
        has_aux: whether `fun` returns ``(out, aux)``; then `fwd` returns
            ``(out, residuals, aux)``.

    Returns:
        ``(fwd, bwd)``, as above. `bwd` returns the gradient, a tree like the argument, or a tuple
        of them if `argnums` is a sequence.

    Source: ``jax.fwd_and_bwd``.
    """
    nums = argnums if isinstance(argnums, int) else tuple(argnums)
    aux = bool(has_aux)
    return Forward(fun, nums, aux, "fwd"), Backward(fun, nums, aux, "bwd")


@dataclasses.dataclass(eq=False)
class How:
    """The static part of the residuals: one object per program, compared by identity.

    Attributes:
        program: of the function.
        wrt: the flat arguments that are differentiated.
        outs: avals of the output.
        args: avals of the arguments that are differentiated.
        kept: whether there are residuals; if not, the forward pass is run again.
    """

    program: TracedProgram
    wrt: tuple[int, ...]
    outs: PyTree
    args: PyTree
    kept: bool

    @property
    def reverse_rule(self) -> ReverseRule:
        return Call(self.program).reverse_rule(
            tuple(i in self.wrt for i in range(len(self.program.avals)))
        )


class Residuals:
    """The tree that `fwd` passes to `bwd`."""

    def __init__(self, tensors: Iterable[torch.Tensor], how: How | tree.Structure):
        self.tensors, self.how = tuple(tensors), how


tree.register(Residuals, lambda r: (r.tensors, r.how), lambda how, tensors: Residuals(tensors, how))


class _Pass(Transform[..., PyTree]):
    """The function of one of the two passes."""

    def __init__(self, fun: Fun, argnums: int | tuple[int, ...], has_aux: bool, name: str):
        self._argnums, self._has_aux = argnums, has_aux
        super().__init__(fun, (argnums, has_aux), name)

    def _value(self, *args: object, **kwargs: object) -> tuple[PyTree, PyTree]:
        return split_results(self.fun(*args, **kwargs), self.fun, self._has_aux, self.__name__)


class Forward(_Pass):
    """``(*args) -> (out, residuals)``, or with aux."""

    def apply(self, *args: object, **kwargs: object) -> PyTree:
        name = self.__name__
        nums = select(self._argnums, args, name)
        args, kwargs = as_tensors((args, kwargs))
        leaves, structure = tree.flatten((args, kwargs))
        leaves = arrays(leaves, name, self._staged.labels(structure))
        chosen = [args[i] for i in nums]
        check_floating(tree.leaves(chosen), labels_of(self.fun, args, nums), name)
        if is_eager():
            out, aux = self._value(*args, **kwargs)
            res = Residuals(leaves, structure)
            return (out, res, aux) if self._has_aux else (out, res)
        flat = Staged(self._value, value=Part(self.fun, ("both passes", self._has_aux)))
        entry, held = flat.find(structure, avals_of(leaves))
        program, inputs = entry.program, entry.inputs(leaves, held)
        out_tree, aux_tree = entry.out_tree.children()
        n, m = out_tree.num_leaves, len(program.outputs)
        like = tree.unflatten(out_tree, program.outputs[:n])
        check_differentiable(program.outputs[:n], out_tree, self.fun, name)
        wrt = tuple(i for i, other in enumerate(not_chosen(nums, structure)) if not other)
        kept = ad_depth(inputs) == 0
        how = program.memo(
            ("both passes", wrt, kept),
            lambda: How(program, wrt, like, tree.map(aval_of, chosen), kept),
        )
        found = how.reverse_rule.forward(inputs) if kept else bind(entry.call, inputs)
        out, aux = tree.unflatten(out_tree, found[:n]), tree.unflatten(aux_tree, found[n:m])
        res = Residuals([*inputs, *found[m:]], how)
        return (out, res, aux) if self._has_aux else (out, res)


class Backward(_Pass):
    """``(residuals, ct) -> gradients``."""

    def apply(self, residuals: object, ct: object) -> PyTree:
        if not isinstance(residuals, Residuals):
            fail(
                TypeError,
                f"{self.__name__} was given {kind_of(residuals)} as residuals",
                "pass what the forward pass returned, then the cotangent: bwd(residuals, ct).",
            )
        how, tensors, ct = residuals.how, residuals.tensors, as_tensors(ct)
        if not isinstance(how, How):  # made under `disable_jit`
            args, kwargs = tree.unflatten(how, tensors)
            nums = select(self._argnums, args, self.__name__)

            def of(*chosen: object) -> PyTree:
                full = list(args)
                for i, x in zip(nums, chosen, strict=True):
                    full[i] = x
                return self._value(*full, **kwargs)[0]

            grads = list(vjp(of, *(args[i] for i in nums))[1](ct))
            return grads[0] if isinstance(self._argnums, int) else tuple(grads)
        check_same(
            ct,
            how.outs,
            what="the cotangent and the output",
            root="cotangent",
            name=self.__name__,
            hint="pass a tree like the output, for example torch.ones_like of each leaf.",
        )
        cts, n = tree.leaves(ct), len(how.program.avals)
        inputs, kept = tensors[:n], tensors[n:]
        if how.kept and ad_depth([*tensors, *cts]) == 0:
            rule = how.reverse_rule
            rest: tuple[None, ...] = (None,) * (rule.n_outputs - len(cts))
            found = dict(
                zip(
                    rule.wrt,
                    rule.backward(inputs, kept, (*cts, *rest)),
                    strict=True,
                )
            )
            grads_of = ((inputs[i], found.get(i)) for i in how.wrt)
            flat = [torch.zeros_like(x) if g is None else g for x, g in grads_of]
        else:  # Half programs cannot be differentiated or batched, so recompute from the arguments.
            pull = how.program.pullback(how.wrt, tuple(range(len(cts))))
            flat = bind(Call(pull), [*inputs, *cts])
        grads = tree.unflatten(tree.structure(how.args), flat)
        return grads[0] if isinstance(self._argnums, int) else tuple(grads)
