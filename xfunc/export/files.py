"""Programs as files, which run without the Python code they were made from.

A file is a ZIP archive (see `xfunc.core.archive`) of

- ``header.json``: version, name, structures, shapes and dtypes;
- ``program.hlo``: the program as a serialised ``HloModuleProto``, which xfunc runs;
- ``program.stablehlo``: the same as a portable StableHLO artifact, for JAX and others.

Values that the function held (captured tensors, constants) are part of the program. A program for a
range of shapes has two such parts for each of its buckets: see `xfunc.symbolic.exported`.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from xfunc.backends.pjrt import printer
from xfunc.core.archive import SUMS, check_names, packed, unpacked
from xfunc.core.avals import Aval
from xfunc.core.structures import encode
from xfunc.errors import UnsupportedOpError, fail, format_error, short_repr
from xfunc.export.loaded import Exported, write_avals
from xfunc.hlo import InvalidHloError
from xfunc.trace import portable

T = TypeVar("T")


_FORMAT = 2
_WITHOUT_SUMS = 1  # the format of files written before there were checksums
_HEADER, _HLO, _STABLEHLO = "header.json", "program.hlo", "program.stablehlo"

Reader = Callable[[Any, Mapping[str, bytes]], Exported]
_readers: dict[int, Reader] = {}  # by format
_writers: dict[type, Callable[[Any], dict[str, bytes]]] = {}
_shardings: list[Callable[[Sequence[Any]], object]] = []


def write_shardings_with(write: Callable[[Sequence[Any]], object]) -> None:
    """Let this function write the shardings of arguments as JSON."""
    _shardings[:] = [write]


def kept(in_avals: Sequence[Aval], donated: frozenset[int]) -> dict[str, object]:
    """The header's fields for sharded or donated arguments."""
    shardings = [a.sharding for a in in_avals]
    found: dict[str, object] = {"donated": sorted(donated)} if donated else {}
    return found | {"shardings": _shardings[0](shardings)} if any(shardings) else found


def register(
    kind: type[T], write: Callable[[T], dict[str, bytes]], format: int, read: Reader
) -> None:
    """Make `serialize` accept another kind of lowered function.

    Args:
        kind: its class.
        write: returns its parts, with a header that gives the format.
        format: of its files.
        read: makes it from the header and all parts.
    """
    _writers[kind], _readers[format] = write, read


def serialize(lowered: object) -> bytes:
    """A lowered function as the bytes of a file, for `deserialize`.

    Trees of arguments and results may be made of dicts, lists, tuples, named tuples and None.
    Shardings and donation are kept. A program for a mesh needs as many devices to run. The program
    takes tensors of the shapes that it was lowered for: exactly these, or, if some of the sizes
    were a `Dim`, all that their bounds admit. Once loaded, it cannot be differentiated or batched:
    export the gradient instead.

    Args:
        lowered: the result of ``xf.jit(f).lower(...)``.

    Returns:
        bytes: a ZIP archive of the program and a header that describes it.

    Raises:
        TypeError: it is not lowered, or a tree has a node of another class.
        UnsupportedOpError: the program cannot be written as StableHLO, or calls back to Python.

    Source: ``jax.export.Exported.serialize``.
    """
    write = _writers.get(type(lowered), _parts)
    if write is _parts and not hasattr(lowered, "traced"):
        fail(
            TypeError,
            f"xf.export.serialize was given {short_repr(lowered)}, which is not a lowered function",
            "lower it for the shapes of its arguments: xf.jit(f).lower(x).",
        )
    return packed(write(lowered))


def save(lowered: object, file: str | os.PathLike[str]) -> None:
    """Write a lowered function to a file, for `load`; see `serialize`.

    Args:
        lowered: as in `serialize`.
        file: the path to write to; a file there is replaced.
    """
    data = serialize(lowered)  # First: if it fails, the file stays as it was.
    with open(file, "wb") as opened:
        opened.write(data)


def load(file: str | os.PathLike[str]) -> Exported:
    """The function in a file that `save` wrote; see `deserialize`.

    Neither torch_xla nor the code of the function is needed: torch and JAX are enough.

    Args:
        file: the path of the file.

    Returns:
        An `Exported`: a call of it returns a tree of tensors like the function's result.
    """
    with open(file, "rb") as opened:
        return deserialize(opened.read())


def refuse_effects(entry: Any) -> None:
    """Raise if a program calls back to Python."""
    if entry.effects:
        fail(
            UnsupportedOpError,
            f"{entry.program.name} calls back to Python (xf.debug), which a file cannot hold",
            "return the values that it prints, or export without the calls.",
        )


def _parts(lowered: Any) -> dict[str, bytes]:
    traced = lowered.traced
    entry = traced.parts.entry
    refuse_effects(entry)
    program = entry.program
    n, lowering = len(traced.in_avals), program.lowering
    held = dict(enumerate(program.captures, start=n))
    module = portable.whole(lowering, held, lines=False, tiles=traced.parts.tiles)
    header = {
        "format": _FORMAT,
        "name": program.name,
        "inputs": encode(traced.in_tree, f"the arguments of {program.name}"),
        "input_avals": write_avals(traced.in_avals),
        "outputs": encode(traced.out_tree, f"the result of {program.name}"),
        "output_avals": write_avals(program.outputs),
        "static": traced.static_positions,
        **kept(traced.in_avals, entry.donated),
    }
    return {
        _HEADER: json.dumps(header, indent=1).encode(),
        _HLO: module.to_bytes(),
        _STABLEHLO: printer.stablehlo_bytecode(module),
    }


def deserialize(data: bytes) -> Exported:
    """The function in the bytes that `serialize` made: call it like the jitted function.

    Args:
        data: the whole file.

    Returns:
        An `Exported`: a call of it returns a tree of tensors like the function's result, with the
        same shapes and dtypes.

    Raises:
        ValueError: the bytes are not such a file, are damaged, or have another version.

    Source: ``jax.export.deserialize``.
    """
    try:
        contents = unpacked(data)
        header = json.loads(contents[_HEADER])
        version = header["format"]
        if SUMS in contents and version in _readers:
            return _readers[version](header, contents)
        if version == (_FORMAT if SUMS in contents else _WITHOUT_SUMS):
            check_names(contents, {_HEADER, _HLO, _STABLEHLO})
            return Exported(header, contents[_HLO], contents[_STABLEHLO])
    # Exceptions from reading arbitrary bytes; ValueError includes those of JSON and Unicode.
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error, RuntimeError) as error:
        raise _refusal(f"they are no ZIP archive, or damaged ({error})") from error
    except (
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise _refusal(f"a part is missing or damaged ({error!r})") from error
    except (DecodeError, InvalidHloError) as error:
        raise _refusal(f"the program is damaged ({error})") from error
    raise _refusal(f"they have format {version}, and this xfunc reads {_FORMAT}")


def _refusal(why: str) -> ValueError:
    return ValueError(
        format_error(
            f"these bytes are not a program exported by xfunc: {why}",
            "read the whole file, in binary mode, that xf.export.serialize made.",
        )
    )
