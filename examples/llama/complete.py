"""Texts continued by a trained model, many at a time."""

import dataclasses
from collections.abc import Callable, Sequence

import xfunc as xf

from .engine import Engine, Job, Part
from .model import Config, Params
from .plan import Plan
from .sampling import Settings
from .tokenizer import Tokenizer
from .wording import Wording

_PIECES = 4  # programs that read prompts, at most


def complete(
    params: Params,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    new: int,
    settings: Settings = Settings(),
    *,
    config: Config,
    plan: Plan = Plan(),
    stops: Sequence[str] = (),
    size: int = 8,
    longest: int | None = None,
    say: Callable[[int, str], object] = lambda number, text: None,
) -> list[str]:
    """What follows each text.

    Args:
        params: the weights, as the model is computed with them.
        tokenizer: of the model.
        texts: of any lengths.
        new: how many tokens to make, at most.
        settings: how they are drawn; each text has the seed that follows that of the one before.
        config: the sizes.
        plan: where arrays lie.
        stops: texts before which an answer ends.
        size: how many texts are made at a time.
        longest: tokens of a prompt, at most, the last ones; None: all.
        say: is told the number of a text, and the new part of its answer.

    Raises:
        NotFiniteError: logits are not finite.
    """
    prompts = [tokenizer.encode_prompt(text) for text in texts]
    prompts = [prompt[-(longest or len(prompt)) :] for prompt in prompts]
    if not min(map(len, prompts), default=0):
        raise ValueError("a prompt has no tokens: give a text, or a tokenizer that begins one")
    parts: list[list[Part]] = [[] for _ in prompts]

    def job(i: int, prompt: list[int]) -> Job:
        def deliver(part: Part) -> None:
            parts[i].append(part)
            say(i, part.text)

        return Job(
            prompt,
            new,
            dataclasses.replace(settings, seed=(settings.seed + 2**63 + i) % 2**64 - 2**63),
            ends=() if tokenizer.end is None else (tokenizer.end,),
            wording=Wording(tokenizer, prompt, stops),
            deliver=deliver,
        )

    lengths = [min(len(prompt), plan.block) for prompt in prompts]
    engine = Engine(
        params,
        config,
        size=min(size, len(prompts)),
        length=max(map(len, prompts)) + new,
        plan=plan,
        pieces=_ladder(lengths),
        waiting=len(prompts),
    )
    engine.submit(*(job(i, prompt) for i, prompt in enumerate(prompts)))
    engine.finish()
    for part in (parts[-1] for parts in parts):
        if part.error is not None:
            raise part.error
    return ["".join(part.text for part in found) for found in parts]


def _ladder(lengths: Sequence[int]) -> list[int]:
    """The piece sizes with which prompts of these lengths are read at the least cost."""
    return [int(size) for size in xf.buckets(lengths, n=_PIECES, multiple_of=16)]
