"""Templates for training, against TRL's copies of the models' own templates and of its own."""

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import pytest

from examples.llama.data import chat_template
from examples.llama.data.chat_template import Message, Template

CALL: dict[str, Any] = {"type": "function", "function": {"name": "f", "arguments": {"é": "<x>"}}}
TOOLS = [{"name": "é", "parameters": {"type": "<object>"}}]


def said(content: str | None, **fields: Any) -> Message:
    return {"role": "assistant", "content": content, **fields}


ANSWERS: list[Message] = [
    said("yes"),
    said("<think>\n\nhm\n\n</think>\n\nyes\n"),
    said("\n\nyes", reasoning_content="\nhm\n"),
    said("x", tool_calls=[CALL["function"], {"function": {"name": "g", "arguments": "{}"}}]),
]
ASKED: list[list[Message]] = [
    [{"role": "user", "content": "<tool_call>a"}],
    [{"role": "system", "content": "s"}, {"role": "user", "content": ""}],
]


def answers_of(name: str) -> list[Message]:
    """Answers that the template takes: GLM's takes no arguments that are a text."""
    if name != "glm4moe":
        return ANSWERS
    calls = [CALL["function"], CALL["function"] | {"name": "g"}]
    return [*ANSWERS[:3], said("x", tool_calls=calls)]


def theirs(name: str) -> Template:
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / "chat_templates" / f"{name}.jinja"
    return Template(file.read_text("utf-8"), {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.mark.parametrize("name", ["qwen3", "glm4moe", "phi3"])
def test_training_template_writes_single_answers_as_the_models_own_does(name: str) -> None:
    stock = theirs(name)
    ours = chat_template.training(stock)
    assert ours is not stock
    for asked, answer, tools in itertools.product(ASKED, answers_of(name), [None, TOOLS]):
        text, spans, _ = stock.answers([*asked, answer], tools=tools)
        assert ours.answers([*asked, answer], tools=tools)[:2] == (text, spans)
        expected = stock.render(asked, prompt=True, tools=tools)
        assert ours.render(asked, prompt=True, tools=tools) == expected


@pytest.mark.parametrize("name", ["qwen3", "glm4moe", "phi3"])
def test_training_template_learns_every_answer_as_trl_does(name: str) -> None:
    stock, trl = theirs(name), theirs(f"{name}_training")
    ours = chat_template.training(stock)
    results: list[Message] = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    answers = answers_of(name)

    def expected(chat: list[Message]) -> str:
        if name != "glm4moe":
            return trl.render(chat, tools=TOOLS)
        if chat[-2]["role"] == "tool":
            return stock.render(chat, tools=TOOLS)
        # TRL's leaves out thoughts, as the model's own does: each question is a chat of its own.
        second = stock.render(chat[-2:]).removeprefix("[gMASK]<sop>")
        return stock.render(chat[:-2], tools=TOOLS) + second

    for asked, first, second in itertools.product(ASKED, answers, answers):
        for between in (results, asked[-1:]):
            chat = [*asked, first, *between, second]
            text, spans, left = ours.answers(chat, tools=TOOLS)
            assert text == expected(chat)
            assert (len(spans), left) == (2, 0)
            if between is not results:  # GLM's own leaves out thoughts alone.
                changed = name != "glm4moe" or "hm" in str(first)
                assert stock.answers(chat, tools=TOOLS)[2] == changed


@pytest.mark.parametrize("name", ["gptoss", "deepseekv3"])
def test_training_template_without_tools(name: str) -> None:
    stock = theirs(name)
    ours = chat_template.training(stock)
    for asked, answer in itertools.product(ASKED, [said("yes"), said("yes", thinking="hm")]):
        assert ours.render([*asked, answer]) == stock.render([*asked, answer])
        assert ours.render(asked, prompt=True) == stock.render(asked, prompt=True)
    chat = [*ASKED[1], said("yes"), *ASKED[0], said("no")]
    answers = stock.answers(chat)[2], ours.answers(chat)[2]
    assert answers[0] > answers[1] == 0


@pytest.mark.parametrize("name", ["llama3_1", "qwen2_5", "qwen3_instruct_2507", "gemma", "gemma3"])
def test_training_template_of_other_families_is_their_own(name: str) -> None:
    stock = theirs(name)
    assert chat_template.training(stock) is stock


def test_training_template_unknown_raises() -> None:
    with pytest.raises(chat_template.TemplateError, match="no training template is known for"):
        chat_template.training(theirs("deepseek_r1_distill"))
