"""Training from settings to checkpoints: `fit(Run(...))` is the whole program."""

import contextlib
import functools
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

import xfunc as xf

from .. import config, options
from ..checkpoint.checkpoints import Checkpoints
from ..checkpoint.run_lock import owned
from ..config import Run
from ..data.reader import Reader, prefetch
from ..model import Batch, Params, quantised
from ..model.parameters import check_finite, not_finite
from ..model.precision import LOSSY, PRECISIONS
from ..options import SettingError
from ..parallel import hosts
from ..tune import base_weights
from . import evaluate, steps
from .interrupts import Interrupts
from .metrics import Log
from .pace import Pace, Watchdog
from .steps import Metrics, State
from .train_config import Recipe

_BUCKETS = 8  # lengths to compile for, with data.dynamic
_COMPILATION = 64  # the cost of one, in steps of the longest rows
_HOPELESS = 50  # bad steps in a row after which training stops
_ENDINGS = {
    "done": "finished at step {}, which is saved",
    "interrupted": "stopped after step {}, which is saved: the same command continues from there",
    "diverged": "finished at step {}, which is saved, but its weights or their held-out loss are "
    "not finite: remove checkpoints, and continue from an older one with a lower train.peak_lr, or "
    "on_bad=skip",
    "bad": "stopped after step {}, for bad losses or gradients: see metrics.jsonl. ",
}
_AFTER_BAD = {
    "stop": "The weights, which it did not change, are saved: continue with a lower train.peak_lr, "
    "or on_bad=skip",
    "skip": "The last {} steps were all bad and were skipped, so the weights or the data went bad "
    "before step {}: remove the checkpoints from there on, and continue from an older one with a "
    "lower train.peak_lr",
}


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `diverged`, if weights or the held-out loss are not finite in the end."""

    step: int  # how many have been made
    held_out: float | None  # the last loss on held-out data
    ended: Literal["done", "interrupted", "bad", "diverged"]


def fit(run: Run, console: Console | None = None, *, new_data: bool = False) -> Outcome:
    """Train from the newest checkpoint in the run's folder, or from the beginning.

    SIGTERM and SIGINT end it after the current step, with a checkpoint. With `new_data` it may
    continue from a checkpoint whose text, order or batch size differs.

    Raises:
        FolderInUseError: another process trains in the folder.
        SettingError: settings do not fit each other, or the checkpoint.
    """
    run.keep_programs()
    hosts.join()
    hosts.check_same_settings(run)
    recipe = run.recipe(xf.device_count())
    run.check_shares(xf.device_count())
    with owned(Path(run.folder)):
        return _fit(run, recipe, console, new_data)


def _fit(run: Run, recipe: Recipe, console: Console | None, new_data: bool) -> Outcome:
    folder, pace = Path(run.folder), Pace()
    if console is None or not hosts.is_first():
        console = Console(highlight=False, markup=False, quiet=not hosts.is_first())
    say = functools.partial(console.print, soft_wrap=True)
    based = base_weights.about(run, recipe)
    rows = evaluate.local_rows(recipe, run.data.batch)
    reader = Reader(run.data, folder, recipe.model.vocab, say, rows)
    hosts.check_same_data(reader.state(0))
    with Checkpoints(folder / "checkpoints", run.keep, run.keep_every) as checkpoints:
        first, state, told = begin(run, recipe, reader, checkpoints, new_data, based)
        frozen = base_weights.load(run, recipe)
        if hosts.is_first() and first < recipe.steps:  # Only settings that a step uses.
            config.write(run, folder / "config.yaml")
            reader.tokenizer.save(folder / "tokenizer")
        size, fixed = _size(state.params), _size(frozen)
        with Log(run, recipe, first, console, pace) as log:
            # The first process alone starts trackers, which may take longer than XLA waits for it:
            # on CPUs 30 seconds, where devices meet for the first time.
            hosts.agree(False)
            beside = f" to train, on a frozen base of {fixed:,}" if fixed else ""
            log.say(f"{size:,} parameters{beside}; {reader}")
            if recipe.precision == "bfloat16":
                log.say(LOSSY)
            log.say(f"{first} of {recipe.steps} steps are done; everything is kept in {folder}")
            if told:
                log.say(told)
            loop = _Loop(run, recipe, reader, checkpoints, log, pace, frozen, based)
            with contextlib.ExitStack() as stack:
                if run.watchdog is not None:
                    stack.enter_context(Watchdog(pace, run.watchdog, log.stuck))
                outcome = loop.go(first, state)
    text = _ENDINGS[outcome.ended].format(outcome.step)
    if outcome.ended == "bad":
        text += _AFTER_BAD[run.on_bad].format(_HOPELESS, outcome.step - _HOPELESS + 1)
    if (share := pace.goodput()) is not None:
        text += f" ({share:.0%} of the time went into steps)"
    say(text)
    return outcome


def _size(params: Params | None) -> int:
    leaves = xf.tree.leaves(params, is_leaf=quantised.is_quantised)
    return sum(math.prod(leaf.shape) for leaf in leaves)


def begin(
    run: Run,
    recipe: Recipe,
    reader: Reader,
    checkpoints: Checkpoints,
    new_data: bool = False,
    based: dict[str, Any] | None = None,
) -> tuple[int, State, str]:
    """How many steps were made, the state after them, and a message about the data, if any."""
    if checkpoints.latest() is None:
        if run.base is not None:  # New weights would not be those that were imported.
            raise SettingError(
                f"{checkpoints.folder} has no checkpoint, and a run with a base starts from one: "
                "create it with import-hf"
            )
        seed = run.seed  # The program is the same in every folder.
        where = None if recipe.plan.sharding is None else steps.shardings(recipe)
        return 0, xf.jit(lambda: steps.init(recipe, seed), out_shardings=where)(), ""
    told = ""

    def check(extra: dict[str, Any]) -> None:
        nonlocal told
        _check_same(run, extra["run"])
        base_weights.check_same(based, extra["base"])
        if extra["data"] is not None:  # None: the weights were imported.
            told = reader.go_on(extra["data"], new_data)

    step, state, _ = checkpoints.restore(steps.abstract_state(recipe), check=check)
    if step > recipe.steps:  # Weights after more steps are not those of the run that was asked for.
        raise SettingError(
            f"train.steps is {recipe.steps}, but the newest checkpoint in {run.folder} is of step "
            f"{step}: use {step} or more to continue, or another folder for a shorter run"
        )
    if run.on_bad != "ignore":  # Otherwise every step would be bad.
        path = checkpoints.folder / str(step)
        check_finite(state.params, str(path), "remove it to continue from the one before")
    return step, state, told


def _check_same(run: Run, saved: dict[str, Any]) -> None:
    """Raise an error if a checkpoint saved with the settings `saved` is of another model."""
    was, now = _made_of(saved), _made_of(options.plain(run))
    if changed := [
        f"{key} was {was.get(key)}, is {now[key]}" for key in now if was.get(key) != now[key]
    ]:
        raise SettingError(
            f"the run in {run.folder} is of another model: {'; '.join(changed)}. "
            "Resume with its original settings, or use another folder"
        )


def _made_of(run: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings, in plain form, that determine what a checkpoint holds."""
    train = run["train"]
    return {
        **{f"train.model.{key}": value for key, value in train["model"].items()},
        **{f"train.tune.{key}": value for key, value in train["tune"].items()},
        "train.optimizer": train["optimizer"],
        "the dtype that weights are kept in": str(PRECISIONS[train["precision"]].weights),
    }


