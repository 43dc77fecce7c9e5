"""Weights in 4 bits, which are not trained: NF4.

Each block of 64 inputs has a scale, and its codes stand for 16 numbers, chosen so that weights with
a normal distribution use them equally. Codes, scales and the 16 numbers are those of bitsandbytes,
which makes them while weights are read.

Source: Dettmers et al., QLoRA: Efficient Finetuning of Quantized LLMs, 2023.
"""

from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor
from typing_extensions import TypeIs

import xfunc as xf
from xfunc import NamedSharding, P

from ..parallel.sharding import fitting

Form: TypeAlias = Literal["plain", "nf4"]
BLOCK = 64  # numbers of an output that have one scale


class Quantised(NamedTuple):
    """A weight in codes, with a scale for each block of them: `levels()[code] * scale`.

    Two codes are in a byte, the upper one first. Both arrays are transposed: TPUs work on 128
    numbers of the last dimension at once, and so split inputs and bytes along the other one.
    """

    codes: UInt8[Tensor, "in/2 out"]
    scale: Float[Tensor, "in/64 out"]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        *stack, half, out = self.codes.shape
        return (*stack, out, 2 * half)

    def plain(self) -> Float[Tensor, "out in"]:
        """The weight that the codes stand for, in float32."""
        codes = torch.stack([self.codes >> 4, self.codes & 15], -2).flatten(-3, -2)
        # By comparing: a gather of single numbers is slow on TPUs.
        found: list[Any] = [*levels()]
        for bit in range(4):
            odd = (codes >> bit) & 1 == 1
            found = [torch.where(odd, b, a) for a, b in zip(found[::2], found[1::2], strict=True)]
        blocks = found[0].unflatten(-2, (-1, BLOCK)) * self.scale[..., None, :]
        return blocks.flatten(-3, -2).mT


def is_quantised(weight: object) -> TypeIs[Quantised]:
    """Whether it is a weight in codes."""
    return isinstance(weight, Quantised)


def product(x: Float[Tensor, "*batch in"], weight: Quantised) -> Float[Tensor, "*batch out"]:
    """`x` times a weight, in the dtype of `x`. No policy keeps the plain weight."""

    def made(x: Tensor, weight: Quantised) -> Tensor:
        return F.linear(x, weight.plain().to(x.dtype))

    return xf.checkpoint(made)(x, weight)


def made(weight: Tensor, form: Form) -> Tensor | Quantised:
    """A weight on the host in some form."""
    return weight if form == "plain" else nf4(weight)


def nf4(weight: Float[Tensor, "*stack out in"]) -> Quantised:
    """The nearest weight in NF4, by bitsandbytes; rows are multiples of `BLOCK`."""
    rows = weight.shape[:-1]
    wide = weight.float().contiguous()
    codes, about = library().quantize_4bit(wide, blocksize=BLOCK, quant_type="nf4")
    arrays = codes.view(*rows, -1), about.absmax.view(*rows, -1)
    return Quantised(*(a.mT.contiguous() for a in arrays))


def levels() -> tuple[float, ...]:
    """What the 16 codes of NF4 stand for."""
    return tuple(library().get_4bit_type("nf4", device="cpu").tolist())


def library() -> Any:
    """The functions of bitsandbytes."""
    try:
        from bitsandbytes import functional
    except ImportError as error:
        raise ValueError(
            f"train.tune.base is nf4, which needs bitsandbytes ({error}): "
            "pip install bitsandbytes, or leave it out"
        ) from error
    return functional


def abstract(weight: xf.ShapeDtypeStruct, form: Form) -> Any:
    """The shapes of a weight in some form. They are sharded like it as far as sizes permit."""
    if form == "plain":
        return weight
    where, (*stack, out, into) = weight.sharding, weight.shape
    assert isinstance(where, NamedSharding)
    whole = P(*(*where.spec, *(None,) * len(weight.shape))[: len(weight.shape)])
    arrays: Any = (
        _struct((*stack, into // 2, out), torch.uint8, where.mesh, specs(whole).codes),
        _struct((*stack, into // BLOCK, out), torch.float32, where.mesh, specs(whole).scale),
    )
    return Quantised(*arrays)


def specs(spec: P) -> Any:
    """The specs of both arrays of a weight whose dimensions, all of them, are sharded by `spec`."""
    *stack, rows, columns = spec
    both: Any = P(*stack, columns, rows)
    return Quantised(both, both)


def _struct(
    shape: tuple[int, ...], dtype: torch.dtype, mesh: Any, spec: Any
) -> xf.ShapeDtypeStruct:
    """An array, sharded over the axes of `spec` that divide its dimensions."""
    return xf.ShapeDtypeStruct(shape, dtype, NamedSharding(mesh, fitting(mesh, shape, spec)))
