"""Tokenization by several processes: the same tokens, notes and errors, and no process is left."""

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

import xfunc as xf
from examples.llama.data.documents import DataError
from examples.llama.data.reader import DataConfig, Reader
from examples.llama.data.workers import map_in_processes
from tests.llama.texts import documents_of, write_lines


def children() -> set[str]:
    """The processes that this one started and that still run."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture(autouse=True)
def _none_left() -> Iterator[None]:
    resource_tracker.ensure_running()  # It stays until the program ends.
    before = children()
    yield
    assert children() == before


def test_workers_map_is_in_order() -> None:
    assert list(map_in_processes(3, hex, range(100))) == list(map(hex, range(100)))
    assert list(map_in_processes(3, int, ["1", "2"])) == [1, 2]


def test_workers_do_not_import_torch() -> None:
    """It takes more than a second, and they need tokenizers alone."""
    asked = ["'torch' in __import__('sys').modules"] * 2
    assert list(map_in_processes(2, eval, asked)) == [False, False]


def test_workers_map_reads_a_few_items_ahead() -> None:
    taken = []
    results = map_in_processes(2, str, (taken.append(n) or n for n in range(10**9)))
    assert list(itertools.islice(results, 5)) == ["0", "1", "2", "3", "4"]
    assert len(taken) <= 5 + 2 * 2


def test_workers_map_errors_come_in_turn() -> None:
    results = map_in_processes(2, int, ["1", "2", "x", "3"])
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="invalid literal for int"):
        next(results)

    def items() -> Iterator[str]:
        yield from ("1", "2", "3")
        raise DataError("damaged")

    results = map_in_processes(2, int, items())
    assert list(itertools.islice(results, 3)) == [1, 2, 3]
    with pytest.raises(DataError, match="damaged"):
        next(results)


def test_workers_map_of_a_dead_process_raises() -> None:
    with pytest.raises(DataError, match=r"makes tokens ended: .* use fewer data\.processes"):
        list(map_in_processes(2, os._exit, [7]))


def leaves(reader: Reader) -> list[list[int]]:
    batches = [reader.batch(step) for step in range(20)] + [reader.held_out(0)]
    return [leaf.tolist() for batch in batches for leaf in xf.tree.leaves(batch)]


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_reader_with_processes_has_the_same_tokens(
    tmp_path: Path, trained: Path, kind: Any
) -> None:
    texts = [document["text"][:60] for document in documents_of(300)]
    rows: list[dict[str, Any]] = [
        {"text": t, "prompt": t[:14], "completion": t, "chosen": t[20:], "rejected": "no"}
        for t in texts
    ]
    rows[100] = rows[200] = {"other": 1}
    rows[150] |= {"completion": "long " * 99, "chosen": "long " * 99}
    config = DataConfig(
        (str(write_lines(tmp_path / "a.jsonl", *rows)),),
        kind=kind,
        vocab=300,
        seq=128,
        tokenizer=str(trained),
        skip_bad=True,
        too_long="skip",
    )
    said: dict[int, list[str]] = {}
    readers = []
    for processes in (1, 3):
        said[processes] = []
        given = dataclasses.replace(config, processes=processes)
        readers.append(Reader(given, tmp_path / str(processes), say=said[processes].append))
    one, several = readers
    assert one.state(0) == several.state(0)
    assert leaves(one) == leaves(several)
    assert said[1] == said[3]
    assert any(f"2 records are skipped: line 101 of {config.files[0]}" in line for line in said[3])
    assert kind == "text" or "1 records are skipped: longer than a row of 128 tokens" in said[3]


@pytest.mark.parametrize(("kind", "damage"), [("text", "file"), ("chat", "record")])
def test_reader_with_processes_raises_the_first_error(
    tmp_path: Path, trained: Path, kind: Any, damage: str
) -> None:
    rows: list[Any] = [{"text": "a b", "prompt": "a", "completion": "b"}] * 400
    if damage == "record":
        rows[250] = rows[30] = {"other": 1}
    file = write_lines(tmp_path / "a.jsonl", *rows)
    other = tmp_path / "b.jsonl.gz"
    other.write_bytes(b"not compressed")
    config = DataConfig(
        (str(file), str(other)), kind=kind, vocab=300, tokenizer=str(trained), processes=2
    )
    errors = []
    for processes in (1, 2):
        with pytest.raises(DataError, match=r"line 31 of|cannot read .*b\.jsonl\.gz") as caught:
            Reader(dataclasses.replace(config, processes=processes), tmp_path / "run")
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert ("line 31" in errors[0]) == (damage == "record")


def test_data_config_wrong_processes_raise() -> None:
    with pytest.raises(DataError, match="processes is 0: use 1 or more, or null"):
        DataConfig(processes=0)


PROGRAM = """
import signal
import sys
from examples.llama.data.workers import map_in_processes

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
print(*map_in_processes(2, abs, range(5)), flush=True)
results = map_in_processes(2, abs, range(10**9))
print(next(results), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_program(signum: signal.Signals) -> None:
    pipe = subprocess.PIPE
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert program.stdout is not None
    assert program.stdout.readline() == b"0 1 2 3 4\n"
    assert program.stdout.readline() == b"0\n"
    program.send_signal(signum)
    _, told = program.communicate()  # Returns when all that share its standard error have ended.
    assert program.returncode == -signum
    assert b"DataError" not in told
