"""Channels: what tells the collectives of a program apart."""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb


def renumber_channels(proto: pb.HloModuleProto) -> None:
    """Give each collective of a whole program a channel of its own."""
