"""`skip_passed_on`: values that a called function only passes on are those of its caller.

A rule may return its arguments as residuals. Behind the call they look like new values, and a loop
would keep a copy of a weight that it has at hand at each step.
"""

from __future__ import annotations

from xfunc.hlo.module import Computation, Instruction, Module


def skip_passed_on(module: Module) -> Module:
    """The module without the elements of calls in its entry that are arguments of these calls."""
    passed = _Passed()
    origins = {i.id: passed.origin(i).id for i in module.entry.instructions}
    return module.bypassing({k: origin for k, origin in origins.items() if k != origin})


class _Passed:
    """Knows of each computation which results are parameters."""

    def __init__(self) -> None:
        self._found: dict[int, dict[int, int]] = {}

    def origin(self, i: Instruction) -> Instruction:
        """The value that an instruction passes on; most make one of their own."""
        while i.opcode == "get-tuple-element" and i.operands[0].opcode == "call":
            (call,) = i.operands
            number = self._of(*call.called_computations).get(i.proto.tuple_index)
            if number is None:
                break
            i = call.operands[number]
        return i

    def _of(self, c: Computation) -> dict[int, int]:
        """By the number of a result, that of the parameter."""
        if c.id not in self._found:
            results = map(self.origin, c.root.operands if c.root.opcode == "tuple" else ())
            self._found[c.id] = {
                k: r.parameter_number for k, r in enumerate(results) if r.opcode == "parameter"
            }
        return self._found[c.id]
