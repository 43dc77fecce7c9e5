"""Damaged files and modules are refused; `tests.internals.hlo.mutations` tries more."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
import torch

import xfunc as xf
from tests.internals.hlo import mutations
from xfunc.hlo import InvalidHloError, Module, verify


@pytest.mark.slow
def test_mutated_files_and_modules_are_refused(seed: int) -> None:
    assert mutations.search(600, seed) == [], f"python -m tests.internals.hlo.mutations 600 {seed}"


def test_mutations_search_reports_crashed_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import os, sys\n"
        "at = int(sys.argv[2])\n"
        "print(f'at {at}', flush=True)\n"
        "if at == 1:\n    os.abort()\n"
        "print('found 2 it is wrong' if at == 2 else f'at {at}')\n"
        "print(f'at {at + (at == 2)}')\n"
        "sys.exit(0)\n"
    )
    monkeypatch.setattr(mutations, "__file__", str(worker))
    found = mutations.search(3, 0)
    assert [k for k, _ in found] == [1, 2]
    assert "ends the process (-6)" in found[0][1]


@pytest.mark.parametrize("kind", ["computation", "instruction"])
@pytest.mark.parametrize("name", ["add", "add.", ".7", "add.x", "", "add.٣"])
def test_verify_refuses_names_that_crash_xla(kind: str, name: str) -> None:
    module = Module.from_bytes(xf.jit(torch.sin).lower(torch.ones(2)).module.to_bytes())
    named = module.proto.computations[0]
    (named if kind == "computation" else named.instructions[1]).name = name
    with pytest.raises(InvalidHloError, match="does not end in a number"):
        verify(module)
    with pytest.raises(InvalidHloError, match="does not end in a number"):
        str(module)


def _repacked(**changes: bytes) -> bytes:
    data = xf.export.serialize(xf.jit(torch.sin).lower(torch.ones(2)))
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        parts = {n: old.read(n) for n in old.namelist()}
        for name, content in {**parts, **changes}.items():
            new.writestr(name, content)
    return file.getvalue()


def test_deserialize_older_format_checks_checksums() -> None:
    data = _repacked()
    xf.export.deserialize(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        header = json.loads(archive.read("header.json"))
    older = json.dumps({**header, "format": 1}).encode()
    with pytest.raises(ValueError, match=r"header.json is not what was written"):
        xf.export.deserialize(_repacked(**{"header.json": older}))


def test_deserialize_impossible_sizes_raises() -> None:
    data = bytearray(xf.export.serialize(xf.jit(torch.sin).lower(torch.ones(2))))
    at = data.rindex(b"PK\x01\x02")  # the last record of the directory
    data[at + 24 : at + 28] = b"\xf0\xff\xff\xff"
    with pytest.raises(ValueError, match="claims to be 4294967280 bytes"):
        xf.export.deserialize(bytes(data))


def test_deserialize_unknown_parts_raises() -> None:
    with pytest.raises(ValueError, match="it holds"):
        xf.export.deserialize(_repacked(**{"more.json": b"{}"}))
