"""Conversations and pairs of answers, from records to tokens.

A record of `chat` has `messages`; `conversations`, as in ShareGPT; a `prompt` and a `completion`;
or an `instruction`, perhaps an `input` to it, and an `output`, as in Alpaca. One of `pairs` has a
`prompt`, a `chosen` and a `rejected` answer; one of `unpaired` a `prompt`, a `completion`, and a
`label`. Messages become text by the template of the tokenizer; a prompt and an answer that are
texts follow on each other as they are.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import tokenizers

from . import chat_template
from .chat_template import Message, Span, Template, TemplateError
from .corpus import Example
from .data_config import DataConfig
from .documents import BadRecordError
from .tokenizer import Tokenizer

FIELDS = tuple(
    "messages conversations prompt completion chosen rejected label instruction input output "
    "tools".split()
)
_ROLES = {"human": "user", "gpt": "assistant", "system": "system"}  # of ShareGPT
_MEND = ": mend it, or set data.skip_bad=true"


class Encoder:
    """What makes tokens of records.

    Attributes:
        settings: what decides, besides the tokenizer, which they are.
    """

    def __init__(self, tokenizer: Tokenizer, config: DataConfig):
        self._tokenizer, self._config = tokenizer, config
        self._answers = self._rewritten = self._skipped = self._truncated = 0
        folder = tokenizer.files[0].parent
        self._template: Template | TemplateError
        try:
            self._template = chat_template.load(folder, config.template)
        except TemplateError as error:
            if config.template is not None:
                raise
            self._template = error  # Records may need none.
        found = self._template
        source = [found.source, found.special] if isinstance(found, Template) else None
        self.settings = [config.kind, config.seq, source]
        if config.too_long != "error":
            self.settings.append(config.too_long)

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder, (self._tokenizer, self._config)

    def examples(self, row: Any, where: str) -> tuple[Example, ...]:
        """What there is to learn from in a record: a conversation, or the two of a pair.

        One that is longer than a row is empty, or cut, if the settings say so.
        """
        found = self._record(row, where)
        if not all(any(example.learned[1:]) for example in found):
            raise BadRecordError(f"{where} has an empty answer", _MEND)
        again = _prompt(found[0]) + 1 if self._config.kind == "unpaired" else 0  # `with_others`
        if (size := sum(len(example.tokens) for example in found) + again) > self._config.seq:
            if self._config.too_long == "error":
                raise BadRecordError(
                    f"{where} has {size} tokens, and a row {self._config.seq}",
                    ": raise data.seq, or set data.too_long to skip or truncate",
                )
            cut = _cut(found, max(self._config.seq - again, 0))
            if self._config.too_long == "skip" or not all(any(e.learned[1:]) for e in cut):
                return ()
            return cut
        return found

    def count(self, found: tuple[Example, ...]) -> bool:
        """Count what `examples` returned for a record, for `notes`; whether there is anything."""
        self._skipped += not found
        self._truncated += any(example.truncated for example in found)
        self._answers += sum(example.answers for example in found)
        self._rewritten += sum(example.rewritten for example in found)
        return bool(found)

    def notes(self) -> list[str]:
        """What became of the answers and of long records counted so far."""
        learned = f"{self._answers - self._rewritten:,} of {self._answers:,} answers are learned"
        if self._rewritten:
            learned += (
                f": {self._rewritten:,} are not, for the chat template writes them differently "
                f"once other messages follow{self._remedy()}"
            )
        found = [learned]
        longer = f"longer than a row of {self._config.seq} tokens"
        if self._truncated:
            found.append(f"{self._truncated:,} records are truncated: {longer}")
        if self._skipped:
            why = ", before any answer" if self._config.too_long == "truncate" else ""
            found.append(f"{self._skipped:,} records are skipped: {longer}{why}")
        return found

    def _remedy(self) -> str:
        if self._config.template is not None or isinstance(self._template, TemplateError):
            return ""
        try:
            chat_template.training(self._template)
        except TemplateError:
            return ""
        return ": to learn all, set data.template=training"

    def _record(self, row: Any, where: str) -> tuple[Example, ...]:
        if not isinstance(row, dict):
            raise BadRecordError(f"{where} is not an object with fields", _MEND)
        if self._config.kind == "pairs":
            found = tuple(self._answered(row, field, where) for field in ("chosen", "rejected"))
        elif self._config.kind == "unpaired":
            found = (self._labelled(row, where),)
        elif row.get("messages") is not None:
            found = (self._conversation(_messages(row, "messages", where), row, where),)
        elif row.get("conversations") is not None:
            messages = _sharegpt(row, where)
            found = (self._conversation(messages, row, where, field="conversations"),)
        elif row.get("instruction") is not None and row.get("completion") is None:
            found = (self._conversation(_alpaca(row, where), row, where, field="output"),)
        elif row.get("prompt") is None:
            others = "'conversations', 'prompt' and 'completion', nor 'instruction' and 'output'"
            raise _lacks(row, "messages", where, f", {others}")
        else:
            found = (self._answered(row, "completion", where),)
        return found

    def _answered(self, row: dict[str, Any], field: str, where: str) -> Example:
        """A prompt with the answer in a field."""
        for name in ("prompt", field):
            if row.get(name) is None:
                raise _lacks(row, name, where)
        prompt, answer = row["prompt"], row[field]
        if isinstance(prompt, str) and isinstance(answer, str):
            return self._texts(prompt, answer)
        before, after = (_messages(row, name, where) for name in ("prompt", field))
        whole = [*before, *after]
        return self._conversation(whole, row, where, since=len(before), field=field)

    def _labelled(self, row: dict[str, Any], where: str) -> Example:
        """A prompt with its answer; the label is in place of whether the first token is learned."""
        found = self._answered(row, "completion", where)
        if not isinstance(row.get("label"), bool):
            raise BadRecordError(f"{where} has no true or false for 'label'", _MEND)
        return found._replace(learned=[row["label"], *found.learned[1:]])

    def _texts(self, prompt: str, answer: str) -> Example:
        asked, said = self._tokenizer.encode([_clean(prompt), _clean(answer)])
        begin, end = self._tokenizer.ends
        tokens = [*begin, *asked, *said, *end]
        learned = len(tokens) - len(said) - len(end)
        return Example(tokens, [i >= learned for i in range(len(tokens))] if said else [])

    def _conversation(
        self,
        messages: Sequence[Message],
        row: dict[str, Any],
        where: str,
        since: int = 0,
        field: str = "messages",
    ) -> Example:
        if isinstance(self._template, TemplateError):
            raise self._template
        if not any(message["role"] == "assistant" for message in messages[since:]):
            raise BadRecordError(f"{where} has no assistant message in {field!r}", _MEND)
        try:
            text, spans, left = self._template.answers(
                messages, tools=row.get("tools"), since=since
            )
        except TemplateError as error:
            raise BadRecordError(f"{where}: {error}", _MEND) from error
        encoded = self.encode(text, spans)
        return encoded._replace(answers=len(spans) + left, rewritten=left)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, up to what the assistant says next."""
        if isinstance(self._template, TemplateError):
            raise self._template
        return list(self.encode(self._template.render(messages, prompt=True), []).tokens)

    def encode(self, text: str, spans: Sequence[Span]) -> Example:
        """The tokens of a text in which special tokens count; those within spans are learned."""
        found = self._with_special.encode(_clean(text), add_special_tokens=False)
        begins, ends = np.array(found.offsets, np.int64).reshape(-1, 2).T
        learned = np.zeros(len(found.ids), np.bool_)
        for first, last in spans:
            learned |= (begins < last) & (ends > first)
        return Example(found.ids, learned.tolist())

    @functools.cached_property
    def _with_special(self) -> tokenizers.Tokenizer:
        made = tokenizers.Tokenizer.from_str(self._tokenizer.model.to_str())
        made.encode_special_tokens = False
        return made


