"""What a run reports: lines of JSON, trackers such as TensorBoard, and a progress bar."""

import contextlib
import faulthandler
import json
import math
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import xfunc as xf

from .. import options
from ..config import Run
from ..files import write_text
from ..model import flops
from ..parallel import hosts
from . import trackers
from .pace import Pace
from .steps import Metrics
from .train_config import Recipe

_WINDOW = 20  # steps that rates are averaged over
_LINES = 50  # that a run prints if there is no terminal


class Log:
    """Writes ``metrics.jsonl`` in a run's folder, feeds trackers, and shows progress.

    Lines of steps after `first`, of a run that was killed after its last checkpoint, are removed.
    Of several processes only the first writes. `pace` is told when steps end, and when what follows
    is no step.
    """

    def __init__(self, run: Run, recipe: Recipe, first: int, console: Console, pace: Pace):
        self._data, self._recipe, self._console, self._pace = run.data, recipe, console, pace
        self._chip, self._times = chip(), deque[float](maxlen=_WINDOW + 1)
        self._tokens = deque[float](maxlen=_WINDOW)
        columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
        self._progress = Progress(
            *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
        )
        self._task = self._progress.add_task("compiling", total=recipe.steps, completed=first)
        self._file, self._reports = None, list[trackers.Report]()
        self._open = contextlib.ExitStack()
        self._failure, self._last = "", first
        self._writing = threading.Lock()  # A watchdog has a thread of its own.
        if hosts.is_first():
            folder, settings = Path(run.folder), options.plain(run)
            with contextlib.ExitStack() as stack:  # If one does not start, those before end.
                self._reports = trackers.begin(run.trackers, folder, first, settings, stack)
                path = folder / "metrics.jsonl"
                cut(path, first)
                self._file = stack.enter_context(path.open("a", encoding="utf-8"))
                self._open = stack.pop_all()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        with self._going_on():
            self._open.close()

    def step(self, step: int, metrics: Metrics, host_ms: float) -> Metrics:
        """Log a step, counted from 1, and return its metrics on the host; waits for the device."""
        found = xf.tree.map(torch.Tensor.tolist, xf.device_get(metrics))
        self._pace.end()
        self._last = step
        values = found._asdict() | {"host_ms": host_ms} | self._speed(float(found.tokens))
        values |= values.pop("details")
        if (stats := xf.memory_stats()) is not None:
            values["hbm_gib"] = stats["bytes_in_use"] / 2**30
        text = "  ".join(form.format(values[k]) for k, form in _SHOWN.items() if k in values)
        self._progress.update(self._task, completed=step, description=text)
        if not self._console.is_terminal and step % math.ceil(self._recipe.steps / _LINES) == 0:
            self.say(f"step {step}: {text}")
        self._write(step, values)
        return found

    def held_out(self, step: int, loss: float) -> None:
        """Log an evaluation after a step."""
        self._write(step, {"held_out_loss": loss})
        self.say(f"step {step}: held-out loss {loss:.4f}")
        self.pause()

    def stuck(self, seconds: float, usual: float) -> None:
        """Log that a step does not end, and where each thread of this process is."""
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            where = file.read()
        # Every process tells: the one that holds up the others may be any.
        name = f" in process {xf.process_index()}" if hosts.are_several() else ""
        console = self._console if hosts.is_first() else Console(stderr=True, highlight=False)
        console.print(
            f"no step has ended for {seconds:.0f} seconds{name} since step {self._last}, and the "
            f"last ones took {usual:.2f}. Where its threads are:\n{where}",
            soft_wrap=True,
            markup=False,
        )
        self._write(self._last, {"stuck_seconds": seconds})

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, soft_wrap=True)

    def pause(self) -> None:
        """Leave the time until the next step out of the rate."""
        self._pace.pause()
        self._times.clear()
        self._tokens.clear()

    def _speed(self, tokens: float) -> dict[str, float]:
        """Tokens per second and, where the chips are known, the fraction of their peak (MFU)."""
        self._times.append(time.perf_counter())
        if len(self._times) == 1:
            return {}
        rows = self._data.batch
        # Batches of rows of any length have places without targets.
        self._tokens.append(tokens if self._data.dynamic else rows * self._data.seq)
        rate = sum(self._tokens) / (self._times[-1] - self._times[0])
        mfu = self._chip and flops.utilisation(
            self._recipe.model,
            math.ceil(sum(self._tokens) / len(self._tokens) / rows),
            tokens_per_second=rate,
            chips=xf.device_count(),
            chip=self._chip,
            extent=self._recipe.extent,
        )
        return {"tokens_per_second": rate} | ({"mfu": mfu} if mfu else {})

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        if self._file is None:
            return
        # JSON has no infinities and no NaN.
        finite = {key: x if math.isfinite(x) else None for key, x in values.items()}
        with self._writing, self._going_on():
            self._file.write(json.dumps({"step": step} | finite) + "\n")
            self._file.flush()  # What cannot be written yet stays in the buffer, and is written
        for report in self._reports:  # once there is room again.
            with self._going_on():
                report(step, values)

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        """Do not let training end because its metrics cannot be written."""
        try:
            yield
        except Exception as error:  # Trackers raise what they like, such as when a network fails.
            if str(error) != self._failure:
                self._failure = str(error)
                self.say(f"metrics are not written, but training continues: {error}")


_SHOWN = {
    "loss": "loss {:.3f}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "mfu": "MFU {:.1%}",
    "host_ms": "host {:.2f} ms",
    "hbm_gib": "HBM {:.2f} GiB",
}


def cut(path: Path, step: int) -> None:
    """Remove lines of later steps, and those that a killed run did not finish, from a file."""

    def is_kept(line: str) -> bool:
        try:
            return json.loads(line)["step"] <= step
        except (ValueError, TypeError, KeyError):
            return False

    if path.exists():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        write_text(path, "".join(f"{line}\n" for line in lines if is_kept(line)))


def chip() -> str | None:
    """The kind of chip that programs run on, such as `v6e`; None if it is unknown."""
    if xf.default_backend() == "cpu":
        return None
    from torch_xla._internal import tpu  # pyright: ignore[reportMissingImports]

    try:
        kind = tpu.get_tpu_type()
    except (OSError, KeyError, TypeError):  # No metadata server; none of these variables.
        return None
    return {"v5litepod": "v5e"}.get(kind, kind)
