"""Tensors in the files of a checkpoint, where each is an archive that `torch.save` wrote.

`torch.load` takes a millisecond for each archive, however small. Archives of tensors of one shape
and dtype differ in the tensor's data only, so torch reads the first, and its layout serves for the
others.
"""

from __future__ import annotations

import io
import struct
import sys
import zipfile
from typing import NamedTuple

import torch


class Archives:
    """Reads archives, and caches their layouts."""

    def __init__(self) -> None:
        self._forms: dict[int, list[_Form]] = {}  # by the archive's length

    def tensor(self, archive: bytearray) -> torch.Tensor:
        """The tensor in an archive; it may share the archive's memory."""
        forms = self._forms.setdefault(len(archive), [])
        for form in forms:
            if archive.startswith(form.before):
                return form.read(archive)
        result = torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
        form = _form_of(archive, result)
        if form is not None:
            forms.append(form)
        return result


class _Form(NamedTuple):
    """The layout that archives of one shape and dtype share.

    Attributes:
        before: all that comes before the data, the tensor's description included.
        size: of the data, in bytes.
        layout: size, strides and offset of the tensor within its data.
    """

    before: bytes
    size: int
    dtype: torch.dtype
    layout: tuple[torch.Size, tuple[int, ...], int]

    def read(self, archive: bytearray) -> torch.Tensor:
        """The tensor in an archive of this form."""
        start = len(self.before)
        data = torch.frombuffer(archive, dtype=torch.uint8, count=self.size, offset=start)
        return data.view(self.dtype).as_strided(*self.layout)


def _form_of(archive: bytearray, found: object) -> _Form | None:
    """The form of an archive; None if there is more to its tensor than data and their layout."""
    if type(found) is not torch.Tensor or found.layout is not torch.strided or found.requires_grad:
        return None
    if found.is_quantized or found.is_conj() or found.is_neg() or not found.numel():
        return None
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        entries = {e.filename.partition("/")[2]: e for e in file.infolist()}
        order = file.read(entries["byteorder"])
    data = [e for name, e in entries.items() if name.startswith("data/")]
    if len(data) != 1 or order.decode() != sys.byteorder:
        return None
    entry, size = data[0], found.untyped_storage().nbytes()
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != size:
        return None
    place = entry.header_offset
    if any(entries[n].header_offset > place for n in ("data.pkl", "byteorder")):
        return None
    start = place + 30 + sum(struct.unpack_from("<2H", archive, place + 26))  # name and padding
    layout = found.size(), found.stride(), int(found.storage_offset())
    return _Form(bytes(archive[:start]), size, found.dtype, layout)
