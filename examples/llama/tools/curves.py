"""The loss curves of several runs in one picture."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..options import SettingError

_SMOOTH = 0.98  # of the running mean that is drawn over the losses of steps


class Curve(NamedTuple):
    """What a run reported: steps and their losses."""

    name: str
    steps: list[int]
    losses: list[float]
    held_out_steps: list[int]
    held_out: list[float]


def read(folder: Path) -> Curve:
    """The curve of the run in a folder."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        raise SettingError(f"there is no {path}: give the folder of a run")
    found = Curve(folder.name, [], [], [], [])
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            values = json.loads(line)
            step = int(values["step"])
        except (ValueError, TypeError, KeyError):  # A run may be writing it, or had been killed.
            continue
        for key, steps, losses in (
            ("loss", found.steps, found.losses),
            ("held_out_loss", found.held_out_steps, found.held_out),
        ):
            if isinstance(values.get(key), float):  # null: it was not finite.
                steps.append(step)
                losses.append(values[key])
    if not found.steps:
        raise SettingError(f"{path} has no losses: the run has made no steps")
    return found


def smoothed(losses: Sequence[float]) -> list[float]:
    """Running means, which forget slowly."""
    means, total, weight = [], 0.0, 0.0
    for loss in losses:
        total, weight = _SMOOTH * total + loss, _SMOOTH * weight + 1
        means.append(total / weight)
    return means


def draw(folders: Sequence[Path], out: Path) -> None:
    """Write a picture: the losses of steps, their running means, and those on held-out data."""
    import matplotlib

    found = [read(folder) for folder in folders]
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5))
    for i, curve in enumerate(found):
        color = f"C{i % 10}"
        axes.plot(curve.steps, curve.losses, color=color, alpha=0.2, linewidth=0.7)
        axes.plot(curve.steps, smoothed(curve.losses), color=color, label=curve.name)
        axes.plot(curve.held_out_steps, curve.held_out, "o", color=color, markersize=4)
    axes.set(xlabel="step", ylabel="loss (nats per token); dots: held-out data")
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(out, dpi=120, bbox_inches="tight")
    except ValueError as error:  # A kind of picture that it does not know.
        raise SettingError(f"{out}: {error}") from None
    finally:
        pyplot.close(figure)
