"""Log-probabilities of texts: rows of any length, in programs for a few widths."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import xfunc as xf

from ..data import documents
from ..data.tokenizer import Tokenizer, slices
from . import attention, llama
from .llama import IGNORE
from .parameters import Params
from .plan import Plan
from .sizes import Config

_LEAST = 16  # tokens of the narrowest rows


class Row(NamedTuple):
    """Tokens, the last `scored` of which are scored."""

    tokens: Sequence[int]
    scored: int


class Score(NamedTuple):
    """A log-probability, in nats, and whether each token was the likeliest."""

    log_probability: float
    is_greedy: bool


class Scorer:
    """Scores rows with a model.

    Args:
        params: the weights, in the form the model computes with.
        config: the sizes.
        plan: how it is computed.
        length: the most tokens a row may have before its last one.
        batch: rows at a time.
    """

    def __init__(
        self, params: Params, config: Config, plan: Plan = Plan(), *, length: int, batch: int = 8
    ):
        if length < 1 or batch < 1:
            raise ValueError(f"length is {length}, batch {batch}: use 1 or more")
        self.length, self._batch = length, batch
        self._run = functools.partial(scores, params, config=config, plan=plan)

    def __call__(self, rows: Sequence[Row]) -> list[Score]:
        """The scores of some rows."""
        found: dict[int, Score] = {}
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i].tokens))
        for at in range(0, len(order), self._batch):
            some = order[at : at + self._batch]
            width = self._width(max(len(rows[i].tokens) for i in some) - 1)
            tokens = torch.zeros(self._batch, width + 1, dtype=torch.int64)
            targets = torch.full((self._batch, width), IGNORE)
            for place, i in enumerate(some):
                row, n = rows[i]
                tokens[place, : len(row)] = torch.tensor(row)
                targets[place, len(row) - 1 - n : len(row) - 1] = torch.tensor(row)[len(row) - n :]
            totals, greedy = xf.device_get(self._run(tokens[:, :-1], targets))
            for place, i in enumerate(some):
                found[i] = Score(float(totals[place]), bool(greedy[place]))
        return [found[i] for i in range(len(rows))]

    def _width(self, size: int) -> int:
        if size > self.length:
            raise ValueError(f"a row has {size + 1} tokens: the maximum is {self.length + 1}")
        return min(max(_LEAST, 1 << (size - 1).bit_length()), self.length)


@functools.partial(xf.jit, static_argnames=("config", "plan"))
def scores(
    params: Params,
    tokens: Int[Tensor, "rows seq"],
    targets: Int[Tensor, "rows seq"],
    *,
    config: Config,
    plan: Plan,
) -> tuple[Float[Tensor, " rows"], Bool[Tensor, " rows"]]:
    """The log-probability of the targets of each row, and whether each of them is the likeliest."""
    x, _ = llama.run_layers(params, tokens, config, plan, None)

    def of(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits, ignored = attention.wide(llama.logits(params, x, config, plan)), targets == IGNORE
        chosen = logits.take_along_dim(targets.clamp(min=0)[..., None], -1)[..., 0]
        told = (chosen - logits.logsumexp(-1)).masked_fill(ignored, 0.0)
        return told, (chosen >= logits.amax(-1)) | ignored

    told, greedy = llama.over_chunks(of, x, targets, plan)
    total, greedy = told.double().sum(-1), greedy.all(-1)
    if (s := plan.sharding) is not None:  # With several processes, each reads all of it.
        total, greedy = s.constrain(total, s.whole), s.constrain(greedy, s.whole)
    return total, greedy


def windows(tokens: Sequence[int], length: int, step: int | None = None) -> Iterator[Row]:
    """Rows in which each token but the first is scored once, up to `step` of them in a row.

    By default, tokens after the first row are scored with at least half a row of context.
    """
    if len(tokens) < 2:
        return
    step = (length + 1) // 2 if step is None else step
    end = min(len(tokens), length + 1)
    yield Row(tokens[:end], end - 1)
    while end < len(tokens):
        begin, end = end, min(end + step, len(tokens))
        yield Row(tokens[max(0, end - length - 1) : end], end - begin)


class Total(NamedTuple):
    """The totals of a file.

    Attributes:
        nats: the negative log-probability of all tokens.
        tokens: how many were scored.
        size: the length of the text, in bytes of UTF-8.
    """

    nats: float
    tokens: int
    size: int

    @property
    def loss(self) -> float:
        """The mean per token, in nats."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """The perplexity per token."""
        return float(torch.tensor(self.loss, dtype=torch.float64).exp())  # No OverflowError.

    @property
    def bits_per_byte(self) -> float:
        """The mean per byte, which is comparable across tokenizers."""
        return float(self.nats / self.size / torch.tensor(2.0, dtype=torch.float64).log())


def of_texts(scorer: Scorer, tokenizer: Tokenizer, texts: Iterable[str]) -> Total:
    """The scores of documents, each by itself."""
    total, rows = Total(0.0, 0, 0), list[Row]()

    def flushed() -> Total:
        found = scorer(rows)
        nats = total.nats - sum(score.log_probability for score in found)
        scored = total.tokens + sum(row.scored for row in rows)
        rows.clear()
        return Total(nats, scored, total.size)

    for text in texts:
        parts = tokenizer.encode([*slices(text)]) if text else []
        rows += windows(
            [*tokenizer.ends[0], *(token for part in parts for token in part)], scorer.length
        )
        total = total._replace(size=total.size + len(text.encode()))
        if len(rows) > 1024:
            total = flushed()
    total = flushed()
    if not total.tokens:
        raise documents.DataError("there is no text to score: give other files")
    return total


def by_file(
    scorer: Scorer, tokenizer: Tokenizer, sources: Sequence[str], field: str
) -> Iterator[tuple[str, Total]]:
    """The scores of each file that `sources` stand for, see `documents.find`."""
    for file in documents.find(sources):
        yield file, of_texts(scorer, tokenizer, documents.read([file], field))
