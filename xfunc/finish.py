"""The last passes over a module, before it is shown, compiled or exported."""

from __future__ import annotations

from xfunc import scopes
from xfunc.hlo import Module
from xfunc.hlo.channels import renumber_channels
from xfunc.hlo.groups import settle_groups


def finished(module: Module, lines: bool = True) -> Module:
    """A module of a whole program, in the form that is compiled.

    Scopes and lines stand in the place of stamps; shard groups and channels of collectives have
    numbers of their own.
    """
    whole = scopes.resolve(module, lines)  # a copy
    settle_groups(whole.proto)
    renumber_channels(whole.proto)
    return whole
