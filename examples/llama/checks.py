"""Checks of settings, whose errors say what to use."""

import math
from typing import Any


def at_least(settings: object, least: int, *names: str) -> None:
    """Raise a ValueError unless each of these fields is None or finite and not below `least`."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not least <= value < math.inf:
            raise ValueError(f"{name} is {value}: use {least} or more")


def above_0(settings: object, *names: str) -> None:
    """Raise a ValueError unless each of these fields is None or a finite number above 0."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}: use a number above 0")


def choices(settings: Any) -> None:
    """Raise a ValueError unless each field in `CHOICES` has one of the names there."""
    for name, known in settings.CHOICES.items():
        if (value := getattr(settings, name)) not in known:
            raise ValueError(f"unknown {name} {value!r}: use one of {', '.join(known)}")
