"""Training in the memory that padding to the longest document takes: see `training`."""

from benchmarks.dynamic import training


def main() -> None:
    """Print the table."""
    training.on_one_core("capped")
