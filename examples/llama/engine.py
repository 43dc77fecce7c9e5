"""Continuous batching: texts start and finish in the slots of a cache while others continue.

An answer depends on its request alone: a prompt is read by itself, in pieces that depend on its
length, and each row of a step depends only on its own text. `warm_up` compiles all programs.
"""

import bisect
import collections
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch

import xfunc as xf

from . import slots
from .finite import NotFiniteError
from .model import Config, Params
from .plan import Plan
from .sampling import Sampling, Settings
from .slots import Rows
from .wording import Wording

_NOT_FINITE = "the model produces logits that are not finite, so no token can be drawn"

Ending = Literal["stop", "length", "cancelled", "error"]


class BusyError(RuntimeError):
    """The engine accepts no more requests."""


class Token(NamedTuple):
    """A generated token, with log probabilities."""

    number: int
    log_probability: float
    top: tuple[tuple[int, float], ...]  # the likeliest tokens, as many as were requested


class Part(NamedTuple):
    """The next part of an answer."""

    text: str
    tokens: tuple[Token, ...] = ()
    ended: Ending | None = None
    error: Exception | None = None


class Job:
    """A prompt and its answer.

    Args:
        prompt: its tokens.
        new: how many tokens to make, at most.
        settings: how tokens are drawn.
        top: how many of the likeliest tokens to report.
        ends: tokens that end the answer, and are not part of it.
        wording: turns tokens into text, and knows the stop strings; None: there is no text.
        deliver: called with each part, in the thread that runs the engine. It must not raise.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        new: int,
        settings: Settings = Settings(),
        *,
        top: int = 0,
        ends: Sequence[int] = (),
        wording: Wording | None = None,
        deliver: Callable[[Part], object] = lambda part: None,
    ):
        if not prompt:
            raise ValueError("the prompt is empty: give one token or more")
        if new < 1:
            raise ValueError(f"new is {new}: generate 1 token or more")
        if not 0 <= top <= slots.TOP:
            raise ValueError(f"top is {top}: ask for up to {slots.TOP}")
        self.prompt, self.new, self.settings = tuple(prompt), new, settings
        self.top, self.ends = top, frozenset(ends)
        self.made: list[Token] = []
        self.ended: Ending | None = None
        self.cancelled = False
        self.read = 0  # tokens of the prompt that are in the cache
        self._wording, self._deliver = wording, deliver

    @property
    def is_read(self) -> bool:
        """Whether the prompt is in the cache."""
        return self.read == len(self.prompt)

    def take(self, token: Token) -> None:
        """Add the next token."""
        if token.number < 0:
            self.end("error", NotFiniteError(_NOT_FINITE))
            return
        if token.number in self.ends:
            self.end("stop")
            return
        self.made.append(token)
        text = "" if self._wording is None else self._wording.add(token.number)
        if self._wording is not None and self._wording.stopped:
            self._finish(Part(text, (token,), "stop"))
        elif len(self.made) == self.new:
            text += "" if self._wording is None else self._wording.end()
            stopped = self._wording is not None and self._wording.stopped
            self._finish(Part(text, (token,), "stop" if stopped else "length"))
        else:
            self._deliver(Part(text, (token,)))

    def end(self, how: Ending, error: Exception | None = None) -> None:
        """Finish the answer: no more tokens follow."""
        text = "" if self._wording is None else self._wording.end()
        self._finish(Part(text, (), how, error))

    def _finish(self, part: Part) -> None:
        self.ended = part.ended
        self._deliver(part)


class Engine:
    """Runs jobs, `size` at a time.

    Args:
        params: the weights, in the form the model computes with.
        config: the sizes.
        size: how many texts are generated at a time.
        length: the most tokens a text may have, including its prompt.
        plan: where arrays are placed.
        pieces: sizes of the pieces that prompts are read in, each with its own compiled program;
            None: powers of two up to `plan.block`.
        waiting: how many jobs may wait.
    """

    def __init__(
        self,
        params: Params,
        config: Config,
        *,
        size: int = 8,
        length: int = 2048,
        plan: Plan = Plan(),
        pieces: Sequence[int] | None = None,
        waiting: int = 1024,
    ):
        if size < 1 or length < 2:
            raise ValueError(f"size is {size}, length {length}: use 1 slot of 2 tokens or more")
        self.length, self.waiting = length, waiting
        self._params, self._config, self._plan = params, config, plan
        self._pieces = sorted({min(n, length) for n in pieces or _powers(min(plan.block, length))})
        self._slots = _free(size)
        self._queue: collections.deque[Job] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self._state = self._empty()

    # For other threads.

    def check(self, prompt: Sequence[int], new: int) -> None:
        """Raise a ValueError if a text would be longer than a slot, or has a token that does not
        exist.
        """
        if len(prompt) + new > self.length:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens and {new} new ones are requested: together "
                f"they may be {self.length} at most"
            )
        if wrong := [t for t in prompt if not 0 <= t < self._config.vocab]:
            raise ValueError(
                f"there is no token {wrong[0]}: the vocabulary has {self._config.vocab}"
            )

    def submit(self, *jobs: Job) -> None:
        """Queue jobs: all of them, or none.

        Raises:
            ValueError: see `check`.
            BusyError: too many are waiting, or the engine is closed.
        """
        for job in jobs:
            self.check(job.prompt, job.new)
        with self._changed:
            if self._closed:
                raise BusyError("the engine is closed")
            if len(self._queue) + len(jobs) > self.waiting:
                raise BusyError(f"{len(self._queue)} requests are waiting: try again later")
            self._queue.extend(jobs)
            self._changed.notify()

    def cancel(self, *jobs: Job) -> None:
        """Cancel jobs, and free their slots."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            self._changed.notify()

    def close(self) -> None:
        """End `run`, and all jobs with it."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    @property
    def is_open(self) -> bool:
        """Whether it still takes jobs."""
        return not self._closed

    @property
    def load(self) -> tuple[int, int]:
        """How many slots are in use, and how many jobs are waiting."""
        return sum(job is not None for job in self._slots), len(self._queue)

    # For the thread that runs the engine.

    def run(self) -> None:
        """Run jobs as they come, until `close`; however it ends, no job waits any longer."""
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or any(self.load))
                    if self._closed:
                        break
                self.step()
        finally:
            self.close()
            for job in (*self._slots, *self._queue):
                if job is not None and job.ended is None:
                    job.end("error", BusyError("the server is shutting down"))
            self._slots, self._queue = _free(len(self._slots)), collections.deque()

    def finish(self) -> None:
        """Run until no job is left."""
        while any(self.load):
            self.step()

    def warm_up(self) -> None:
        """Compile everything."""
        for size in self._pieces:
            self._advance([[0] * size], [self._row(0, None)])
        self._advance([[0]] * len(self._slots), [self._row(i, None) for i in self._numbers])

    def step(self) -> None:
        """Read a piece or so of new prompts, and generate a token for each of the other texts."""
        self._begin()
        try:
            self._read()
            self._make()
        except Exception as error:  # Most likely out of memory; the cache is lost.
            self._fail(error)

    @property
    def _numbers(self) -> range:
        return range(len(self._slots))

    def _empty(self) -> slots.State:
        dtype = self._params["embed"].dtype
        return slots.empty(self._config, len(self._slots), self.length, dtype, self._plan)

    def _begin(self) -> None:
        """Free slots whose jobs are done, and fill them."""
        with self._changed:
            left = [job for job in self._queue if job.cancelled]
            for job in left:
                self._queue.remove(job)
            for i, job in enumerate(self._slots):
                if job is not None and job.ended is None and job.cancelled:
                    left.append(job)
                if job is None or job.ended or job.cancelled:
                    self._slots[i] = self._queue.popleft() if self._queue else None
        for job in left:
            job.end("cancelled")

    def _read(self) -> None:
        """Read pieces of prompts, until together they are as long as the largest piece."""
        room = self._pieces[-1]
        for i, job in enumerate(self._slots):
            while job is not None and not job.is_read and room > 0:
                part = job.prompt[job.read : job.read + self._pieces[-1]]
                size = self._pieces[bisect.bisect_left(self._pieces, len(part))]
                tokens = [*part, *[0] * (size - len(part))]
                made = self._advance([tokens], [self._row(i, job, job.read, len(part))])
                job.read += len(part)
                room -= size
                if job.is_read:
                    self._give(made, {0: job})

    def _make(self) -> None:
        going = {i: job for i, job in enumerate(self._slots) if job and job.is_read}
        going = {i: job for i, job in going.items() if job.ended is None}
        if not going:
            return
        rows = []
        for i in self._numbers:
            job = going.get(i)
            at = len(job.prompt) + len(job.made) - 1 if job else 0
            rows.append(self._row(i, job, at, int(job is not None)))
        last = [[going[i].made[-1].number if i in going else 0] for i in self._numbers]
        self._give(self._advance(last, rows), going)

    def _give(self, made: slots.Made, jobs: dict[int, Job]) -> None:
        """Hand out the tokens that a call generated."""
        asks = any(job.top for job in jobs.values())
        number, chance, *top = xf.device_get(tuple(made) if asks else (made[0], made[1]))
        numbers, chances = number.tolist(), chance.tolist()
        top = [x.tolist() for x in top]
        for i, job in jobs.items():
            likeliest = zip(*(x[i][: job.top] for x in top), strict=True) if asks else ()
            job.take(Token(numbers[i], chances[i], tuple(likeliest)))

    def _row(self, slot: int, job: Job | None, at: int = 0, size: int = 0) -> "_Row":
        length = 1 if job is None else len(job.prompt) + len(job.made)
        return _Row(slot, at, size, length, job.settings if job else Settings())

    def _advance(self, tokens: list[list[int]], rows: list["_Row"]) -> slots.Made:
        slot, at, size, length = torch.tensor([row[:4] for row in rows]).unbind(1)
        given = Rows(slot, at, size, length, Sampling.of([row.settings for row in rows]))
        self._state, made = slots.advance(
            self._params,
            self._state,
            torch.tensor(tokens),
            given,
            config=self._config,
            plan=self._plan,
        )
        return made

    def _fail(self, error: Exception) -> None:
        """End every job in a slot, and start afresh: the cache was lost with the failed call."""
        lost, self._slots = self._slots, _free(len(self._slots))
        for job in lost:
            if job is not None and job.ended is None:
                job.end("error", error)
        del self._state  # There may be no room for two.
        self._state = self._empty()


class _Row(NamedTuple):
    slot: int
    at: int
    size: int
    length: int
    settings: Settings


def _free(size: int) -> list[Job | None]:
    return [None] * size


def _powers(most: int) -> list[int]:
    """Powers of two from 16 on, and then `most`."""
    return [*itertools.takewhile(lambda n: n < most, (16 << i for i in range(64))), most]
