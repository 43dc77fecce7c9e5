"""Weights in the codes of bitsandbytes, as transformers stores them: read as numbers.

A weight in 4 bits is a tensor of bytes, beside tensors whose names begin with its name: the scales
of its blocks, which may be in codes themselves, and a description. One in 8 bits has the largest
number of each output in `SCB`. Quantised again in the same form, the numbers have the same codes.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..families.fields import FormatError
from ..model import quantised

_STATE = ".quant_state.bitsandbytes__"
_OF_4_BITS = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, AssertionError, RuntimeError)


@dataclass(frozen=True)
class Codes:
    """A weight in codes, with the methods of safetensors' slices.

    Attributes:
        name: of the weight.
        beside: the names of the tensors that belong to it.
        read: reads a tensor of the files by its name.
    """

    name: str
    beside: tuple[str, ...]
    read: Callable[[str], Tensor]

    def get_shape(self) -> list[int]:
        """The shape of the weight."""
        state = self._state
        return list(self.read(self.name).shape if state is None else self._about(state)["shape"])

    def get_dtype(self) -> str:
        """The dtype of `plain`, in the spelling of safetensors."""
        return "F32"

    def __getitem__(self, index: slice) -> Tensor:
        return self.plain()[index]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the weight had before."""
        state = self._state
        return torch.float32 if state is None else getattr(torch, self._about(state)["dtype"])

    def plain(self) -> Tensor:
        """What the codes stand for, in float32.

        Raises:
            FormatError: the tensors are damaged.
        """
        in_4_bits = self._state is not None
        how = f"{self.name} is in 4 bits", "give plain weights"
        library = quantised.library(*how) if in_4_bits else None
        try:
            return self._plain(library)
        except _DAMAGED as error:
            raise FormatError(
                f"the codes of {self.name} are damaged ({error}): download them again"
            ) from None

    def _plain(self, library: Any) -> Tensor:
        codes = self.read(self.name)
        if library is None:
            largest = self.read(next(name for name in self.beside if name.endswith(".SCB")))
            return codes.float() * (largest.float() / 127)[:, None]
        parts = {name.removeprefix(self.name + "."): self.read(name) for name in self.beside}
        about = library.QuantState.from_dict(parts, device=torch.device("cpu"))
        about.dtype = torch.float32
        # Bytes may be stored as other dtypes, which some ways of sharding need.
        return library.dequantize_4bit(codes.view(torch.uint8).view(-1, 1), about)

    @property
    def _state(self) -> str | None:
        """The name of the description, which weights in 4 bits have."""
        return next((name for name in self.beside if _STATE in name), None)

    def _about(self, state: str) -> Any:
        try:
            found = json.loads(bytes(self.read(state).tolist()))
            if not isinstance(found["shape"], list) or not hasattr(torch, found["dtype"]):
                raise ValueError("no shape or dtype")
        except _DAMAGED as error:
            raise FormatError(f"{state} is damaged ({error}): download it again") from None
        return found


def beside(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The weights in codes among the tensors of files, and the names of those beside each."""
    every, found = set(names), {}
    for name in every:
        if _STATE in name:
            weight = name.partition(_STATE)[0]
            more = (weight + part for part in _OF_4_BITS)
            found[weight] = (name, *(one for one in more if one in every))
        elif name.endswith(".SCB"):
            module = name.removesuffix(".SCB")
            more = (one for one in (f"{module}.weight_format",) if one in every)
            found[f"{module}.weight"] = (name, *more)
    return {weight: own for weight, own in found.items() if weight in every}


def whole(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of files by name, with `Codes` in place of those of which weights consist."""
    codes = beside(stored)
    rest = set(stored) - {name for own in codes.values() for name in own}
    return {
        name: Codes(name, codes[name], lambda one: stored[one][:])
        if name in codes
        else stored[name]
        for name in stored
        if name in rest
    }
