"""The instructions of a module by opcode and by id, for passes that look for a few of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from xfunc.hlo import hlo_pb2 as pb


class Contents:
    """A module's protobuf, with the instructions of its computations by opcode and by id.

    Attributes:
        proto: of the module.
    """

    def __init__(self, proto: pb.HloModuleProto) -> None:
        self.proto = proto
        self._by_opcode: dict[int, dict[str, list[pb.HloInstructionProto]]] = {}
        self._by_id: dict[int, dict[int, pb.HloInstructionProto]] = {}

    def of(
        self, c: pb.HloComputationProto, opcodes: Collection[str]
    ) -> list[pb.HloInstructionProto]:
        """The instructions of a computation that have one of some opcodes."""
        found = self._by_opcode.get(c.id)
        if found is None:
            found = self._by_opcode[c.id] = {}
            for i in c.instructions:
                found.setdefault(i.opcode, []).append(i)
        return [i for opcode in opcodes if opcode in found for i in found[opcode]]

    def by_id(self, c: pb.HloComputationProto) -> dict[int, pb.HloInstructionProto]:
        """The instructions of a computation by id."""
        if c.id not in self._by_id:
            self._by_id[c.id] = {i.id: i for i in c.instructions}
        return self._by_id[c.id]

    def everywhere(
        self, opcodes: Collection[str]
    ) -> Iterator[tuple[pb.HloComputationProto, list[pb.HloInstructionProto]]]:
        """The computations that have instructions of some opcodes, with these."""
        for c in self.proto.computations:
            if found := self.of(c, opcodes):
                yield c, found

    def changed(self, c: pb.HloComputationProto) -> None:
        """Note that a computation has other instructions now."""
        self._by_opcode.pop(c.id, None)
        self._by_id.pop(c.id, None)
