"""`Builder`: new HLO modules, computation by computation."""

from __future__ import annotations

from collections.abc import Sequence

from tests.internals.hlo.computation import ComputationBuilder, Function, Value
from xfunc.graph.node import array_type
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.attributes import NAME
from xfunc.hlo.edit import add_copies, copied
from xfunc.hlo.errors import InvalidHloError
from xfunc.hlo.final import WholeProgram, written
from xfunc.hlo.module import Module
from xfunc.hlo.shape import Shape
from xfunc.hlo.spmd.annotations import SHARDING, pair, unspecified
from xfunc.hlo.verify import Signature, verify
from xfunc.hlo.write import write

_MOST = 2**31  # ids that may be taken over


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
        self._last_id = 0

    def new_id(self) -> int:
        """An id that is unused in the module."""
        self._last_id += 1
        return self._last_id

    def computation(self, name: str) -> ComputationBuilder:
        """Begin a computation."""
        return ComputationBuilder(self, name)

    def finish(self, proto: pb.HloComputationProto, checked: Signature | None = None) -> Function:
        """Add a computation whose ids are from `new_id`.

        Args:
            proto: of the computation.
            checked: its signature, if it is known to be well formed.
        """
        self._finished.append(proto)
        if checked is None:
            stated = proto.program_shape
            parameters = [Shape.from_proto(p) for p in stated.parameters]
            result = Shape.from_proto(stated.result)
        else:
            parameters, result = checked
        return Function(proto.id, proto.name, tuple(parameters), result, self)

    def embed(self, module: Module) -> Function:
        """Add the computations of another module; returns the function of its entry.

        The same `Module` is added once, however often it is embedded.
        """
        if module not in self._embedded:
            signatures = verify(module)
            computations = list(module.proto.computations)
            if not self._last_id and (last := _last_number(module.proto)) <= _MOST:
                self._last_id = last  # Nothing was added yet: all of its ids and names are free.
            else:
                ids: dict[int, int] = {}
                computations = [copied(c, ids, self.new_id) for c in computations]
            made = {
                k: self.finish(c, s)
                for c, (k, s) in zip(computations, signatures.items(), strict=True)
            }
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
        )
        add_copies(proto.computations, self._finished)
        program_shape = next(c for c in self._finished if c.id == entry.id).program_shape
        proto.host_program_shape.CopyFrom(program_shape)
        module = Module(proto)
        verify(module)
        return module


def finished(module: Module, keeps_automatic: bool = True) -> pb.HloModuleProto:
    """The module as that of a whole program."""
    assert module.graph is not None
    program = WholeProgram(lambda _: None, keeps_automatic=keeps_automatic)
    return pb.HloModuleProto.FromString(written(module.graph, program))


def constrain(
    body: ComputationBuilder, x: Value, sharding: pb.OpSharding, free: Sequence[int] = ()
) -> Value:
    """The same value with a sharding; XLA chooses the sharding of the dimensions in `free`."""
    how = unspecified(free)
    return body.custom_call(SHARDING, [x], x.shape, sharding=sharding, config=how)


def tie(
    body: ComputationBuilder, a: Value, b: Value, *, automatic: bool = False
) -> tuple[Value, Value]:
    """Two values, sharded alike."""
    types = [array_type(x.shape.dtype, x.shape.dims) for x in (a, b)]
    both = Module.from_bytes(write(pair(types[0], types[1], automatic)))
    found = body.call(body.module.embed(both), [a, b])
    return body.get_tuple_element(found, 0), body.get_tuple_element(found, 1)


def named(body: ComputationBuilder, x: Value, name: str) -> Value:
    """The same value, with a name."""
    value, proto = body.instruction("copy", x.shape, [x])
    proto.frontend_attributes.map[NAME] = name
    return value


def _last_number(proto: pb.HloModuleProto) -> int:
    """The largest of a module's ids and of the numbers that its names end in."""
    every = [x for c in proto.computations for x in (c, *c.instructions)]
    ends = [x.name.rpartition(".")[2] for x in every]
    return max(*[x.id for x in every], *map(int, ends))
