"""The server, with OpenAI's client: answers, refusals, and clients that go."""

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from examples.llama import server, slots, tokenizer
from tests.llama.serving import Running, served

TALK: Any = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with served(tmp_path_factory.mktemp("tokenizer")) as made:
        yield made


@pytest.fixture
def client(running: Running) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{running.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as made:
        yield made


def test_server_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="there is no model 'large': use 'tiny'"):
        client.models.retrieve("large")


def test_server_completion_whole_and_streamed(client: openai.OpenAI, running: Running) -> None:
    how: Any = {"model": "tiny", "prompt": "the cat", "max_tokens": 9, "seed": 5, "logprobs": 2}
    whole = client.completions.create(**how)
    choice = whole.choices[0]
    assert choice.finish_reason == "length"
    known = running.service.tokenizer
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == len(known.encode_prompt("the cat"))
    assert whole.usage.completion_tokens == 9
    assert choice.logprobs is not None
    assert len(choice.logprobs.token_logprobs or ()) == len(choice.logprobs.tokens or ()) == 9
    assert all(len(top) in (1, 2) for top in choice.logprobs.top_logprobs or ())

    chunks = [
        *client.completions.create(**how, stream=True, stream_options={"include_usage": True})
    ]
    assert "".join(c.choices[0].text for c in chunks[:-1]) == choice.text
    assert chunks[-1].usage == whole.usage
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "length"
    offsets = [o for c in chunks[:-1] if (p := c.choices[0].logprobs) for o in p.text_offset or ()]
    assert offsets == choice.logprobs.text_offset

    stop = choice.text[3:5]
    ended = client.completions.create(**how, stop=[stop])
    assert ended.choices[0].text == choice.text[: choice.text.index(stop)]
    assert ended.choices[0].finish_reason == "stop"


def test_server_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    how: Any = {"model": "tiny", "messages": TALK, "temperature": 0.0, "max_completion_tokens": 7}
    whole = client.chat.completions.create(**how, logprobs=True, top_logprobs=3)
    [choice] = whole.choices
    assert choice.message.role == "assistant"
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert len(content) == 7
    for token in content:  # The likeliest was taken.
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == token.logprob < 0
        assert token.bytes == list(token.token.encode())
    chunks = [*client.chat.completions.create(**how, stream=True)]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == choice.message.content
    same = client.completions.create(
        model="tiny", prompt="[user] the cat\n[assistant] ", temperature=0, max_tokens=7
    )
    assert same.choices[0].text != ""

    parts: Any = [
        {"role": "user", "content": [{"type": "text", "text": t} for t in ("the", " cat")]}
    ]
    again = client.chat.completions.create(**how | {"messages": parts})
    assert again.choices[0].message.content == text


def test_server_several_prompts_and_choices(client: openai.OpenAI) -> None:
    texts = ["the", "the dog and", "bye"]
    how: Any = {"model": "tiny", "max_tokens": 6, "seed": -1}
    many = client.completions.create(prompt=texts, n=2, **how)
    assert [c.index for c in many.choices] == [*range(6)]
    for i, text in enumerate(texts):
        both = client.completions.create(prompt=text, n=2, **how)
        assert [c.text for c in both.choices] == [c.text for c in many.choices[2 * i : 2 * i + 2]]
        assert both.choices[0].text != both.choices[1].text
    tokens = client.completions.create(prompt=[[5, 6], [7]], **how)
    assert tokens.choices[1].text == client.completions.create(prompt=[7], **how).choices[0].text


