"""A run's position in its data, which may have changed along the way."""

from typing import Any, NamedTuple


class Position(NamedTuple):
    """How steps correspond to rows of the data.

    Attributes:
        since: how many steps were made before the current data.
        row: the row, counted over all epochs, that the first batch after those began with.
        before: the earlier data, oldest first.
    """

    since: int = 0
    row: int = 0
    before: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Position":
        """The position in a checkpoint; earlier versions had none, as data never changed."""
        return cls(state.get("since", 0), state.get("row", 0), tuple(state.get("before", ())))

    def row_at(self, step: int, batch: int) -> int:
        """The first row of the batch of a step, counted from 0."""
        return self.row + (step - self.since) * batch

    def changed(self, step: int, was: dict[str, Any], *, rows_go_on: bool) -> "Position":
        """The position of a run whose data change after `step`.

        Args:
            step: how many steps were made.
            was: the data until then.
            rows_go_on: whether the rows are the same, so that the remaining ones come next.
        """
        ended = was | {"since": self.since, "row": self.row, "until": step}
        row = self.row_at(step, was["batch"]) if rows_go_on else 0
        return Position(step, row, (*self.before, ended))
