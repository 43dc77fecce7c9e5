"""Text, a byte-pair encoding of it, and batches that depend on nothing but seed and step."""

from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from jaxtyping import Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

Tokens = Int[np.ndarray, " tokens"]


def load_text(path: Path | None = None) -> str:
    """The file at `path`, or the language reference inside every Python (`help('with')`)."""
    if path is not None:
        return path.read_text(encoding="utf-8")
    paragraphs = (p for name in sorted(topics) for p in topics[name].strip().split("\n\n"))
    return "\n\n".join(dict.fromkeys(paragraphs))  # some topics repeat parts of others


def train_tokenizer(text: str, vocab: int) -> Tokenizer:
    """A byte-level byte-pair encoding of at most `vocab` tokens: it can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, text: str, held_out: float = 0.1) -> tuple[Tokens, Tokens]:
    """All of the text as token ids, cut into a part to train on and a last part to test on."""
    tokens = np.array(tokenizer.encode(text).ids, dtype=np.int64)
    cut = round(len(tokens) * (1 - held_out))
    return tokens[:cut], tokens[cut:]


def batch_at(
    tokens: Tokens, step: int, *, seed: int, batch: int, seq: int
) -> Int[Tensor, "batch seq+1"]:
    """The batch of one step: windows of `seq + 1` tokens, each from a random place."""
    if len(tokens) <= seq:
        raise ValueError(f"{len(tokens)} tokens cannot fill a window of {seq + 1}: use more text")
    starts = np.random.default_rng([seed, step]).integers(len(tokens) - seq, size=batch)
    return torch.from_numpy(tokens[starts[:, None] + np.arange(seq + 1)])
