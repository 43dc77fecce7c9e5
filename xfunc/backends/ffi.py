"""XLA's C interface for custom calls ("FFI"), which is versioned by XLA: all of it is C."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p

VERSION = (0, 1)
API_VERSION = 4
"""The `custom_call_api_version` of instructions that are called this way."""

_PLATFORM = b"Host"
_INTERNAL = 13  # XLA_FFI_Error_Code_INTERNAL
_METADATA = 1  # XLA_FFI_Extension_Metadata


class _Extension(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("type", c_int), ("next", c_void_p))


class _Version(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int))


class API(ctypes.Structure):
    """XLA's table of C functions."""

    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("version", _Version),
        ("internal", c_void_p),
        ("error_create", c_void_p),
        ("error_message", c_void_p),
        ("error_destroy", c_void_p),
        ("handler_register", c_void_p),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("version", _Version), ("traits", c_uint32))


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", POINTER(_Metadata)))


class Span(ctypes.Structure):
    """A string."""

    _fields_ = (("data", c_void_p), ("size", c_size_t))


class Buffer(ctypes.Structure):
    """An array."""

    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    )


class _Buffers(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("count", c_int64),
        ("types", c_void_p),
        ("items", POINTER(POINTER(Buffer))),
    )


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("count", c_int64),
        ("types", c_void_p),
        ("names", c_void_p),
        ("items", POINTER(POINTER(Span))),
    )


class Frame(ctypes.Structure):
    """One call: its operands, results and attributes."""

    _fields_ = (
        ("size", c_size_t),
        ("extension", POINTER(_Extension)),
        ("api", c_void_p),
        ("context", c_void_p),
        ("stage", c_int),
        ("operands", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    )


class _Bundle(ctypes.Structure):
    _fields_ = tuple((s, c_void_p) for s in ("instantiate", "prepare", "initialize", "execute"))


class _Registration(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("name", Span),
        ("platform", Span),
        ("bundle", _Bundle),
        ("traits", c_uint32),
    )


class _Error(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("message", c_char_p),
        ("code", c_int),
    )


HANDLER = ctypes.CFUNCTYPE(c_void_p, POINTER(Frame))
"""A C function that XLA calls; it returns an error, or 0."""
_FUNCTION = ctypes.CFUNCTYPE(c_void_p, c_void_p)


class Registry:
    """XLA's table of custom calls on the CPU.

    Args:
        api: the address of XLA's table of C functions.
    """

    def __init__(self, api: int) -> None:
        functions = API.from_address(api)
        self._register = _FUNCTION(functions.handler_register)

    def register(self, name: str, handler: ctypes._CFunctionType) -> None:
        """Let programs call a `HANDLER` by an unused name; the handler must live forever."""
        label, where = _span(name.encode()), _span(_PLATFORM)
        bundle = _Bundle(execute=ctypes.cast(handler, c_void_p))
        size = _Registration.traits.offset + _Registration.traits.size
        args = _Registration(size, None, label, where, bundle, 0)
        error = self._register(ctypes.addressof(args))
        assert not error, f"XLA does not take {name} as a custom call"


def error(frame: Frame, message: str) -> int:
    """An error for a handler to return to its caller."""
    args = _Error(_Error.code.offset + 4, None, message.encode(), _INTERNAL)
    create = _FUNCTION(API.from_address(frame.api).error_create)
    return create(ctypes.addressof(args))


def capsule(handler: ctypes._CFunctionType) -> object:
    """A `HANDLER` as JAX registers it; it must live forever."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (c_void_p, c_char_p, c_void_p)
    return make(ctypes.cast(handler, c_void_p), None, None)


def asks_for_metadata(frame: Frame) -> bool:
    """Whether a call only asks which version a handler was written for; if so, answers it."""
    if not frame.extension or frame.extension.contents.type != _METADATA:
        return False
    found = ctypes.cast(frame.extension, POINTER(_MetadataExtension)).contents.metadata.contents
    found.version.major, found.version.minor = VERSION
    return True


def _span(text: bytes) -> Span:
    return Span(ctypes.cast(c_char_p(text), c_void_p), len(text))
