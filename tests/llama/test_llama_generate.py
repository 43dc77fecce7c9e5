"""Generated texts: tokens and logits are those of the whole text through the model."""

import dataclasses
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.model import generate
from examples.llama.model.plan import Plan
from examples.llama.model.sampling import Sampling, Settings

KEY = [0, 7]
each_config = pytest.mark.parametrize("config", list(model.TINY.values()), ids=list(model.TINY))


@pytest.fixture
def config() -> model.Config:
    return model.TINY["tiny-scaled"]


def params_of(config: model.Config, dtype: torch.dtype = torch.float64) -> model.Params:
    generator = torch.Generator().manual_seed(0)

    def leaf(shape: xf.ShapeDtypeStruct) -> torch.Tensor:
        return (0.3 * torch.randn(shape.shape, generator=generator)).to(dtype)

    return xf.tree.map(leaf, model.shapes(config))


def prompts(config: model.Config, batch: int = 3, length: int = 11) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab, (batch, length), generator=generator)


def run(params: Any, prompt: torch.Tensor, **settings: Any) -> list[list[int]]:
    names = {"temperature", "top_p", "seed"} & {*settings}
    how = {name: settings.pop(name) for name in names}
    seed = how.pop("seed", 0)
    rows = [Settings(**how, seed=seed + i) for i in range(len(prompt))]
    made = generate.generate(params, prompt, Sampling.of(rows), **settings)
    return xf.device_get(made).tolist()


def greedy(params: Any, prompt: torch.Tensor, config: model.Config, new: int) -> list[list[int]]:
    """With the whole text through the model for each token."""
    tokens = prompt
    with xf.disable_jit():
        for _ in range(new):
            logits = model.forward(params, tokens, config)[:, -1]
            tokens = torch.cat([tokens, logits.argmax(-1)[:, None]], 1)
    return tokens[:, prompt.shape[1] :].tolist()


@each_config
def test_generate_greedy_matches_full_forward(config: model.Config) -> None:
    params, prompt = params_of(config), prompts(config)
    assert run(params, prompt, config=config, new=10) == greedy(params, prompt, config, 10)


@each_config
@pytest.mark.parametrize("block", [4, 11])
def test_advance_logits_match_full_forward(config: model.Config, block: int) -> None:
    """They are those of the whole text, however many tokens go through at a time."""
    params, tokens = params_of(config), prompts(config, length=3 * block)
    plan, first = Plan(), torch.zeros(3, dtype=torch.int64)
    cache = generate.empty(config, 3, tokens.shape[1] + 2, torch.float64, plan)
    with xf.disable_jit():
        expected = model.forward(params, tokens, config)
        for at in range(0, 3 * block, block):
            part = tokens[:, at : at + block]
            where = torch.tensor(at)
            logits, cache = generate.advance(params, cache, part, where, first, config, plan)
            torch.testing.assert_close(logits, expected[:, at + block - 1], rtol=1e-12, atol=1e-12)
    shape = config.layers, 3, config.kv_heads, 3 * block + 2, config.head_dim
    assert cache["layers"].keys.shape == shape
    for x in cache["layers"]:
        filled = (x != 0).any(-1).all((0, 1, 2)).tolist()
        assert filled == [True] * 3 * block + [False] * 2


def test_generate_padded_rows_equal_each_alone(config: model.Config) -> None:
    params = params_of(config)
    texts = [row[:n].tolist() for row, n in zip(prompts(config), (3, 11, 1), strict=True)]
    rows, lengths = generate.pad(texts, multiple=8)
    assert rows.shape == (3, 16)
    assert lengths.tolist() == [3, 11, 1]
    assert [row[-n:] for row, n in zip(rows.tolist(), lengths, strict=True)] == texts
    assert rows.ne(0).sum() <= 15
    alone = [run(params, torch.tensor([text]), config=config, new=7)[0] for text in texts]
    assert run(params, rows, config=config, new=7, lengths=lengths) == alone

    # What stands in the padding has no influence.
    other = torch.where(torch.arange(16) < 16 - lengths[:, None], 9, rows)
    assert run(params, other, config=config, new=7, lengths=lengths) == alone
    plan = Plan(block=6)  # which puts two more in front
    assert run(params, rows, config=config, new=7, lengths=lengths, plan=plan) == alone