@dataclass(frozen=True)
class _Loop:
    """The steps of a run, and what is done between them."""

    run: Run
    recipe: Recipe
    reader: Reader
    checkpoints: Checkpoints
    log: Log
    pace: Pace
    frozen: Params | None  # the weights that are not trained
    based: dict[str, Any] | None

    def go(self, first: int, state: State) -> Outcome:
        run, steps, step, held_out = self.run, self.recipe.steps, first, None
        late = _Late(self.log, patience=1 if run.on_bad == "stop" else _HOPELESS)
        make_step = self._dynamic_step() if run.data.dynamic else self._step
        batches = prefetch(self.reader.batch, range(first, steps))
        with contextlib.closing(batches), Interrupts() as interrupts:
            for step, batch in enumerate(batches, first + 1):
                with self._recording(step, state):
                    self.pace.begin()
                    started = time.thread_time()  # The thread's CPU time, without waiting.
                    state, metrics = make_step(state, batch)
                    host_ms = (time.thread_time() - started) * 1e3
                late.add(step, metrics, host_ms)
                if step == first + 2:  # The device works, and the first step has been shown.
                    self.checkpoints.prepare()

                if step % run.eval_every == 0 or step == steps:
                    late.read()
                    self.pace.pause()
                    held_out = evaluate.held_out_loss(
                        state.params, self.reader, self.recipe, run.eval_batches, self.frozen
                    )
                    self.log.held_out(step, held_out)
                interrupted = hosts.agree(interrupts.noted) and step < steps
                due = any(n and step % n == 0 for n in (run.save_every, run.keep_every))
                if due or step == steps or interrupted or late.hopeless:
                    late.read()
                    self.pace.pause()
                    self.reader.check(wait=not interrupted)  # A signal leaves little time.
                    self._save(step, state)
                if interrupted or late.hopeless:
                    return Outcome(step, held_out, "bad" if late.hopeless else "interrupted")
        late.read()
        wrong, _ = not_finite(state.params)
        diverged = wrong or (held_out is not None and not math.isfinite(held_out))
        return Outcome(step, held_out, "diverged" if diverged else "done")

    def _step(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        batch = evaluate.put(batch, self.recipe)
        return steps.train_step(state, batch, self.frozen, recipe=self.recipe)

    def _dynamic_step(self) -> Callable[[State, Batch], tuple[State, Metrics]]:
        """A step for batches of any width, which stay on the host to be padded."""
        data = self.run.data
        buckets = xf.buckets(
            [*self.reader.widths(), data.seq],
            n=_BUCKETS,
            compile_cost=_COMPILATION * data.seq,
            calls=self.recipe.steps,
        )
        step = steps.dynamic_step(self.recipe, data.seq, buckets, data.memory_limit)
        self.log.say(
            f"batches are padded to the next of {', '.join(map(str, buckets))} tokens per row"
        )
        return lambda state, batch: step(state, batch, self.frozen)

    def _recording(self, step: int, state: State) -> AbstractContextManager[None]:
        if step not in self.run.profile:
            return contextlib.nullcontext()
        xf.block_until_ready(state)  # or the end of the previous step would be recorded too
        folder = Path(self.run.folder, "profile", f"step-{step}")
        if hosts.are_several():  # XLA names files for the host, which several may run on.
            folder /= f"process-{xf.process_index()}"
        return xf.profiler.trace(folder)

    def _save(self, step: int, state: State) -> None:
        plain = options.plain(self.run)
        extra = {"data": self.reader.state(step), "run": plain, "base": self.based}
        try:
            self.checkpoints.save(step, state, extra)
        except xf.errors.CheckpointWriteError as error:  # of the previous save; training continues
            self.log.say(f"a checkpoint is missing: {error}")
            self.checkpoints.save(step, state, extra)
        self.log.pause()


class _Late:
    """Reads metrics one step late, so the device has the next step to do while the host waits.

    Attributes:
        hopeless: whether `patience` steps in a row were bad.
    """

    def __init__(self, log: Log, patience: int):
        self.hopeless = False
        self._log, self._patience, self._bad = log, patience, 0
        self._unread: tuple[int, Metrics, float] | None = None
        self._last_finite = True

    def add(self, step: int, metrics: Metrics, host_ms: float) -> None:
        """Read the pending metrics, and keep these to be read next."""
        self.read()
        self._unread = step, metrics, host_ms

    def read(self) -> None:
        """Read the pending metrics."""
        if self._unread is None:
            return
        step, *_ = self._unread
        found, self._unread = self._log.step(*self._unread), None
        finite = math.isfinite(found.loss) and math.isfinite(found.grad_norm)
        if found.skipped or (self._last_finite and not finite):
            what = "skipped" if found.skipped else "taken, as on_bad=ignore says"
            values = f"loss {found.loss:.4g}, gradient norm {found.grad_norm:.4g}"
            self._log.say(f"step {step} is {what}: {values}")
        self._last_finite = finite
        self._bad = self._bad + 1 if found.skipped else 0
        self.hopeless = self.hopeless or self._bad >= self._patience
