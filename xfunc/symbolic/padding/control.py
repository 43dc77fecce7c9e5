"""The pass itself: computations, and the instructions that run others."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from xfunc.backends.devices import device_count
from xfunc.graph.composite import operation_of
from xfunc.hlo import Computation, Instruction, Module
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import fresh_ids, instruction, renamed
from xfunc.hlo.passes.common import dead_code_elimination
from xfunc.hlo.passes.offload import is_placement
from xfunc.hlo.spmd.annotations import SHARDING, is_pair, is_region, is_tie
from xfunc.hlo.spmd.shardy_regions import of_one_device
from xfunc.symbolic.folded_cumulative import is_folded
from xfunc.symbolic.interpolation import SymbolicModule
from xfunc.symbolic.padding import pooling, reductions, regions, rules, sorting, windows
from xfunc.symbolic.padding.convolution import convolution
from xfunc.symbolic.padding.emit import S64, Emitter, array
from xfunc.symbolic.padding.layouts import own
from xfunc.symbolic.padding.rules import remade, result
from xfunc.symbolic.padding.states import (
    flat,
    forgotten,
    joined,
    reachable,
    shape_of,
    signature,
    tuple_of,
    varies,
    whole,
)
from xfunc.symbolic.padding.values import Inexact, PaddedValue, Relayout, State
from xfunc.symbolic.polynomial import Polynomial, Size

_RULES = {
    **rules.RULES,
    **reductions.RULES,
    **windows.RULES,
    **pooling.RULES,
    **sorting.RULES,
    **regions.RULES,
    "convolution": convolution,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Padded:
    """A program for a bucket.

    Attributes:
        module: takes the actual sizes of the symbols as its last parameters, int64 scalars.
        outputs: the exact sizes of each result's dimensions.
        masks: the number of selects that keep padding out.
    """

    module: Module
    outputs: tuple[tuple[Size, ...], ...]
    masks: int


def padded(symbolic: SymbolicModule) -> Padded:
    """The module for the bucket that `symbolic` describes, for all sizes up to the bucket's.

    Raises:
        Inexact: an instruction cannot be made exact.
    """
    return _Pass(symbolic).run()


class _Pass:
    def __init__(self, symbolic: SymbolicModule) -> None:
        self.symbolic, self.names = symbolic, tuple(symbolic.box.ranges)
        self.proto = pb.HloModuleProto()
        self.proto.CopyFrom(symbolic.module.proto)
        self.ids = fresh_ids(self.proto)
        self.made: list[pb.HloComputationProto] = []
        self.known: dict[object, tuple[pb.HloComputationProto, State]] = {}
        self.plain: dict[int, bool] = {}
        self.masks: dict[int, int] = {}
        self.divided = device_count() > 1 or any(
            i.proto.custom_call_target == SHARDING
            for c in symbolic.module.computations
            for i in c.instructions
        )

    def run(self) -> Padded:
        for c in self.symbolic.module.computations:
            self._check_bounds(c)
        entry = self.symbolic.module.entry
        inputs: list[State] = [self._input(p) for p in entry.parameters]
        proto, outputs = self.computation(entry, inputs)
        assert isinstance(outputs, list)
        exact = [x.sizes for x in outputs if isinstance(x, PaddedValue)]
        kept = [c for c in self.proto.computations if c.id != entry.id]
        del self.proto.computations[:]
        self.proto.computations.extend([*kept, *self.made])
        self.proto.entry_computation_id = proto.id
        self.proto.entry_computation_name = proto.name
        self.proto.host_program_shape.CopyFrom(proto.program_shape)
        proto = reachable(self.proto)
        masks = sum(self.masks.get(c.id, 0) for c in proto.computations)
        return Padded(dead_code_elimination(Module(proto)), tuple(exact), masks)

    def _check_bounds(self, c: Computation) -> None:
        """Check that the exact shape fits in the bucket's, whatever the sizes."""
        for i in c.instructions:
            if i.proto.control_predecessor_ids:
                raise Inexact(f"{i.opcode} that waits for another instruction", i)
            shapes = flat(i.shape)
            dims = [n for s in shapes for n in s.dims]
            for n, size in zip(dims, self.symbolic.dims(i), strict=True):
                if isinstance(size, Polynomial) and not self.symbolic.box.at_most(size, n):
                    raise Inexact(f"a dimension of size {size}, which smaller sizes may exceed", i)

    def _input(self, p: Instruction) -> PaddedValue:
        sizes = self.symbolic.dims(p)
        layouts = tuple(own(n, s) for n, s in zip(p.shape.dims, sizes, strict=True))
        return PaddedValue(0, p.shape.element_type, p.shape.dims, sizes, layouts)

    # -- computations ---------------------------------------------------------------------------

    def computation(
        self, c: Computation, inputs: Sequence[State], packed: bool = False
    ) -> tuple[pb.HloComputationProto, State]:
        """A computation for inputs with given layouts, and the layout of its result.

        It takes the actual sizes as well: as further parameters, or, if `packed`, after the
        elements of its one parameter, which is a tuple, as in loops and branches.
        """
        key = (c.id, packed, self.divided, tuple(map(signature, inputs)))
        if key in self.known:
            return self.known[key]
        body = _Body(self, c, inputs, packed)
        self.known[key] = body.built()
        return self.known[key]

    def is_plain(self, c: Computation) -> bool:
        """Whether nothing in a computation depends on sizes."""
        if c.id not in self.plain:
            numbers = (
                x for i in c.instructions for xs in self.symbolic.numbers[i.id].values() for x in xs
            )
            self.plain[c.id] = all(isinstance(x, (int, float)) for x in numbers) and all(
                self.is_plain(k) for i in c.instructions for k in i.called_computations
            )
        return self.plain[c.id]


