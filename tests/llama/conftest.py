"""Short runs of the training program, for its tests."""

import functools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.llama import __main__ as program
from examples.llama import config, model
from examples.llama.config import Run
from examples.llama.data import tokenizer
from tests.llama import hugging_face, interrupted, texts, tuned


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some text that is easy to learn."""
    draw = random.Random(0)
    words = [draw.choice("the cat and a dog or two birds sing").strip() for _ in range(20000)]
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text(" ".join(words), encoding="utf-8")
    return path


@pytest.fixture
def settings(text: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """Settings of a short run in a folder of this test."""

    def make(name: str, *pairs: str) -> list[str]:
        base = (
            f"folder={tmp_path / name} data.files={text} data.cache={text.parent / 'cache'} "
            f"data.vocab=300 train.model=tiny train.model.vocab=300 data.batch=4 data.seq=16 "
            f"train.steps=8 train.warmup=2 save_every=4 eval_every=4"
        )
        return [*base.split(), *pairs]

    return make


@pytest.fixture
def run_of(settings: Callable[..., list[str]]) -> Callable[..., Run]:
    """The settings of a short run, read."""
    return lambda *args: config.read(pairs=settings(*args))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs a command; its exit status, and what it prints."""

    def make(*args: object) -> tuple[int, str]:
        status = program.main([*map(str, args)])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return make


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Do something just before a step of the next run, counted from 1."""

    return functools.partial(interrupted.at_step, monkeypatch=monkeypatch)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random model, and the data of every kind of run."""
    return tuned.make(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer of 300 tokens."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.train(texts.SENTENCES, 300, folder)
    return folder


@pytest.fixture(
    name="config", params=list(hugging_face.CONFIGS.values()), ids=list(hugging_face.CONFIGS)
)
def config_of_a_model(request: pytest.FixtureRequest) -> model.Config:
    """Small models that transformers has as well."""
    return request.param


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where weights shall be; it is not there yet."""
    return tmp_path / "weights"
