"""Texts made many at a time, each as if it were alone."""

import dataclasses
import random
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.data import tokenizer
from examples.llama.model import generate
from examples.llama.model.complete import complete
from examples.llama.model.parameters import NotFiniteError
from examples.llama.model.plan import Plan
from examples.llama.model.sampling import Sampling, Settings

CONFIG = model.TINY["tiny"]
PLAN = Plan(block=8)


@pytest.fixture(scope="module")
def params() -> model.Params:
    generator = torch.Generator().manual_seed(0)

    def leaf(shape: xf.ShapeDtypeStruct) -> torch.Tensor:
        return 0.3 * torch.randn(shape.shape, generator=generator)

    return xf.tree.map(leaf, model.shapes(CONFIG))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tokenizer.Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.train(["the cat and the dog say 日本 and é bye " * 20], 290, folder)
    return tokenizer.load(folder)


@pytest.fixture(scope="module")
def talking(known: tokenizer.Tokenizer) -> tuple[model.Config, model.Params]:
    config = dataclasses.replace(CONFIG, vocab=known.size)
    generator = torch.Generator().manual_seed(2)

    def leaf(shape: xf.ShapeDtypeStruct) -> torch.Tensor:
        return 0.3 * torch.randn(shape.shape, generator=generator)

    return config, xf.tree.map(leaf, model.shapes(config))


def prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(CONFIG.vocab) for _ in range(n)] for n in lengths]


def sampled(
    params: model.Params, texts: list[list[int]], settings: list[Settings], **more: Any
) -> list[list[int]]:
    tokens, lengths = generate.pad(texts, 32)
    how: dict[str, Any] = {"config": CONFIG, "new": 9, "plan": PLAN} | more
    made = generate.generate(params, tokens, Sampling.of(settings), lengths=lengths, **how)
    return xf.device_get(made).tolist()


def test_sample_rows_equal_each_alone(params: model.Params) -> None:
    """Greedy ones and drawn ones side by side."""
    settings = [
        Settings(),
        Settings(1.0, seed=3),
        Settings(0.7, top_k=5, seed=4),
        Settings(1.3, top_p=0.8, seed=5),
        Settings(1.0, min_p=0.1, seed=6),
        Settings(1.0, seed=2**63 - 1),
    ]
    texts = prompts(1, 5, 8, 9, 17, 30)
    together = sampled(params, texts, settings)
    for text, how, row in zip(texts, settings, together, strict=True):
        assert sampled(params, [text], [how]) == [row]
    with xf.disable_jit():  # Each greedy token by the whole text, through the model at once.
        whole = torch.tensor([[*texts[0], *together[0]]])
        likeliest = model.forward(params, whole, CONFIG)[0].argmax(-1).tolist()
    assert together[0] == likeliest[len(texts[0]) - 1 : -1]


def test_sample_draws_depend_on_the_seed(params: model.Params) -> None:
    text = prompts(6)[0]
    rows = sampled(params, [text] * 3, [Settings(2.0, seed=s) for s in (1, 2, 1)])
    assert rows[0] == rows[2] != rows[1]


def test_sample_ends_where_all_texts_have_ended(params: model.Params) -> None:
    texts = prompts(6, 4)
    free = sampled(params, texts, [Settings()] * 2)
    ends = (free[0][3], free[1][1])
    rows = sampled(params, texts, [Settings()] * 2, stop=ends)
    for row, before in zip(rows, free, strict=True):
        at = next(i for i, token in enumerate(before) if token in ends)
        assert row == before[: at + 1] + [before[at]] * (len(before) - at - 1)


def test_complete_texts_of_several_batches_equal_each_alone(
    known: tokenizer.Tokenizer, talking: tuple[model.Config, model.Params]
) -> None:
    config, params = talking
    texts = ["the", "the cat and the dog", "é", "say bye and 日本 " * 3, "dog"]
    settings = Settings(0.9, seed=2**63 - 2)
    prompts = [known.encode_prompt(text) for text in texts]
    made = complete(params, known, prompts, 7, settings, config=config, plan=PLAN, size=2)
    seeds = [2**63 - 2, 2**63 - 1, -(2**63), 1 - 2**63, 2 - 2**63]
    for prompt, seed, answer in zip(prompts, seeds, made, strict=True):
        how = Settings(0.9, seed=seed)
        assert complete(params, known, [prompt], 7, how, config=config, plan=PLAN) == [answer]


def test_complete_ends_before_stop_string_and_end_token(
    known: tokenizer.Tokenizer, talking: tuple[model.Config, model.Params]
) -> None:
    config, params = talking
    prompt = known.encode_prompt("the")
    (whole,) = complete(params, known, [prompt], 12, config=config, plan=PLAN)
    stop = whole[4:7]
    (cut,) = complete(
        params, known, [prompt], 12, config=config, plan=PLAN, stops=["no such text", stop]
    )
    assert cut == whole[: whole.index(stop)] != whole
    tokens = sampled(params, [prompt], [Settings()], config=config)[0]
    ending = dataclasses.replace(known, end=tokens[4])
    (ended,) = complete(params, ending, [prompt], 9, config=config, plan=PLAN)
    assert ended == known.decode_after(prompt, tokens[: tokens.index(tokens[4])])


def test_complete_errors(
    known: tokenizer.Tokenizer, talking: tuple[model.Config, model.Params]
) -> None:
    config, params = talking
    for none in ([], [[]]):
        with pytest.raises(ValueError, match="a prompt has no tokens: give a text"):
            complete(params, known, none, 3, config=config)
    broken = params | {"norm": params["norm"] * torch.nan}
    with pytest.raises(NotFiniteError, match="logits that are not finite"):
        complete(broken, known, [known.encode_prompt("the")], 3, config=config)
