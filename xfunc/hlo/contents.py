"""The instructions of a module by opcode and by id, for passes that look for a few of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from xfunc.graph.opcodes import CALLING
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import fresh_ids

_ByOpcode = dict[str, list[pb.HloInstructionProto]]


class Contents:
    """A module's protobuf, with the instructions of its computations by opcode and by id.

    They are looked up once for all passes that share the contents. A pass that changes a
    computation must report it, unless no later pass looks for the changes.

    Attributes:
        proto: of the module.
        ids: unused ids.
    """

    def __init__(self, proto: pb.HloModuleProto) -> None:
        self.proto = proto
        self.ids = fresh_ids(proto)
        self._by_opcode: dict[int, _ByOpcode] = {}
        self._by_id: dict[int, dict[int, pb.HloInstructionProto]] = {}

    def of(
        self, c: pb.HloComputationProto, opcodes: Collection[str]
    ) -> list[pb.HloInstructionProto]:
        """The instructions of a computation that have one of some opcodes."""
        found = self._by_opcode.get(c.id)
        if found is None:
            found = self._by_opcode[c.id] = _ByOpcode()
            for i in c.instructions:
                found.setdefault(i.opcode, []).append(i)
        return [i for opcode in found if opcode in opcodes for i in found[opcode]]

    def by_id(self, c: pb.HloComputationProto) -> dict[int, pb.HloInstructionProto]:
        """The instructions of a computation by id."""
        if c.id not in self._by_id:
            self._by_id[c.id] = {i.id: i for i in c.instructions}
        return self._by_id[c.id]

    def callers(self, c: pb.HloComputationProto) -> list[pb.HloInstructionProto]:
        """The instructions of a computation that may call others."""
        return self.of(c, CALLING)

    def called(self, c: pb.HloComputationProto) -> list[int]:
        """The ids of the computations that a computation calls; some more than once."""
        return [k for i in self.callers(c) for k in i.called_computation_ids[:]]

    def everywhere(
        self, opcodes: Collection[str]
    ) -> Iterator[tuple[pb.HloComputationProto, list[pb.HloInstructionProto]]]:
        """The computations that have instructions of some opcodes, with these."""
        for c in self.proto.computations:
            if found := self.of(c, opcodes):
                yield c, found

    def insert(self, c: pb.HloComputationProto, place: int, i: pb.HloInstructionProto) -> None:
        """Insert a copy of an instruction into a computation before its instruction `place`."""
        c.instructions.insert(place, i)
        new = c.instructions[place]
        if c.id in self._by_opcode:
            self._by_opcode[c.id].setdefault(i.opcode, []).append(new)
        if c.id in self._by_id:
            self._by_id[c.id][i.id] = new

    def changed(self, c: pb.HloComputationProto) -> None:
        """Note that a computation has other instructions now."""
        self._by_opcode.pop(c.id, None)
        self._by_id.pop(c.id, None)