@pytest.mark.slow
def test_server_concurrent_requests_equal_single_ones(running: Running) -> None:
    """64, of all lengths and settings: each as it is alone, and nothing is compiled."""
    words = "the cat and the dog say yes and bye".split()

    def request(i: int) -> dict[str, Any]:
        how = {"temperature": (i % 3) / 2, "top_p": 1 - (i % 4) / 10, "seed": i}
        more = {"top_k": i % 5, "repetition_penalty": 1 + (i % 2) / 2}
        text = " ".join(words[j % len(words)] for j in range(1 + i % 13))
        return {"model": "tiny", "prompt": text, "max_tokens": 1 + i % 11, **how} | {
            "extra_body": more
        }

    url = f"http://127.0.0.1:{running.port}/v1"
    before = slots.advance.cache_info()

    async def all_of_them() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            create: Any = client.completions.create

            async def one(i: int) -> str:
                if i % 2:
                    return (await create(**request(i))).choices[0].text
                stream = await create(**request(i), stream=True)
                return "".join([chunk.choices[0].text async for chunk in stream])

            together = await asyncio.gather(*map(one, range(64)))
            alone = [await one(i ^ 1 if i > 61 else i) for i in range(64)]
            return together, alone

    together, alone = asyncio.run(all_of_them())
    assert together[:62] == alone[:62]
    assert together[62:] == alone[:61:-1]
    after = slots.advance.cache_info()
    assert (after.traces, after.compiles) == (before.traces, before.compiles)


