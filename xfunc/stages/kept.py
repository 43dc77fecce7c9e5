"""Traced programs on disk, where another process finds them by the value of the function.

NOTE [never stale]: a program is only kept, and only used, if everything that its trace could depend
on is known by its contents. The name of a file is a digest of the function and of all that it
reaches by name, its arguments, xfunc's own source, the versions of everything installed, and the
settings of the process. The file holds the links to installed packages that the trace went through
(NOTE [what ran] in `xfunc.cache.observed`), which must lead to the same. If anything is unknown,
the function is traced again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import os
import pickle
import sys
import types
import zipfile
import zlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optree
import torch
from google.protobuf.message import DecodeError

from xfunc import config, tree
from xfunc.backends import active
from xfunc.backends.host_calls import has_host_calls
from xfunc.cache.changes import Changed
from xfunc.cache.classes import can_change
from xfunc.cache.digest import Digest, Unknown, is_library
from xfunc.cache.globals import Globals, Guards, Reached
from xfunc.cache.names import names_in
from xfunc.cache.obscure import is_obscure
from xfunc.cache.observed import Observer, digests, same
from xfunc.cache.views import MISSING
from xfunc.core import ambient, archive, device
from xfunc.core.archive import check_names, packed, unpacked
from xfunc.core.avals import Aval
from xfunc.export.loaded import read_avals, write_avals
from xfunc.hlo import InvalidHloError, verify
from xfunc.program import foreign
from xfunc.program.program import Program
from xfunc.trace.lowering import Lowering

_HEADER, _HLO, _TREE = "header.json", "program.hlo", "out_tree"
CALLS_BACK = "it calls back to Python, or computes nothing"
_WHAT_READING_RAISES = (
    *(OSError, zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error, RuntimeError),
    *(LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError),
    *(DecodeError, InvalidHloError, pickle.UnpicklingError),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """A program that was found.

    Attributes:
        lowering: its HLO.
        captures: the tensors that the function holds and the program takes, by position.
        out_tree: the structure of its results.
        has_rule: see `Program`.
    """

    lowering: Lowering
    captures: list[int]
    out_tree: tree.Structure
    has_rule: bool


class Place:
    """Where the program of one call is kept, or would be.

    Args:
        value: the function.
        parts: the fields of the key of the call, but for the value of the function.
        named: what the function reaches by name.
        raws: the static and fixed arguments, and whatever else the program depends on.
    """

    def __init__(self, value: object, parts: Sequence[object], named: Globals, raws: object):
        self._given = value, parts, raws
        self._named = named, Guards().of(raws)  # The latter are methods of static arguments.
        self._modules: dict[int, types.ModuleType] = {}
        self._imported: dict[int, types.ModuleType] = {}
        self._digest = self._taken()
        self._file = Path(config.kept_traces or "", f"{self._digest.hex()}.trace")

    def _taken(self) -> Digest:
        value, parts, raws = self._given
        found = Digest()
        for x in (_environment(), value, *parts, raws):
            found.add(x)
        reached = [named.reached() for named in self._named]
        if any(r.changes for r in reached):
            raise Unknown("something that the function changes")
        for namespace, name in self._places(reached):
            x = namespace.get(name, MISSING)
            if namespace is sys.modules:  # It is imported when the function runs.
                self._imported.update({id(x): x} if isinstance(x, types.ModuleType) else {})
                continue
            found.put(namespace.get("__name__"), name)
            if isinstance(x, torch.Tensor):
                raise Unknown(f"the tensor {name}")
            if isinstance(x, types.ModuleType):
                self._modules[id(x)] = x
            if x is MISSING:
                found.put("nothing")
            elif is_obscure(x) and getattr(x, "__name__", None) == name:  # Its use is seen.
                found.put("builtin")
            else:
                found.add_apart(x, name)
        self._add_attributes(found)
        return found

    def _places(self, reached: Iterable[Reached]) -> Iterable[tuple[dict[str, object], str]]:
        """The namespaces and names, each once."""
        return {(id(n), name): (n, name) for r in reached for n, name in r.places}.values()

    def _add_attributes(self, found: Digest) -> None:
        """The data in modules of installed packages that the program names."""
        mentioned = {name for code in found.codes for name in names_in(code).mentioned}
        todo, seen = list(self._modules.values()), set[int]()
        while todo:
            module = todo.pop()
            if id(module) in seen or not is_library(module):
                continue
            seen.add(id(module))
            if module is sys:
                raise Unknown("what the interpreter holds in sys")
            held = vars(module)
            for name in sorted(mentioned & held.keys()):
                x = held[name]
                if isinstance(x, types.ModuleType):
                    todo.append(x)
                elif not callable(x) or (isinstance(x, type) and not can_change(x)):
                    # Other functions and classes are links: see NOTE [what ran].
                    found.put(module.__name__, name)
                    found.add_apart(x)

    def find(self, name: str, avals: Sequence[Aval]) -> Kept | None:
        """The program, if it was kept and is still what tracing would give."""
        try:
            contents = unpacked(self._file.read_bytes())
            header = json.loads(contents[_HEADER])
            files, links, read = header["files"], header["links"], header["environment"]
            if header["digest"] != self._digest.hex():
                return None
            if digests(files) != files or _variables(read) != read or same(links) is not None:
                return None
            return _read(name, avals, header, contents)
        except _WHAT_READING_RAISES:
            return None

    def keep(
        self,
        program: Program,
        captures: Sequence[object],
        out_tree: tree.Structure,
        seen: Observer,
        guards: Sequence[object],
        changed: Changed,
    ) -> str:
        """Write a program that was just traced, or say what about it is not certain."""
        program.settle()
        try:
            why = self._why_not(program, captures, seen, guards, changed)
            if not why:
                named = (*self._modules.values(), *self._imported.values())
                links = seen.links(named, self._digest.kinds)
                found = {"digest": self._digest.hex(), "files": seen.files(), "links": links}
                found["environment"] = _variables(seen.read)
                data = _written(program, captures, out_tree, found)
                archive.keep(self._file, data, "traced programs")
        except Unknown as error:
            return f"it depends on {error}"
        except (TypeError, AttributeError) as error:
            return f"it has what cannot be written: {error}"
        return why

    def _why_not(
        self,
        program: Program,
        captures: Sequence[object],
        seen: Observer,
        guards: Sequence[object],
        changed: Changed,
    ) -> str:
        """Why a program is not kept; "" if it is."""
        if changed is not Changed.NOTHING or self._taken().hex() != self._digest.hex():
            return "the function changes what it depends on"
        if seen.why:
            return seen.why
        unknown = [c for c in seen.of_program if c not in self._digest.codes]
        if unknown:
            return f"{unknown[0].co_qualname} ran, which no name leads to"
        if seen.imports_own():
            return "it imports a module of the program"
        if id(sys) in self._imported:
            return "it depends on what the interpreter holds in sys"
        if any(code.co_filename == foreign.__file__ for code, _ in seen.codes.values()):
            return "a worker traced a part of it"
        if obscure := seen.obscured_by(self._digest.sets):
            return f"it uses {obscure}"
        if not all(isinstance(c, int) for c in captures):
            return "it uses a tensor that is neither an argument nor held by the function"
        own = {(id(n), name) for n, name in self._places([g.reached() for g in self._named])}
        for guard in guards:
            if not isinstance(guard, Globals):
                return "it depends on the state of a module"
            if not own.issuperset((id(n), name) for n, name in guard.reached().places):
                return "a function made in the trace reaches more by name"
        lowering = program.lowering
        if not lowering.outputs or has_host_calls(lowering.module.proto):
            return CALLS_BACK
        return ""


def place_of(
    value: object, parts: Sequence[object], named: Globals, raws: object, watched: bool
) -> tuple[Place | None, str]:
    """Where the program of a call is kept, or why it is not; (None, ""): no program is kept.

    See `Place`; `watched`: whether autograd watches an argument.
    """
    if config.kept_traces is None:
        return None, ""
    if watched:
        return None, "autograd watches an argument"
    if ambient.global_hooks():
        return None, "a hook of all modules is registered"
    if ambient.is_inside_something():
        return None, "it is called under a mode of torch or of xfunc"
    try:
        return Place(value, parts, named, raws), ""
    except Unknown as error:
        return None, f"it depends on {error}"


def _variables(names: Iterable[str]) -> dict[str, str]:
    """The digests of environment variables, whose values may be secret; "" if there is none."""
    known = dict(os.environ)
    return {
        n: hashlib.sha256(os.fsencode(known[n])).hexdigest() if n in known else ""
        for n in sorted(names)
    }


def _environment() -> tuple[object, ...]:
    """Everything of this process besides the function that a trace may depend on."""
    where = active.runtime()
    settings = {n: v for n, v in os.environ.items() if n.startswith("XFUNC_") or n == "TZ"}
    return (
        *(sys.version, sys.flags.optimize, sys.platform, _installed(), _own_source()),
        *(where.name, where.platform(), where.device_count()),
        # Which process it is, many functions tell, also of JAX.
        *(where.process_count(), where.process_index()),
        *(config.shard_as_in_scan, sorted(settings.items())),
        *(torch.get_autocast_dtype(kind) for kind in device.AUTOCAST),
        torch.is_autocast_cache_enabled(),
    )


@functools.cache
def _installed() -> tuple[str, ...]:
    """The names and versions of everything installed."""
    found = set[str]()
    for folder in sys.path:
        if os.path.isdir(folder):
            found.update(n for n in os.listdir(folder) if n.endswith((".dist-info", ".egg-info")))
    return tuple(sorted(found))


@functools.cache
def _own_source() -> str:
    """The digest of xfunc's source files."""
    found = hashlib.sha256()
    here = Path(__file__).parents[1]
    beside = [here.parent / name for name in ("transforms", "sharding")]
    for folder in (here, *beside):
        for file in sorted(folder.rglob("*.py")):
            found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()


