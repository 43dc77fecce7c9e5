"""`ComputationBuilder`: a computation of a new module, instruction by instruction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.errors import InvalidHloError
from xfunc.hlo.literal import scalar_literal, write_literal
from xfunc.hlo.shape import Shape
from xfunc.hlo.verify import PRED, mismatch

if TYPE_CHECKING:
    from tests.internals.hlo.builder import Builder


@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """A finished computation, to be called: see `Builder`.

    Attributes:
        id: of the computation.
        name: of the computation.
        parameters: the shapes it takes.
        result: the shape it returns.
        owner: the builder of the module it is part of.
    """

    id: int
    name: str
    parameters: tuple[Shape, ...]
    result: Shape
    owner: Builder = dataclasses.field(repr=False)


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """The result of an instruction.

    Attributes:
        id: of the instruction.
        name: of the instruction.
        shape: of the result.
        owner: the computation that the instruction is part of; nothing else may use it.
    """

    id: int
    name: str
    shape: Shape
    owner: ComputationBuilder = dataclasses.field(repr=False)


class ComputationBuilder:
    """Builds a computation; get one from `Builder.computation`.

    Every method but `build` adds an instruction (or a few) and returns its result.

    Attributes:
        proto: the computation as far as it is built.

    Raises:
        InvalidHloError: from any method, when shapes do not fit or a value is from elsewhere.
    """

    def __init__(self, module: Builder, name: str) -> None:
        self.module = module
        self._id = module.new_id()
        self.name = f"{name}.{self._id}"
        self.proto = pb.HloComputationProto(id=self._id, name=self.name)
        self._parameters: list[Shape] = []
        self._finished = False

    def parameter(self, shape: Shape) -> Value:
        """The next parameter: the first is number 0."""
        value, proto = self.instruction("parameter", shape)
        proto.parameter_number = len(self._parameters)
        self._parameters.append(shape)
        self.proto.program_shape.parameters.append(proto.shape)
        self.proto.program_shape.parameter_names.append(proto.name)
        return value

    def constant(self, value: bool | int | float | complex, dtype: torch.dtype) -> Value:
        """A scalar."""
        made, proto = self.instruction("constant", Shape(dtype))
        proto.literal.CopyFrom(scalar_literal(value, dtype))
        return made

    def literal(self, tensor: torch.Tensor) -> Value:
        """The values of a CPU tensor."""
        if tensor.device.type != "cpu":
            self._fail("constant", f"its tensor is on {tensor.device}, not on the CPU")
        value, proto = self.instruction("constant", Shape(tensor.dtype, tensor.shape))
        write_literal(tensor, proto.literal)
        return value

    def iota(self, n: int, dtype: torch.dtype) -> Value:
        """0, 1, ... n - 1."""
        value, proto = self.instruction("iota", Shape(dtype, (n,)))
        proto.dimensions.append(0)
        return value

    def zeros(self, shape: Shape) -> Value:
        """Zeros of an array shape, or a tuple of them."""
        if shape.is_tuple:
            return self.tuple([self.zeros(s) for s in shape.elements])
        return self.broadcast(self.constant(0, shape.dtype), shape.dims)

    def tuple(self, values: Sequence[Value]) -> Value:
        """A tuple of values."""
        return self._checked("tuple", Shape.of_tuple(v.shape for v in values), values)

    def get_tuple_element(self, value: Value, index: int) -> Value:
        """Element `index` of a tuple."""
        elements = value.shape.elements
        shape = elements[index] if 0 <= index < len(elements) else value.shape
        return self._checked("get-tuple-element", shape, [value], tuple_index=index)

    def call(self, target: Function, operands: Sequence[Value]) -> Value:
        """``target(*operands)``."""
        return self._checked("call", target.result, operands, [target])

    def while_(self, condition: Function, body: Function, init: Value) -> Value:
        """``while condition(x): x = body(x)`` from ``x = init`` on; the last ``x``."""
        return self._checked("while", init.shape, [init], [body, condition])

    def conditional(
        self, index: Value, branches: Sequence[Function], operands: Sequence[Value]
    ) -> Value:
        """``branches[index](operands[index])``.

        With a boolean, the first branch is for True. An int32 out of range means the last branch.
        """
        if not branches:
            self._fail("conditional", "it has no branches")
        return self._checked("conditional", branches[0].result, [index, *operands], branches)

    def custom_call(
        self,
        target: str,
        operands: Sequence[Value],
        shape: Shape,
        *,
        side_effect: bool = False,
        attributes: Mapping[str, str] | None = None,
        sharding: pb.OpSharding | None = None,
        config: str = "",
    ) -> Value:
        """A custom call of the compiler's `target`, which returns a value of this shape.

        Args:
            target: a name that the compiler knows.
            operands: its operands.
            shape: of the result.
            side_effect: keep it even if nothing uses its result.
            attributes: frontend attributes.
            sharding: of the result.
            config: its configuration, in a form that depends on the target.
        """
        value, proto = self.instruction("custom-call", shape, operands)
        proto.custom_call_target = target
        proto.custom_call_has_side_effect = side_effect
        proto.custom_call_api_version = 1  # API_VERSION_ORIGINAL
        if attributes:
            proto.frontend_attributes.map.update(attributes)
        if sharding is not None:
            proto.sharding.CopyFrom(sharding)
        if config:
            proto.backend_config = config.encode()
        return value

    def opt_barrier(self, values: Sequence[Value]) -> list[Value]:
        """The same values, behind a barrier that optimisations do not look through."""
        if not values:
            return []
        packed = self.tuple(values)
        behind = self._checked("opt-barrier", packed.shape, [packed])
        return [self.get_tuple_element(behind, k) for k in range(len(values))]

    def add(self, a: Value, b: Value) -> Value:
        """``a + b``, of equal shapes; of booleans, ``a or b``."""
        return self._binary("add", a, b)

    def subtract(self, a: Value, b: Value) -> Value:
        """``a - b``, of equal shapes."""
        return self._binary("subtract", a, b)

    def multiply(self, a: Value, b: Value) -> Value:
        """``a * b``, of equal shapes; of booleans, ``a and b``."""
        return self._binary("multiply", a, b)

    def compare(self, a: Value, b: Value, direction: str) -> Value:
        """Compare values of equal shapes; `direction` is EQ, NE, GE, GT, LE or LT."""
        if direction not in ("EQ", "NE", "GE", "GT", "LE", "LT"):
            self._fail("compare", f"there is no direction {direction!r}")
        shape = Shape(torch.bool, self._same("compare", a, b).dims)
        value, proto = self.instruction("compare", shape, [a, b])
        proto.comparison_direction = direction
        return value

    def select(self, predicate: Value, a: Value, b: Value) -> Value:
        """`a` where `predicate` (of the same dimensions, or a scalar) is true, else `b`."""
        shape = self._same("select", a, b)
        if predicate.shape == PRED and shape.dims:
            predicate = self.broadcast(predicate, shape.dims)
        if predicate.shape != Shape(torch.bool, shape.dims):
            self._fail("select", f"its predicate is {predicate.shape}, its choices are {shape}")
        return self.instruction("select", shape, [predicate, a, b])[0]

    def convert(self, value: Value, dtype: torch.dtype) -> Value:
        """The same values as another dtype."""
        return self.instruction("convert", Shape(dtype, self._dims("convert", value)), [value])[0]

    def broadcast(self, scalar: Value, dims: Sequence[int]) -> Value:
        """A scalar, repeated to fill an array."""
        if self._dims("broadcast", scalar):
            self._fail("broadcast", f"its operand is no scalar but {scalar.shape}")
        return self.instruction("broadcast", Shape(scalar.shape.dtype, dims), [scalar])[0]

    def reshape(self, value: Value, dims: Sequence[int]) -> Value:
        """The same values in row-major order, as an array of other dimensions."""
        old = self._dims("reshape", value)
        if math.prod(old) != math.prod(dims):
            self._fail("reshape", f"{value.shape} does not fit into dimensions {[*dims]}")
        return self.instruction("reshape", Shape(value.shape.dtype, dims), [value])[0]

    def dynamic_slice(
        self, value: Value, start_indices: Sequence[Value], sizes: Sequence[int]
    ) -> Value:
        """``value[i : i + n, ...]`` for each start index and size; starts are clamped to fit."""
        dims = self._dims("dynamic-slice", value)
        self._check_window("dynamic-slice", dims, start_indices, sizes)
        shape = Shape(value.shape.dtype, sizes)
        found, proto = self.instruction("dynamic-slice", shape, [value, *start_indices])
        proto.dynamic_slice_sizes.extend(sizes)
        return found

    def dynamic_update_slice(
        self, value: Value, update: Value, start_indices: Sequence[Value]
    ) -> Value:
        """`value` with `update` written at the start indices, which are clamped to fit."""
        opcode = "dynamic-update-slice"
        dims, sizes = self._dims(opcode, value), self._dims(opcode, update)
        if value.shape.element_type != update.shape.element_type:
            self._fail(opcode, f"{update.shape} cannot be written into {value.shape}")
        self._check_window(opcode, dims, start_indices, sizes)
        return self.instruction(opcode, value.shape, [value, update, *start_indices])[0]

    def instruction(
        self, opcode: str, shape: Shape, operands: Sequence[Value] = ()
    ) -> tuple[Value, pb.HloInstructionProto]:
        """Any instruction: its result, and its protobuf, whose other fields the caller sets."""
        for operand in operands:
            if operand.owner is not self:
                self._fail(
                    opcode, f"operand {operand.name!r} is from computation {operand.owner.name!r}"
                )
        if self._finished:
            self._fail(opcode, "the computation is finished")
        id = self.module.new_id()
        name, ids = f"{opcode}.{id}", [o.id for o in operands]
        proto = self.proto.instructions.add(name=name, opcode=opcode, id=id, operand_ids=ids)
        proto.shape.CopyFrom(shape.proto)
        return Value(id, name, shape, self), proto

    def build(self, root: Value) -> Function:
        """Finish: the computation returns `root`."""
        if root.owner is not self or self._finished:
            what = (
                "it is finished"
                if root.owner is self
                else (f"the root {root.name!r} is from computation {root.owner.name!r}")
            )
            raise InvalidHloError(f"computation {self.name!r}: {what}")
        self._finished = True
        self.proto.root_id = root.id
        self.proto.program_shape.result.CopyFrom(root.shape.proto)
        return self.module.finish(self.proto, (self._parameters, root.shape))

    def _checked(
        self,
        opcode: str,
        shape: Shape,
        operands: Sequence[Value],
        called: Sequence[Function] = (),
        tuple_index: int = 0,
    ) -> Value:
        """Add an instruction whose shape rules `verify` knows."""
        for function in called:
            if function.owner is not self.module:
                self._fail(opcode, f"{function.name!r} is part of module {function.owner.name!r}")
        signatures = [(f.parameters, f.result) for f in called]
        problem = mismatch(opcode, [o.shape for o in operands], shape, signatures, tuple_index)
        if problem is not None:
            self._fail(opcode, problem)
        value, proto = self.instruction(opcode, shape, operands)
        proto.called_computation_ids.extend(f.id for f in called)
        proto.tuple_index = tuple_index
        return value

    def _binary(self, opcode: str, a: Value, b: Value) -> Value:
        return self.instruction(opcode, self._same(opcode, a, b), [a, b])[0]

    def _same(self, opcode: str, a: Value, b: Value) -> Shape:
        if a.shape != b.shape or a.shape.is_tuple:
            self._fail(opcode, f"its operands are {a.shape} and {b.shape}")
        return a.shape

    def _dims(self, opcode: str, value: Value) -> Dims:
        if value.shape.is_tuple:
            self._fail(opcode, f"its operand is no array but {value.shape}")
        return value.shape.dims

    def _check_window(
        self, opcode: str, dims: Dims, start_indices: Sequence[Value], sizes: Sequence[int]
    ) -> None:
        if not len(dims) == len(start_indices) == len(sizes):
            self._fail(
                opcode,
                f"the array has {len(dims)} dimensions, "
                f"there are {len(start_indices)} start indices and {len(sizes)} sizes",
            )
        for size, dim in zip(sizes, dims, strict=True):
            if not 0 <= size <= dim:
                self._fail(opcode, f"sizes {[*sizes]} do not fit into dimensions {[*dims]}")
        shapes = {v.shape for v in start_indices}
        if len(shapes) > 1 or any(
            s.is_tuple or s.dims or s.dtype.is_floating_point or s == PRED for s in shapes
        ):
            found = ", ".join(str(v.shape) for v in start_indices)
            self._fail(opcode, f"its start indices are {found}, not integer scalars of one type")

    def _fail(self, opcode: str, problem: str) -> NoReturn:
        # It names the instruction that was about to be.
        raise InvalidHloError(
            f"instruction '{opcode}.{self.module.new_id()}' in computation {self.name!r}: {problem}"
        )


# Inside ComputationBuilder, `tuple` is the method.
Dims = tuple[int, ...]
