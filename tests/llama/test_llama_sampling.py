"""Sampling of tokens: limits of probabilities match transformers', and draws follow them."""

from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama.model import sampling
from examples.llama.model.sampling import Sampling, Settings

LIMITS = [
    Settings(1.0),
    Settings(0.4),
    Settings(1.0, top_k=1),
    Settings(1.0, top_k=7),
    Settings(2.0, top_k=1000),
    Settings(1.0, top_p=0.1),
    Settings(0.7, top_p=0.9),
    Settings(1.0, min_p=0.05),
    Settings(1.0, min_p=1.0),
    Settings(1.5, top_k=9, top_p=0.7, min_p=0.1),
    Settings(0.8, top_k=20, top_p=0.95, min_p=0.02),
    Settings(1e-30),
    Settings(1e30),
    Settings(1.0, top_k=2**31 - 1, top_p=1.0, min_p=0.0),
    Settings(1.0, top_p=0.0),
    Settings(1.0, top_p=1e-30),
    Settings(1.0, top_p=1 - 1e-7),
    Settings(1.0, min_p=1e-30),
    Settings(1.0, top_k=1, top_p=0.0, min_p=1.0),
]


def test_limited_probabilities_match_transformers() -> None:
    """Probabilities of all tokens, with other settings in each row."""
    import transformers

    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(len(LIMITS), 50, generator=generator)
    tokens = torch.randint(50, (len(LIMITS), 6), generator=generator)

    @xf.jit
    def ours(logits: torch.Tensor, rows: Sampling) -> torch.Tensor:
        return sampling.limited(sampling.tempered(logits, rows.temperature), rows).softmax(-1)

    found = xf.device_get(ours(logits, Sampling.of(LIMITS)))
    for i, s in enumerate(LIMITS):
        steps: list[Any] = [transformers.TemperatureLogitsWarper(s.temperature)]
        steps += [transformers.TopKLogitsWarper(s.top_k)] if s.top_k else []
        steps += [transformers.TopPLogitsWarper(s.top_p), transformers.MinPLogitsWarper(s.min_p)]
        expected = logits[i : i + 1]
        for step in steps:
            expected = step(tokens[i : i + 1], expected)
        torch.testing.assert_close(found[i], expected.softmax(-1)[0])


def test_choose_draws_with_limited_probabilities() -> None:
    """Of each seed another token; the shares are those of the limited distribution."""
    logits = torch.tensor([2.0, 1.0, 0.5, -1.0, -4.0])
    cases = [Settings(1.0), Settings(0.5, top_k=3), Settings(2.0, min_p=0.4), Settings()]
    for case in cases:
        rows = 8000
        how = Sampling.of([case])
        many = Sampling(*(x.expand(rows) for x in how))._replace(seed=torch.arange(rows))
        number = torch.full((rows,), 5)
        drawn = xf.jit(sampling.choose)(logits.expand(rows, -1), many, number)
        shares = xf.device_get(drawn).bincount(minlength=5) / rows
        if case.temperature:
            kept = sampling.limited(logits[None] / case.temperature, how)
            expected = kept.softmax(-1)[0]
        else:
            expected = torch.eye(5)[0]
        assert (shares - expected).abs().max() < 0.025  # more than 4 standard deviations
        assert ((shares == 0) >= (expected == 0)).all()


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-20, 1e-3])
@pytest.mark.parametrize("more", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_choose_with_tiny_temperature_takes_the_likeliest(
    temperature: float, more: dict[str, Any]
) -> None:
    """The likeliest token is drawn, where transformers finds no probabilities (infinities)."""
    logits = 20 * torch.randn(64, 50, generator=torch.Generator().manual_seed(0))
    rows = [Settings(temperature, seed=i, **more) for i in range(64)]
    drawn = xf.jit(sampling.choose)(logits, Sampling.of(rows), torch.arange(64))
    assert torch.equal(xf.device_get(drawn), logits.argmax(-1))


def test_choose_with_tiny_top_p_takes_the_likeliest() -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    rows = Sampling.of([Settings(3.0, top_p=p, seed=i) for i, p in enumerate([0.0, 1e-45] * 4)])
    drawn = xf.jit(sampling.choose)(logits, rows, torch.arange(8))
    assert torch.equal(xf.device_get(drawn), logits.argmax(-1))


WRONG = {
    "temperature is -1.0: use 0": {"temperature": -1.0},
    "temperature is nan": {"temperature": float("nan")},
    "top_k is -1: use 0, for any token, or more": {"top_k": -1},
    "top_p is -0.1: use a probability, from 0 to 1": {"top_p": -0.1},
    "top_p is nan: use a probability, from 0 to 1": {"top_p": float("nan")},
    "min_p is 1.5: use a fraction, from 0 to 1": {"min_p": 1.5},
    "seed is 9223372036854775808: use a 64-bit integer": {"seed": 2**63},
}


@pytest.mark.parametrize("message", WRONG)
def test_sampling_wrong_settings_raise(message: str) -> None:
    values: Any = WRONG[message]
    with pytest.raises(ValueError, match=message):
        Settings(**values)
