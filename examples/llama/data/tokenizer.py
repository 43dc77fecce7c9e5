"""Text to tokens and back: an existing tokenizer, or one trained on the data."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from ..files import written
from .documents import DataError

# The names of Llama 3 first, and then others.
_BEGIN = ("<|begin_of_text|>", "<s>", "<bos>")
_END = ("<|end_of_text|>", "</s>", "<eos>", "<|endoftext|>")
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_SLICE = 1 << 17  # characters encoded at once, which takes several times their memory


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Turns text into tokens, and back."""

    model: tokenizers.Tokenizer  # Hugging Face's
    begin: int | None  # the token before each document
    end: int | None  # the token after each document
    size: int  # how many tokens there are: a model's vocabulary must have at least as many
    digest: str  # a hash of the whole
    files: tuple[Path, ...]  # that it was read from

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.files[0],)  # Its JSON lacks some of what `load` sets.

    @property
    def ends(self) -> tuple[list[int], list[int]]:
        """The tokens before and after each document: one, or none."""
        return [t for t in [self.begin] if t is not None], [t for t in [self.end] if t is not None]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of parts of documents, without begin and end.

        A document cannot contain a special token: `<|end_of_text|>` in it is text like any other.
        """
        found = self.model.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode_prompt(self, text: str) -> list[int]:
        """The tokens of a text that begins a document."""
        return self.ends[0] + self.encode([text])[0]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return self.model.decode(tokens)

    def decode_after(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        """The text that tokens add to the tokens before them.

        Alone they may give another: Llama 2's tokenizer drops the space before a text's first word.
        """
        return self.decode([*before, *tokens])[len(self.decode(before)) :]

    def save(self, folder: Path) -> None:
        """Copy its files into `folder`, for `load`."""
        folder.mkdir(parents=True, exist_ok=True)
        model, *beside = self.files
        for file, name in ((model, FILES[0]), *((file, file.name) for file in beside)):
            if not ((folder / name).exists() and file.samefile(folder / name)):
                with written(folder / name) as partial:
                    shutil.copyfile(file, partial)

    def check_fits(self, vocab: int) -> None:
        """Raise an error if a model of `vocab` tokens lacks some of these."""
        if self.size > vocab:
            raise DataError(
                f"the tokenizer has {self.size} tokens and the model {vocab}: "
                f"use a model whose vocabulary is at least {self.size}, or another tokenizer"
            )


def load(path: str | Path) -> Tokenizer:
    """Read a `tokenizer.json`, or the one in a folder.

    The tokens that begin and end a document are those named by a `tokenizer_config.json` beside it,
    or else those with a usual name.
    """
    file = Path(path).expanduser()
    file = file / FILES[0] if file.is_dir() else file
    if not file.is_file():
        raise DataError(f"no tokenizer at {file}: give a tokenizer.json, or a folder that has one")
    settings, template = (file.with_name(name) for name in FILES[1:])
    files = (file, *(beside for beside in (settings, template) if beside.is_file()))
    try:
        content = file.read_bytes()
        model = tokenizers.Tokenizer.from_buffer(content)
        named = json.loads(settings.read_bytes()) if settings in files else {}
    except Exception as error:  # `tokenizers` raises plain Exception.
        names = " or ".join(map(str, files))
        raise DataError(f"cannot read {names}: {error}. Give another tokenizer") from error
    model.no_truncation()  # Some are published with a maximum length.
    model.no_padding()
    model.encode_special_tokens = True
    vocab = model.get_vocab()
    begin = _special(vocab, named, "bos_token", _BEGIN)
    end = _special(vocab, named, "eos_token", _END)
    size = max(vocab.values()) + 1
    digest = hashlib.sha256(content + repr((begin, end)).encode()).hexdigest()
    return Tokenizer(model, begin, end, size, digest, files)


def train(documents: Iterable[str], vocab: int, folder: Path) -> None:
    """Train a byte-level BPE tokenizer of at most `vocab` tokens, for `load` to read.

    It can encode any text. `transformers.AutoTokenizer` can read the folder too.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [_BEGIN[0], _END[0]]
    least = len(alphabet) + len(special)
    if vocab < least:
        raise DataError(
            f"a vocabulary of {vocab} is too small for all bytes and the begin "
            f"and end tokens: use {least} tokens or more"
        )
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    pieces = (piece for document in documents for piece in slices(document))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    model.train_from_iterator(pieces, trainer)
    model.post_processor = processors.TemplateProcessing(
        single=f"{special[0]} $A", special_tokens=[(special[0], 0)]
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special[0],
        "eos_token": special[1],
        "clean_up_tokenization_spaces": False,
    }
    (folder / FILES[1]).write_text(json.dumps(settings, indent=2), "utf-8")
    (folder / FILES[0]).write_text(model.to_str(pretty=True), "utf-8")


def slices(text: str) -> Iterator[str]:
    """The text in parts small enough to be encoded, which end at a line break if possible."""
    begin = 0
    while begin < len(text):
        end = begin + _SLICE
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end
        yield text[begin:end]
        begin = end


def _special(
    vocab: dict[str, int], settings: dict[str, Any], key: str, usual: Sequence[str]
) -> int | None:
    name = settings[key] if key in settings else next(filter(vocab.__contains__, usual), None)
    name = name["content"] if isinstance(name, dict) else name
    return None if name is None else vocab.get(name)
