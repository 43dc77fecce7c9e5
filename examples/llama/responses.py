"""Answers in the form that clients of OpenAI's API read."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from .engine import Part, Token
from .tokenizer import Tokenizer


class Head(NamedTuple):
    """The fields that all parts of an answer begin with."""

    id: str
    model: str
    created: int
    chat: bool

    def whole(self, choices: Sequence[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        """An answer."""
        kind = "chat.completion" if self.chat else "text_completion"
        return self._with(kind, choices) | {"usage": usage}

    def chunk(
        self, choices: Sequence[dict[str, Any]], usage: dict[str, int] | None = None
    ) -> dict[str, Any]:
        """A part of a stream."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return self._with(kind, choices) | ({} if usage is None else {"usage": usage})

    def _with(self, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return head | {"choices": list(choices)}


def choice(
    number: int, parts: Sequence[Part], logprobs: Any, chat: bool, stream: bool
) -> dict[str, Any]:
    """The choice that parts of one answer make up."""
    text = "".join(part.text for part in parts)
    message = {"content": text} if stream else {"role": "assistant", "content": text}
    body = {"delta" if stream else "message": message} if chat else {"text": text}
    reason = parts[-1].ended
    return {"index": number, **body, "logprobs": logprobs, "finish_reason": reason}


def opening(number: int) -> dict[str, Any]:
    """The first chunk of a choice's stream, in a chat."""
    delta = {"role": "assistant", "content": ""}
    return {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}


def chances(
    tokens: Sequence[Token], tokenizer: Tokenizer, top: int | None, chat: bool, offset: int = 0
) -> Any:
    """Log-probabilities, if they were requested.

    Args:
        tokens: the generated tokens.
        tokenizer: the model's.
        top: how many of the likeliest tokens to report; None: nothing is reported.
        chat: whether to use the format of chats.
        offset: characters of the answer before these tokens.
    """
    if top is None:
        return None
    if chat:
        return {"content": [_token(token, tokenizer) for token in tokens]}
    texts, offsets = [tokenizer.decode([t.number]) for t in tokens], []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [t.log_probability for t in tokens],
        "top_logprobs": [
            {tokenizer.decode([number]): chance for number, chance in reversed(t.top)}
            for t in tokens
        ],
        "text_offset": offsets,
    }


def _token(token: Token, tokenizer: Tokenizer) -> dict[str, Any]:
    def one(number: int, chance: float) -> dict[str, Any]:
        text = tokenizer.decode([number])
        return {"token": text, "logprob": chance, "bytes": list(text.encode())}

    top = [one(number, chance) for number, chance in token.top]
    return one(token.number, token.log_probability) | {"top_logprobs": top}


def usage(prompt: int, completion: int) -> dict[str, int]:
    """How many tokens there were."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def error(message: str, kind: str, field: str | None = None) -> dict[str, Any]:
    """What went wrong."""
    return {"error": {"message": message, "type": kind, "param": field, "code": None}}


def now() -> int:
    """The time, in seconds."""
    return int(time.time())
