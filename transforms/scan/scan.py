"""`scan`: a loop that traces its body once.

Values that the body closes over are inputs of the loop like any other, so gradients flow to them.
How a scan is differentiated and batched is in `xfunc.transforms.scan.primitive`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, overload

import torch

from xfunc import tree
from xfunc.core import ambient
from xfunc.core.avals import Aval, aval_of
from xfunc.core.locations import described
from xfunc.core.wrappers import Part, called
from xfunc.errors import TreeMismatchError, fail, format_error
from xfunc.program.bind import ad_depth, bind
from xfunc.program.primitive import Tensor
from xfunc.program.program import differentiable
from xfunc.remat.policies import Policy, check_policy, everything_saveable
from xfunc.stages.checks import (
    Fun,
    arrays,
    as_results,
    as_tensors,
    check_callable,
    check_same,
    labels_in,
)
from xfunc.stages.options import Options
from xfunc.stages.staging import Staged
from xfunc.stages.transformed import Transform
from xfunc.torchlib.eager import disable_jit, is_eager
from xfunc.torchlib.values import is_tracked
from xfunc.trace import effects
from xfunc.transforms.scan.primitive import Scan
from xfunc.tree import NumberTree, PyTree

C = TypeVar("C")
X = TypeVar("X")
Y = TypeVar("Y")


@overload  # See NOTE [types of lambdas] in `xfunc.tree`.
def scan(
    f: Callable[[PyTree, PyTree], tuple[C, Y]],
    init: NumberTree,
    xs: PyTree = ...,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    checkpoint_policy: Policy | None = None,
) -> tuple[C, Y]: ...
@overload
def scan(
    f: Callable[[C, X], tuple[C, Y]],
    init: C,
    xs: X = ...,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    checkpoint_policy: Policy | None = None,
) -> tuple[C, Y]: ...
@overload
def scan(
    f: Callable[[PyTree, PyTree], tuple[C, Y]],
    init: PyTree,
    xs: PyTree = ...,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    checkpoint_policy: Policy | None = None,
) -> tuple[C, Y]: ...
def scan(
    f: Callable[[PyTree, PyTree], tuple[C, Y]],
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    checkpoint_policy: Policy | None = None,
) -> tuple[C, Y]:
    """Loop over the leading axis of `xs`, carrying a value along.

    Means::

        def scan(f, init, xs, length=None):
            carry, ys = init, []
            for i in range(length):          # backwards if reverse
                carry, y = f(carry, xs[i])   # of each leaf; None if xs is None
                ys.append(y)
            return carry, stack(ys)          # of each leaf; in the order of xs

    Args:
        f: ``(carry, x) -> (carry, y)``; a pure function of trees, traced once. The carry that it
            returns has the structure, shapes and dtypes of the one it receives.
        init: the first carry: a tree of tensors and numbers.
        xs: a tree of tensors with a common leading axis, or None.
        length: the number of steps; needed only if `xs` has no leaves.
        reverse: whether to go from the last step to the first.
        unroll: the number of steps in one iteration of the compiled loop; True: all.
        checkpoint_policy: the values that each step may keep for the backward pass (see
            `checkpoint`); None keeps all that it uses.

    Returns:
        ``(carry, ys)``: the last carry, and the stacked second results of `f`.

    Raises:
        TreeMismatchError: the carry changes structure, shape or dtype (every path is listed), or
            the leaves of `xs` differ in length.

    Source: ``jax.lax.scan``.
    """
    check_callable(f, "scan", "scan(f, init, xs)")
    check_policy(checkpoint_policy, "scan's checkpoint_policy")
    return ScanTransform(f, length, reverse, unroll, checkpoint_policy)(init, xs)


class ScanTransform(Transform[..., PyTree]):
    """``(init, xs) -> (carry, ys)``."""

    def __init__(
        self,
        fun: Fun,
        length: int | None,
        reverse: bool,
        unroll: int | bool,
        policy: Policy | None,
    ):
        _check_unroll(unroll)
        self._length, self._reverse, self._policy = length, bool(reverse), policy
        self._unroll = unroll
        super().__init__(fun, (length, self._reverse, (type(unroll), unroll), policy), "scan")
        self._body = Staged(fun, value=Part(fun, "scan"))

    def apply(self, init: object, xs: PyTree) -> PyTree:
        name = f"{called(self.fun, 'scan')} of {described(self.fun)}"
        init, xs = as_tensors(init), as_tensors(xs)
        carry, carry_tree = tree.flatten(init)
        slices = tree.leaves(xs)
        carry = arrays(carry, name, labels_in(init, "init"))
        slices = arrays(slices, name, labels_in(xs, "xs"))
        length = self._check_length(xs, name)
        args = [*carry, *slices]
        avals = tuple(
            [(tuple(c.shape), c.dtype) for c in carry]
            + [(tuple(x.shape[1:]), x.dtype) for x in slices]
        )
        structure = tree.structure(((init, xs), {}))
        if is_eager():
            if length:
                return self._loop(carry, carry_tree, xs, length, name)
            with disable_jit(False):  # to find out what y is
                entry, _ = self._body.find(structure, avals, options=Options(effects_allowed=True))
            ys_tree = self._check_result(entry.out_tree, entry.outputs, carry, carry_tree, name)
            ys = [torch.zeros(0, *y.shape, dtype=y.dtype) for y in entry.outputs[len(carry) :]]
            return init, tree.unflatten(ys_tree, ys)
        # The gradient flows through every floating carry, whether or not it is watched initially.
        smooth = frozenset(i for i, c in enumerate(carry) if differentiable(c))
        wrt = None
        if ad_depth(args) == 1:
            wrt = tuple(
                i in smooth or (i >= len(carry) and differentiable(a) and is_tracked(a))
                for i, a in enumerate(args)
            )
        options = Options(zeros=smooth, effects_allowed=True)
        try:
            entry, held = self._body.find(structure, avals, wrt, options)
        except TypeError as error:
            if init is None and "NoneType" in str(error):
                error.add_note(
                    format_error(f"{name} was given init=None, so its carry is None", _CARRY)
                )
            raise
        ys_tree = self._check_result(entry.out_tree, entry.outputs, carry, carry_tree, name)
        unroll = self._unroll if type(self._unroll) is int else (length if self._unroll else 1)
        primitive = Scan(
            entry.program,
            len(carry),
            len(slices),
            length,
            self._reverse,
            max(1, min(unroll, length)),
            ambient.policy_for(self._policy or everything_saveable),
        )
        outs = bind(primitive, entry.inputs(args, held))
        if entry.effects:
            outs = effects.take([effects.LoopEffects(entry.effects, length, self._reverse)], outs)
        n = len(carry)
        # A carry that the body returns unchanged is the first one, batched or not.
        unchanged = [i == k for k, i in enumerate(entry.program.forwards[:n])]
        outs[:n] = [c if same else o for c, same, o in zip(carry, unchanged, outs, strict=False)]
        return tree.unflatten(carry_tree, outs[:n]), tree.unflatten(ys_tree, outs[n:])

    def _check_length(self, xs: object, name: str) -> int:
        lengths = {p: x.shape[0] if x.ndim else None for p, x in tree.leaves_with_path(xs)}
        scalars = [p for p, n in lengths.items() if n is None]
        if scalars:
            fail(
                TreeMismatchError,
                f"{name}: xs{scalars[0]} is a scalar, which has no axis to scan over",
                "give every leaf of xs a leading axis, or close over what is the same at "
                "each step.",
            )
        found = set(lengths.values())
        if self._length is not None and found and found != {self._length}:
            fail(
                TreeMismatchError,
                f"{name} has length={self._length}, but xs has leading axes of {found}",
                "leave length out: it is needed only where xs has no leaves.",
            )
        if self._length is not None:
            lengths = {"": self._length}
        if not lengths:
            fail(ValueError, f"{name} has neither xs nor length", "give one of them.")
        if len(set(lengths.values())) > 1:
            lines = "".join(f"\n  xs{p}: {n}" for p, n in lengths.items())
            fail(
                TreeMismatchError,
                f"{name}: leading axes differ in length:{lines}",
                "give all leaves of xs the same leading axis.",
            )
        n = next(iter(lengths.values()))
        assert n is not None
        if n < 0:
            fail(ValueError, f"{name} has length={n}", "give a length of at least 0.")
        return n

    def _check_result(
        self,
        out_tree: tree.Structure,
        outputs: Sequence[Aval],
        carry: Sequence[Tensor],
        carry_tree: tree.Structure,
        name: str,
    ) -> tree.Structure:
        """Check the result of the body; returns the structure of y."""
        if out_tree.type is not tuple or len(out_tree.children()) != 2:
            fail(
                TreeMismatchError,
                f"{name}: the body must return a pair (carry, y), not {_describe(out_tree)}",
                "write `return carry, y`, with None for a y that is not needed.",
            )
        got, ys_tree = out_tree.children()
        n = got.num_leaves
        check_same(
            tree.unflatten(got, outputs[:n]),
            tree.unflatten(carry_tree, [aval_of(c) for c in carry]),
            what="the carry that the body returns and the one it receives",
            name=name,
            root="carry",
            hint="return a carry of the same structure, shapes and dtypes; convert `init` if "
            "its dtype was not meant."
            if carry
            else _CARRY,
        )
        return ys_tree

    def _loop(
        self, carry: list[Tensor], carry_tree: tree.Structure, xs: PyTree, length: int, name: str
    ) -> PyTree:
        """The plain Python loop of `disable_jit`."""
        steps = range(length - 1, -1, -1) if self._reverse else range(length)
        value, ys = tree.unflatten(carry_tree, carry), list[PyTree]()
        for i in steps:
            found = as_results(self.fun(value, tree.map(lambda x, i=i: x[i], xs)), name)
            leaves, out_tree = tree.flatten(found)
            self._check_result(out_tree, list(map(aval_of, leaves)), carry, carry_tree, name)
            value, y = found
            ys.append(y)
        if self._reverse:
            ys.reverse()
        return value, tree.map(lambda *y: torch.stack(y), *ys)


_CARRY = (
    "give the first carry as `init`: scan(f, init, xs); a body that carries nothing returns "
    "(None, y)."
)


def _check_unroll(unroll: object) -> None:
    if not isinstance(unroll, int) or (unroll < 1 and unroll is not False):
        fail(ValueError, f"scan has unroll={unroll!r}", "give a number from 1, or True.")


def _describe(structure: tree.Structure) -> str:
    if structure.is_leaf():
        return "a single array"
    if structure.type is type(None):
        return "None"
    return f"a {getattr(structure.type, '__name__', 'None')} of {len(structure.children())}"
