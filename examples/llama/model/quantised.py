"""Weights in 8 or 4 bits, which are not trained.

`int8` has a scale for each output. `nf4` has one for each block of 64 inputs, and its codes stand
for 16 numbers, chosen so that weights with a normal distribution use them equally. Codes, scales
and the 16 numbers are those of bitsandbytes, which makes them while weights are read.

Source: Dettmers et al., QLoRA: Efficient Finetuning of Quantized LLMs, 2023.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8, UInt8
from torch import Tensor
from typing_extensions import TypeIs

import xfunc as xf
from xfunc import NamedSharding, P

from ..parallel.sharding import fitting

Form: TypeAlias = Literal["plain", "int8", "nf4"]
BLOCK = 64  # numbers of an output that have one scale in NF4


class Quantised(NamedTuple):
    """A weight in codes, with a scale for each group of them.

    In 8 bits it is `codes * scale`. In 4 bits it is `levels()[code] * scale`, with two codes in a
    byte, the upper one first, and both arrays transposed: on TPUs, which work on 128 numbers of the
    last dimension at once, inputs are then split into blocks, and bytes into codes, along the other
    one. Stacked weights have more leading dimensions, over layers and experts.
    """

    codes: Int8[Tensor, "out in"] | UInt8[Tensor, "in/2 out"]
    scale: Float[Tensor, "out 1"] | Float[Tensor, "in/64 out"]

    @property
    def form(self) -> Form:
        """Its dtype says which one it is."""
        return "int8" if self.codes.dtype == torch.int8 else "nf4"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        *stack, first, last = self.codes.shape
        return (*stack, first, last) if self.form == "int8" else (*stack, last, 2 * first)

    def plain(self) -> Float[Tensor, "out in"]:
        """The weight that the codes stand for, in float32."""
        if self.form == "int8":
            return self.codes.float() * self.scale
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
        if weight.form == "int8":
            whole = F.linear(x, weight.codes.to(x.dtype))
            return (whole * weight.scale.squeeze(-1)).to(x.dtype)
        return F.linear(x, weight.plain().to(x.dtype))

    return xf.checkpoint(made)(x, weight)


# -- making them ----------------------------------------------------------------------------------


def made(weight: Tensor, form: Form) -> Tensor | Quantised:
    """A weight on the host in some form."""
    return weight if form == "plain" else FORMS[form](weight)


def int8(weight: Float[Tensor, "*stack out in"]) -> Quantised:
    """The nearest weight in 8 bits: the largest number of each output has the code 127."""
    wide = weight.float()
    largest = wide.abs().amax(-1, keepdim=True)
    scale = torch.where(largest == 0, 1.0, largest / 127)  # NaN if a number is
    return Quantised((wide / scale).round().to(torch.int8), scale)


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


def library(why: str = "train.tune.base is nf4", other: str = "use int8") -> Any:
    """bitsandbytes; for an error, `why` it is needed, and what `other` way there is."""
    try:
        from bitsandbytes import functional
    except ImportError as error:
        raise ValueError(
            f"{why}, which needs bitsandbytes ({error}): pip install bitsandbytes, or {other}"
        ) from error
    return functional


FORMS: dict[str, Callable[[Tensor], Quantised]] = {"int8": int8, "nf4": nf4}


def abstract(weight: xf.ShapeDtypeStruct, form: Form) -> Any:
    """The shapes of a weight in some form. They are sharded like it as far as sizes permit."""
    if form == "plain":
        return weight
    where, (*stack, out, into) = weight.sharding, weight.shape
    assert isinstance(where, NamedSharding)
    whole = P(*(*where.spec, *(None,) * len(weight.shape))[: len(weight.shape)])
    if form == "int8":
        sizes, dtype = ((out, into), (out, 1)), torch.int8
    else:
        sizes, dtype = ((into // 2, out), (into // BLOCK, out)), torch.uint8
    arrays: Any = (
        _struct((*stack, *size), kind, tuple(spec), where.mesh)
        for size, kind, spec in zip(sizes, (dtype, torch.float32), specs(form, whole), strict=True)
    )
    return Quantised(*arrays)


def specs(form: Form, spec: P) -> Any:
    """The specs of both arrays of a weight whose dimensions, all of them, are sharded by `spec`."""
    *stack, rows, columns = spec
    codes = (rows, columns) if form == "int8" else (columns, rows)
    scale = (rows, None) if form == "int8" else codes
    arrays: Any = P(*stack, *codes), P(*stack, *scale)
    return Quantised(*arrays)


def _struct(
    shape: tuple[int, ...], dtype: torch.dtype, spec: tuple[Any, ...], mesh: Any
) -> xf.ShapeDtypeStruct:
    """An array, sharded over the axes of `spec` that divide its dimensions."""
    return xf.ShapeDtypeStruct(shape, dtype, NamedSharding(mesh, fitting(mesh, shape, spec)))
