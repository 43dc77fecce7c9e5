"""The engine makes many texts at a time, each as if it were alone, in programs compiled once."""

import random
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model, slots, tokenizer, wording
from examples.llama.engine import BusyError, Engine, Job
from examples.llama.finite import NotFiniteError
from examples.llama.plan import Plan
from examples.llama.sampling import Settings

CONFIG = model.TINY["tiny"]
PIECES = [4, 8]
LENGTH = 40


@pytest.fixture(scope="module")
def params() -> model.Params:
    generator = torch.Generator().manual_seed(0)

    def leaf(shape: xf.ShapeDtypeStruct) -> torch.Tensor:
        return 0.3 * torch.randn(shape.shape, generator=generator)

    return xf.tree.map(leaf, model.shapes(CONFIG))


@pytest.fixture
def engine(params: model.Params) -> Engine:
    made = Engine(params, CONFIG, size=3, length=LENGTH, plan=Plan(block=8), pieces=PIECES)
    made.warm_up()
    return made


def prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(CONFIG.vocab) for _ in range(n)] for n in lengths]


def numbers(job: Job) -> list[int]:
    return [token.number for token in job.made]


# Texts


def test_engine_batched_texts_equal_each_alone(engine: Engine, params: model.Params) -> None:
    """Greedy ones, drawn ones and penalised ones side by side, in more texts than slots."""
    settings = [
        Settings(),
        Settings(1.0, seed=3),
        Settings(0.7, top_k=5, seed=4),
        Settings(1.3, top_p=0.8, seed=5),
        Settings(1.0, min_p=0.1, seed=6),
        Settings(repetition_penalty=1.8),
        Settings(1.0, seed=2**63 - 1),
        Settings(),
    ]
    texts = prompts(1, 5, 8, 9, 17, 3, 30, 2)

    def jobs() -> list[Job]:
        pairs = zip(texts, settings, strict=True)
        return [Job(text, 4 + i, how, top=3) for i, (text, how) in enumerate(pairs)]

    before = slots.advance.cache_info()
    together, alone = jobs(), jobs()
    engine.submit(*together)
    engine.finish()
    for job in reversed(alone):
        engine.submit(job)
        engine.finish()
    after = slots.advance.cache_info()
    assert (after.traces, after.compiles) == (before.traces, before.compiles)
    for i, (one, other) in enumerate(zip(together, alone, strict=True)):
        assert one.ended == "length"
        assert len(one.made) == 4 + i
        assert numbers(one) == numbers(other)

    # Each token by the whole text, through the model at once, in eager torch.
    with xf.disable_jit():
        for job in together:
            whole = torch.tensor([[*job.prompt, *numbers(job)]])
            chances = model.forward(params, whole, CONFIG)[0].log_softmax(-1)
            for i, token in enumerate(job.made):
                expected = chances[len(job.prompt) + i - 1]
                assert token.log_probability == pytest.approx(
                    expected[token.number].item(), abs=1e-4
                )
                assert [n for n, _ in token.top] == expected.topk(3).indices.tolist()
                if job.settings == Settings():
                    assert token.number == expected.argmax()


def test_engine_end_token_is_left_out(engine: Engine) -> None:
    text = prompts(6)[0]
    free = Job(text, 8)
    engine.submit(free)
    engine.finish()
    end = numbers(free)[3]
    ended = Job(text, 8, ends=[end])
    engine.submit(ended)
    engine.finish()
    assert ended.ended == "stop"
    assert numbers(ended) == numbers(free)[: numbers(free).index(end)]


def test_engine_cancel_frees_slot(engine: Engine) -> None:
    running, waiting, other = (Job(text, 30) for text in prompts(3, 4, 5))
    engine.submit(*(Job(text, 30) for text in prompts(2, 2)), running, waiting, other)
    for _ in range(4):
        engine.step()
    assert engine.load == (3, 2)
    engine.cancel(running, waiting)
    engine.step()
    assert (running.ended, waiting.ended) == ("cancelled", "cancelled")
    assert engine.load == (3, 0)
    engine.finish()
    assert other.ended == "length"
    assert len(other.made) == 30


def test_engine_non_finite_logits_end_one_text_only(params: model.Params) -> None:
    """A weight of one token is infinite: texts with it end, others do not."""
    embed = params["embed"].clone()
    embed[7] = torch.inf
    engine = Engine(params | {"embed": embed}, CONFIG, size=2, length=LENGTH, pieces=[4])
    parts: list[Any] = []
    bad, good = Job([7, 1], 5, deliver=parts.append), Job([3, 1], 5)
    engine.submit(bad, good)
    engine.finish()
    assert isinstance(parts[-1].error, NotFiniteError)
    assert "logits that are not finite, so no token can be drawn" in str(parts[-1].error)
    assert (bad.ended, len(bad.made), good.ended) == ("error", 0, "length")


