"""Programs as files, which run without the Python code that they were made from.

A file is a ZIP archive of

- ``header.json``: version, name, structures, shapes and dtypes;
- ``program.hlo``: the program as a serialised ``HloModuleProto``, which xfunc runs;
- ``program.stablehlo``: the same as a portable artifact of StableHLO, for JAX and others;
- ``checksums.json``: the SHA-256 of each of these, so that a damaged file is never run.

What the function held (captured tensors, constants) is part of the program. Nothing is pickled:
loading a file runs no code of whoever wrote it.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from google.protobuf.message import DecodeError

from xfunc import tree
from xfunc.backends.devices import to_device
from xfunc.backends.torch_xla import stablehlo
from xfunc.backends.torch_xla.literals import from_numpy
from xfunc.backends.torch_xla.lock import lock
from xfunc.core.avals import NUMBERS, Aval, ShapeDtypeStruct, hlo_shape, short
from xfunc.core.structures import decode, encode
from xfunc.errors import TreeMismatchError, UnsupportedOpError, fail, report
from xfunc.hlo import InvalidHloError, Module, Shape, verify
from xfunc.torchlib import functorch, values
from xfunc.trace import portable, tracing
from xfunc.trace.lowering import UNUSED, Lowering

__all__ = ["Exported", "deserialize", "serialize"]

if TYPE_CHECKING:
    from xfunc.stages.stages import Lowered

_FORMAT = 2
_WITHOUT_SUMS = 1  # the format of files written before there were checksums
_HEADER, _HLO, _STABLEHLO = "header.json", "program.hlo", "program.stablehlo"
_PARTS, _SUMS = (_HEADER, _HLO, _STABLEHLO), "checksums.json"
_MOST = 1032  # times that DEFLATE can make something smaller


def serialize(lowered: Lowered) -> bytes:
    """A lowered function as the bytes of a file, for `deserialize`.

    Trees of arguments and results may be made of dicts, lists, tuples, named tuples and None.
    Donation is not kept. A program for a mesh runs where there are as many devices. The program is
    for tensors of exactly the shapes that it was lowered for, and cannot be differentiated or
    batched where it is loaded: export the gradient instead.

    Raises:
        TypeError: a tree has a node of another class.
        UnsupportedOpError: the program has no form in StableHLO, or calls back to Python.

    Source: ``jax.export.Exported.serialize``.
    """
    traced = lowered.traced
    entry = traced.parts.entry
    if entry.effects:
        fail(
            UnsupportedOpError,
            f"{entry.program.name} calls back to Python (xf.debug), which a file cannot hold",
            "return the values that it prints, or export without the calls.",
        )
    program = entry.program
    n, lowering = len(traced.in_avals), program.lowering
    held = dict(enumerate([*program.captures, *lowering.consts], start=n))
    module = portable.whole(lowering, held, lines=False, tiles=traced.parts.tiles)
    header = {
        "format": _FORMAT,
        "name": program.name,
        "inputs": encode(traced.in_tree, f"the arguments of {program.name}"),
        "input_avals": _write_avals(traced.in_avals),
        "outputs": encode(traced.out_tree, f"the result of {program.name}"),
        "output_avals": _write_avals(program.outputs),
        "static": traced.static_positions,
    }
    contents = {
        _HEADER: json.dumps(header, indent=1).encode(),
        _HLO: module.to_bytes(),
        _STABLEHLO: stablehlo.bytecode(module),
    }
    contents[_SUMS] = json.dumps({n: _sum(contents[n]) for n in _PARTS}, indent=1).encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def deserialize(data: bytes) -> Exported:
    """The function in the bytes that `serialize` made: call it like the jitted function.

    Raises:
        ValueError: the bytes are not such a file, are damaged, or of another version.

    Source: ``jax.export.deserialize``.
    """
    try:
        contents = _unpacked(data)
        header = json.loads(contents[_HEADER])
        version = header["format"]
        known = _FORMAT if _SUMS in contents else _WITHOUT_SUMS
        if version == known:
            return Exported(header, contents[_HLO], contents[_STABLEHLO])
    # What reading raises on bytes that are anything; ValueError includes JSON's and Unicode's.
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error, RuntimeError) as error:
        raise _refusal(f"they are no ZIP archive, or damaged ({error})") from error
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise _refusal(f"a part is missing or damaged ({error!r})") from error
    except (DecodeError, InvalidHloError) as error:
        raise _refusal(f"the program is damaged ({error})") from error
    raise _refusal(f"they have format {version}, and this xfunc reads {_FORMAT}")


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _unpacked(data: bytes) -> dict[str, bytes]:
    """The parts of a file, each as it was written."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        if sorted(names) not in (sorted(_PARTS), sorted((*_PARTS, _SUMS))):
            raise LookupError(f"it holds {', '.join(map(repr, names[:9]))}")
        for info in archive.infolist():
            if info.file_size > _MOST * min(info.compress_size, len(data)) + 64:
                raise ValueError(f"{info.filename} claims to be {info.file_size} bytes")
        contents = {name: archive.read(name) for name in names}
    if _SUMS in contents:
        sums = json.loads(contents[_SUMS])
        for name in _PARTS:
            if sums[name] != _sum(contents[name]):
                raise ValueError(f"{name} is not what was written")
    return contents


