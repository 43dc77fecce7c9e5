"""For tests that start several processes."""

from __future__ import annotations

import socket
from collections.abc import Callable


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def raised(f: Callable[[], object]) -> str:
    """What a function raises: the kind and the message."""
    try:
        f()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
