"""`Builder`: new HLO modules, computation by computation."""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.computation import ComputationBuilder, Function
from xfunc.hlo.edit import copied
from xfunc.hlo.errors import InvalidHloError
from xfunc.hlo.module import Module
from xfunc.hlo.shape import Shape
from xfunc.hlo.verify import Signature, verify


class Builder:
    """Builds a module.

    ::

        b = Builder("double")
        body = b.computation("double")
        x = body.parameter(Shape(torch.float32, (3,)))
        module = b.build(body.build(body.tuple([body.add(x, x)])))

    A computation is complete before another calls it, so there is no recursion.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._finished: list[pb.HloComputationProto] = []
        self._embedded: dict[Module, Function] = {}
        self._checked: dict[int, Signature] = {}  # of what was embedded
        self._last_id = 0

    def new_id(self) -> int:
        """An id that is unused in the module."""
        self._last_id += 1
        return self._last_id

    def computation(self, name: str) -> ComputationBuilder:
        """Begin a computation."""
        return ComputationBuilder(self, name)

    def finish(self, proto: pb.HloComputationProto) -> Function:
        """Add a computation whose ids are from `new_id`."""
        self._finished.append(proto)
        signature = proto.program_shape
        return Function(
            proto.id,
            proto.name,
            tuple(map(Shape.from_proto, signature.parameters)),
            Shape.from_proto(signature.result),
            self,
        )

    def embed(self, module: Module) -> Function:
        """Copy the computations of another module; returns the function of its entry.

        The same `Module` is copied once, however often it is embedded.
        """
        if module not in self._embedded:
            signatures = module.signatures or verify(module)
            ids: dict[int, int] = {}
            made = {
                c.id: self.finish(copied(c, ids, self.new_id)) for c in module.proto.computations
            }
            self._checked.update({ids[k]: s for k, s in signatures.items()})
            self._embedded[module] = made[module.proto.entry_computation_id]
        return self._embedded[module]

    def build(self, entry: Function) -> Module:
        """The module that runs `entry`."""
        if entry.owner is not self:
            raise InvalidHloError(
                f"module {self.name!r}: the entry {entry.name!r} is part of module "
                f"{entry.owner.name!r}"
            )
        proto = pb.HloModuleProto(
            name=self.name,
            entry_computation_name=entry.name,
            entry_computation_id=entry.id,
            computations=self._finished,
        )
        program_shape = next(c for c in self._finished if c.id == entry.id).program_shape
        proto.host_program_shape.CopyFrom(program_shape)
        module = Module(proto)
        verify(module, self._checked)
        return module