def test_engine_failed_step_ends_its_texts_only(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = prompts(6)[0]
    good = Job(text, 5)
    engine.submit(good)
    engine.finish()

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no memory")

    lost, parts = Job(text, 5, deliver=lambda part: parts.append(part)), []
    engine.submit(lost)
    with monkeypatch.context() as patch:
        patch.setattr(slots, "advance", fails)
        engine.step()
    assert [(part.ended, str(part.error)) for part in parts] == [("error", "no memory")]
    again = Job(text, 5)
    engine.submit(again)
    engine.finish()
    assert numbers(again) == numbers(good)


def test_engine_failure_ends_all_waiting_jobs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no memory for another cache."""

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(slots, "advance", fails)
    monkeypatch.setattr(slots, "empty", fails)
    jobs = [Job(text, 5) for text in prompts(*range(1, 9))]  # in slots, and waiting
    engine.submit(*jobs)
    assert engine.is_open
    with pytest.raises(RuntimeError, match="no memory"):
        engine.run()
    assert [job.ended for job in jobs] == ["error"] * 8
    assert not engine.is_open
    with pytest.raises(BusyError, match="the engine is closed"):
        engine.submit(Job([1], 1))


REFUSED: dict[str, Any] = {
    "the prompt has 38 tokens and 3 new ones are requested: together they may be 40": ([1] * 38, 3),
    "there is no token 512: the vocabulary has 512": ([1, 512], 3),
    "there is no token -1": ([-1], 3),
    "the prompt is empty: give one token or more": ([], 3),
    "new is 0: generate 1 token or more": ([1], 0),
}


@pytest.mark.parametrize("message", REFUSED)
def test_engine_submit_errors(engine: Engine, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        engine.submit(Job(*REFUSED[message]))
    assert engine.load == (0, 0)


def test_engine_full_queue_raises_busy_error(params: model.Params) -> None:
    engine = Engine(params, CONFIG, size=1, length=LENGTH, waiting=2)
    with pytest.raises(BusyError, match="0 requests are waiting: try again later"):
        engine.submit(*(Job([1], 1) for _ in range(3)))
    engine.submit(Job([1], 1), Job([1], 1))
    with pytest.raises(BusyError, match="2 requests are waiting"):
        engine.submit(Job([1], 1))
    engine.close()
    with pytest.raises(BusyError, match="the engine is closed"):
        engine.submit(Job([1], 1))


# What is said


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tokenizer.Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.train(["the cat and the dog say 日本 and é bye " * 20], 290, folder)
    return tokenizer.load(folder)


def test_wording_parts_join_to_whole_text(known: tokenizer.Tokenizer) -> None:
    """Of texts, and of bytes that are none; nothing is said that changes later."""
    draw = random.Random(0)
    for case in range(40):
        if case % 2:
            text = "".join(draw.choice("abc é日本🙂\N{REPLACEMENT CHARACTER}") for _ in range(40))
            tokens = known.encode([text])[0]
        else:
            tokens = [draw.randrange(known.size) for _ in range(300)]
        prompt = known.encode_prompt("the cat é"[: case % 9])
        said = wording.Wording(known, prompt)
        text = "".join([*map(said.add, tokens), said.end()])
        assert text == known.decode_after(prompt, tokens)


@pytest.mark.parametrize(
    ("stops", "said"),
    [
        (["dog"], "the cat and the "),
        (["dog", "and"], "the cat "),
        (["the cat"], ""),
        (["cat and the dogs", "bye!"], "the cat and the dog say bye"),
        (["t and the dog s"], "the ca"),
        (["aaab", "nd"], "the cat a"),
        ([], "the cat and the dog say bye"),
    ],
)
def test_wording_ends_before_stop_string(
    known: tokenizer.Tokenizer, stops: list[str], said: str
) -> None:
    for pieces in (["the cat and the dog say bye"], [*"the cat and the dog say bye"]):
        words = wording.Wording(known, known.encode_prompt(""), stops)
        parts = []
        for token in (t for piece in pieces for t in known.encode([piece])[0]):
            parts.append(words.add(token))
            assert said.startswith("".join(parts))
            if words.stopped:
                break
        parts.append(words.end())
        assert "".join(parts) == said
        assert words.stopped == (said != "the cat and the dog say bye")


def test_engine_stop_string_ends_text(known: tokenizer.Tokenizer, engine: Engine) -> None:
    prompt = known.encode_prompt("the")
    free = Job(prompt, 12)
    engine.submit(free)
    engine.finish()
    whole = known.decode_after(prompt, numbers(free))
    stop = whole[4:7]
    parts: list[Any] = []
    job = Job(prompt, 12, wording=wording.Wording(known, prompt, [stop]), deliver=parts.append)
    engine.submit(job)
    engine.finish()
    assert "".join(part.text for part in parts) == whole[: whole.index(stop)]
    assert [part.ended for part in parts][-1] == job.ended == "stop"
    assert len(job.made) < 12