def _refusal(why: str) -> ValueError:
    return ValueError(
        report(
            f"these bytes are no program exported by xfunc: {why}",
            "read the whole file, in binary mode, that xf.export.serialize made.",
        )
    )


def _check_program(module: Module, avals: Sequence[Aval], outputs: Sequence[Aval]) -> None:
    verify(module)
    entry = module.entry
    parameters = [p.shape for p in entry.parameters]
    if parameters != ([hlo_shape(a) for a in avals] or [UNUSED]):
        raise InvalidHloError("its parameters are not those of the header")
    if entry.root.shape != Shape.of_tuple(map(hlo_shape, outputs)):
        raise InvalidHloError("its results are not those of the header")


class Exported:
    """A program that was loaded; made by `deserialize`.

    Attributes:
        name: of the function that it was made from.
        stablehlo: the program as a portable artifact of StableHLO. Its function ``main`` takes the
            leaves of the arguments in order (a boolean, if there are none) and returns those of
            the result.
    """

    def __init__(self, header: dict[str, Any], hlo: bytes, stablehlo: bytes):
        self.name: str = header["name"]
        self.stablehlo = stablehlo
        self._inputs, self._outputs = header["inputs"], decode(header["outputs"])
        self._static = [int(i) for i in header["static"]]
        avals, outputs = _read_avals(header["input_avals"]), _read_avals(header["output_avals"])
        self._expected = tree.unflatten(decode(self._inputs), avals)
        # A program without arguments has a parameter that is not used.
        inputs = tuple(range(max(1, len(avals))))
        _check_program(Module.from_bytes(hlo), avals, outputs)
        self._lowering = Lowering.of(self.name, hlo, avals, outputs, inputs=inputs)

    @property
    def in_info(self) -> Any:
        """``(args, kwargs)`` as trees of `ShapeDtypeStruct`."""
        return self._expected

    @property
    def out_info(self) -> Any:
        """The result as a tree of `ShapeDtypeStruct`."""
        return tree.unflatten(self._outputs, self._lowering.outputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Raises:
            TreeMismatchError: arguments of another structure, shape or dtype.
            UnsupportedOpError: the call is being differentiated or batched.
        """
        for where in self._static:
            args = (*args[:where], None, *args[where:])
        args, kwargs = tree.map(from_numpy, (args, kwargs))
        leaves = tree.leaves((args, kwargs))
        self._check(args, kwargs)
        tensors = [self._tensor(x) for x in leaves]
        with lock:
            return tree.unflatten(self._outputs, self._lowering.apply(tensors))

    def _tensor(self, x: Any) -> torch.Tensor:
        trace = tracing.current()
        if not isinstance(x, torch.Tensor):
            x = torch.tensor(x, dtype=NUMBERS[type(x)], device="cpu" if trace is None else None)
        watched = torch.is_grad_enabled() and values.is_tracked(x)
        if watched or (functorch.levels() and functorch.is_wrapped(x)):
            fail(
                UnsupportedOpError,
                f"{self.name} was exported, and can no longer be differentiated or batched",
                "export xf.grad or xf.vmap of the function instead; pass x.detach() for an "
                "argument that needs no gradient.",
            )
        return to_device(x) if trace is None else trace.lift(x)

    def _check(self, args: Any, kwargs: Any) -> None:
        got = _by_path(args, kwargs)
        want = _by_path(*self._expected)
        lines = [f"  {p}: missing" for p in want if p not in got]
        lines += [f"  {p}: unexpected" for p in got if p not in want]
        lines += [
            f"  {p}: {short(got[p])} instead of {short(w)}"
            for p, w in want.items()
            if p in got and (tuple(got[p].shape), got[p].dtype) != (tuple(w.shape), w.dtype)
        ]
        if not lines and encode(tree.structure((args, kwargs)), self.name) != self._inputs:
            lines = [f"  {args} {kwargs} instead of {self._expected}"]
        if lines:
            fail(
                TreeMismatchError,
                "\n".join([f"{self.name} was exported for other arguments:", *lines]),
                "pass arguments of the exported shapes, or export for these.",
            )


def _by_path(args: Any, kwargs: Any) -> dict[str, Any]:
    found = {}
    for root, t in (*((f"argument {i}", a) for i, a in enumerate(args)), *kwargs.items()):
        for path, x in tree.leaves_with_path(t):
            if not isinstance(x, (torch.Tensor, ShapeDtypeStruct)):
                x = Aval((), NUMBERS[type(x)]) if type(x) in NUMBERS else _not_an_array(root, x)
            found[f"{root}{path}"] = x
    return found


def _not_an_array(where: str, x: Any) -> Any:
    fail(
        TypeError,
        f"an exported program was given {x!r} (a {type(x).__name__}) as {where}",
        "pass tensors, NumPy arrays and Python numbers.",
    )


def _write_avals(avals: Any) -> list[Any]:
    return [[list(a.shape), str(a.dtype).removeprefix("torch.")] for a in avals]


def _read_avals(written: Any) -> tuple[Aval, ...]:
    return tuple(Aval(tuple(shape), getattr(torch, dtype)) for shape, dtype in written)
