"""Whether two instructions compute the same."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.module import Module


class Same:
    """Finds instructions of a module that compute the same, given equal operands."""

    def __init__(self, module: Module) -> None:
        self._computations = {c.id: c for c in module.proto.computations}
        self._first: dict[Hashable, int] = {}
        self._representatives: dict[int, int] = {}
        self._scratch = pb.HloInstructionProto()

    def key(self, i: pb.HloInstructionProto, operands: Sequence[int]) -> Hashable:
        """Everything in an instruction except its id, its name and its source."""
        called = [self._representative(k) for k in i.called_computation_ids]
        copy = self._scratch
        copy.CopyFrom(i)
        copy.ClearField("id")
        copy.ClearField("name")
        copy.ClearField("metadata")
        copy.ClearField("operand_ids")
        copy.ClearField("called_computation_ids")
        return copy.SerializeToString(deterministic=True), *operands, *called

    def _representative(self, id: int) -> int:
        """The first computation that does what this one does."""
        if id not in self._representatives:
            c = self._computations[id]
            place = {i.id: k for k, i in enumerate(c.instructions)}
            each = [self.key(i, [place[k] for k in i.operand_ids]) for i in c.instructions]
            self._representatives[id] = self._first.setdefault((*each, place[c.root_id]), id)
        return self._representatives[id]
