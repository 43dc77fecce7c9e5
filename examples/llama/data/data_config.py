"""The data of a run."""

import math
from dataclasses import dataclass
from typing import Literal

from .documents import PYTHON_DOCS, DataError


@dataclass(frozen=True)
class DataConfig:
    """What is read, and how much of it a step uses.

    Attributes:
        kind: what a record is. `text`, a document whose every token is learned; `chat`, a
            conversation whose answers are learned; `pairs`, two answers, one of them preferred; or
            `unpaired`, an answer with a label, whether it is desirable.
        files: files, folders, patterns, URLs: text, JSON lines, JSON, parquet. URLs are those that
            fsspec opens; a file behind `https://` is taken not to change. `python-docs` is the
            language reference inside Python.
        weights: the share of each entry of `files` in all rows, such as `[0.7, 0.3]`. Each begins
            epochs of its own; empty: all files are one, in which each token is as frequent.
        validation: files to evaluate on, given like `files`. All of `files` are then trained on.
        template: a file with a chat template; null: the tokenizer's. `training`: one that writes an
            answer the same whether or not others follow, and a single answer as the tokenizer's
            does.
        field: the field that holds the text in JSON and parquet files.
        skip_bad: whether to skip records that cannot be read or have no text, and to report them.
        too_long: what becomes of a conversation or pair longer than a row. `error`, it is a record
            like those of `skip_bad`; `skip`, it is left out; or `truncate`, it is cut at the end of
            the row, and left out if that leaves no answer.
        tokenizer: a tokenizer.json, or a folder with one; null: it is trained.
        vocab: vocabulary size of a tokenizer trained on the data; null: the model's.
        batch: rows per batch, across all hosts.
        seq: tokens per row.
        held_out: the fraction of the documents to evaluate on, without `validation`.
        seed: seed of the order of the data.
        dynamic: whether each row is one document, or part of one. A batch then groups rows of
            similar length, padded to the longest; otherwise documents are packed into rows.
        memory_limit: bytes that a step with `dynamic` may use on a device, by recomputing values.
        processes: how many make tokens of the data. null: one for each CPU, or one for less than 64
            MiB.
        cache: a folder for the tokenized data, which runs may share. null: the run's own.
    """

    files: tuple[str, ...] = (PYTHON_DOCS,)
    weights: tuple[float, ...] = ()
    validation: tuple[str, ...] = ()
    kind: Literal["text", "chat", "pairs", "unpaired"] = "text"
    template: str | None = None
    field: str = "text"
    skip_bad: bool = False
    too_long: Literal["error", "skip", "truncate"] = "error"
    tokenizer: str | None = None
    vocab: int | None = None
    batch: int = 8
    seq: int = 128
    held_out: float = 0.1
    seed: int = 0
    dynamic: bool = False
    memory_limit: int | None = None
    processes: int | None = None
    cache: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("seq", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise DataError(f"{name} is {getattr(self, name)}: use {least} or more")
        if self.processes is not None and self.processes < 1:
            raise DataError(f"processes is {self.processes}: use 1 or more, or null")
        if self.dynamic and self.kind in ("pairs", "unpaired"):
            raise DataError(
                f"dynamic needs rows of one document, and {self.kind} has two: leave it out"
            )
        if self.weights and len(self.weights) != len(self.files):
            raise DataError(
                f"weights are {len(self.weights)}, and files {len(self.files)}: give a weight for "
                "each entry of data.files, or none"
            )
        for weight in self.weights:
            if not 0 < weight < math.inf:
                raise DataError(
                    f"weights has {weight}: use numbers above 0, or leave the files out"
                )
        if self.weights and self.dynamic:
            raise DataError(
                "weights are shares of rows, and dynamic makes rows of any length: leave one out"
            )
        if self.memory_limit is not None and (self.memory_limit < 1 or not self.dynamic):
            raise DataError(
                f"memory_limit is {self.memory_limit}: use a number of bytes, with data.dynamic"
            )
        if not 0 < self.held_out < 1:
            raise DataError(f"held_out is {self.held_out}: use a fraction between 0 and 1")
