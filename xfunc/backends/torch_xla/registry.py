"""Host calls for torch_xla's CPU client.

NOTE [the way into XLA's registry]: torch_xla 2.9 has `_xla_register_custom_call_target`, which
fails with "RegisterCustomCall not implemented" on the CPU, and its library exports no other way to
register a custom call. It does contain XLA's own table of C functions, at an address in the symbol
table of the library's file; the table's interface is C, versioned by XLA (`xfunc.backends.ffi`). If
the file has no symbol table, nothing can be registered.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
from ctypes import c_void_p

import numpy as np

from xfunc.backends.ffi import API, VERSION, Registry
from xfunc.backends.host_calls import TARGET, handler, stop_at_exit
from xfunc.backends.torch_xla import runtime


@functools.cache
def calls_host() -> bool:
    """Whether programs of the running device can call Python functions."""
    found = _registry()
    if found is None:
        return False
    found.register(TARGET, handler)
    stop_at_exit()
    return True


def _registry() -> Registry | None:
    """The table of the running CPU client; None if it cannot be reached."""
    if not runtime.is_cpu():
        return None
    path = runtime.xla().__file__
    assert path is not None
    start, get_api = _symbols(path, [b"PyInit__XLAC", b"_ZN3xla3ffi12GetXlaFfiApiEv"])
    if start is None or get_api is None:
        return None
    loaded = ctypes.cast(ctypes.CDLL(path).PyInit__XLAC, c_void_p).value
    assert loaded is not None
    api = ctypes.CFUNCTYPE(c_void_p)(loaded - start + get_api)()
    version = API.from_address(api).version
    return Registry(api) if (version.major, version.minor) == VERSION else None


# 64-bit ELF files: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.symtab.html
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOLS = 2
_SYMBOL = np.dtype("<u4, u1, u1, <u2, <u8, <u8")  # name, info, other, section, value, size


def _symbols(path: str, names: list[bytes]) -> list[int | None]:
    """The values of symbols in a library's file; None for a symbol not found exactly once."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            return [None] * len(names)
        (first,) = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
        sections = [_SECTION.unpack_from(data, first + i * size) for i in range(count)]
        for _, kind, _, _, offset, length, link, *_ in sections:
            if kind == _SYMBOLS:
                start, end = sections[link][4], sections[link][4] + sections[link][5]
                places = [data.find(b"\0" + n + b"\0", start, end) + 1 - start for n in names]
                table = np.frombuffer(data[offset : offset + length], _SYMBOL)
                found = [table["f4"][table["f0"] == p] for p in places]
                return [int(v[0]) if len(v) == 1 else None for v in found]
    return [None] * len(names)