class _Body:
    """One computation in the making."""

    def __init__(self, whole: _Pass, c: Computation, inputs: Sequence[State], packed: bool) -> None:
        self.whole, self.c = whole, c
        self.proto = pb.HloComputationProto(id=next(whole.ids))
        # With varying shapes it is no longer a composite: nothing may be substituted for it.
        name = c.name if operation_of(c.name) is None else "spelled_out"
        self.proto.name = renamed(name, self.proto.id)
        self.values: dict[int, State] = {}
        n = len(whole.names)
        made: list[pb.HloInstructionProto] = []
        sizes: list[int] = []

        def parameter(shape: pb.ShapeProto) -> int:
            p = instruction("parameter", next(whole.ids), shape)
            p.parameter_number = len(self.proto.program_shape.parameters)
            self.proto.program_shape.parameters.append(shape)
            self.proto.program_shape.parameter_names.append(p.name)
            made.append(p)
            return p.id

        def element(of: int, k: int, shape: pb.ShapeProto) -> int:
            p = instruction("get-tuple-element", next(whole.ids), shape, [of])
            p.tuple_index = k
            made.append(p)
            return p.id

        def placed(x: State, id: int) -> State:
            if isinstance(x, PaddedValue):
                return dataclasses.replace(x, id=id)
            return [placed(e, element(id, k, shape_of(e))) for k, e in enumerate(x)]

        scalar = array(S64, ())
        if packed:
            (state,) = inputs
            elements = state if isinstance(state, list) else [state]
            shape = tuple_of([*map(shape_of, elements), *[scalar] * n])
            whole_id = parameter(shape)
            found = [placed(e, element(whole_id, k, shape_of(e))) for k, e in enumerate(elements)]
            sizes = [element(whole_id, len(elements) + k, scalar) for k in range(n)]
            given: list[State] = [found if isinstance(state, list) else found[0]]
        else:
            given = [placed(x, parameter(shape_of(x))) for x in inputs]
            sizes = [parameter(scalar) for _ in range(n)]
        for p, x in zip(c.parameters, given, strict=True):
            self.values[p.id] = x
            if isinstance(x, PaddedValue):
                at = next(m for m in made if m.id == x.id)
                at.metadata.CopyFrom(p.proto.metadata)
                if p.proto.HasField("sharding"):
                    at.sharding.CopyFrom(p.proto.sharding)
        self.sizes = self.sizes_inside = sizes
        named = dict(zip(whole.names, sizes, strict=True))
        self.emit = Emitter(whole.ids, named, whole.made)
        self.emit.instructions += made
        self.movers = Relayout(self.emit, whole.symbolic, whole.divided)
        self.of_one_device: set[int] = set()
        if is_region(c.proto):
            self.sizes_inside = regions.sizes_inside(self.emit, sizes)
            self.of_one_device = of_one_device(c.proto)

    def built(self) -> tuple[pb.HloComputationProto, State]:
        for i in self.c.instructions:
            if i.opcode != "parameter":
                self.emit.source = i.proto
                with self.scope(i):
                    self.values[i.id] = self.apply(i, [self.values[x.id] for x in i.operands])
        root = self.values[self.c.root.id]
        if self.c.id == self.whole.symbolic.module.proto.entry_computation_id:
            # The results are at the beginning, to be cut to size.
            assert isinstance(root, list)
            root = [*map(self._plain, root)]
        return self.finished(root), root

    def scope(self, i: Instruction) -> contextlib.AbstractContextManager[None]:
        """A block that adds instructions for one."""
        if i.id not in self.of_one_device:
            return contextlib.nullcontext()
        return self.emit.in_region(dict(zip(self.whole.names, self.sizes_inside, strict=True)))

    def _plain(self, x: State) -> State:
        assert isinstance(x, PaddedValue)
        for d in range(len(x.dims)):
            x = self.movers.plain(x, d)
        return x

    def finished(self, root: State) -> pb.HloComputationProto:
        self.proto.root_id = self.packed_up(root)
        self.proto.instructions.extend(self.emit.settled())
        self.proto.program_shape.result.CopyFrom(shape_of(root))
        self.whole.made.append(self.proto)
        self.whole.masks[self.proto.id] = self.emit.count
        return self.proto

    def packed_up(self, x: State) -> int:
        """The instruction that computes a value."""
        if isinstance(x, PaddedValue):
            return x.id
        ids = [self.packed_up(e) for e in x]
        return self.emit.put(instruction("tuple", self.emit.new_id(), shape_of(x), ids))

    def taken_apart(self, x: State, id: int) -> State:
        """The value, as computed by an instruction."""
        if isinstance(x, PaddedValue):
            return dataclasses.replace(x, id=id)
        result: list[State] = []
        for k, e in enumerate(x):
            made = instruction("get-tuple-element", self.emit.new_id(), shape_of(e), [id])
            made.tuple_index = k
            result.append(self.taken_apart(e, self.emit.put(made)))
        return result

    # -- instructions ---------------------------------------------------------------------------

    def apply(self, i: Instruction, operands: list[State]) -> State:
        opcode = i.opcode
        if opcode == "tuple":
            return list(operands)
        if opcode == "get-tuple-element":
            (x,) = operands
            assert isinstance(x, list)
            return x[i.proto.tuple_index]
        if opcode == "opt-barrier":
            return self.barrier(i, operands[0])
        if opcode == "call":
            return self.call(i, operands)
        if opcode == "while":
            return self.loop(i, operands[0])
        if opcode == "conditional":
            return self.branches(i, operands)
        if opcode not in rules.LIGHT and self.is_whole(i, operands):
            ids = [self.packed_up(x) for x in operands]
            return self.taken_apart(whole(i.shape), remade(self.movers, i, ids))
        arrays = [x for x in operands if isinstance(x, PaddedValue)]
        if len(arrays) == len(operands):
            if opcode in _RULES:
                return _RULES[opcode](self.movers, i, arrays)
            if is_folded(i.proto):
                return sorting.running(self.movers, i, arrays)
            if i.proto.custom_call_target in regions.BORDERS:
                return regions.BORDERS[i.proto.custom_call_target](self.movers, i, arrays)
            is_said = i.proto.custom_call_target == SHARDING and not is_tie(i.proto)
            if opcode == "custom-call" and (is_said or is_placement(i)):
                return result(
                    self.movers, i, [arrays[0].id], arrays[0].layouts, arrays[0].pad_values
                )
        what = i.proto.custom_call_target or opcode
        raise Inexact(f"{what} of an array whose shape varies", i)

    def is_whole(self, i: Instruction, operands: Sequence[State]) -> bool:
        """Whether an instruction has nothing to do with sizes."""
        numbers = (x for xs in self.whole.symbolic.numbers[i.id].values() for x in xs)
        return (
            not any(varies(x) for x in operands)
            and all(isinstance(x, (int, float)) for x in numbers)
            and all(self.whole.is_plain(c) for c in i.called_computations)
        )

    def barrier(self, i: Instruction, x: State) -> State:
        made = instruction(
            "opt-barrier", self.emit.new_id(), shape_of(x), [self.packed_up(x)], i.proto
        )
        return self.taken_apart(x, self.emit.put(made))

    def call(self, i: Instruction, operands: list[State]) -> State:
        (callee,) = i.called_computations
        if self.is_whole(i, operands):
            ids = [self.packed_up(x) for x in operands]
            return self.taken_apart(whole(i.shape), remade(self.movers, i, ids))
        if is_pair(callee.proto):  # It returns its argument.
            ids = [self.packed_up(x) for x in operands]
            return self.taken_apart(list(operands), remade(self.movers, i, ids))
        if is_region(callee.proto):
            regions.check_region(callee, i)
        with self.inside():
            proto, found = self.whole.computation(callee, operands)
        ids = [*map(self.packed_up, operands), *self.sizes_inside]
        made = instruction("call", self.emit.new_id(), shape_of(found), ids, i.proto)
        made.called_computation_ids.append(proto.id)
        return self.taken_apart(found, self.emit.put(made))

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """A block that makes computations called here: in a region, of one device's values."""
        divided = self.whole.divided
        self.whole.divided &= not is_region(self.c.proto)
        try:
            yield
        finally:
            self.whole.divided = divided

    def loop(self, i: Instruction, init: State) -> State:
        if self.is_whole(i, [init]):
            id = remade(self.movers, i, [self.packed_up(init)])
            return self.taken_apart(whole(i.shape), id)
        body, condition = (
            self.whole.symbolic.module.computation(k) for k in i.proto.called_computation_ids
        )
        assert isinstance(init, list)
        state: State = forgotten(init)
        for _ in range(8):
            with self.inside():
                trial = self.of_contents(body, state)
            after = trial.values[body.root.id]
            either = joined(state, after)
            if signature(either) == signature(state):
                break
            state = either
        else:
            raise Inexact("a loop whose state lies differently in each step", i)
        root = trial.like(after, state, i)
        assert isinstance(root, list)
        packed = [*(trial.packed_up(x) for x in root), *trial.sizes]
        sized = tuple_of([*map(shape_of, root), *[array(S64, ())] * len(self.sizes)])
        last = trial.emit.put(instruction("tuple", trial.emit.new_id(), sized, packed))
        trial.proto.root_id = last
        trial.proto.instructions.extend(trial.emit.settled())
        trial.proto.program_shape.result.CopyFrom(sized)
        self.whole.made.append(trial.proto)
        self.whole.masks[trial.proto.id] = trial.emit.count
        with self.inside():
            goes_on, _ = self.whole.computation(condition, [state], packed=True)
        start = self.like(init, state, i)
        assert isinstance(start, list)
        ids = [*(self.packed_up(x) for x in start), *self.sizes_inside]
        first = self.emit.put(instruction("tuple", self.emit.new_id(), sized, ids, i.proto))
        made = instruction("while", self.emit.new_id(), sized, [first], i.proto)
        made.called_computation_ids.extend([trial.proto.id, goes_on.id])
        return self.taken_apart(state, self.emit.put(made))

    def of_contents(self, c: Computation, state: State) -> _Body:
        """The computation of a loop or branch for a state, without its result."""
        body = _Body(self.whole, c, [state], True)
        for j in c.instructions:
            if j.opcode != "parameter":
                body.emit.source = j.proto
                body.values[j.id] = body.apply(j, [body.values[x.id] for x in j.operands])
        return body

    def branches(self, i: Instruction, operands: list[State]) -> State:
        if self.is_whole(i, operands):
            ids = [self.packed_up(x) for x in operands]
            return self.taken_apart(whole(i.shape), remade(self.movers, i, ids))
        which, *inputs = operands
        bodies, outs = [], []
        for c, x in zip(i.called_computations, inputs, strict=True):
            with self.inside():
                body = self.of_contents(c, forgotten(x))
            bodies.append(body)
            outs.append(body.values[c.root.id])
        found = outs[0]
        for x in outs[1:]:
            found = joined(found, x)
        ids = [self.packed_up(which)]
        for x in inputs:
            elements = x if isinstance(x, list) else [x]
            shape = tuple_of([*map(shape_of, elements), *[array(S64, ())] * len(self.sizes)])
            packed = [*map(self.packed_up, elements), *self.sizes_inside]
            ids.append(self.emit.put(instruction("tuple", self.emit.new_id(), shape, packed)))
        made = instruction("conditional", self.emit.new_id(), shape_of(found), ids, i.proto)
        for body, out in zip(bodies, outs, strict=True):
            made.called_computation_ids.append(body.finished(body.like(out, found, i)).id)
        return self.taken_apart(found, self.emit.put(made))

    def like(self, x: State, wanted: State, i: Instruction) -> State:
        """The value in the layouts of another."""
        if isinstance(x, list):
            assert isinstance(wanted, list)
            return [self.like(a, b, i) for a, b in zip(x, wanted, strict=True)]
        assert isinstance(wanted, PaddedValue)
        for d, layout in enumerate(wanted.layouts):
            if layout is not None:
                x = self.movers.relaid(x, d, layout, x.dims[d])
        return x
