"""`Module`, `Computation`, `Instruction`: HLO, read."""

from __future__ import annotations

import functools
from collections.abc import Callable

from xfunc.graph import opcodes
from xfunc.graph.graph import Graph
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.errors import InvalidHloError
from xfunc.hlo.read import UnreadableError, read
from xfunc.hlo.shape import Shape
from xfunc.hlo.verify import verify


class Instruction:
    """One instruction; compared by identity.

    Attributes:
        proto: the protobuf it is a view of.
        id: unique in the module.
        computation: the computation it belongs to.
        operands: the instructions of its inputs.
    """

    __slots__ = ("_shape", "computation", "id", "opcode", "operands", "proto")

    proto: pb.HloInstructionProto
    id: int
    opcode: str
    computation: Computation
    operands: tuple[Instruction, ...]
    _shape: Shape | None

    def __init__(
        self,
        proto: pb.HloInstructionProto,
        id: int,
        computation: Computation,
        operands: tuple[Instruction, ...],
    ) -> None:
        self.proto = proto
        self.id = id
        self.opcode = proto.opcode
        self.computation = computation
        self.operands = operands
        self._shape = None

    @property
    def name(self) -> str:
        """Its name, which is unique in the module and ends in its id."""
        return self.proto.name

    @property
    def shape(self) -> Shape:
        """The shape of its result."""
        if self._shape is None:
            try:
                self._shape = Shape.from_proto(self.proto.shape)
            except InvalidHloError as e:
                raise InvalidHloError(f"{self}: {e}") from None
        return self._shape

    @shape.setter
    def shape(self, shape: Shape) -> None:
        """Give its result another shape; `proto` keeps its own."""
        self._shape = shape

    @property
    def bytes(self) -> int:
        """Size of its result in bytes."""
        return self.shape.bytes

    @property
    def parameter_number(self) -> int:
        """Position among the parameters.

        Raises:
            InvalidHloError: it is not a parameter.
        """
        if self.opcode != "parameter":
            raise InvalidHloError(f"{self} is no parameter")
        return self.proto.parameter_number

    @property
    def users(self) -> tuple[Instruction, ...]:
        """The instructions that take its result, each once, in order."""
        return self.computation.users_of(self)

    @property
    def called_computations(self) -> tuple[Computation, ...]:
        """The computations that it calls."""
        if self.opcode not in opcodes.CALLING:  # See NOTE [absent fields].
            return ()
        module = self.computation.module
        return tuple(module.computation(c) for c in self.proto.called_computation_ids)

    def __str__(self) -> str:
        return f"instruction {self.name!r} in computation {self.computation.name!r}"

    def __repr__(self) -> str:
        return f"<{self.name} = {self.opcode}>"


class Computation:
    """A function of HLO; compared by identity.

    Attributes:
        proto: the protobuf it is a view of.
        module: the module it belongs to.
    """

    def __init__(self, proto: pb.HloComputationProto, module: Module) -> None:
        self.proto = proto
        self.module = module

    @property
    def id(self) -> int:
        """Unique in the module."""
        return self.proto.id

    @property
    def name(self) -> str:
        """Its name, which is unique in the module."""
        return self.proto.name

    @functools.cached_property
    def by_id(self) -> dict[int, Instruction]:
        """Its instructions by id, in order."""
        result: dict[int, Instruction] = {}
        for proto in self.proto.instructions:
            key = proto.id
            try:
                operands = tuple([result[k] for k in proto.operand_ids[:]])
            except KeyError as e:
                raise InvalidHloError(
                    f"instruction {proto.name!r} in computation {self.name!r}: "
                    f"operand {e} is not defined before it"
                ) from None
            result[key] = Instruction(proto, key, self, operands)
        return result

    @functools.cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """Its instructions, operands before their users."""
        return tuple(self.by_id.values())

    @functools.cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """Its parameters, by number."""
        found = [i for i in self.instructions if i.opcode == "parameter"]
        return tuple(sorted(found, key=lambda i: i.parameter_number))

    @property
    def root(self) -> Instruction:
        """The instruction with the computation's result."""
        try:
            return self.by_id[self.proto.root_id]
        except KeyError as e:
            raise InvalidHloError(f"computation {self.name!r} has no root {e}") from None

    def users_of(self, instruction: Instruction) -> tuple[Instruction, ...]:
        """The instructions that take this one's result, each once, in order."""
        return tuple(self._users.get(instruction.id, ()))

    @functools.cached_property
    def _users(self) -> dict[int, dict[Instruction, None]]:
        result: dict[int, dict[Instruction, None]] = {}
        for i in self.instructions:
            for operand in i.operands:
                result.setdefault(operand.id, {})[i] = None
        return result

    def __repr__(self) -> str:
        return f"<computation {self.name}: {len(self.proto.instructions)} instructions>"


class Module:
    """An HLO module, read; compared by identity.

    The views are made on first access, so the protobuf must not change afterwards. Reading checks
    nothing; `verify` does.

    Attributes:
        proto: the protobuf it is a view of. It keeps fields that xfunc does not know.
    """

    def __init__(self, proto: pb.HloModuleProto) -> None:
        self.proto = proto

    @classmethod
    def from_bytes(cls, data: bytes) -> Module:
        """Read a serialised ``HloModuleProto``."""
        return cls(pb.HloModuleProto.FromString(data))

    def to_bytes(self) -> bytes:
        """Serialise; equal modules give equal bytes."""
        return self.proto.SerializeToString(deterministic=True)

    @property
    def name(self) -> str:
        """Its name."""
        return self.proto.name

    @functools.cached_property
    def computations(self) -> tuple[Computation, ...]:
        """All computations, callees before their callers."""
        return tuple(Computation(c, self) for c in self.proto.computations)

    @functools.cached_property
    def _computations(self) -> dict[int, Computation]:
        return {c.id: c for c in self.computations}

    @functools.cached_property
    def _instructions(self) -> dict[int, Instruction]:
        return {key: i for c in self.computations for key, i in c.by_id.items()}

    def computation(self, id: int) -> Computation:
        """The computation of this id."""
        try:
            return self._computations[id]
        except KeyError:
            raise InvalidHloError(f"module {self.name!r} has no computation {id}") from None

    def instruction(self, id: int) -> Instruction:
        """The instruction of this id."""
        try:
            return self._instructions[id]
        except KeyError:
            raise InvalidHloError(f"module {self.name!r} has no instruction {id}") from None

    @property
    def entry(self) -> Computation:
        """The computation that running the module runs."""
        return self.computation(self.proto.entry_computation_id)

    @functools.cached_property
    def graph(self) -> Graph | None:
        """The graph that it was written from, or can be read as; None if there is none."""
        try:
            return read(self.proto)
        except UnreadableError:
            return None

    def __str__(self) -> str:
        """HLO text, as XLA prints it.

        Raises:
            InvalidHloError: the module is broken.
        """
        verify(self)
        try:
            return _printer(self)
        except RuntimeError as error:
            raise InvalidHloError(f"module {self.name!r}: {error}") from error

    def __repr__(self) -> str:
        return f"<HLO module {self.name}: {len(self.proto.computations)} computations>"


def _no_printer(module: Module) -> str:
    raise RuntimeError("nothing that prints HLO has been imported: import xfunc")


_printer: Callable[[Module], str] = _no_printer


def set_printer(printer: Callable[[Module], str]) -> None:
    """Let modules be printed by XLA, which only a backend has."""
    global _printer
    _printer = printer
