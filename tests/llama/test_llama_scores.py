"""Log probabilities of texts match eager torch's, also through the evaluation harness."""

import dataclasses
import math
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.data import tokenizer
from examples.llama.data.documents import DataError
from examples.llama.model import scores
from examples.llama.model.plan import Plan
from examples.llama.model.scores import Row, Scorer
from examples.llama.options import SettingError
from examples.llama.tools import harness

CONFIG = model.Config.tiny(300)
WORDS = "the cat and the dog say yes and bye 日本"


@pytest.fixture(scope="module")
def params() -> model.Params:
    generator = torch.Generator().manual_seed(0)
    return xf.tree.map(
        lambda shape: 0.3 * torch.randn(shape.shape, generator=generator), model.shapes(CONFIG)
    )


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tokenizer.Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.train([f"{WORDS} " * 20], 290, folder)
    return tokenizer.load(folder)


@pytest.fixture(scope="module")
def scorer(params: model.Params) -> Scorer:
    return Scorer(params, CONFIG, Plan(block=8, loss_chunk=12), length=32, batch=3)


def expected(params: model.Params, row: Row) -> tuple[float, bool]:
    with xf.disable_jit():
        chances = model.forward(params, torch.tensor([row.tokens]), CONFIG)[0].log_softmax(-1)
    targets = torch.tensor(row.tokens[1:])
    told = chances[:-1].gather(1, targets[:, None])[-row.scored :, 0]
    best = chances[:-1].argmax(-1) == targets
    return float(told.double().sum()), bool(best[-row.scored :].all())


def test_scorer_rows_of_any_length(scorer: Scorer, params: model.Params) -> None:
    draw = random.Random(0)
    rows = [Row([draw.randrange(300) for _ in range(n)], m) for n, m in ((2, 1), (33, 32), (9, 3))]
    likeliest = [1, 2]
    with xf.disable_jit():
        for _ in range(3):
            logits = model.forward(params, torch.tensor([likeliest]), CONFIG)
            likeliest.append(int(logits[0, -1].argmax()))
    rows += [Row(likeliest, 3), Row([*likeliest[:-1], 0 if likeliest[-1] else 1], 3)]
    found = scorer(rows)
    assert [score.is_greedy for score in found] == [False, False, False, True, False]
    for row, score in zip(rows, found, strict=True):
        told, best = expected(params, row)
        assert score.log_probability == pytest.approx(told, rel=1e-5)
        assert score.is_greedy == best
    with pytest.raises(ValueError, match="a row has 34 tokens: the maximum is 33"):
        scorer([Row([1] * 34, 1)])


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 12, 13, 40])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_windows_score_each_token_once(size: int, length: int) -> None:
    tokens, scored = [*range(size)], []
    for number, row in enumerate(scores.windows(tokens, length)):
        assert len(row.tokens) <= length + 1
        assert 1 <= row.scored < len(row.tokens)
        assert not number or len(row.tokens) == length + 1
        scored += row.tokens[-row.scored :]
        start = row.tokens[0]
        assert list(row.tokens) == tokens[start : start + len(row.tokens)]
    assert scored == tokens[1:]


