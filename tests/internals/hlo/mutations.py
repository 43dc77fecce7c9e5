"""Damaged files and modules: each is refused, or what was written; none ends the process.

``python -m tests.internals.hlo.mutations 20000 [seed]`` tries that many; CI tries some hundreds.
Changed are:

- an exported file: bits, bytes, truncations, blocks that are moved, repeated or spliced from
  another file, sizes and names in the archive's own records; and what is inside, packed again;
- a file of a checkpoint, and a result in the cache of what libtpu made;
- an HLO module: bytes, and fields of its protobuf (names, ids, opcodes, shapes, huge sizes,
  operands, called computations), cycles among them, fields swapped between instructions.

A process tries them one by one and says which it is at, so that one that dies over it is a finding.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_SECONDS, MOST_KIB = 10.0, 2**20
OPCODES = (
    "add tuple while call conditional reduce no-such-thing parameter constant sort dot".split()
)
HUGE = (-1, 0, 1, 7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)


def damaged(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Some bytes, changed."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(out)) if out else 0
        match rng.randrange(7):
            case 0:
                out[at : at + 1] = bytes([out[at] ^ 1 << rng.randrange(8)]) if out else b"x"
            case 1:
                out[at : at + 1] = bytes([rng.randrange(256)])
            case 2:
                del out[at:]
            case 3:
                del out[at : at + rng.randrange(1, 64)]
            case 4:
                out[at:at] = out[: rng.randrange(1, 64)]
            case 5:
                other = rng.choice(others)
                out[at : at + 16] = other[at % len(other) :][:16]
            case 6:
                out[at : at + 4] = rng.choice((b"\xff" * 4, bytes(4), b"\0\0\0\x80"))
    return bytes(out)


def packed(contents: dict[str, bytes]) -> bytes:
    """An archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def unpacked(data: bytes) -> dict[str, bytes]:
    """The parts of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {n: archive.read(n) for n in archive.namelist()}


def damaged_inside(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """An archive of which a part is changed, left out, or taken from another."""
    contents = unpacked(data)
    name = rng.choice([*contents])
    match rng.randrange(4):
        case 0:
            contents[name] = damaged(contents[name], others, rng)
        case 1:
            contents[name] = unpacked(rng.choice(others))[name]
        case 2:
            del contents[name]
        case 3:
            contents["program.hlo"] = broken(contents["program.hlo"], rng)
    return packed(contents)


def broken(data: bytes, rng: random.Random) -> bytes:
    """A module of which some fields are changed."""
    from xfunc.hlo import hlo_pb2 as pb

    m = pb.HloModuleProto.FromString(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        c: Any = rng.choice(m.computations)
        i: Any = rng.choice(c.instructions)
        j: Any = rng.choice(rng.choice(m.computations).instructions)
        match rng.randrange(12):
            case 0:
                i.name = _misspelt(i.name, rng)
            case 1:
                c.name = _misspelt(c.name, rng)
            case 2:
                i.opcode = rng.choice((*OPCODES, j.opcode, ""))
            case 3:
                i.id = rng.choice((j.id, i.id + 1, *HUGE))
            case 4:
                i.shape.CopyFrom(j.shape)
            case 5:
                i.shape.dimensions.append(rng.choice(HUGE))
            case 6:
                if i.shape.dimensions:
                    i.shape.dimensions[0] = rng.choice(HUGE)
            case 7:
                i.shape.element_type = rng.randrange(40)
            case 8:
                i.operand_ids.append(rng.choice((j.id, i.id, *HUGE)))
            case 9:
                i.called_computation_ids.append(rng.choice((c.id, m.entry_computation_id, 99)))
            case 10:
                del i.operand_ids[:]
            case 11:
                c.root_id = rng.choice((j.id, i.id, *HUGE))
    return m.SerializeToString()


def _misspelt(name: str, rng: random.Random) -> str:
    at = rng.randrange(len(name) or 1)
    return name[:at] + rng.choice(("", ".", "0", "-", "%", "\n", "é", "x" * 5000)) + name[at + 1 :]


def subjects() -> tuple[list[bytes], list[bytes]]:
    """Exported files, and modules."""
    import torch

    import xfunc as xf

    def loop(x: Any) -> Any:
        return xf.scan(lambda c, v: (torch.tanh(c @ c) + v, c.sum()), x, torch.ones(3, 4, 4))

    functions: list[Callable[[Any], Any]] = [
        lambda x: {"a": x + 1, "b": [x.sum()]},
        xf.grad(lambda x: loop(x)[0].sum()),
        lambda x: xf.cond(x.sum() > 0, torch.sin, torch.cos, torch.softmax(x @ x, -1)),
        lambda x: torch.sort(x)[0],
    ]
    lowered = [xf.jit(f).lower(torch.ones(4, 4)) for f in functions]
    return [xf.export.serialize(one) for one in lowered], [one.module.to_bytes() for one in lowered]


def attempt(k: int, seed: int, files: list[bytes], modules: list[bytes]) -> str | None:
    """Try one; what is wrong, if anything is."""
    from google.protobuf.message import DecodeError

    import xfunc as xf
    from xfunc.core.avals import Aval
    from xfunc.hlo import InvalidHloError, Module

    rng = random.Random(f"{seed} {k}")
    if k % 10 == 9:
        return attempt_checkpoint(rng)
    if k % 10 == 8:
        return attempt_result(modules, rng)
    if k % 3:
        where = rng.randrange(len(files))
        change = damaged if k % 3 == 1 else damaged_inside
        data = change(files[where], files, rng)
        try:
            found = xf.export.deserialize(data)
        except ValueError as error:
            said = "these bytes are not a program exported by xfunc" in str(error)
            return None if said else f"refused by {error!r}"
        same = any(
            found._lowering.hlo == unpacked(f)["program.hlo"]
            and found.stablehlo == unpacked(f)["program.stablehlo"]
            for f in files
        )
        return None if same else "it loads as something else than what was written"
    data = rng.choice(modules)
    data = damaged(data, modules, rng) if k % 2 else broken(data, rng)
    with contextlib.suppress(DecodeError, InvalidHloError):
        module = Module.from_bytes(data)
        str(module)
        avals = [Aval(p.shape.dims, p.shape.dtype) for p in module.entry.parameters]
        with contextlib.suppress(RuntimeError):  # XLA's word on what it makes of it.
            embed(module, avals)
    return None


def attempt_checkpoint(rng: random.Random) -> str | None:
    """Load a checkpoint of which a file is damaged."""
    import torch

    import xfunc as xf

    tree = {"a": torch.arange(6.0).reshape(2, 3), "b": [torch.ones(4, dtype=torch.int64)]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        xf.sharding.save_checkpoint(path, tree, extra={"step": 3})
        file = rng.choice(sorted(p for p in path.rglob("*") if p.is_file()))
        data = file.read_bytes()
        file.write_bytes(damaged(data, [data], rng))
        try:
            found = xf.sharding.load_checkpoint(path, tree)
            extra = xf.sharding.load_extra(path)
        except (xf.errors.DamagedCheckpointError, FileNotFoundError):
            return None
    same = all(map(torch.equal, map(xf.device_get, xf.tree.leaves(found)), xf.tree.leaves(tree)))
    return None if same and extra == {"step": 3} else "it loads as something else"


def attempt_result(modules: list[bytes], rng: random.Random) -> str | None:
    """Read a result of libtpu that is damaged."""
    from xfunc.aot.result import UNREADABLE, Result

    parts = {"report.json": b'{"refusal": "too large"}', "executable": modules[0], "hlo.pb": b""}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.zip"
        path.write_bytes(damaged(packed(parts), [packed(parts)], rng))
        nothing: Any = None
        with contextlib.suppress(*UNREADABLE):
            found = Result.read(path, nothing)
            if (found.report, found.executable) != ({"refusal": "too large"}, modules[0]):
                return "it is read as something else"
    return None


def embed(module: Any, avals: list[Any]) -> None:
    """Hand a module to torch_xla, if it is installed, as a part of another program."""
    if importlib.util.find_spec("torch_xla") is None:
        return
    from xfunc.backends.torch_xla import runtime

    holders = [runtime.placeholder(a) for a in avals]
    handle = runtime.builder().computation_from_module_proto(module.name, module.to_bytes())
    outputs = runtime.xla()._xla_user_computation("xfunc::mutated", holders, handle)
    runtime.xla()._get_xla_tensors_hlo(list(outputs))


def work(first: int, last: int, seed: int) -> None:
    """The process that tries: says before each which it is at, and after what was wrong."""
    warnings.simplefilter("ignore")
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    files, modules = subjects()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for k in range(first, last):
        print(f"at {k}", file=output, flush=True)
        start = time.monotonic()
        try:
            problem = attempt(k, seed, files, modules)
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:200]}"
        if time.monotonic() - start > MOST_SECONDS:
            problem = f"it takes longer than {MOST_SECONDS:g} s"
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > MOST_KIB:
            problem = "it takes more than 1 GiB"
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if problem:
            print(f"found {k} {' '.join(problem.split())}", file=output, flush=True)


def search(count: int, seed: int) -> list[tuple[int, str]]:
    """Try so many; the findings, by number."""
    found: list[tuple[int, str]] = []
    at = 0
    while at < count:
        command = [sys.executable, __file__, "--work", str(at), str(count), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            what, number, *rest = line.split(" ", 2)
            at = int(number) + 1
            if what == "found":
                found.append((int(number), rest[0]))
        if done.returncode:
            why = done.stderr.strip().splitlines()[-1:] or [""]
            found.append((at - 1, f"it ends the process ({done.returncode}): {why[0][:300]}"))
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        work(*map(int, sys.argv[2:]))
    else:
        number, start = int(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])
        findings = search(number, start)
        for key, what in findings:
            print(key, what)
        print(f"{number} tried, {len(findings)} findings")
