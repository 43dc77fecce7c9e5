"""Conversations and pairs: templates against transformers, what is learned, and bad records."""

import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from examples.llama.data import binning, chat_template, conversations, packing, tokenizer
from examples.llama.data.corpus import Part
from examples.llama.data.data_config import DataConfig
from examples.llama.data.documents import DataError
from examples.llama.data.prepare import prepare
from examples.llama.data.reader import Reader
from examples.llama.model import IGNORE

PLAIN = """{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
MARKED = """{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}
{%- endgeneration %}{% else %}{{ message.content + '<|im_end|>' }}{% endif %}
{{ '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"""
LIKE_LLAMA = """{{- bos_token }}
{%- if tools %}{{- tools | tojson(indent=2) }}{% endif %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('no role ' + message.role) }}
    {%- endif %}
    {{- '[' + message['role'] + ']\\n\\n' + message['content'] | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '[assistant]\\n\\n' }}{% endif %}"""
THINKING = """{%- set ns = namespace(last=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}
{%- endif %}{% endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and loop.index0 > ns.last %}{{- '<think></think>' }}{% endif %}
{{- message.content + '<|im_end|>' }}
{%- if loop.index0 > 100 %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
TEMPLATES = {"plain": PLAIN, "marked": MARKED, "llama": LIKE_LLAMA, "thinking": THINKING}
TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": " Is 2 < 3 & 4 > 3? "},
    {"role": "assistant", "content": "Yes: é <|im_end|> 日本."},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "Bye bye"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with special tokens, and no template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.train(["the cat and the dog say yes and bye " * 20], 290, folder)
    made = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    made.save_pretrained(folder)
    return folder


@pytest.fixture
def encoder(folder: Path, tmp_path: Path) -> Callable[..., conversations.Encoder]:
    def make(template: str = PLAIN, seq: int = 200, **options: Any) -> conversations.Encoder:
        file = tmp_path / "template.jinja"
        file.write_text(template)
        config = DataConfig(seq=seq, template=str(file), **{"kind": "chat", **options})
        return conversations.Encoder(tokenizer.load(folder), config)

    return make


@pytest.fixture
def learned(folder: Path) -> Callable[[conversations.Encoder, dict[str, Any]], list[str]]:
    """The text of each stretch of a record's first text that is learned."""
    known = tokenizer.load(folder).model

    def found(encoder: conversations.Encoder, row: dict[str, Any]) -> list[str]:
        texts = encoder.examples(row, "line 1 of f")
        encoder.count(texts)
        example = texts[0]
        stretches: list[list[int]] = []
        for before, token, yes in zip(
            [False, *example.learned], example.tokens, example.learned, strict=False
        ):
            if yes:
                stretches += [] if before else [[]]
                stretches[-1].append(token)
        return [known.decode(tokens, skip_special_tokens=False) for tokens in stretches]

    return found


def trained_on(reader: Reader, folder: Path) -> Part:
    """The data that a reader has prepared in a folder for training."""
    return prepare(reader.config, folder, 300, str)[1][0].train


# -- templates ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, [{"name": "é", "parameters": {"type": "<object>"}}]])
def test_chat_template_matches_transformers(
    folder: Path,
    tmp_path: Path,
    encoder: Callable[..., conversations.Encoder],
    name: str,
    tools: Any,
) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.chat_template = TEMPLATES[name]
    ours = encoder(TEMPLATES[name])
    template = chat_template.load(folder, str(tmp_path / "template.jinja"))
    template.special |= {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    for messages in (TALK, TALK[:2], TALK[1:2]):
        for prompt in (False, True):
            how: dict[str, Any] = {"tools": tools, "add_generation_prompt": prompt}
            text = theirs.apply_chat_template(messages, tokenize=False, **how)
            assert template.render(messages, prompt=prompt, tools=tools) == text
            expected = theirs.apply_chat_template(messages, return_dict=True, **how)["input_ids"]
            assert list(ours.encode(text, []).tokens) == expected
    if name == "marked":
        found = theirs.apply_chat_template(
            TALK, tools=tools, return_dict=True, return_assistant_tokens_mask=True
        )
        example = ours.examples({"messages": TALK, "tools": tools}, "here")[0]
        assert [int(yes) for yes in example.learned] == found["assistant_masks"]


def test_chat_template_load_from_tokenizer_folder(folder: Path, tmp_path: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.chat_template = PLAIN
    theirs.save_pretrained(tmp_path)
    assert chat_template.load(tmp_path).source == PLAIN
    assert chat_template.load(tmp_path).special["eos_token"] == "<|end_of_text|>"
    (tmp_path / chat_template.FILE).unlink()
    file = tmp_path / "tokenizer_config.json"
    values = json.loads(file.read_text())
    named = [{"name": "rag", "template": "x"}, {"name": "default", "template": MARKED}]
    for given in (MARKED, named):
        file.write_text(json.dumps(values | {"chat_template": given}))
        assert chat_template.load(tmp_path).source == MARKED
    tokenizer.load(tmp_path).save(tmp_path / "copy")
    assert chat_template.load(tmp_path / "copy").source == MARKED


def test_chat_template_sandbox_refuses_unsafe_code() -> None:
    for source in (
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('not so') }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ):
        with pytest.raises(chat_template.TemplateError, match="the chat template rejected it"):
            chat_template.Template(source).render(TALK)
    with pytest.raises(chat_template.TemplateError, match=r"not valid jinja: .*\. Give another"):
        chat_template.Template("{% if %}")


# -- a template for training ----------------------------------------------------------------------

SHIPPED = (Path(chat_template.__file__).parent / "templates" / "qwen3.jinja").read_text()
LIKE_QWEN = SHIPPED.replace(  # It leaves out the thoughts of earlier answers.
    "{{- '<think>\\n'",
    "{{- said if 'user' in messages[loop.index0:] | map(attribute='role') else '<think>\\n'",
)
LIKE_QWEN = LIKE_QWEN.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
THOUGHTS = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
]


def in_qwen3s_format(messages: list[dict[str, str]]) -> tuple[str, list[str]]:
    """The text of a chat without tools, and what the assistant says."""
    text, answers = "", []
    for message in messages:
        before, _, after = message["content"].rpartition("\n</think>\n\n")
        thoughts = before.removeprefix("<think>\n")
        said = f"<think>\n{thoughts}\n</think>\n\n{after}<|im_end|>\n"
        if message["role"] == "assistant":
            answers.append(said)
        else:
            said = message["content"] + "<|im_end|>\n"
        text += f"<|im_start|>{message['role']}\n{said}"
    return text, answers


def test_training_template_learns_every_answer(
    folder: Path,
    tmp_path: Path,
    learned: Callable[[conversations.Encoder, dict[str, Any]], list[str]],
) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.chat_template = LIKE_QWEN
    theirs.save_pretrained(tmp_path)
    known = tokenizer.load(tmp_path)
    stock = conversations.Encoder(known, DataConfig(kind="chat", seq=400))
    ours = conversations.Encoder(known, DataConfig(kind="chat", seq=400, template="training"))
    assert len(learned(stock, {"messages": THOUGHTS})) == 1
    assert stock.notes() == [
        "1 of 2 answers are learned: 1 are not, for the chat template writes them differently "
        "once other messages follow: to learn all, set data.template=training"
    ]
    text, answers = in_qwen3s_format(THOUGHTS)
    assert learned(ours, {"messages": THOUGHTS}) == answers
    assert ours.notes() == ["2 of 2 answers are learned"]
    for messages in (THOUGHTS[:2], THOUGHTS[2:], [TALK[0], *THOUGHTS[:2]]):
        (single,) = ours.examples({"messages": messages}, "")
        expected = theirs.apply_chat_template(messages, return_dict=True)["input_ids"]
        assert (single,) == stock.examples({"messages": messages}, "")
        assert single.tokens == expected
    theirs.chat_template = SHIPPED
    found = theirs.apply_chat_template(
        THOUGHTS, return_dict=True, return_assistant_tokens_mask=True
    )
    (whole,) = ours.examples({"messages": THOUGHTS}, "")
    assert theirs.apply_chat_template(THOUGHTS, tokenize=False) == text
    assert whole.tokens == found["input_ids"]
    assert [int(yes) for yes in whole.learned] == found["assistant_masks"]


def test_training_template_of_one_that_leaves_out_thoughts_alone() -> None:
    """GLM's writes answers without thoughts the same, whatever follows."""
    shipped = (Path(chat_template.__file__).parent / "templates" / "glm4moe.jinja").read_text()
    source = shipped.replace(
        "thoughts.strip()",
        "('' if 'user' in messages[loop.index0:] | map(attribute='role') else thoughts.strip())",
    )
    source = source.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
    stock = chat_template.Template(source)
    assert stock.answers([*THOUGHTS[2:], *THOUGHTS[2:]])[2] == 0
    assert stock.answers(THOUGHTS)[2] == 1
    text, spans, rewritten = chat_template.training(stock).answers(THOUGHTS)
    b, d = answers = ["\n<think>hm</think>\nb", "\n<think></think>\nd"]
    assert text == f"[gMASK]<sop><|user|>\na<|assistant|>{b}<|user|>\nc<|assistant|>{d}"
    assert ([text[start:end] for start, end in spans], rewritten) == (answers, 0)


FORMATS = {  # of chats with answers a and b: before them, between them, and what each has
    # https://cookbook.openai.com/articles/openai-harmony
    "gptoss": (
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: DATE\n\nReasoning: medium\n\n# Valid channels: "
        "analysis, commentary, final. Channel must be included for every message.<|end|>"
        "<|start|>developer<|message|># Instructions\n\nBe short.\n\n<|end|>"
        "<|start|>user<|message|>x<|end|><|start|>assistant",
        "<|start|>user<|message|>y<|end|><|start|>assistant",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>a"
        "<|return|>",
        "<|channel|>final<|message|>b<|return|>",
    ),
    # https://huggingface.co/deepseek-ai/DeepSeek-V3
    "deepseekv3": (
        "<|begin_of_text|>Be short.<\uff5cUser\uff5c>x<\uff5cAssistant\uff5c>",
        "<\uff5cUser\uff5c>y<\uff5cAssistant\uff5c>",
        "a<\uff5cend▁of▁sentence\uff5c>",
        "b<\uff5cend▁of▁sentence\uff5c>",
    ),
}
RATED = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": "a", "thinking": "hm"},
    {"role": "user", "content": "y"},
    {"role": "assistant", "content": "b"},
]


@pytest.mark.parametrize("name", FORMATS)
def test_training_template_of_a_format_matches_transformers(name: str, folder: Path) -> None:
    shipped = Path(chat_template.__file__).parent / "templates" / f"{name}.jinja"
    theirs: Any = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.chat_template = shipped.read_text("utf-8")
    special = {"bos_token": theirs.bos_token}
    # The model's own has no marks, and writes but the last answer with thoughts and as the end.
    source = theirs.chat_template.replace("{%- generation %}", "")
    source = source.replace("{%- endgeneration %}", "")
    source = source.replace("message.thinking is string", "message.thinking and loop.last")
    source = source.replace("'<|return|>'", "('<|return|>' if loop.last else '<|end|>')")
    stock = chat_template.Template(source, special)
    ours = chat_template.training(stock)
    assert ours.source == theirs.chat_template
    assert stock.answers(RATED)[2] > 0
    assert stock.render(RATED[:3]) == ours.render(RATED[:3])

    begin, middle, first, second = FORMATS[name]
    text, spans, rewritten = ours.answers(RATED)
    assert re.sub(r"\d{4}-\d\d-\d\d", "DATE", text) == begin + first + middle + second
    assert ([text[start:end] for start, end in spans], rewritten) == ([first, second], 0)
    found = theirs.apply_chat_template(RATED, return_dict=True, return_assistant_tokens_mask=True)
    known = tokenizer.load(folder)
    encoded = conversations.Encoder(known, DataConfig(kind="chat")).encode(text, spans)
    assert encoded.tokens == found["input_ids"]
    assert [int(yes) for yes in encoded.learned] == found["assistant_masks"]

    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {}}]}
    with pytest.raises(chat_template.TemplateError, match=r"it has no tools: give a file in data"):
        ours.render([*RATED[:2], call])


