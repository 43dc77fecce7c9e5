"""`while_loop`: a loop that runs as long as its condition holds.

How it is differentiated and batched is in `while_primitive`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, overload

import torch

from xfunc import tree
from xfunc.core.avals import Aval, aval_of, short
from xfunc.core.locations import described, function_name, user_location
from xfunc.core.wrappers import Bundle, Part, called
from xfunc.errors import TreeMismatchError, fail, short_repr
from xfunc.program.bind import bind
from xfunc.stages.arguments import avals_of
from xfunc.stages.checks import Fun, arrays, as_results, as_tensors, check_same, labels_in
from xfunc.stages.joined_inputs import SharedInputs
from xfunc.stages.staging import Staged
from xfunc.stages.transformed import Transform
from xfunc.torchlib import functorch
from xfunc.torchlib.eager import is_eager
from xfunc.transforms.select_primitive import constant_unless
from xfunc.transforms.while_primitive import While
from xfunc.tree import NumberTree, PyTree

R = TypeVar("R")


@overload  # See NOTE [types of lambdas] in `xfunc.tree`.
def while_loop(
    cond_fun: Callable[[PyTree], object], body_fun: Callable[[PyTree], R], init_val: NumberTree
) -> R: ...
@overload
def while_loop(cond_fun: Callable[[R], object], body_fun: Callable[[R], R], init_val: R) -> R: ...
@overload
def while_loop(
    cond_fun: Callable[[PyTree], object], body_fun: Callable[[PyTree], R], init_val: PyTree
) -> R: ...
def while_loop(
    cond_fun: Callable[[PyTree], object], body_fun: Callable[[PyTree], R], init_val: PyTree
) -> R:
    """Repeat `body_fun` as long as `cond_fun` holds.

    Means::

        def while_loop(cond_fun, body_fun, init_val):
            value = init_val
            while cond_fun(value):
                value = body_fun(value)
            return value

    Differentiable in forward mode. Reverse mode would have to keep an unknown number of steps: it
    is refused if a gradient arrives; use `scan`, or `fori_loop` with Python integers as bounds.
    Batched (by `vmap`), the loop runs until every example is done; those done early keep their
    value.

    Args:
        cond_fun: from the value to a boolean scalar; pure, and may close over traced values.
        body_fun: from the value to the next one, of the same structure, shapes and dtypes.
        init_val: the first value: a tree of tensors and numbers.

    Returns:
        The first value for which `cond_fun` does not hold: a tree like `init_val`, with tensors of
        the same shapes and dtypes.

    Raises:
        TypeError: `cond_fun` does not return a boolean scalar.
        TreeMismatchError: the body changes the value's structure, shapes or dtypes.
        UnsupportedOpError: a gradient in reverse mode arrives.

    Source: ``jax.lax.while_loop``.
    """
    return WhileLoop(cond_fun, body_fun)(init_val)


class WhileLoop(Transform[..., PyTree]):
    """``init -> last value``."""

    def __init__(self, cond: Fun, body: Fun):
        for f, role in ((cond, "condition"), (body, "body")):
            if not callable(f):
                fail(
                    TypeError,
                    f"while_loop was given {short_repr(f)} as its {role}, which is not callable",
                    "write while_loop(cond_fun, body_fun, init_val).",
                )
        self._cond_fun, self._body_fun = cond, body
        super().__init__(Bundle((body, cond)), None, "while_loop")
        self._cond = Staged(cond, value=Part(cond, "while cond"))
        self._body = Staged(body, value=Part(body, "while body"))

    def apply(self, init: object) -> PyTree:
        name = f"{called(self._body_fun, 'while_loop')} of {described(self._body_fun)}"
        init = as_tensors(init)
        carry, carry_tree = tree.flatten(init)
        carry = arrays(carry, name, labels_in(init, "init"))
        if is_eager():
            return self._loop(init, carry_tree, name)
        structure, avals = tree.structure(((init,), {})), avals_of(carry)
        test, test_held = self._cond.find(structure, avals)
        step, step_held = self._body.find(structure, avals)
        self._check_condition(test.out_tree, test.program.outputs, name)
        check_same(
            tree.unflatten(step.out_tree, step.program.outputs),
            tree.unflatten(carry_tree, [aval_of(c) for c in carry]),
            what="the value that the body returns and the one it receives",
            name=name,
            root="value",
            hint="return a value of the same structure, shapes and dtypes; convert `init` if its "
            "dtype was not meant.",
        )
        inputs, own = SharedInputs(carry), range(len(carry))
        test_uses = (*own, *inputs.add(test, carry, test_held))
        step_uses = (*own, *inputs.add(step, carry, step_held))
        loop = While(
            test.program, step.program, test_uses, step_uses, inputs.avals, user_location()
        )
        outs = bind(loop, inputs.flat)
        # A value that the body returns unchanged is the first one, batched or not.
        unchanged = [i == k for k, i in enumerate(step.program.forwards)]
        outs = [c if same else o for c, same, o in zip(carry, unchanged, outs, strict=True)]
        return tree.unflatten(carry_tree, outs)

    def _check_condition(
        self, out_tree: tree.Structure, outputs: Sequence[Aval], name: str
    ) -> None:
        if out_tree.is_leaf() and outputs[0] == Aval((), torch.bool):
            return
        what = short(outputs[0]) if out_tree.is_leaf() else f"a {out_tree.type}"
        fail(
            TypeError,
            f"{name}: the condition {described(self._cond_fun)} returned {what}, not a "
            "boolean scalar",
            "compare (x < y), and reduce with .any() or .all().",
        )

    def _loop(self, value: object, structure: tree.Structure, name: str) -> PyTree:
        """The plain Python loop of `disable_jit`."""
        while True:
            again = as_results(self._cond_fun(value), function_name(self._cond_fun))
            leaves, out_tree = tree.flatten(again)
            if not functorch.is_batched(leaves[0]):
                self._check_condition(out_tree, [aval_of(x) for x in leaves], name)
            if not functorch.innermost(again).any():
                return value
            given = value
            if functorch.is_batched(again):
                given = tree.map(lambda x, p=again: constant_unless(p, x), value)
            new = as_results(self._body_fun(given), function_name(self._body_fun))
            if tree.structure(new) != structure:
                fail(
                    TreeMismatchError,
                    f"{name}: the body returned {tree.structure(new)}, not {structure}",
                    "return a value of the structure of `init`.",
                )
            if functorch.is_batched(again):
                new = tree.map(lambda a, b, p=again: torch.where(p, a, b), new, value)
            value = new