def _written(
    program: Program,
    captures: Sequence[object],
    out_tree: tree.Structure,
    found: Mapping[str, object],
) -> bytes:
    lowering = program.lowering
    try:
        pickled = pickle.dumps(out_tree, 4)
        is_same = _Trees(io.BytesIO(pickled)).load() == out_tree
    except Exception as error:  # whatever the methods of the user's classes raise
        raise Unknown(f"what its results are made of: {error}") from error
    if not is_same:
        raise Unknown("results that are others when they are read")
    header = {
        "inputs": lowering.inputs,
        "outputs": write_avals(lowering.outputs),
        "captures": list(captures),
        "captured": write_avals([Aval(tuple(c.shape), c.dtype) for c in program.captures]),
        "has_rule": program.has_rule,
        **found,
    }
    return packed(
        {
            _HEADER: json.dumps(header).encode(),
            _HLO: lowering.hlo,
            _TREE: pickled,
        }
    )


def _read(name: str, avals: Sequence[Aval], header: Any, contents: dict[str, bytes]) -> Kept:
    check_names(contents, {_HEADER, _HLO, _TREE})
    whole = (*avals, *read_avals(header["captured"]))
    lowering = Lowering.of(
        name, contents[_HLO], whole, read_avals(header["outputs"]), header["inputs"]
    )
    verify(lowering.module)
    out_tree: tree.Structure = _Trees(io.BytesIO(contents[_TREE])).load()
    return Kept(lowering, [int(c) for c in header["captures"]], out_tree, header["has_rule"])


class _Trees(pickle.Unpickler):
    """Reads structures of trees: it finds classes that are there already, and calls no function."""

    def find_class(self, module: str, name: str, /) -> Any:
        found: Any = sys.modules.get(module)
        is_own = found is not None and not is_library(found)
        for part in name.split("."):
            found = vars(found).get(part) if isinstance(found, (type, types.ModuleType)) else None
        if isinstance(found, torch.dtype):
            return found
        named_tuple = module == "torch.return_types"
        if isinstance(found, type) and (
            is_own or named_tuple or found in _NODES or tree.adopt_class(found)
        ):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is no class of a tree")


# Classes of installed packages that hold leaves, or that keys and fields beside them are of.
_NODES = frozenset(
    [
        *(optree.PyTreeSpec, OrderedDict, defaultdict, deque, list, tuple, dict, set, frozenset),
        *(bool, int, float, complex, str, bytes, range, slice),
        *(torch.Size, torch.device, tree.Context),
    ]
)
