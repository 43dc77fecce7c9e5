"""The base of the primitives by which devices or examples communicate, and its derivatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from xfunc.core.avals import Aval
from xfunc.program.bind import bind, or_zeros
from xfunc.program.exchanges import Exchange, Sum
from xfunc.program.primitive import Primitive, Tensor

C = TypeVar("C", bound="Communication")


@dataclasses.dataclass(frozen=True)
class Communication(Primitive):
    """A primitive of one value, and of whatever says who is communicating.

    Attributes:
        exchange: what is made of the values of all.
        aval: of the value that each one gives.
    """

    exchange: Exchange
    aval: Aval

    @property
    def size(self) -> int:
        """How many they are."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return self.exchange.name

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return (Aval(self.exchange.result(self.aval.shape, self.size), self.aval.dtype),)

    def of_batch(self: C, n: int) -> C:
        """The primitive of a batch, which goes before the axes that the exchange says."""
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

    # Of a maximum; equal maxima share the derivative, as in torch's amax.

    def _sum(self, x: Tensor, args: Sequence[Tensor]) -> Tensor:
        return bind(dataclasses.replace(self, exchange=Sum()), [x, *args[1:]])[0]

    def _share(self, args: Sequence[Tensor]) -> Tensor:
        """Where the value is the maximum, the reciprocal of how many are; else zero."""
        is_max = (args[0] == bind(self, args)[0]).to(args[0].dtype)
        return is_max / self._sum(is_max, args)
