"""Where in its data a run is, which may have changed on the way."""

from typing import Any, NamedTuple


class Position(NamedTuple):
    """How steps belong to rows of the data.

    Attributes:
        since: how many steps were made before the data were these.
        row: the row, counted over all epochs, that the batch after those began with.
        before: what the data were until then, the oldest first.
    """

    since: int = 0
    row: int = 0
    before: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Position":
        """That in the state of a checkpoint; earlier versions had none, and the data were one."""
        return cls(state.get("since", 0), state.get("row", 0), tuple(state.get("before", ())))

    def row_at(self, step: int, batch: int) -> int:
        """The first row of the batch of a step, counted from 0."""
        return self.row + (step - self.since) * batch

    def changed(self, step: int, was: dict[str, Any], *, rows_go_on: bool) -> "Position":
        """That of a run whose data are others from `step` on.

        Args:
            step: how many steps were made.
            was: what the data were until then.
            rows_go_on: whether they have the same rows, so that those that are left come next.
        """
        ended = was | {"since": self.since, "row": self.row, "until": step}
        row = self.row_at(step, was["batch"]) if rows_go_on else 0
        return Position(step, row, (*self.before, ended))
