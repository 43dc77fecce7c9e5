"""Calls like earlier ones, found again by one look-up."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence

import torch

from xfunc import tree
from xfunc.core import ambient
from xfunc.core.ambient import Override
from xfunc.core.avals import AvalKey
from xfunc.program.bind import ad_depth
from xfunc.stages.arguments import prepare
from xfunc.stages.options import Options
from xfunc.stages.staging import Staged
from xfunc.symbolic.binding import Declared
from xfunc.symbolic.bucket import Bucket, Ends
from xfunc.symbolic.pad import pad
from xfunc.symbolic.polynomial import Env
from xfunc.tree import Leaf

_MOST = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class CachedCall:
    """A call of a bucket's program.

    Attributes:
        declared: the dimensions of its arguments.
        bucket: the bucket of the program.
        override: the plan for the memory limit, if there is one.
        env: the sizes of the call.
        rung: the smallest and the largest sizes of the bucket.
        ends: the ends of the bucket that its program is for; others may have their own.
        wide: the arguments that are padded, and their shapes then.
        avals: of the padded arguments.
    """

    declared: Declared
    bucket: Bucket
    override: Override | None
    env: Env
    rung: Ends
    ends: Ends
    wide: tuple[tuple[int, tuple[int, ...]], ...]
    avals: tuple[AvalKey, ...]

    def arguments(
        self, staged: Staged, leaves: list[Leaf], structure: tree.Structure, options: Options
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
        """The arguments that the program takes, and the tensors that the function holds.

        None: the function has changed since, or the call is part of a transform.
        """
        if ad_depth([x for x in leaves if isinstance(x, torch.Tensor)]):
            return None
        options = options._replace(effects_allowed=True)
        with ambient.asking_sizes(), ambient.overridden(self.override or ambient.override()):
            entry, held = staged.find(structure, self.avals, None, options)
        if entry is not self.bucket.source or self.bucket.is_watched(held):
            return None
        try:
            return prepare(staged, padded_leaves(leaves, self.wide), structure)[0], held
        except Exception:  # An argument is none that can be padded; which one is found out then.
            return None


def padded_leaves(
    leaves: Sequence[Leaf], wide: Iterable[tuple[int, tuple[int, ...]]]
) -> list[Leaf]:
    """The leaves, some of them padded to the shapes given by position."""
    result = list(leaves)
    for k, shape in wide:
        result[k] = pad(result[k], shape)
    return result


class Memory:
    """The calls seen so far."""

    def __init__(self) -> None:
        self._known: dict[Hashable, CachedCall] = {}

    def key(
        self, leaves: Sequence[object], structure: tree.Structure, options: Options
    ) -> Hashable:
        """The key of a call: equal for calls that may share a program."""
        kinds = tuple([(getattr(x, "shape", None), getattr(x, "dtype", type(x))) for x in leaves])
        return structure, kinds, options.static, ambient.context_key()

    def find(self, key: Hashable) -> CachedCall | None:
        """An earlier call of this kind."""
        return self._known.get(key)

    def add(self, key: Hashable, seen: CachedCall) -> None:
        """Remember a call."""
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[key] = seen
