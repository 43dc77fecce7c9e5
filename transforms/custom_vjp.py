# torch declares the rules of a Function with specific argument lists.
# pyright: reportIncompatibleMethodOverride=false
"""`custom_vjp`: a function with its own rule for reverse mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeAlias, TypeVar, cast

import optree
import torch

from xfunc import tree
from xfunc.core.avals import Aval, aval_of, batched
from xfunc.core.locations import described, function_name
from xfunc.core.types import AutogradContext
from xfunc.errors import TreeMismatchError, UnsupportedOpError, fail
from xfunc.program import vma
from xfunc.program.bind import bind, or_zeros, zeros
from xfunc.program.call import Call
from xfunc.program.primitive import Dims, Primitive, ReverseRule, Rule, Tensor
from xfunc.program.program import TracedProgram, differentiable
from xfunc.stages.checks import Fun, as_results, as_tensors, check_same, is_pair, is_sequence
from xfunc.torchlib import functorch
from xfunc.torchlib.eager import is_eager
from xfunc.torchlib.values import is_tracked
from xfunc.trace import tracing
from xfunc.trace.lowering import HloProgram
from xfunc.transforms.custom import CustomFunction, Parts
from xfunc.tree import PyTree

P = ParamSpec("P")
R = TypeVar("R")
Tensors: TypeAlias = tuple[Tensor, ...]


def custom_vjp(
    fun: Callable[P, R],
    nondiff_argnums: int | Sequence[int] = (),
    nondiff_argnames: str | Sequence[str] = (),
) -> CustomVjp[P, R]:
    """Give `fun` a reverse-mode rule, which is set with ``defvjp``.

    ::

        @xf.custom_vjp
        def f(x, y): ...

        def forward(x, y):
            return f(x, y), residuals           # residuals: any tree of tensors

        def backward(residuals, ct):
            return ct_x, ct_y                   # one for each argument; None anywhere means zero

        f.defvjp(forward, backward)

    Forward-mode differentiation is refused for the function, as in JAX, but works for its gradient.

    Args:
        fun: a pure function of trees of tensors.
        nondiff_argnums: positions of arguments that are not arrays; `backward` receives them first.
        nondiff_argnames: names of such arguments.

    Returns:
        A function of the same arguments, with the results of `fun`. Its method
        ``defvjp(forward, backward)`` sets the rule.

    Raises:
        TypeError: it is called without a rule, or closes over a value being differentiated.
        TreeMismatchError: the rule's results do not fit those of `fun`, or its arguments.
        UnsupportedOpError: it is differentiated in forward mode.

    Source: ``jax.custom_vjp``.
    """
    return CustomVjp(fun, nondiff_argnums, nondiff_argnames)


class CustomVjp(CustomFunction[P, R]):
    """The result of `custom_vjp`."""

    kind, define = "custom_vjp", "defvjp"

    def defvjp(self, fwd: Fun, bwd: Fun) -> None:
        """Give the rule; see `custom_vjp`."""
        self._set_rules(fwd, bwd)

    def apply(self, *args: P.args, **kwargs: P.kwargs) -> R:
        diff, nondiff = self._arguments(args, kwargs)
        leaves, structure = tree.flatten(diff)
        if (trace := tracing.current()) is not None:
            trace.has_rule = True
        like = tree.map(aval_of, diff)  # The values cached below must not be traced.

        primal = self._primal(nondiff)

        def fwd(*xs: object) -> tuple[PyTree, PyTree]:
            out, residuals = self._pair(self._rules[0](*self._whole(xs, nondiff)))
            if not vma.checked():
                return out, residuals
            smooth = [x for x in tree.leaves(as_tensors(xs)) if differentiable(x)]
            outs = tree.leaves(as_tensors(out))
            return out, (residuals, *(list(map(vma.vma_of, ts)) for ts in (smooth, outs)))

        def bwd(residuals: PyTree, ct: PyTree) -> list[Tensor]:
            if not vma.checked():
                return self._gradients(self._rules[1](*nondiff, residuals, ct), like)
            # See NOTE [gradients by type] in `xfunc.program.vma`.
            residuals, ins, outs = residuals
            leaves, structure = tree.flatten(ct)
            ct = tree.unflatten(structure, map(vma.psum_unvarying, leaves, outs))
            grads = self._gradients(self._rules[1](*nondiff, residuals, ct), like)
            return list(map(vma.unreduced, grads, ins))

        if is_eager():
            return _eager(primal, fwd, bwd, leaves, structure)
        if not any(is_tracked(x) or functorch.has_tangent(x) for x in leaves):
            return self._unwatched(primal, diff, nondiff)
        inputs = Parts(leaves, self.__name__)
        add = inputs.add_part
        f, out_tree, f_uses = add(self._part(self._primal_fun, "primal"), primal, diff, nondiff)
        g, g_tree, g_uses = add(self._part(self._rules[0], "fwd"), fwd, diff, nondiff)
        fwd_tree, res_tree = g_tree.children()
        n = len(f.outputs)
        check_same(
            tree.unflatten(fwd_tree, g.outputs[: fwd_tree.num_leaves]),
            tree.unflatten(out_tree, f.outputs),
            what=f"what {described(self._rules[0])} and {self.__name__} return",
            name=self.__name__,
            root="output",
            hint="return (output, residuals) from the forward rule, with the function's output.",
        )
        given = tree.unflatten(res_tree, g.outputs[n:]), tree.unflatten(out_tree, f.outputs)
        b, _, b_uses = add(self._part(self._rules[1], "bwd"), bwd, given, nondiff)
        own = range(len(leaves))
        primitive = VjpRule(
            self.__name__, f, g, b, (*own, *f_uses), (*own, *g_uses), b_uses, len(leaves),
            inputs.avals,
        )  # fmt: skip
        return tree.unflatten(out_tree, bind(primitive, inputs.flat))

    def _pair(self, out: object) -> tuple[PyTree, PyTree]:
        if is_pair(out):
            return out
        fail(
            TreeMismatchError,
            f"{self.__name__}: the forward rule {described(self._rules[0])} returned a "
            f"{type(out).__name__}, not a pair",
            "return (output, residuals).",
        )

    def _gradients(self, cts: object, like: tuple[object, ...]) -> list[Tensor]:
        """One gradient for each floating leaf of the arguments."""
        name = f"{self.__name__}: the backward rule {described(self._rules[1])}"
        if not is_sequence(cts) or len(cts) != len(like):
            what = f"{len(cts)} values" if is_sequence(cts) else type(cts).__name__
            fail(
                TreeMismatchError,
                f"{name} returned {what}, for {len(like)} arguments",
                "return a tuple with one entry for each argument; None means zero.",
            )
        result: list[Tensor] = []
        for i, (arg, ct) in enumerate(zip(like, cts, strict=True)):
            leaves = tree.leaves(arg)
            smooth = [a for a in leaves if differentiable(a)]
            ct = as_results(_filled(ct, arg), name, f"gradient[{i}]")
            given = tree.leaves(ct)
            if len(given) == len(smooth) < len(leaves):  # None for arguments that are not floating.
                result += given
                continue
            want = leaves
            if len(given) == len(leaves):  # Gradients given for integers do not matter.
                pairs = zip(leaves, given, strict=True)
                want = [a if differentiable(a) else c for a, c in pairs]
            check_same(
                ct,
                tree.unflatten(tree.structure(arg), want),
                what="a gradient and its argument",
                name=name,
                root=f"gradient[{i}]",
                hint="return gradients of the shapes and dtypes of the arguments.",
            )
            result += [c for a, c in zip(leaves, given, strict=True) if differentiable(a)]
        return result


def _filled(ct: PyTree, arg: PyTree) -> PyTree:
    """A gradient with zeros in place of each None that stands for leaves of its argument."""
    leaves, structure = optree.tree_flatten(ct, none_is_leaf=True, namespace=tree.NAMESPACE)
    if all(x is not None for x in leaves):
        return ct
    try:
        parts = structure.flatten_up_to(arg)
    except ValueError:  # It has another structure than the argument, and will be refused.
        return ct

    def zero(a: Aval) -> Tensor:
        return torch.zeros(tuple(a.shape), dtype=a.dtype) if is_eager() else zeros(a)

    pairs = zip(leaves, parts, strict=True)
    return structure.unflatten([tree.map(zero, p) if x is None else x for x, p in pairs])


@dataclasses.dataclass(eq=False)
class VjpRule(Primitive):
    """The primitive; see `Primitive` for its methods.

    Attributes:
        primal: the function.
        fwd: returns the outputs, then the residuals.
        bwd: from residuals and cotangents of all outputs to gradients of the floating arguments.
        primal_uses: the flat input that feeds each input of `primal`.
        fwd_uses: the flat input that feeds each input of `fwd`.
        bwd_uses: the flat input that feeds each input of `bwd` after residuals and cotangents.
        n_args: how many flat inputs are arguments; the rest are captures, without gradient.
        avals: of the flat inputs.
    """

    name: str
    primal: TracedProgram
    fwd: TracedProgram
    bwd: TracedProgram
    primal_uses: tuple[int, ...]
    fwd_uses: tuple[int, ...]
    bwd_uses: tuple[int, ...]
    n_args: int
    avals: tuple[Aval, ...]

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return self.primal.outputs

    @property
    def wrt(self) -> tuple[int, ...]:
        """The inputs that `bwd` returns gradients of."""
        return tuple(i for i in range(self.n_args) if differentiable(self.avals[i]))

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        return self.primal.lowering.apply([args[i] for i in self.primal_uses])

    def reverse_rule(self, wrt: tuple[bool, ...]) -> ReverseRule:
        return _ReverseRule(self)

    @property
    def rule(self) -> Rule:
        return _Rule(self)

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        kept = bind(Call(self.fwd), [args[i] for i in self.fwd_uses])
        found = dict(zip(self.wrt, self.gradients(args, kept, cts), strict=True))
        return [found[i] if i in found else torch.zeros_like(args[i]) for i in wrt]

    def gradients(
        self, args: Sequence[Tensor], kept: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> list[Tensor]:
        """The result of the backward rule, differentiable again."""
        return bind(Call(self.bwd), self.of_bwd(args, kept[len(self.outputs) :], cts))

    def of_bwd(
        self, args: Sequence[Tensor], residuals: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> list[Tensor]:
        """The inputs of `bwd`."""
        full = list(map(or_zeros, cts, self.outputs))
        return [*residuals, *full, *(args[i] for i in self.bwd_uses)]

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        fail(
            UnsupportedOpError,
            f"{self.name} is a custom_vjp function, which forward mode (jvp, jacfwd, hessian) "
            "cannot differentiate",
            "differentiate in reverse mode (grad, vjp, jacrev), or write the rule with "
            "xf.custom_jvp, which serves both.",
        )

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        return bind(self.batched(dims, n), args), [0] * len(self.outputs)

    def batched(self, dims: Dims, n: int) -> VjpRule:
        """The rule of the vmap: gradients of unbatched arguments are summed over the batch."""
        every = _batched_bwd(self, dims, n)
        wrt = self.wrt

        def fn(*flat: Tensor) -> list[Tensor]:
            grads = every.fn(*flat)
            placed = [dims[i] for i in wrt]
            return [
                g.sum(0) if d is None else g.movedim(0, d)
                for g, d in zip(grads, placed, strict=True)
            ]

        bwd = self.bwd.derive(("custom batched", every, dims), every.name, fn, every.avals)
        return dataclasses.replace(
            self,
            primal=self.primal.batched(tuple(dims[i] for i in self.primal_uses), n),
            fwd=self.fwd.batched(tuple(dims[i] for i in self.fwd_uses), n),
            bwd=bwd,
            avals=batched(self.avals, dims, n),
        )


def _batched_bwd(rule: VjpRule, dims: Dims, n: int) -> TracedProgram:
    """The backward rule for each example."""
    captured = tuple(dims[i] for i in rule.bwd_uses)
    own = len(rule.bwd.avals) - len(captured)
    return rule.bwd.batched((*(0 for _ in range(own)), *captured), n)


class _Rule(Rule):
    """Outputs and residuals, and their derivatives."""

    def __init__(self, primitive: VjpRule):
        self._primitive = primitive

    def forward(self, *args: Tensor) -> list[Tensor]:
        return bind(Call(self._primitive.fwd), [args[i] for i in self._primitive.fwd_uses])

    def keep(self, args: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (*args, *outputs)

    def gradients(
        self, kept: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> tuple[Sequence[int], Sequence[Tensor]]:
        p, n = self._primitive, len(self._primitive.avals)
        return p.wrt, p.gradients(kept[:n], kept[n:], cts[: len(p.outputs)])

    def jvp(
        self, kept: Sequence[Tensor], tangents: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        return self._primitive.jvp((), ())


@dataclasses.dataclass(eq=False)
class _ReverseRule:
    """First-order reverse mode; see `ReverseRule` for its methods."""

    primitive: VjpRule

    def __post_init__(self) -> None:
        self.wrt = self.primitive.wrt
        self.n_outputs = len(self.primitive.outputs)
        self.cts = tuple(i for i, o in enumerate(self.primitive.outputs) if differentiable(o))

    def forward(self, args: Sequence[Tensor]) -> list[Tensor]:
        p = self.primitive
        return p.fwd.lowering.apply([args[i] for i in p.fwd_uses])

    def backward(
        self, args: Sequence[Tensor], residuals: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> list[Tensor]:
        lowering: HloProgram = self.primitive.bwd.lowering
        return lowering.apply(self.primitive.of_bwd(args, residuals, cts))

    def batched(self, dims: Dims, n: int) -> tuple[ReverseRule, Dims, Dims, Dims]:
        p = self.primitive
        every = _batched_bwd(p, dims, n)
        inner = dataclasses.replace(p.batched(dims, n), bwd=every)
        return _ReverseRule(inner), dims, (0,) * self.n_outputs, (0,) * len(self.wrt)


def _eager(primal: Fun, fwd: Fun, bwd: Fun, leaves: list[Tensor], form: tree.Structure) -> PyTree:
    """The rule under `disable_jit`."""
    if not any(is_tracked(x) or functorch.has_tangent(x) for x in leaves):
        return primal(*tree.unflatten(form, leaves))
    trees: list[tree.Structure] = []

    class Rule(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*xs: Tensor) -> Tensors:
            out, residuals = fwd(*tree.unflatten(form, xs))
            outs, out_tree = tree.flatten(as_results(out, function_name(fwd)))
            kept, res_tree = tree.flatten(as_results(residuals, function_name(fwd), "residuals"))
            trees[:] = [out_tree, res_tree]
            same = {id(x) for x in xs}
            return tuple(t.clone() if id(t) in same else t for t in (*outs, *kept))

        @staticmethod
        def setup_context(ctx: AutogradContext, inputs: Tensors, output: Tensors) -> None:
            n = trees[0].num_leaves
            ctx.save_for_backward(*output, *inputs)
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*(o for o in output[n:] if not differentiable(o)))

        @staticmethod
        def backward(ctx: AutogradContext, *cts: Tensor | None) -> tuple[Tensor | None, ...]:
            out_tree, res_tree = trees
            n = out_tree.num_leaves
            saved, xs = ctx.saved_tensors[: len(cts)], ctx.saved_tensors[len(cts) :]
            pairs = zip(saved, cts[:n], strict=False)
            given = [torch.zeros_like(o) if c is None else c for o, c in pairs]
            smooth = [i for i, x in enumerate(leaves) if differentiable(x)]
            grads = bwd(tree.unflatten(res_tree, saved[n:]), tree.unflatten(out_tree, given))
            used = [k for k, c in enumerate(cts[n:]) if c is not None]
            if used:  # by a derivative of `bwd`

                def kept(*moved: Tensor) -> tuple[Tensor, ...]:
                    full = list(xs)
                    for i, x in zip(smooth, moved, strict=True):
                        full[i] = x
                    found = tree.leaves(as_tensors(fwd(*tree.unflatten(form, full))[1]))
                    return tuple(found[k] for k in used)

                vjp = cast("Fun", torch.func.vjp)  # pyright: ignore[reportUnknownMemberType]
                pull = vjp(kept, *(xs[i] for i in smooth))[1]
                more = pull(tuple(cts[n + k] for k in used))
                grads = [g + m for g, m in zip(grads, more, strict=True)]
            found = dict(zip(smooth, grads, strict=True))
            return tuple(found.get(i) for i in range(len(leaves)))

    outs = functorch.custom_function_call(Rule, *leaves)
    return tree.unflatten(trees[0], outs[: trees[0].num_leaves])