def test_by_file_perplexity(
    scorer: Scorer, params: model.Params, known: tokenizer.Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("the cat", "utf-8")
    (tmp_path / "b.jsonl").write_text(
        '{"body": "bye 日本"}\n{"body": ""}\n{"body": "dog"}\n', "utf-8"
    )
    files = [str(tmp_path / name) for name in ("a.txt", "b.jsonl")]
    found = dict(scores.by_file(scorer, known, files, "body"))
    for file, texts in zip(files, (["the cat"], ["bye 日本", "dog"]), strict=True):
        rows = [known.encode_prompt(text) for text in texts]
        nats = -sum(expected(params, Row(row, len(row) - 1))[0] for row in rows)
        tokens = sum(map(len, rows)) - len(rows)
        size = sum(len(text.encode()) for text in texts)
        total = found[file]
        assert (total.tokens, total.size) == (tokens, size)
        assert total.loss == pytest.approx(nats / tokens, rel=1e-5)
        assert total.perplexity == pytest.approx(math.exp(nats / tokens), rel=1e-4)
        assert total.bits_per_byte == pytest.approx(nats / size / math.log(2), rel=1e-5)
    (tmp_path / "c.txt").write_text("", "utf-8")
    with pytest.raises(DataError, match="there is no text to score: give other files"):
        list(scores.by_file(scorer, known, [str(tmp_path / "c.txt")], "text"))


@pytest.mark.parametrize(
    ("tokens", "length", "expected"),
    [
        (11, 4, [((0, 1, 2, 3, 4), 4), ((4, 5, 6, 7, 8), 4), ((6, 7, 8, 9, 10), 2)]),
        (4, 4, [((0, 1, 2, 3), 3)]),
        (5, 1, [((0, 1), 1), ((1, 2), 1), ((2, 3), 1), ((3, 4), 1)]),
    ],
)
def test_windows_by_stride_match_lm_eval(tokens: int, length: int, expected: list[Any]) -> None:
    """The first is the example in the documentation of lm-eval's `LM.loglikelihood_rolling`."""
    found = scores.windows(range(tokens), length, length)
    assert [(tuple(row.tokens), row.scored) for row in found] == expected


# The harness


def asked(*args: Any) -> Any:
    return SimpleNamespace(args=args)


@pytest.fixture(scope="module")
def answers(params: model.Params, known: tokenizer.Tokenizer) -> harness.Answers:
    plan = Plan(block=8, loss_chunk=12)
    return harness.Answers(params, CONFIG, known, plan=plan, length=32, batch=3)


def test_answers_loglikelihood_of_continuations(
    answers: harness.Answers, params: model.Params, known: tokenizer.Tokenizer
) -> None:
    pairs = [("the cat", " and"), ("the cat ", "and"), ("", "dog"), ("the " * 40, "dog bye")]
    found = answers.loglikelihood([asked(*pair) for pair in pairs])
    assert found[0] == found[1]  # Where the space is does not matter.
    rows = []
    for context, continuation in pairs[0], pairs[2]:
        whole = known.encode_prompt(context + continuation)
        rows.append(Row(whole, len(whole) - len(known.encode_prompt(context))))
    whole = known.encode_prompt("the " * 40 + "dog bye")
    rows.append(Row(whole[-33:], len(whole) - len(known.encode_prompt("the " * 39 + "the"))))
    for row, (told, _) in zip(rows, [found[0], *found[2:]], strict=True):
        assert told == pytest.approx(expected(params, row)[0], rel=1e-5)


def test_answers_loglikelihood_rolling_of_texts(
    answers: harness.Answers, params: model.Params, known: tokenizer.Tokenizer
) -> None:
    texts = [WORDS * 5, "dog"]
    for text, told in zip(
        texts, answers.loglikelihood_rolling(list(map(asked, texts))), strict=True
    ):
        rows = scores.windows(known.encode_prompt(text), 32, 32)
        assert told == pytest.approx(sum(expected(params, row)[0] for row in rows), rel=1e-5)


def test_answers_loglikelihood_without_begin_token(
    params: model.Params, known: tokenizer.Tokenizer
) -> None:
    """Its end comes before a text without context."""
    plain = dataclasses.replace(known, begin=None)
    answers = harness.Answers(params, CONFIG, plain, plan=Plan(block=8, loss_chunk=12), length=32)
    found = answers.loglikelihood([asked("the cat", " and"), asked("", "dog")])
    assert known.end is not None
    (whole, before), dog = known.encode(["the cat and", "the cat"]), known.encode(["dog"])[0]
    rows = [Row(whole, len(whole) - len(before)), Row([known.end, *dog], len(dog))]
    for row, (told, _) in zip(rows, found, strict=True):
        assert told == pytest.approx(expected(params, row)[0], rel=1e-5)


@pytest.mark.slow
def test_answers_generate_until_a_text(answers: harness.Answers) -> None:
    free = answers.generate_until([asked("the", {"until": [], "max_gen_toks": 12})])[0]
    stop = free[3:6]
    how = {"until": [stop], "max_gen_toks": 12, "do_sample": False, "temperature": 1.0}
    drawn = {"until": stop, "max_gen_toks": 6, "do_sample": True, "temperature": 0.7, "seed": 3}
    requests = [asked("the", how), asked("dog " * 60, drawn), asked("the", how)]
    found = answers.generate_until(requests)
    assert found[0] == found[2] == free[: free.index(stop)]
    assert answers.generate_until(requests[1:2]) == found[1:2]
    for name in ("max_new_tokens", "max_tokens", "max_completion_tokens"):
        assert answers.generate_until([asked("the", {name: 12})]) == [free]
    assert answers.generate_until([asked("the", {})])[0].startswith(free)
    with pytest.raises(SettingError, match="asks for answers of 32 tokens, and a text has at mo"):
        answers.generate_until([asked("the", {"max_gen_toks": 32})])


def test_language_model_without_lm_eval_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lm_eval.api.model", None)
    with pytest.raises(SettingError, match="install it with `pip install lm-eval`"):
        harness.language_model()


def test_eval_command_by_file(
    settings: Callable[..., list[str]], command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    assert command("fit", *settings("a", "train.steps=3"))[0] == 0
    (tmp_path / "one.txt").write_text("the cat", "utf-8")
    status, told = command("eval", tmp_path / "a", "--files", tmp_path / "one.txt")
    assert status == 0
    assert told.startswith(f"{tmp_path / 'one.txt'}: loss ")
    assert "bits per byte of 7," in told
    status, told = command("eval", tmp_path / "a", "--files", tmp_path / "two.txt")
    assert status == 2
    assert "error: no data at " in told
