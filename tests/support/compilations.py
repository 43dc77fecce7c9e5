"""How often JAX compiles."""

import contextlib
from collections.abc import Callable, Iterator

import jax


@contextlib.contextmanager
def compilations() -> Iterator[Callable[[], int]]:
    """How many programs JAX has compiled since the block began."""
    seen: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: seen.append(event))
    try:
        yield lambda: sum("backend_compile" in event for event in seen)
    finally:
        jax.monitoring.clear_event_listeners()
