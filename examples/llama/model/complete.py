"""Texts continued by a trained model, many at a time."""

import dataclasses
from collections.abc import Sequence

import xfunc as xf

from ..data.tokenizer import Tokenizer
from . import generate
from .parameters import NotFiniteError, Params
from .plan import Plan
from .sampling import Sampling, Settings
from .sizes import Config


def complete(
    params: Params,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    new: int,
    settings: Settings = Settings(),
    *,
    config: Config,
    plan: Plan = Plan(),
    stops: Sequence[str] = (),
    size: int = 8,
) -> list[str]:
    """The text that follows each prompt, of `new` tokens at most, and ends before `stops`.

    Texts of about the same length are made at a time, `size` of them. Each has the seed that
    follows that of the one before.

    Raises:
        NotFiniteError: logits are not finite.
    """
    if not min(map(len, prompts), default=0):
        raise ValueError("a prompt has no tokens: give a text, or a tokenizer that begins one")
    ends = tuple(tokenizer.ends[1])
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    found = [""] * len(prompts)
    size = min(size, len(prompts))
    for k in range(0, len(order), size):
        which = order[k : k + size]
        rows = [*which, *which[:1] * (size - len(which))]  # One program for all.
        tokens, lengths = generate.pad([prompts[i] for i in rows])
        seeds = [(settings.seed + 2**63 + i) % 2**64 - 2**63 for i in rows]
        sampling = Sampling.of([dataclasses.replace(settings, seed=seed) for seed in seeds])
        made = generate.generate(
            params, tokens, sampling, lengths=lengths, config=config, new=new, stop=ends, plan=plan
        )
        for i, answer in zip(which, xf.device_get(made).tolist(), strict=False):
            found[i] = _text(tokenizer, prompts[i], answer, stops)
    return found


def _text(
    tokenizer: Tokenizer, prompt: Sequence[int], answer: list[int], stops: Sequence[str]
) -> str:
    if tokenizer.end in answer:
        answer = answer[: answer.index(tokenizer.end)]
    if -1 in answer:
        raise NotFiniteError(
            "the model produces logits that are not finite, so no token can be drawn"
        )
    text = tokenizer.decode_after(prompt, answer)
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)]
