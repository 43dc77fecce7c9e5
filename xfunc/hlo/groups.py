"""Shard groups: values that the partitioner shall divide alike."""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb


def settle_groups(proto: pb.HloModuleProto) -> None:
    """Give each group of a whole program a number of its own."""