def test_training_template_is_the_tokenizers_own_or_an_error() -> None:
    for source in (PLAIN, MARKED, LIKE_LLAMA):
        own = chat_template.Template(source, {"bos_token": "<s>", "eos_token": "</s>"})
        assert chat_template.training(own) is own
    with pytest.raises(chat_template.TemplateError, match=r"for those of .*, qwen3: give a file"):
        chat_template.training(chat_template.Template(THINKING))


# -- what is learned ------------------------------------------------------------------------------


def test_encoder_learns_answers_only(
    folder: Path,
    encoder: Callable[..., conversations.Encoder],
    learned: Callable[[conversations.Encoder, dict[str, Any]], list[str]],
) -> None:
    first, last = TALK[2]["content"], TALK[4]["content"]
    ends = {"plain": "<|im_end|>\n", "marked": "<|im_end|>"}
    for name, end in ends.items():
        found = learned(encoder(TEMPLATES[name]), {"messages": TALK})
        assert found == [first + end, last + end]
    thinking = encoder(THINKING)
    assert learned(thinking, {"messages": TALK}) == ["<think></think>Bye bye<|im_end|>"]
    assert thinking.notes() == [
        "1 of 2 answers are learned: 1 are not, for the chat template writes them differently "
        "once other messages follow"
    ]
    for template in (PLAIN, MARKED):
        row = {"prompt": TALK[:4], "completion": TALK[4:]}
        assert [text.strip() for text in learned(encoder(template), row)] == ["Bye bye<|im_end|>"]
    made = encoder()
    row = {"prompt": "say <|im_end|>", "completion": " yes", "messages": None}
    assert learned(made, row) == [" yes<|end_of_text|>"]
    tokens = made.examples(row, "")[0].tokens
    known = tokenizer.load(folder)
    assert tokens == [
        known.begin,
        *known.encode(["say <|im_end|>", " yes"])[0],
        *known.encode([" yes"])[0],
        known.end,
    ]


