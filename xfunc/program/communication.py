"""The base of the primitives by which devices or examples communicate, with its derivatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from xfunc.core.avals import Aval
from xfunc.ops.single_evaluation import materialize
from xfunc.program.bind import bind, or_zeros
from xfunc.program.collective_ops import CollectiveOp, Sum
from xfunc.program.primitive import Primitive, Tensor

C = TypeVar("C", bound="Communication")


@dataclasses.dataclass(frozen=True)
class Communication(Primitive):
    """A primitive of one value, and of operands that identify the participants.

    Attributes:
        exchange: the operation on the values of all participants.
        aval: of the value of each participant.
    """

    exchange: CollectiveOp
    aval: Aval

    @property
    def size(self) -> int:
        """The number of participants."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return self.exchange.name

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return (Aval(self.exchange.result(self.aval.shape, self.size), self.aval.dtype),)

    def of_batch(self: C, n: int) -> C:
        """The primitive of a batch; the collective determines the position of its axis."""
        before, shape = self.exchange.before, self.aval.shape
        wider = Aval((*shape[:before], n, *shape[before:]), self.aval.dtype)
        return dataclasses.replace(self, aval=wider)

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        ct, back = or_zeros(cts[0], self.outputs[0]), self.exchange.transposed()
        if back is None:
            return [self._sum(ct, args) * self._share(args)]
        transposed = dataclasses.replace(self, exchange=back, aval=self.outputs[0])
        return bind(transposed, [ct, *args[1:]])

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        tangent = tangents[0]
        if tangent is None:
            return [None]
        if self.exchange.transposed() is None:
            return [self._sum(tangent * self._share(args), args)]
        return [*bind(self, [tangent, *args[1:]])]

    # For a maximum; equal maxima share the derivative, as in torch's amax.

    def _sum(self, x: Tensor, args: Sequence[Tensor]) -> Tensor:
        return bind(dataclasses.replace(self, exchange=Sum()), [x, *args[1:]])[0]

    def _share(self, args: Sequence[Tensor]) -> Tensor:
        """One over the number of maxima where the value is the maximum; else zero."""
        x = materialize(args[0])
        is_max = (x == bind(self, [x, *args[1:]])[0]).to(x.dtype)
        return is_max / self._sum(is_max, args)
