"""`checkpoint`: choose what a function keeps for its backward pass."""

from __future__ import annotations

import functools
from typing import Any

from xfunc import ambient
from xfunc.call import Call
from xfunc.identity import Part
from xfunc.policies import Policy, nothing_saveable
from xfunc.staging import Staged, Transform, call_in_trace, is_eager

from .common import Fun


def checkpoint(fun: Fun, policy: Policy | None = None) -> Any:
    """`fun`, whose backward pass computes the forward pass again instead of keeping its values.

    Args:
        fun: a function of trees of tensors.
        policy: which values may be kept all the same: a function of an HLO instruction, such as
            those in `xfunc.checkpoint_policies`; None keeps only the arguments.

    Source: ``jax.checkpoint``; Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
    """
    return Checkpoint(fun, policy or nothing_saveable)


remat = checkpoint


class Checkpoint(Transform):
    """What `checkpoint` returns."""

    def __init__(self, fun: Fun, policy: Policy):
        super().__init__(fun, policy, "checkpoint")
        self._policy = policy
        self._inner = Staged(fun, value=Part(fun, ("checkpoint", policy)))

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        if is_eager():
            return self.fun(*args, **kwargs)
        # The barrier keeps XLA from merging what is recomputed with the first computation.
        policy = ambient.policy_for(self._policy)
        primitive = functools.partial(Call, policy=policy, barrier=True)
        return call_in_trace(self._inner, args, kwargs, primitive=primitive)
