"""Where the metrics of a run are shown besides ``metrics.jsonl``.

A tracker is a context manager that gives a function of a step and its metrics. A program of your
own can add one to `TRACKERS`, under the name that `trackers` then accepts.
"""

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ..files import write_text
from ..options import SettingError

Report: TypeAlias = Callable[[int, Mapping[str, float]], object]


@contextlib.contextmanager
def tensorboard(folder: Path, first: int, settings: Mapping[str, Any]) -> Iterator[Report]:
    """Files in ``tensorboard`` in the run's folder, which continue after the step `first`."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard"), purge_step=first + 1) as board:

        def report(step: int, values: Mapping[str, float]) -> None:
            for key, value in values.items():
                board.add_scalar(key, value, step)

        yield report


@contextlib.contextmanager
def wandb(folder: Path, first: int, settings: Mapping[str, Any]) -> Iterator[Report]:
    """Weights & Biases; ``WANDB_MODE=offline`` keeps it in the run's folder."""
    import wandb  # pyright: ignore[reportMissingImports]

    if not (file := folder / "wandb.id").exists():
        write_text(file, uuid.uuid4().hex)
    run: Any = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "llama"),
        name=folder.name,
        dir=folder,
        id=file.read_text("utf-8"),
        resume="allow",
        config=dict(settings),
    )
    with run:
        # Steps of a killed run are logged again, but wandb's own step never goes back.
        run.define_metric("*", step_metric="step")
        yield lambda step, values: run.log({"step": step, **values})


TRACKERS = {"tensorboard": tensorboard, "wandb": wandb}


def begin(
    names: Sequence[str],
    folder: Path,
    first: int,
    settings: Mapping[str, Any],
    stack: contextlib.ExitStack,
) -> list[Report]:
    """Start trackers, which end with `stack`."""
    reports = []
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise SettingError(f"trackers has {name!r}: use some of {', '.join(TRACKERS)}")
        try:
            reports.append(stack.enter_context(TRACKERS[name](folder, first, settings)))
        except Exception as error:  # Trackers raise what they like.
            why = "is not installed" if isinstance(error, ImportError) else "does not start"
            raise SettingError(
                f"trackers has {name}, which {why} ({error}): mend that, or remove it"
            ) from error
    return reports
