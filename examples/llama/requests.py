"""Requests of OpenAI's API, checked: what is not supported is refused, not silently ignored."""

import secrets
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .sampling import Settings
from .slots import TOP

CHOICES = 128  # the most answers to one request

_Text = Annotated[str, Field(min_length=1)]
_Penalty = Annotated[float, Field(ge=0, le=0)]  # of kinds that are not supported


class RequestError(ValueError):
    """A request that cannot be answered."""

    def __init__(self, message: str, status: int = 400, field: str | None = None):
        super().__init__(message)
        self.status, self.field = status, field


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    """How a stream ends."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Request(_Strict):
    """What both kinds of requests have in common."""

    model: str
    n: Annotated[int, Field(ge=1, le=CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-3, le=1e3)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: _Text | Annotated[list[_Text], Field(max_length=16)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        return self

    @property
    def stops(self) -> list[str]:
        """Texts before which an answer ends."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def asks_usage(self) -> bool:
        """Whether a stream ends with the number of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def settings(self) -> list[Settings]:
        """How the tokens of each choice are drawn; without a seed they differ each time."""
        seed = secrets.randbits(62) if self.seed is None else self.seed
        known = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        given: dict[str, Any] = {"temperature": 1.0} | {
            name: getattr(self, name) for name in known if getattr(self, name) is not None
        }
        seeds = ((seed + 2**63 + i) % 2**64 - 2**63 for i in range(self.n or 1))
        return [Settings(**given, seed=each) for each in seeds]


class Completion(Request):
    """A text, or several, to be continued."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=TOP)] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens to report; None: no probabilities at all."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, as a list."""
        if isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int)):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]


class TextPart(_Strict):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(_Strict):
    """A message of a conversation."""

    role: str
    content: str | list[TextPart]
    name: str | None = None

    def plain(self) -> dict[str, Any]:
        """In the form that a chat template takes."""
        text = self.content
        text = text if isinstance(text, str) else "".join(part.text for part in text)
        named = {} if self.name is None else {"name": self.name}
        return {"role": self.role, "content": text} | named


class Chat(Request):
    """A conversation, to be answered."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP)] | None = None

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("give one of max_tokens and max_completion_tokens")
        return self

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens to report; None: no probabilities at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


def read(kind: type[Request], body: bytes) -> Any:
    """A request of the given kind.

    Raises:
        RequestError: the request is not valid; the message lists every problem.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        found = [
            (".".join(map(str, e["loc"])), e["msg"]) for e in error.errors(include_input=False)
        ]
        text = "; ".join(f"{where or 'the request'}: {what}" for where, what in found)
        raise RequestError(text, field=found[0][0] or None) from None