def _cut(found: Sequence[Example], room: int) -> tuple[Example, ...]:
    """The beginnings of the examples, which together have `room` tokens at most."""
    shortest = min(len(example.tokens) for example in found)
    each = max(room // len(found), room - shortest * (len(found) - 1))
    return tuple(
        e._replace(tokens=e.tokens[:each], learned=e.learned[:each], truncated=True) for e in found
    )


def _prompt(example: Example) -> int:
    """How many tokens come before the answer, which learns nothing of the first one."""
    return 1 + list(example.learned[1:]).index(True)


def with_others(
    records: Iterable[tuple[tuple[Example, ...], bool]], seq: int
) -> Iterator[tuple[tuple[Example, ...], bool]]:
    """Each answer, and its prompt with the answer of the record before, or of the last one.

    The latter is cut if both do not fit into a row; see `preference.kto`.
    """
    first: dict[bool, Example] = {}
    before: dict[bool, Example] = {}
    for (example,), held_out in records:
        if held_out in before:
            yield (example, _other(example, before[held_out], seq)), held_out
        else:
            first[held_out] = example
        before[held_out] = example
    for held_out, example in first.items():
        yield (example, _other(example, before[held_out], seq)), held_out


def _other(example: Example, before: Example, seq: int) -> Example:
    prompt, answer = _prompt(example), _prompt(before)
    room = slice(answer, answer + seq - len(example.tokens) - prompt)
    tokens = [*example.tokens[:prompt], *before.tokens[room]]
    return Example(tokens, [*[False] * prompt, *before.learned[room]])


def _messages(row: dict[str, Any], field: str, where: str) -> list[Message]:
    """The messages in a field; raises if it has none, or something else."""
    found = row[field]
    if not isinstance(found, list | tuple) or not found:
        what = "an empty list" if found == [] else f"a {type(found).__name__}"
        raise BadRecordError(f"{where} has {what} for {field!r}, not a list of messages", _MEND)
    for i, message in enumerate(found):
        for name, kinds in (("role", str), ("content", str | list | None)):
            place = f"{where}: {field}[{i}]"
            if not isinstance(message, dict):
                raise BadRecordError(f"{place} is a {type(message).__name__}, not an object", _MEND)
            if name not in message and not (name == "content" and "tool_calls" in message):
                raise BadRecordError(f"{place} has no {name!r}", _MEND)
            if not isinstance(message.get(name), kinds):
                kind = type(message[name]).__name__
                raise BadRecordError(f"{place} has a {kind} for {name!r}", _MEND)
    return list(found)


def _sharegpt(row: dict[str, Any], where: str) -> list[Message]:
    """The messages in `conversations`: those with `from` and `value` get a role and content."""
    found = row["conversations"]
    if not isinstance(found, list | tuple):
        return _messages(row, "conversations", where)
    renamed: list[Any] = []
    for i, message in enumerate(found):
        if isinstance(message, dict) and "from" in message:
            place, said_by = f"{where}: conversations[{i}]", message["from"]
            if said_by not in _ROLES:
                known = ", ".join(_ROLES)
                raise BadRecordError(f"{place} is 'from' {said_by!r}, not one of {known}", _MEND)
            if not isinstance(message.get("value"), str):
                raise BadRecordError(f"{place} has no text for 'value'", _MEND)
            message = {"role": _ROLES[said_by], "content": message["value"]}
        renamed.append(message)
    return _messages({"conversations": renamed}, "conversations", where)


def _alpaca(row: dict[str, Any], where: str) -> list[Message]:
    """A question and its answer; an `input` follows the `instruction` after an empty line."""
    for name in ("instruction", "input", "output"):
        if name != "input" and row.get(name) is None:
            raise _lacks(row, name, where)
        if not isinstance(row.get(name), str | None):
            kind = type(row[name]).__name__
            raise BadRecordError(f"{where} has a {kind} for {name!r}, not a text", _MEND)
    if not row["output"]:
        raise BadRecordError(f"{where} has an empty 'output'", _MEND)
    asked = "\n\n".join(text for text in (row["instruction"], row.get("input")) if text)
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": row["output"]}]


def _lacks(row: dict[str, Any], field: str, where: str, more: str = "") -> BadRecordError:
    fields = ", ".join(row) or "none"
    return BadRecordError(f"{where} has no {field!r}{more}; its fields are {fields}", _MEND)


def _clean(text: str) -> str:
    # JSON may have one half of a surrogate pair, which no UTF-8 has: it becomes a "?".
    return text.encode(errors="replace").decode()


def split(
    records: Iterable[tuple[Example, ...]], held_out: float
) -> Iterator[tuple[tuple[Example, ...], bool]]:
    """Like `documents.split`; where fewer than ten or so would be held out, the last ones are."""
    records = iter(records)
    first = list(itertools.islice(records, math.ceil(10 / held_out)))
    if len(first) * held_out < 10:
        kept = len(first) - max(1, round(len(first) * held_out))
        yield from ((record, i >= kept) for i, record in enumerate(first))
        return
    for record in itertools.chain(first, records):
        content = b"|".join(np.array(example.tokens, np.int64).tobytes() for example in record)
        digest = blake2b(content, digest_size=8).digest()
        yield record, int.from_bytes(digest) < held_out * 2**64
