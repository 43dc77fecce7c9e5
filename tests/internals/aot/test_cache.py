"""Compiling ahead of time: what is kept.

No libtpu here: scripts take the place of the worker.
"""

import os
import zipfile
from pathlib import Path

import pytest

from tests.internals.aot.aot_worker import ANSWERS, MADE, compile_it
from tests.internals.aot.aot_worker import folder as folder
from tests.internals.aot.aot_worker import worker as worker
from xfunc.aot import cache, client


def test_cache_result_is_made_once(worker, monkeypatch):
    worker(ANSWERS.format(report=MADE, text=""))
    first = compile_it()
    monkeypatch.delattr(client, "_run")
    assert compile_it() == first
    assert [p.suffix for p in cache.folder().iterdir()] == [".zip"]


@pytest.mark.parametrize(
    ("report", "kept"),
    [
        (MADE, 1),
        ({"refusal": "RESOURCE_EXHAUSTED: too large"}, 1),
        ({"refusal": "INTERNAL: out of luck"}, 0),
        ({"unknown_topology": "none"}, 0),
    ],
)
def test_cache_kept_results(worker, report, kept):
    worker(ANSWERS.format(report=report, text=""))
    assert compile_it().report == report
    assert len([*cache.folder().glob("*")]) == kept


def truncated(data):
    return data[: len(data) // 2]


def flipped(data):
    at = data.index(b"temp_size")
    return data[:at] + b"T" + data[at + 1 :]


@pytest.mark.parametrize("damage", [truncated, flipped, lambda data: b""])
def test_cache_damaged_result_is_remade(worker, damage):
    worker(ANSWERS.format(report=MADE, text=""))
    first = compile_it()
    (entry,) = cache.folder().iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert compile_it() == first
    assert zipfile.ZipFile(entry).testzip() is None


def test_cache_limit_evicts_oldest(worker, monkeypatch):
    worker(ANSWERS.format(report=MADE, text=""))
    compile_it(module=b"0")
    (entry,) = cache.folder().iterdir()
    size = entry.stat().st_size
    monkeypatch.setattr(cache, "LIMIT", 3 * size)
    for k, module in enumerate([b"1", b"2"], start=1):
        compile_it(module=module)
        for path in cache.folder().iterdir():
            age = path.stat()
            os.utime(path, (age.st_atime - 100, age.st_mtime - 100 * k))
    compile_it(module=b"0")  # It is the oldest, and is wanted again.
    compile_it(module=b"3")
    monkeypatch.setattr(client, "_run", lambda request, *_: pytest.fail(repr(request.module)))
    for module in (b"0", b"2", b"3"):
        compile_it(module=module)
    with pytest.raises(pytest.fail.Exception, match="b'1'"):
        compile_it(module=b"1")


def test_cache_in_unwritable_folder(worker, folder, monkeypatch):
    (folder / "file").touch()
    monkeypatch.setenv("XFUNC_CACHE_DIR", str(folder / "file"))
    worker(ANSWERS.format(report=MADE, text=""))
    assert compile_it().report == MADE


def test_cache_folder_by_environment(monkeypatch, folder):
    assert cache.folder() == folder / "cache" / "aot"
    monkeypatch.delenv("XFUNC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache.folder() == Path("/var/cache/xfunc/aot")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache.folder() == Path("/home/me/.cache/xfunc/aot")
