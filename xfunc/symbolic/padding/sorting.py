"""The padding pass's rules for sorts and running operations.

NOTE [padding comes last]: along a padded dimension, one more array is sorted along with the others:
which elements are valid. The comparison asks for it first, so that padding comes after all valid
elements, whatever it holds, and these in the order that they would have without it.
"""

from __future__ import annotations

from xfunc.hlo import Instruction
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import copied, instruction
from xfunc.symbolic.folded_cumulative import dimension
from xfunc.symbolic.padding.emit import PRED, Emitter, array
from xfunc.symbolic.padding.layouts import own
from xfunc.symbolic.padding.rules import remade, results
from xfunc.symbolic.padding.values import PaddedValue, Relayout, State


def sort(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> State:
    """See NOTE [padding comes last]."""
    (d,) = i.proto.dimensions
    if any(x.padded(d) for x in operands):
        operands = [m.plain(x, d) for x in operands]
    operands, layouts = m.alike(operands)
    ids = [x.id for x in operands]
    dims = operands[0].dims
    own = [x or () for x in layouts]
    valid = m.emit.mask(dims, own, [d])
    if valid is None:
        return results(m, i, ids, layouts)
    made = m.emit.proto(remade(m, i, [*ids, valid]))
    made.called_computation_ids[:] = [_comparison(m.emit, i)]
    shape = pb.ShapeProto(element_type=pb.TUPLE)
    shape.tuple_shapes.extend([*(array(x.element_type, dims) for x in operands), array(PRED, dims)])
    made.shape.CopyFrom(shape)
    found: list[State] = []
    for k, x in enumerate(operands):
        element = m.emit.add("get-tuple-element", x.element_type, dims, [made.id])
        m.emit.proto(element).tuple_index = k
        found.append(PaddedValue(element, x.element_type, dims, x.sizes, tuple(layouts)))
    return found if i.shape.is_tuple else found[0]


def _comparison(emit: Emitter, i: Instruction) -> int:
    """The comparison of a sort, with two more parameters: whether each of the two is valid."""
    (given,) = i.called_computations
    made = copied(given.proto, {}, emit.new_id)
    scalar = array(PRED, ())
    flags = []
    for number in range(len(made.program_shape.parameters), len(made.program_shape.parameters) + 2):
        p = instruction("parameter", emit.new_id(), scalar)
        p.parameter_number = number
        made.program_shape.parameters.append(scalar)
        made.program_shape.parameter_names.append(p.name)
        flags.append(p)
    first, second = (p.id for p in flags)
    same = instruction("compare", emit.new_id(), scalar, [first, second])
    same.comparison_direction = "EQ"
    root = instruction("select", emit.new_id(), scalar, [same.id, made.root_id, first])
    made.instructions.extend([*flags, same, root])
    made.root_id = root.id
    emit.computations.append(made)
    return made.id


def running(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> State:
    """See NOTE [one running operation for all sizes]."""
    d = dimension(i.proto)
    operands, layouts = m.alike([m.plain(x, d) for x in operands])
    layouts[d] = own(operands[0].dims[d], operands[0].sizes[d])
    return results(m, i, [x.id for x in operands], layouts)


RULES = {"sort": sort}
