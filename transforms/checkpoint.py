"""`checkpoint`: choose what a function keeps for its backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from xfunc import tree
from xfunc.core import ambient
from xfunc.core.wrappers import Part
from xfunc.program.call import Call
from xfunc.remat.policies import Policy, check_policy, nothing_saveable
from xfunc.stages.checks import Fun, not_chosen, select
from xfunc.stages.options import Options
from xfunc.stages.staging import Staged, call_in_trace
from xfunc.stages.transformed import CallableOrLambda, Transform
from xfunc.torchlib.eager import is_eager

P = ParamSpec("P")
R = TypeVar("R")


def checkpoint(
    fun: CallableOrLambda[P, R],
    policy: Policy | None = None,
    *,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
) -> Checkpoint[P, R]:
    """Make the backward pass of `fun` recompute the forward pass instead of keeping its values.

    Args:
        fun: a function of trees of tensors.
        policy: which values may be kept nevertheless: a function of a node (an HLO instruction),
            such as those in `xfunc.checkpoint_policies`; None keeps only the arguments.
        prevent_cse: whether to prevent the compiler from merging the recomputation with the first
            computation. Use False for the body of a loop, where it cannot merge them.
        static_argnums: positions of arguments that are compared by value, and may be any objects.
            At other positions Python numbers become 0-d tensors.

    Returns:
        A function of the same arguments, with the results and the derivatives of `fun`.

    Raises:
        TypeError: the policy is not a function.

    Source: ``jax.checkpoint``; Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
    """
    check_policy(policy, "checkpoint's policy")
    return Checkpoint(fun, policy or nothing_saveable, prevent_cse, static_argnums)


remat = checkpoint


class Checkpoint(Transform[P, R]):
    """The result of `checkpoint`."""

    def __init__(
        self,
        fun: Callable[P, R],
        policy: Policy,
        prevent_cse: bool,
        static_argnums: int | Sequence[int],
    ):
        nums = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
        options = (policy, bool(prevent_cse), nums)
        super().__init__(fun, options, "checkpoint")
        self._policy, self._barrier, self._static = options
        self._inner = Staged(
            _unwrapping(fun) if nums else fun, value=Part(fun, ("checkpoint", options))
        )

    def static_scalars(self, structure: tree.Structure) -> Sequence[bool]:
        return [not b for b in not_chosen(self._static, structure)]

    def apply(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if is_eager():
            return self.fun(*args, **kwargs)
        nums = select(self._static, args, self.__name__, "static_argnums")
        given = tuple(_Static(a) if i in nums else a for i, a in enumerate(args))
        policy = ambient.policy_for(self._policy)
        primitive = functools.partial(Call, policy=policy, barrier=self._barrier)
        return call_in_trace(self._inner, given, kwargs, Options(primitive=primitive))


class _Static:
    """A static argument."""

    def __init__(self, value: object):
        self.value = value


def _unwrapping(fun: Fun) -> Fun:
    """`fun` with static arguments as they were given."""

    def call(*args: object, **kwargs: object) -> object:
        return fun(*(a.value if isinstance(a, _Static) else a for a in args), **kwargs)

    return call