def test_generate_traced_once_per_padded_length() -> None:
    config = dataclasses.replace(model.TINY["tiny"], vocab=99)
    before = xf.trace_count(generate.generate)
    for seed in range(3):
        params = xf.tree.map(lambda x, s=seed: x + s, params_of(config))
        rows, lengths = generate.pad([[1] * (seed + 1), [2, 3]])
        run(params, rows, config=config, new=2, lengths=lengths, temperature=1.0, seed=seed)
    assert xf.trace_count(generate.generate) == before + 1
    rows, lengths = generate.pad([[1] * 65, [2, 3]])
    run(params_of(config), rows, config=config, new=2, lengths=lengths, temperature=1.0)
    assert xf.trace_count(generate.generate) == before + 2


def test_generate_repeats_stop_token_to_the_end(config: model.Config) -> None:
    params, prompt = params_of(config), prompts(config)
    free = run(params, prompt, config=config, new=10)
    stop = (free[0][2], free[1][4])
    ended = run(params, prompt, config=config, new=10, stop=stop)
    for before, after in zip(free, ended, strict=True):
        ends = [i for i, token in enumerate(before) if token in stop]
        n = min(ends, default=9)
        assert after == before[: n + 1] + [before[n]] * (9 - n)
    assert ended[0] != free[0]


def test_generate_one_token(config: model.Config) -> None:
    params, prompt = params_of(config), prompts(config, length=1)
    assert run(params, prompt, config=config, new=1) == greedy(params, prompt, config, 1)


def test_generate_prompt_ends_with_stop_token(config: model.Config) -> None:
    params, prompt = params_of(config), prompts(config)
    free = run(params, prompt, config=config, new=3)
    last = tuple(set(prompt[:, -1].tolist()) - {t for row in free for t in row})
    assert last
    assert run(params, prompt, config=config, new=3, stop=last) == free


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_generate_greedy_dtypes(config: model.Config, dtype: torch.dtype) -> None:
    """Each greedy token is near the likeliest by the whole text, of which bfloat16 keeps 8 bits."""
    params, prompt = params_of(config, dtype), prompts(config)
    found = run(params, prompt, config=config, new=5)
    tokens = torch.cat([prompt, torch.tensor(found)], 1)
    with xf.disable_jit():
        logits = model.forward(xf.tree.map(torch.Tensor.double, params), tokens, config)
    logits = logits[:, prompt.shape[1] - 1 : -1]
    chosen = logits.take_along_dim(torch.tensor(found)[..., None], -1)[..., 0]
    tolerance = 30 * torch.finfo(dtype).eps
    assert (logits.amax(-1) - chosen).max() <= tolerance * logits.abs().max()


# Sampling


def test_generate_samples_depend_on_seed_alone(config: model.Config) -> None:
    params, prompt = params_of(config), prompts(config)
    settings = {"config": config, "new": 8, "temperature": 2.0}
    one, same, other = (run(params, prompt, seed=s, **settings) for s in (1, 1, 9))
    assert one == same != other
    assert len({tuple(row) for row in run(params, prompt[:1].expand(3, -1), **settings)}) == 3
    likeliest = run(params, prompt, config=config, new=8)
    assert run(params, prompt, **settings, top_p=1e-6) == likeliest


# Memory


def test_generate_holds_one_cache() -> None:
    config = model.Config(32, 16, 16, layers=8, heads=2, kv_heads=2, tied=True)
    length = 2**15
    prompt = torch.zeros(1, 4, dtype=torch.int64)
    lowered = generate.generate.lower(
        params_of(config, torch.float32), prompt, config=config, new=length - 3
    )
    temporaries = lowered.compile().memory_analysis().temp_size_in_bytes
    cache = 2 * 8 * 2 * length * 8 * 4
    assert temporaries is not None
    assert cache < temporaries < 1.8 * cache


# Errors

ERRORS = {
    "new is 0: generate 1 token or more": {"new": 0},
    r"temperature is -1.0: use 0, for the likeliest token, or more": {"temperature": -1.0},
    r"top_p is 1.1: use a probability, from 0 to 1": {"top_p": 1.1},
    r"top_p is 1.5: use a probability": {"top_p": 1.5},
    r"prompt has shape \(4,\): give \[batch, 1 or more tokens\]": {"prompt": torch.zeros(4)},
    r"prompt has shape \(4, 0\): give": {"prompt": torch.zeros(4, 0)},
}


@pytest.mark.parametrize("message", ERRORS)
def test_generate_errors(message: str) -> None:
    config = model.TINY["tiny"]
    settings = {"prompt": prompts(config), "new": 2} | ERRORS[message]
    prompt = settings.pop("prompt").long()
    with pytest.raises(ValueError, match=message):
        run(params_of(config), prompt, config=config, **settings)


@pytest.mark.parametrize("texts", [[], [[1, 2], []]])
def test_pad_without_prompt_raises(texts: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=r"prompts of lengths \[.*\]: give some, of one token"):
        generate.pad(texts)