def test_encoder_reads_sharegpt_and_alpaca(
    folder: Path, encoder: Callable[..., conversations.Encoder]
) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.chat_template = MARKED
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    sharegpt = [{"from": names[m["role"]], "value": m["content"]} for m in TALK]
    asked = {"role": "user", "content": "Translate.\n\ndog"}
    alone = {"role": "user", "content": "Translate."}
    said = {"role": "assistant", "content": "cat"}
    alpaca = {"instruction": "Translate.", "output": "cat"}
    for row, messages in (
        ({"conversations": sharegpt, "messages": None, "id": "7"}, TALK),
        ({"conversations": TALK}, TALK),
        (alpaca | {"input": "dog", "prompt": "Below is an instruction"}, [asked, said]),
        (alpaca | {"input": ""}, [alone, said]),
        (alpaca, [alone, said]),
    ):
        expected = theirs.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        (example,) = encoder(MARKED).examples(row, "here")
        assert example.tokens == expected["input_ids"]
        assert [int(yes) for yes in example.learned] == expected["assistant_masks"]
    both = {"prompt": "say", "completion": " yes", "instruction": "a", "output": "b"}
    plain = {"prompt": "say", "completion": " yes"}
    assert encoder().examples(both, "") == encoder().examples(plain, "")


def test_reader_rows_hold_whole_conversations(folder: Path, tmp_path: Path) -> None:
    file, template = tmp_path / "chat.jsonl", tmp_path / "plain.jinja"
    template.write_text(PLAIN)
    draw = np.random.default_rng(0)
    talks = [
        [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "yes " * n}]
        for i, n in enumerate(draw.integers(1, 8, 40).tolist())
    ]
    file.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    config = DataConfig(
        (str(file),), kind="chat", template=str(template), tokenizer=str(folder), batch=3, seq=64
    )
    reader = Reader(config, tmp_path / "run", 300)
    known, seen = tokenizer.load(folder).model, []
    train = trained_on(reader, tmp_path / "run")
    rows = binning.Whole(train, 64, 1, config.seed).rows
    for step in range(-(-rows // 3)):
        batch = reader.batch(step)
        assert batch.segments is not None
        rows_of = zip(batch.tokens, batch.targets, batch.segments, strict=True)
        for tokens, targets, segments in rows_of:
            for number in range(1, int(segments.max()) + 1):
                mine = segments == number
                text = known.decode(tokens[mine].tolist(), skip_special_tokens=False)
                answer = text.partition("assistant\n")[2]
                aims = targets[mine]
                assert (
                    known.decode(aims[aims != IGNORE].tolist(), skip_special_tokens=False) == answer
                )
                assert torch.equal(
                    aims[:-1][aims[:-1] != IGNORE], tokens[mine][1:][aims[:-1] != IGNORE]
                )
                seen.append(text)
    assert len(set(seen)) == len(train.ends) >= 30
    assert "conversations to train on" in str(reader)
    again = Reader(config, tmp_path / "run", 300)
    assert torch.equal(reader.batch(7).tokens, again.batch(7).tokens)


@pytest.mark.parametrize("group", [1, 2])
def test_rows_of_blocks_have_each_document_once(
    group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "BLOCK", 4)
    sizes = np.random.default_rng(0).integers(1, 9, 30)
    ends = np.cumsum(sizes)
    tokens = np.arange(ends[-1], dtype=np.uint16)
    rows = binning.Whole(Part(tokens, ends, np.ones(len(tokens), np.bool_)), 16, group, 5)
    orders = []
    for epoch in (None, 0, 1):
        seen, targets, segments = rows.batch(epoch, np.arange(rows.rows))
        assert sorted(seen[segments > 0].tolist()) == tokens.tolist()
        assert sorted(targets[targets != IGNORE].tolist()) == sorted(
            {*tokens.tolist()} - {0, *ends.tolist()}
        )
        firsts = [
            int(row[document == number][0])
            for row, document in zip(seen, segments, strict=True)
            for number in range(1, document.max() + 1, group)
        ]
        assert sorted(firsts) == [0, *ends[group - 1 : -1 : group].tolist()]
        orders.append(seen.tolist())
    assert orders[0] != orders[1] != orders[2]
    past = rows.batch(None, np.array([rows.rows]))
    assert [set(part.ravel().tolist()) for part in past] == [{0}, {IGNORE}, {0}]


def test_rows_of_many_conversations_take_little_memory() -> None:
    ends = np.arange(1, 400_001) * 50
    known = Part(np.broadcast_to(np.uint16(7), 20_000_000), ends, np.ones(1, np.bool_))
    tracemalloc.start()
    rows = binning.Whole(known, 2048, 1, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows.rows == sum(-(-min(16384, 400_000 - k) // 40) for k in range(0, 400_000, 16384))
    assert peak < ends.nbytes * 1.5


def test_best_fit_packs_bins() -> None:
    sizes = np.random.default_rng(1).integers(1, 65, 500).tolist()
    bins = binning.best_fit(sizes, 64)
    assert sorted(item for found in bins for item in found) == list(range(500))
    assert max(sum(sizes[i] for i in found) for found in bins) <= 64
    assert len(bins) <= 1.1 * sum(sizes) / 64 + 1
    assert binning.best_fit([64, 64, 1], 64) == [[0], [1], [2]]


# -- bad records ----------------------------------------------------------------------------------

ASKED, SAID = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
HUMAN, GPT = {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}


@pytest.mark.parametrize(
    ("kind", "record", "message"),
    [
        (
            "chat",
            {"text": "a"},
            r"has no 'messages', 'conversations', 'prompt' and 'completion', nor 'instruction' and "
            "'output'; its fields are text",
        ),
        ("chat", {"messages": None, "id": 1}, "has no 'messages', 'conversations', "),
        ("chat", {"conversations": "a"}, "has a str for 'conversations', not a list of messages"),
        ("chat", {"conversations": []}, "has an empty list for 'conversations'"),
        ("chat", {"conversations": ["a"]}, r"conversations\[0\] is a str, not an object"),
        (
            "chat",
            {"conversations": [HUMAN, GPT | {"from": "bard"}]},
            r"conversations\[1\] is 'from' 'bard', not one of human, gpt, system",
        ),
        (
            "chat",
            {"conversations": [{"from": "gpt"}]},
            r"conversations\[0\] has no text for 'value'",
        ),
        ("chat", {"conversations": [HUMAN]}, "has no assistant message in 'conversations'"),
        ("chat", {"instruction": "a"}, "has no 'output'; its fields are instruction"),
        ("chat", {"instruction": "a", "output": ""}, "has an empty 'output'"),
        ("chat", {"instruction": ["a"], "output": "b"}, "has a list for 'instruction', not a text"),
        ("chat", {"instruction": "a", "input": 3, "output": "b"}, "has a int for 'input', not"),
        ("chat", {"prompt": "a"}, "has no 'completion'; its fields are prompt"),
        ("chat", {"messages": []}, "has an empty list for 'messages'"),
        ("chat", {"messages": "a"}, "has a str for 'messages', not a list of messages"),
        ("chat", {"messages": ["a"]}, r"messages\[0\] is a str, not an object"),
        ("chat", {"messages": [ASKED, {"role": "user"}]}, r"messages\[1\] has no 'content'"),
        ("chat", {"messages": [{"content": "a"}]}, r"messages\[0\] has no 'role'"),
        ("chat", {"messages": [ASKED | {"role": 3}]}, r"messages\[0\] has a int for 'role'"),
        ("chat", {"messages": [ASKED]}, "has no assistant message in 'messages'"),
        (
            "chat",
            {"messages": [ASKED, SAID | {"content": None}]},
            "the chat template rejected it",
        ),
        ("chat", {"prompt": "a", "completion": ""}, "has an empty answer"),
        ("chat", {"prompt": "a", "completion": [SAID]}, "has a str for 'prompt', not a list of"),
        ("chat", {"prompt": [SAID], "completion": [ASKED]}, "no assistant message in 'compl"),
        (
            "chat",
            {"prompt": "a" * 90, "completion": "b"},
            r"has \d+ tokens, and a row 64: raise data",
        ),
        ("chat", [1], "is not an object with fields"),
        (
            "pairs",
            {"prompt": "a", "chosen": "b"},
            "has no 'rejected'; its fields are prompt, chosen",
        ),
        ("pairs", {"chosen": [SAID], "rejected": [SAID]}, "has no 'prompt'; its fields are chosen"),
        ("pairs", {"prompt": "a", "chosen": "b", "rejected": 3}, "has a str for 'prompt', not a"),
    ],
)
def test_reader_bad_records_raise_or_are_skipped(
    folder: Path, tmp_path: Path, kind: Any, record: Any, message: str
) -> None:
    file, template = tmp_path / "f.jsonl", tmp_path / "plain.jinja"
    template.write_text(PLAIN)
    good = {"prompt": "a", "completion": "b", "chosen": "b", "rejected": "c"}
    records = [*([good] * 3), record, good]
    file.write_text("".join(json.dumps(r) + "\n" for r in records))
    files = {"files": (str(file),), "template": str(template), "tokenizer": str(folder)}
    config = DataConfig(kind=kind, **files, seq=64)
    with pytest.raises(DataError, match=rf"line 4 of .*f\.jsonl:? .*{message}"):
        Reader(config, tmp_path / "run", 300)
    told: list[str] = []
    reader = Reader(
        DataConfig(kind=kind, **files, seq=64, skip_bad=True), tmp_path, 300, say=told.append
    )
    assert "1 records are skipped: line 4 of " in told[-1]
    assert len(trained_on(reader, tmp_path).ends) == (6 if kind == "pairs" else 3)


@pytest.mark.parametrize("skip", [False, True])
def test_encoder_too_long(encoder: Callable[..., conversations.Encoder], skip: bool) -> None:
    talk = {"prompt": "a", "completion": "yes and no " * 9}
    pair = {"prompt": "a", "chosen": "yes and no " * 9, "rejected": "no"}
    even = pair | {"rejected": "no and yes " * 9}
    hopeless = {"prompt": "a" * 400, "completion": "b"}
    for kind, row in (("chat", talk), ("pairs", pair), ("pairs", even)):
        whole = encoder(kind=kind).examples(row, "")
        shortest = min(len(example.tokens) for example in whole)
        if skip:
            made = encoder(kind=kind, seq=20, too_long="skip")
            assert made.examples(row, "") == ()
            assert not made.count(())
            assert made.notes()[1:] == ["1 records are skipped: longer than a row of 20 tokens"]
            assert made.examples({"prompt": "a", "completion": "b", **_both("b")}, "") != ()
            continue
        made = encoder(kind=kind, seq=20, too_long="truncate")
        rooms = {"chat": [20]}.get(kind) or ([10, 10] if row is even else [20 - shortest, shortest])
        found = made.examples(row, "")
        assert made.count(found)
        for cut, example, room in zip(found, whole, rooms, strict=True):
            assert cut.tokens == example.tokens[:room]
            assert cut.learned == example.learned[:room]
        assert made.notes()[1:] == ["1 records are truncated: longer than a row of 20 tokens"]
    made = encoder(seq=20, too_long="truncate")
    assert not made.count(made.examples(hopeless, ""))
    assert made.notes() == [
        "0 of 0 answers are learned",
        "1 records are skipped: longer than a row of 20 tokens, before any answer",
    ]
    with pytest.raises(DataError, match=r"raise data\.seq, or set data\.too_long to skip or"):
        encoder(seq=20).examples(talk, "")


def _both(answer: str) -> dict[str, str]:
    return {"chosen": answer, "rejected": answer}


def test_reader_too_long_is_told_again(folder: Path, tmp_path: Path) -> None:
    file, template = tmp_path / "f.jsonl", tmp_path / "plain.jinja"
    template.write_text(PLAIN)
    good, long = (json.dumps({"messages": [ASKED, SAID | {"content": t}]}) for t in ("b", "b" * 99))
    file.write_text("\n".join([good, long, good, good]))
    given = {"files": (str(file),), "template": str(template), "tokenizer": str(folder)}
    cases: Any = (("skip", "skipped", 2), ("truncate", "truncated", 3))
    for too_long, done, count in cases:
        config = DataConfig(kind="chat", **given, seq=40, too_long=too_long)
        for _ in range(2):
            told: list[str] = []
            reader = Reader(config, tmp_path, 300, say=told.append)
            assert told[-2] == f"{count + 1} of {count + 1} answers are learned"
            assert told[-1].startswith(f"1 records are {done}: longer than a row of 40 tokens")
            assert len(trained_on(reader, tmp_path).ends) == count
    config = DataConfig(kind="chat", **given, seq=8, too_long="skip")
    with pytest.raises(
        DataError, match=r"4 records are skipped: .* 8 tokens, and no others are left: raise"
    ):
        Reader(config, tmp_path, 300)


def test_reader_chat_setting_errors(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text(json.dumps({"messages": [ASKED, SAID]}) + "\n")
    for options, message in (
        ({}, "data.kind is chat, and data.tokenizer is null: give the model's tokenizer"),
        ({"tokenizer": str(folder)}, "has no chat template: set data.template to a file with one"),
        ({"files": ("python-docs",)}, "data.kind is chat, and python-docs has no such records"),
        (
            {"tokenizer": str(folder), "template": "none.jinja"},
            r"cannot read the chat template in none\.jinja: ",
        ),
    ):
        config = DataConfig(kind="chat", **{"files": (str(file),), **options})
        with pytest.raises(DataError, match=message):
            Reader(config, tmp_path / "run", 300)
