"""Lines about the progress of `examples.llama.data.prepare`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from examples.llama.config import Run
from examples.llama.data import prepare
from examples.llama.train import fit
from tests.llama.texts import documents_of, write_lines


def test_prepare_progress_is_printed(
    run_of: Callable[..., Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write_lines(tmp_path / "a.jsonl", *documents_of(200))
    monkeypatch.setattr(prepare, "_EVERY", 0.0)
    cache = f"data.cache={tmp_path / 'cache'}"
    fit.fit(run_of("a", f"data.files={file}", cache, "train.steps=3"))
    told = capsys.readouterr().out
    assert " documents, 1" in told
    assert " characters so far" in told
    assert "200 documents, " in told
    assert " tokens so far" in told
