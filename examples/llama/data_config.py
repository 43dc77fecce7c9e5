"""What a run reads."""

from dataclasses import dataclass
from typing import Literal

from .documents import PYTHON_DOCS, DataError


@dataclass(frozen=True)
class DataConfig:
    """What is read, and how much of it a step takes.

    Attributes:
        kind: what a record is: `text`, a document, of which each token is learned; `chat`, a
            conversation, of which the answers are; or `pairs`, two answers, of which one is
            preferred.
        files: text, JSON lines and parquet files, folders of them, or patterns; `python-docs` is
            the language reference inside Python.
        validation: files to evaluate on, given like `files`, all of which are trained on then;
            none: a part of the documents is held out.
        template: a file with a chat template; null: that of the tokenizer.
        field: what holds the text in JSON and parquet.
        skip_bad: whether records that cannot be read, or have no text, are left out and told; else
            the first one is an error.
        tokenizer: a tokenizer.json, or a folder with one; None: one is trained on the data.
        vocab: tokens of the one that is trained; null: as many as the model has.
        batch: rows of a batch, of all hosts together.
        seq: tokens of a row.
        held_out: the part of the documents that is never trained on, without `validation`.
        seed: of the order.
        cache: a folder, which runs may share, for what is made of the data; None: the run's own.
    """

    files: tuple[str, ...] = (PYTHON_DOCS,)
    validation: tuple[str, ...] = ()
    kind: Literal["text", "chat", "pairs"] = "text"
    template: str | None = None
    field: str = "text"
    skip_bad: bool = False
    tokenizer: str | None = None
    vocab: int | None = None
    batch: int = 8
    seq: int = 128
    held_out: float = 0.1
    seed: int = 0
    cache: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("seq", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise DataError(f"{name} is {getattr(self, name)}: use {least} or more")
        if not 0 < self.held_out < 1:
            raise DataError(f"held_out is {self.held_out}: use a part between 0 and 1")
