"""Where the curves of a run are shown besides the files in its folder."""

import contextlib
import html
import importlib.util
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from ..files import write_text
from ..options import SettingError
from ..tune.lora import named

Name = Literal["tensorboard", "wandb", "mlflow"]
_BATCH = 100  # parameters that MLflow takes at once


class Tracker(Protocol):
    """Receives what a run reports. Its errors are reported, and the run continues."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of a step, by name."""

    def text(self, step: int, name: str, text: str) -> None:
        """A text of a step."""

    def close(self) -> None:
        """Nothing more comes."""


def begin(
    names: Sequence[Name], folder: Path, first: int, settings: Mapping[str, Any]
) -> list[Tracker]:
    """Trackers of these names.

    A resumed run is the same run in all of them.

    Args:
        names: the trackers.
        folder: the run's folder.
        first: how many steps were made; curves continue from there.
        settings: the run's settings, to be shown beside the curves.

    Raises:
        SettingError: a tracker is not installed, or does not start.
    """
    made: list[Tracker] = []
    for name in dict.fromkeys(names):
        try:
            made.append(_KINDS[name](folder, first, settings))
        except Exception as error:  # Trackers raise what they like.
            for one in made:
                with contextlib.suppress(Exception):
                    one.close()
            why, repair = "does not start", "fix that"
            if isinstance(error, ImportError):
                why, repair = "is not installed", "install it with pip"
            raise SettingError(
                f"trackers has {name}, which {why} ({error}): {repair}, or remove it"
            ) from error
    return made


class TensorBoard:
    """Files in ``tensorboard``; opened when there is something to write."""

    def __init__(self, folder: Path, first: int, settings: Mapping[str, Any]):
        if importlib.util.find_spec("tensorboard") is None:
            raise ImportError("No module named 'tensorboard'")
        self._folder, self._purged, self._board = str(folder / "tensorboard"), first + 1, None

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        with self._opened() as board:
            for key, value in values.items():
                board.add_scalar(key, value, step)

    def text(self, step: int, name: str, text: str) -> None:
        """A text, verbatim rather than as Markdown."""
        with self._opened() as board:
            board.add_text(name, f"<pre>{html.escape(text)}</pre>", step)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        """The writer; after an error a new file: the old one's thread has ended."""
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter  # The device works while this loads.

            self._board = SummaryWriter(self._folder, purge_step=self._purged)
            self._purged = None
        try:
            yield self._board
        except OSError:
            self._board = None
            raise

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


class WandB:
    """Weights & Biases; ``WANDB_MODE=offline`` keeps it in the run's folder."""

    def __init__(self, folder: Path, first: int, settings: Mapping[str, Any]):
        import wandb  # pyright: ignore[reportMissingImports]

        self._wandb: Any = wandb
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "llama"),
            name=folder.name,
            dir=folder,
            id=_kept(folder, "wandb", lambda: uuid.uuid4().hex[:12]),
            resume="allow",
            config=dict(settings),
        )
        # Steps of a killed run are logged again, but wandb's own step never goes back.
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def text(self, step: int, name: str, text: str) -> None:
        self._run.log({"step": step, name: self._wandb.Html(f"<pre>{html.escape(text)}</pre>")})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """MLflow, at ``MLFLOW_TRACKING_URI``, or in ``mlflow.db`` in the run's folder."""

    def __init__(self, folder: Path, first: int, settings: Mapping[str, Any]):
        import mlflow  # pyright: ignore[reportMissingImports]

        known = os.environ.get("MLFLOW_TRACKING_URI")
        place = known or f"sqlite:///{folder.absolute()}/mlflow.db"
        # A server knows where its files go; without one they would go to the current folder.
        self._files = None if known else (folder.absolute() / "mlflow").as_uri()
        self._entities: Any = mlflow.entities
        self._client: Any = mlflow.MlflowClient(place)
        self._run = _kept(folder, "mlflow", lambda: self._created(folder, settings))
        self._client.update_run(self._run, status="RUNNING")

    def _created(self, folder: Path, settings: Mapping[str, Any]) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "llama")
        found = self._client.get_experiment_by_name(name)
        number = (
            self._client.create_experiment(name, artifact_location=self._files)
            if found is None
            else found.experiment_id
        )
        run = self._client.create_run(number, run_name=folder.name).info.run_id
        params = [self._entities.Param(key, str(x)) for key, x in named(settings).items()]
        for i in range(0, len(params), _BATCH):
            self._client.log_batch(run, params=params[i : i + _BATCH])
        return run

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(key, x, now, step) for key, x in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def text(self, step: int, name: str, text: str) -> None:
        self._client.log_text(self._run, text, f"{name}/{step}.txt")

    def close(self) -> None:
        self._client.set_terminated(self._run)


_KINDS: dict[Name, Any] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def _kept(folder: Path, tracker: str, made: Any) -> str:
    """A tracker's id of the run: the one in the run's folder, or a new one."""
    file = folder / "trackers.json"
    try:
        known = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        known = {}
    if not isinstance(known, dict) or not isinstance(known.get(tracker), str):
        known = (known if isinstance(known, dict) else {}) | {tracker: made()}
        write_text(file, json.dumps(known))
    return known[tracker]
