"""A folder of checkpoints, one for each step that was saved: the newest few are kept."""

import importlib
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import xfunc as xf

from ..parallel import hosts

_STEP = "checkpoint of step"
_MANIFEST = "manifest.json"  # It has the sums of all other files.


class Restored(NamedTuple):
    """A checkpoint that was read."""

    step: int
    state: Any
    extra: dict[str, Any]


class Checkpoints:
    """Checkpoints ``<folder>/<step>``, written while training goes on.

    ``with Checkpoints(folder) as checkpoints:`` waits at its end for the one that is being written.
    Of several processes, which all see the folder, each makes its own object. The newest `keep`
    stay, and those of the multiples of `keep_every`.
    """

    def __init__(self, folder: str | PathLike[str], keep: int = 3, keep_every: int | None = None):
        if keep < 1:
            raise ValueError(f"keep is {keep}: keep at least 1 checkpoint")
        self.folder, self.keep, self.keep_every = Path(folder), keep, keep_every
        self._pending: Future[None] | None = None
        self._damaged: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def steps(self) -> list[int]:
        """The steps whose checkpoints are complete, the oldest first."""
        found = self.folder.iterdir() if self.folder.exists() else ()
        return sorted(int(path.name) for path in found if path.name.isdecimal())

    def latest(self) -> int | None:
        """The newest step, or None; of several processes all have to ask."""
        return hosts.from_first(max(self.steps(), default=None))

    def save(self, step: int, state: Any, extra: dict[str, Any], *, at_once: bool = False) -> None:
        """Begin to save; the state may be donated or changed from now on.

        `extra` is what JSON can hold. If `at_once`, it waits until all is written: then the host
        never holds more than one array of the state. Otherwise the next call raises the error of
        one that failed.
        """
        self.wait()
        latest = max((s for s in self.steps() if s not in self._damaged), default=-1)
        if step <= latest:
            raise FileExistsError(
                f"{self.folder} has a checkpoint of step {latest}, and step {step} is not after "
                "it: resume from the newest, use another folder, or remove the later ones"
            )
        if hosts.is_first():
            self._clean()
        self._damaged.clear()
        path, noted = self.folder / str(step), {_STEP: step, "extra": extra}
        if at_once:
            xf.sharding.save_checkpoint(path, state, noted)
        else:
            self._pending = xf.sharding.save_checkpoint_async(path, state, noted)

    @staticmethod
    def prepare() -> None:
        """Load what saving needs, which writes a file of torch's: the disk may be full later."""
        importlib.import_module("torch.distributed.checkpoint")

    def wait(self) -> None:
        """Wait until the save in progress is complete, and raise its error."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        pending.result()
        if hosts.is_first():
            self._remove_old()

    def restore(
        self,
        target: Any,
        step: int | None = None,
        check: Callable[[dict[str, Any]], None] | None = None,
        *,
        partial: bool = False,
    ) -> Restored:
        """Read the checkpoint of a step; see `xf.sharding.load_checkpoint`.

        None is the newest that is not damaged, with a warning for each that is; the next save then
        renames those to ``<step>.damaged``. `check` is given `extra` before the state is read.

        Raises:
            FileNotFoundError: there is none, or none of that step.
            ProcessesDifferError: another process found another one.
            DamagedCheckpointError: it is damaged, or its folder has the name of another step; or
                all are, and this is of the newest.
        """
        if step is not None:
            if step not in (kept := self.steps()):
                raise FileNotFoundError(
                    f"{self.folder} has no checkpoint of step {step}: use one of {kept}"
                )
            return self._read(target, step, check, partial)
        first = None
        for each in reversed(hosts.from_first(self.steps())):
            try:
                return self._read(target, each, check, partial)
            except (xf.errors.DamagedCheckpointError, FileNotFoundError) as error:
                if hosts.is_first():
                    warnings.warn(f"step {each} is skipped: {error}", stacklevel=2)
                self._damaged.add(each)
                first = first or error
        raise first or FileNotFoundError(
            f"there is no checkpoint in {self.folder}: give the folder of a run that saved one"
        )

    def _read(
        self, target: Any, step: int, check: Callable[[dict[str, Any]], None] | None, partial: bool
    ) -> Restored:
        path = self.folder / str(step)
        extra = xf.sharding.load_extra(path)
        if extra[_STEP] != step:
            raise xf.errors.DamagedCheckpointError(
                f"{path} holds the checkpoint of step {extra[_STEP]}: rename the folder to "
                f"{extra[_STEP]}, or remove it",
                path,
            )
        extra = extra["extra"]
        hosts.check_same_files(path, [path / _MANIFEST])
        if check is not None:
            check(extra)
        state = xf.sharding.load_checkpoint(path, target, partial=partial)
        return Restored(step, state, extra)

    def _clean(self) -> None:
        """Put damaged checkpoints aside, and remove what killed runs left."""
        for step in self._damaged:
            path = self.folder / str(step)
            aside = path.with_suffix(".damaged")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
        self._remove_old()  # A run that was killed just after a save could not.
        for left in (*self.folder.glob("*.partial"), *self.folder.glob("*.removed")):
            shutil.rmtree(left)

    def _remove_old(self) -> None:
        for old in self.steps()[: -self.keep]:
            if self.keep_every is None or old % self.keep_every:
                _remove(self.folder / str(old))


def _remove(path: Path) -> None:
    """Remove a checkpoint so that there is never a part of one under its name."""
    removed = path.rename(path.with_suffix(".removed"))
    shutil.rmtree(removed)