COMPLETION = {"model": "tiny", "prompt": "the"}
CHAT = {"model": "tiny", "messages": TALK}
BAD: dict[str, tuple[str, Any]] = {
    "the request: Invalid JSON": ("completions", b"{"),
    "the request: Input should be an object": ("completions", b"[]"),
    "the request: Invalid JSON: recursion": ("completions", b"[" * 100_000),
    "model: Field required; prompt: Field required": ("completions", b"{}"),
    "temperature: Input should be a finite number": (
        "completions",
        b'{"model": "tiny", "prompt": "a", "temperature": NaN}',
    ),
    "temperature: Input should be greater than or equal to 0": (
        "completions",
        COMPLETION | {"temperature": -1},
    ),
    "max_tokens: Input should be a valid integer": (
        "completions",
        COMPLETION | {"max_tokens": "5"},
    ),
    "max_tokens: Input should be greater than": ("chat/completions", CHAT | {"max_tokens": 0}),
    "the prompt has 2 tokens and 63 new ones": ("completions", COMPLETION | {"max_tokens": 63}),
    "new ones are requested: together they may be 64 at most": (
        "chat/completions",
        {"model": "tiny", "messages": [{"role": "user", "content": "the cat " * 99}]},
    ),
    "presence_penalty: Input should be less": ("completions", COMPLETION | {"presence_penalty": 1}),
    "tools: Extra inputs are not permitted": ("chat/completions", CHAT | {"tools": []}),
    "prompt is empty": ("completions", COMPLETION | {"prompt": []}),
    "prompt asks for more than 128 answers": (
        "completions",
        COMPLETION | {"prompt": ["a"] * 65, "n": 2},
    ),
    "there is no token 320: the vocabulary has 320": (
        "completions",
        COMPLETION | {"prompt": [320]},
    ),
    "there is no token -1: the vocabulary": ("completions", COMPLETION | {"prompt": [[5], [-1]]}),
    f"there is no token {10**25}: the": ("completions", COMPLETION | {"prompt": [10**25]}),
    f"2 tokens and {10**30} new ones": ("completions", COMPLETION | {"max_tokens": 10**30}),
    "prompt.list.*Input should be a valid": ("completions", COMPLETION | {"prompt": ["a", 1]}),
    "the prompt has 800002 tokens": ("completions", COMPLETION | {"prompt": "the cat " * 400_000}),
    "top_p: Input should be less": ("completions", COMPLETION | {"top_p": 1.5}),
    "repetition_penalty: Input": ("completions", COMPLETION | {"repetition_penalty": 0}),
    "stream_options needs stream to be true": (
        "completions",
        COMPLETION | {"stream_options": {"include_usage": True}},
    ),
    "top_logprobs needs logprobs to be true": ("chat/completions", CHAT | {"top_logprobs": 2}),
    "give one of max_tokens and max_completion_tokens": (
        "chat/completions",
        CHAT | {"max_tokens": 2, "max_completion_tokens": 2},
    ),
    "Invalid JSON: recursion limit": ("completions", b"[" * 100_000),
    "Invalid JSON: invalid unicode code point": ("completions", b'{"model": "tiny\xff"}'),
    "Input should be an object": ("completions", b"[]"),
    "stop.*: String should have at least 1 character": ("completions", COMPLETION | {"stop": ""}),
    "seed: Input should be less than": ("completions", COMPLETION | {"seed": 2**63}),
    "no role tool": ("chat/completions", CHAT | {"messages": [{"role": "tool", "content": ""}]}),
    "messages: List should have at least 1 item": ("chat/completions", CHAT | {"messages": []}),
    "type: Input should be 'text'": (
        "chat/completions",
        CHAT
        | {"messages": [{"role": "user", "content": [{"type": "image_url", "text": "file:///x"}]}]},
    ),
    "Invalid JSON: unexpected end of hex escape": (
        "completions",
        b'{"model": "tiny", "prompt": "\\ud800"}',
    ),
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("message", BAD)
def test_server_bad_request_is_refused(running: Running, message: str) -> None:
    """They are refused with a reason, and the next one is answered."""
    path, body = BAD[message]
    status, found = running.post(f"/v1/{path}", body)
    assert status == 400
    assert set(found["error"]) == {"message", "type", "param", "code"}
    assert found["error"]["type"] == "invalid_request_error"
    assert re.search(message, found["error"]["message"])
    status, found = running.post("/v1/completions", COMPLETION | {"max_tokens": 1})
    assert status == 200


def test_server_wrong_model_size_or_path_is_refused(running: Running) -> None:
    status, found = running.post("/v1/completions", COMPLETION | {"model": "../../etc/passwd"})
    assert (status, found["error"]["message"]) == (
        404,
        "there is no model '../../etc/passwd': use 'tiny'",
    )
    assert running.post("/v1/completions", b" " * (server.BODY + 1))[0] == 413
    # It is not waited for, and a request need not say how large it is.
    more = f"{server.BODY + 9:x}\r\n" + " " * (server.BODY + 1)
    for length, body in (("Content-Length: 99999999999", ""), ("Transfer-Encoding: chunked", more)):
        request = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n{body}"
        with socket.create_connection(("127.0.0.1", running.port)) as connection:
            connection.sendall(request.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    assert running.post("/v1/files", b"{}")[0] == 404
    assert running.post("/v1/models", b"{}")[0] == 405
    assert running.post("/health", b"{}")[0] == 405


def test_server_too_many_waiting_requests_are_refused(
    running: Running, client: openai.OpenAI
) -> None:
    with pytest.raises(
        openai.InternalServerError, match="0 requests are waiting: try again later"
    ) as e:
        client.completions.create(model="tiny", prompt=["the"] * 101, max_tokens=1)
    assert e.value.status_code == 503


def test_server_failed_answer_reaches_the_client(
    running: Running, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is told, at once or in its stream; the server goes on."""

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(slots, "advance", fails)
        with pytest.raises(openai.InternalServerError, match="no memory"):
            client.completions.create(model="tiny", prompt="the")
        with pytest.raises(openai.APIError, match="no memory"):
            list(client.completions.create(model="tiny", prompt="the", stream=True))
    assert client.completions.create(model="tiny", prompt="the", max_tokens=2).choices[0].text


def test_server_chat_without_template_raises(running: Running, tmp_path: Path) -> None:
    known = running.service.tokenizer
    known.save(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    bare = server.Service(running.service.engine, tokenizer.load(tmp_path), "bare")
    asked = server.requests.read(server.Chat, json.dumps(CHAT).encode())
    with pytest.raises(server.RequestError, match=r"has no chat template: set data\.template"):
        bare.prompts(asked)
