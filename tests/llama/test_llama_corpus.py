"""The corpus of the Llama example: tokens on the disk, made once by one of several."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from examples.llama.data import corpus, disk_cache, documents, tokenizer
from examples.llama.data.reader import DataConfig, Reader


def documents_of(part: corpus.Part) -> list[list[int]]:
    return [d.tolist() for d in np.split(part.tokens, part.ends[:-1])] if len(part.ends) else []


def test_corpus_large_vocabulary_without_special_tokens(tmp_path: Path) -> None:
    vocab = {"x": 0, "y": 65_536}
    built = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="x"))
    built.save(str(tmp_path / "tokenizer.json"))
    corpus.write([("y", False)], tokenizer.load(tmp_path), tmp_path)
    train, held_out, _ = corpus.load(tmp_path)
    assert train.tokens.dtype == np.uint32
    assert documents_of(train) == [[65_536]]
    assert documents_of(held_out) == []


def test_corpus_fingerprint_depends_on_text_and_cuts(trained: Path, tmp_path: Path) -> None:
    def fingerprint(*pieces: tuple[str, bool]) -> str:
        corpus.write(pieces, tokenizer.load(trained), tmp_path)
        return corpus.load(tmp_path).fingerprint

    one = fingerprint(("ab", False), ("c", False))
    assert one == fingerprint(("ab", False), (" ", True), ("c", False))
    others = [
        fingerprint(("a", False), ("bc", False)),
        fingerprint(("abc", False)),
        fingerprint(("ab", False), ("c", True)),
        fingerprint(("c", False), ("ab", False)),
    ]
    assert len({one, *others}) == 5


def test_reader_finds_prepared_corpus_without_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("one two three\n" * 100)
    config = DataConfig((str(text),), vocab=300, batch=2, seq=16)
    first = Reader(config, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(documents, "read", None)
        again = Reader(config, tmp_path / "run")
    assert again.state(0) == first.state(0)
    assert [str(p) for p in (tmp_path / "run").rglob("*.partial")] == []
    text.write_text("one two four\n" * 101)
    changed = Reader(config, tmp_path / "run")
    assert changed.state(0)["text"] != first.state(0)["text"]
    assert changed.tokenizer.digest != first.tokenizer.digest


def test_reader_cache_shared_by_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DataConfig(vocab=300, cache=str(tmp_path / "cache"))
    first = Reader(config, tmp_path / "one")
    monkeypatch.setattr(documents, "read", None)
    assert Reader(config, tmp_path / "two").state(0) == first.state(0)
    assert not (tmp_path / "one").exists()


def test_cached_ignores_leftovers_of_killed_run(tmp_path: Path) -> None:
    def killed(folder: Path) -> None:
        (folder / "half").touch()
        raise SystemExit("killed")

    def whole(folder: Path) -> None:
        assert list(folder.iterdir()) == []
        (folder / "all").touch()

    with pytest.raises(SystemExit, match="killed"):
        disk_cache.cached(tmp_path, ["python-docs"], [1], killed)
    folder = disk_cache.cached(tmp_path, ["python-docs"], [1], whole).folder
    assert {p.name for p in folder.iterdir()} == {"all", "sha256.json"}
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == [folder]


def test_cached_one_host_writes_and_others_wait(tmp_path: Path) -> None:
    written, folders, barrier = [], [], threading.Barrier(4)

    def write(folder: Path) -> None:
        written.append(folder)

    def host() -> None:
        barrier.wait()
        folders.append(disk_cache.cached(tmp_path, ["python-docs"], [], write).folder)

    hosts = [threading.Thread(target=host) for _ in range(4)]
    for thread in hosts:
        thread.start()
    for thread in hosts:
        thread.join()
    assert len(written) == 1
    assert len(folders) == 4
    assert len(set(folders)) == 1


def test_cached_hosts_without_locks_agree_on_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "FileLock", contextlib.nullcontext)

    def write(content: str) -> Callable[[Path], None]:
        def fill(folder: Path) -> None:
            (folder / "file").write_text(content)

        return fill

    def slow(folder: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(disk_cache.socket, "gethostname", lambda: "other")
            disk_cache.cached(tmp_path, ["python-docs"], [], write("first"))
        write("second")(folder)

    folder = disk_cache.cached(tmp_path, ["python-docs"], [], slow).folder
    assert (folder / "file").read_text() == "first"
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == [folder]
