"""Texts continued by a trained model, many at a time."""

import dataclasses
from collections.abc import Sequence

import xfunc as xf

from ..data.tokenizer import Tokenizer
from ..train.finite import NotFiniteError
from . import generate
from .parameters import Params
from .plan import Plan
from .sampling import Sampling, Settings
from .sizes import Config


def prompts_of(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of texts."""
    return [tokenizer.encode_prompt(text) for text in texts]


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
    """The text that follows each prompt.

    Args:
        params: the weights, as the model is computed with them.
        tokenizer: of the model.
        prompts: tokens.
        new: how many tokens to make, at most.
        settings: how they are drawn; each text has the seed that follows that of the one before.
        config: the sizes.
        plan: where arrays lie.
        stops: texts before which an answer ends.
        size: how many texts are made at a time, of about the same length.

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
