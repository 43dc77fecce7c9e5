"""What a run reports: lines of JSON, trackers such as TensorBoard, and a progress bar."""

import contextlib
import faulthandler
import json
import math
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

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
_NOISES = 50  # steps that the noise scale of gradients is averaged over
_LINES = 50  # that a run prints if there is no terminal


class Log:
    """Writes ``metrics.jsonl`` in a run's folder, feeds trackers, and shows progress.

    Lines of steps after `first` are from a run that was killed after its last checkpoint; they are
    removed, so that the curve has each step once. Of several processes only the first writes.

    Args:
        run: the settings.
        recipe: what is trained.
        first: how many steps have been made before.
        console: to print to.
        pace: is told when steps end, and when what follows is no step.
    """

    def __init__(self, run: Run, recipe: Recipe, first: int, console: Console, pace: Pace):
        self._data, self._recipe, self._console, self._pace = run.data, recipe, console, pace
        self._chip, self._times = chip(), deque[float](maxlen=_WINDOW + 1)
        self._tokens = deque[float](maxlen=_WINDOW)
        self._noises = deque[tuple[float, ...]](maxlen=_NOISES)
        columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
        self._progress = Progress(
            *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
        )
        self._task = self._progress.add_task("compiling", total=recipe.steps, completed=first)
        self._file, self._trackers = None, list[trackers.Tracker]()
        self._failure, self._last = "", first
        self._writing = threading.Lock()  # A watchdog has a thread of its own.
        if hosts.is_first():
            folder, settings = Path(run.folder), options.plain(run)
            self._trackers = trackers.begin(run.trackers, folder, first, settings)
            path = folder / "metrics.jsonl"
            for text in (*cut(path, first), *cut(folder / "samples.jsonl", first)):
                self.say(text)
            self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        for writer in (self._file, *self._trackers):
            if writer is not None:
                with self._going_on():
                    writer.close()

    def step(self, step: int, metrics: Metrics, host_ms: float) -> Metrics:
        """Log one step, and return its metrics on the host; waits for the device.

        Args:
            step: its number, from 1.
            metrics: of `train_step`.
            host_ms: what the host spent on launching it.
        """
        found = xf.tree.map(torch.Tensor.tolist, xf.device_get(metrics))
        self._pace.end()
        self._last = step
        values = found._asdict() | {"host_ms": host_ms} | self._speed(float(found.tokens))
        values |= values.pop("details") | _by_layer(values.pop("norms"))
        values |= self._noise(values.pop("noise"))
        if (used := hbm_gib()) is not None:
            values["hbm_gib"] = used
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

    def samples(self, step: int, texts: Sequence[str]) -> None:
        """Log texts that the model generated after a step."""
        for tracker in self._trackers:
            with self._going_on():
                tracker.text(step, "samples", "\n\n".join(texts))
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

    def _noise(self, noise: Sequence[float] | None) -> dict[str, float]:
        """The estimates of a step, and the noise scale by the last steps, if it is known."""
        if noise is None:
            return {}
        if all(map(math.isfinite, noise)):
            self._noises.append(tuple(noise))
        signal, variance = (sum(pair[i] for pair in self._noises) for i in range(2))
        scale = {"gradient_noise/scale": variance / signal} if signal > 0 else {}
        return {"gradient_noise/signal": noise[0], "gradient_noise/variance": noise[1]} | scale

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        if self._file is None:
            return
        # JSON has no infinities and no NaN.
        finite = {key: x if math.isfinite(x) else None for key, x in values.items()}
        with self._writing, self._going_on():
            self._file.write(json.dumps({"step": step} | finite) + "\n")
            self._file.flush()  # What cannot be written yet stays in the buffer, and is written
        for tracker in self._trackers:  # once there is room again.
            with self._going_on():
                tracker.scalars(step, values)

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


def _by_layer(norms: Mapping[str, Any] | None) -> dict[str, float]:
    """The gradient norms of layers, with a name for each."""
    found = {}
    for name, norm in (norms or {}).items():
        of_layers = enumerate(norm) if isinstance(norm, list) else ()
        found |= {f"grad_norm/{name}.{i}": x for i, x in of_layers} or {f"grad_norm/{name}": norm}
    return found


def cut(path: Path, step: int) -> list[str]:
    """Remove the lines of later steps, and incomplete lines, from a file of JSON lines.

    Lines that no run wrote are removed too; the original file is then kept under another name.
    Returns messages about this.
    """
    if not path.exists():
        return []
    kept, wrong = [], []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if (found := _step_of(line)) is not None:
            kept += [line] if found <= step else []
        elif line.endswith("\n"):  # else a killed run was writing it
            wrong.append(number)
    told = []
    if wrong:
        aside = shutil.copyfile(path, path.with_suffix(".damaged"))
        numbers = ", ".join(map(str, wrong))
        told = [f"{path} has lines that no run writes, {numbers}: removed, and kept in {aside}"]
    write_text(path, "".join(kept))
    return told


def _step_of(line: str) -> int | None:
    """The step of a complete line."""
    try:
        found = json.loads(line) if line.endswith("\n") else None
    except ValueError:
        return None
    step = found.get("step") if isinstance(found, dict) else None
    return step if isinstance(step, int) else None


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


def hbm_gib() -> float | None:
    """The memory in use on the chip; None if it is unknown.

    torch_xla 2.9 does not report it for several devices: "MemoryInfo not supported for SPMD".
    """
    stats = xf.memory_stats()
    return None if stats is None else stats["bytes_in_use"] / 2**30
