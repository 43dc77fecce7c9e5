"""Conversations as text, by the template that comes with a tokenizer.

Templates are other people's programs: they run in jinja's sandbox, with the functions that
transformers gives them and nothing else.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .documents import DataError

Message = Mapping[str, Any]
Span = tuple[int, int]

FILE = "chat_template.jinja"
TRAINING = "training"  # in place of a file: see `training`
_SHIPPED = Path(__file__).parent / "templates"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


class TemplateError(DataError):
    """There is no template, or it cannot write a conversation."""


class Template:
    """A chat template, in jinja, and the special tokens that it may name, such as `bos_token`."""

    def __init__(self, source: str, special: Mapping[str, str] = {}):
        self.source, self.special = source, dict(special)
        self._environment = _environment()
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(
                f"the chat template is not valid jinja: {error}. Give another one, with "
                "data.template"
            ) from error

    def render(
        self, messages: Sequence[Message], *, prompt: bool = False, tools: Any = None
    ) -> str:
        """The text of a conversation; if `prompt`, with what comes before the next answer."""
        return self._render(messages, prompt, tools)[0]

    def answers(
        self, messages: Sequence[Message], *, tools: Any = None, since: int = 0
    ) -> tuple[str, list[Span], int]:
        """The text of a conversation, and the parts of it that the assistant says.

        A template may mark that itself, by `{% generation %}`. Otherwise it is what follows on the
        text of the messages before and on what opens an answer. Messages before `since` do not
        count.

        Returns:
            The text; from where to where the answers go, with what ends each of them; and how many
            do not count, for the template writes them otherwise once others follow, such as
            without their thoughts: a model never says what it would learn from them.
        """
        text, marked = self._render(messages, False, tools)
        ours = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i >= since]
        if marked and len(marked) == sum(m["role"] == "assistant" for m in messages):
            return text, marked[len(marked) - len(ours) :], 0
        if marked and not since:
            return text, marked, 0
        spans = []
        for i in ours:
            before = self.render(messages[:i], prompt=True, tools=tools)
            whole = text if i + 1 == len(messages) else self.render(messages[: i + 1], tools=tools)
            if text.startswith(whole) and whole.startswith(before) and len(whole) > len(before):
                spans.append((len(before), len(whole)))
        return text, spans, len(ours) - len(spans)

    def _render(
        self, messages: Sequence[Message], prompt: bool, tools: Any
    ) -> tuple[str, list[Span]]:
        values = {"messages": [*messages], "tools": tools, "documents": None}
        tracker = self._environment.extensions[_Generation.identifier]
        assert isinstance(tracker, _Generation)
        try:
            with tracker.tracking() as (parts, spans):
                for part in self._template.generate(
                    **values, add_generation_prompt=prompt, **self.special
                ):
                    parts.append(part)
                return "".join(parts), list(spans)
        except Exception as error:  # A template may raise anything.
            raise TemplateError(f"the chat template rejected it: {error}") from error


class _Generation(Extension):
    """`{% generation %}` ... `{% endgeneration %}`, as transformers has it: what is an answer."""

    tags = {"generation"}  # noqa: RUF012  (jinja's)

    def __init__(self, environment: jinja2.Environment):
        super().__init__(environment)
        self._parts: list[str] = []
        self._spans: list[Span] = []

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: Any) -> str:
        text, begin = caller(), sum(map(len, self._parts))
        self._spans.append((begin, begin + len(text)))
        return text

    @contextlib.contextmanager
    def tracking(self) -> Iterator[tuple[list[str], list[Span]]]:
        """The parts of the text so far, for the caller to fill, and what of it is marked."""
        self._parts, self._spans = [], []
        yield self._parts, self._spans


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def _to_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def training(stock: Template) -> Template:
    """A template that writes an answer the same whether or not others follow, to learn from all.

    That is `stock` itself if it does so, with thoughts too, or else a shipped one that writes chats
    with one answer as `stock` does.
    """
    if not any(_rewritten(stock, chat) for chat in _CHATS):
        return stock
    shipped = sorted(_SHIPPED.glob("*.jinja"))
    for file in shipped:
        found = Template(file.read_text("utf-8"), stock.special)
        if _samples(found) == _samples(stock):
            return found
    raise TemplateError(
        f"no training template is known for this tokenizer, only for those of "
        f"{', '.join(file.stem for file in shipped)}: give a file in data.template"
    )


_ASKED: Message = {"role": "user", "content": "Is it so?"}
_SAID: Message = {"role": "assistant", "content": "Yes."}
_CHATS: tuple[list[Message], ...] = (
    [_ASKED, _SAID],
    [{"role": "system", "content": "Be short."}, _ASKED, _SAID],
    [_ASKED, {**_SAID, "content": "<think>\nIs it?\n</think>\n\nYes."}],
    [_ASKED, {**_SAID, "reasoning_content": "Is it?"}],
)


def _rewritten(template: Template, chat: list[Message]) -> int:
    """How many answers it writes differently once others follow; 0 if it rejects the chat."""
    try:
        return template.answers([*chat, *_CHATS[0]])[2]
    except TemplateError:
        return 0


def _samples(template: Template) -> list[str | None]:
    """Texts of chats with one answer, each with its prompt; None for what the template rejects."""
    found: list[str | None] = []
    for chat in _CHATS:
        for messages, prompt in ((chat, False), (chat[:-1], True)):
            try:
                found.append(template.render(messages, prompt=prompt))
            except TemplateError:
                found.append(None)
    return found


def load(folder: Path, file: str | None = None) -> Template:
    """The template of the tokenizer in a folder, or in another file, or the one for training.

    A tokenizer has it in `chat_template.jinja`, or in `tokenizer_config.json`.
    """
    if file == TRAINING:
        return training(load(folder))
    settings = folder / "tokenizer_config.json"
    try:
        named = json.loads(settings.read_bytes()) if settings.is_file() else {}
        source = _source(folder, file, named)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TemplateError(
            f"cannot read the chat template in {file or folder}: {error!r}"
        ) from error
    if source is None:
        raise TemplateError(
            f"the tokenizer in {folder} has no chat template: set data.template to a file with "
            "one, or use a tokenizer of a model that was trained on conversations"
        )
    texts = {key: named[key] for key in _SPECIAL if named.get(key) is not None}
    special = {key: t["content"] if isinstance(t, dict) else t for key, t in texts.items()}
    return Template(source, special)


def _source(folder: Path, file: str | None, named: dict[str, Any]) -> str | None:
    if file is not None:
        return Path(file).expanduser().read_text("utf-8")
    if (folder / FILE).is_file():
        return (folder / FILE).read_text("utf-8")
    found = named.get("chat_template")
    if isinstance(found, list):  # of several, for tools and the like
        found = {one["name"]: one["template"] for one in found}["default"]
    return found
