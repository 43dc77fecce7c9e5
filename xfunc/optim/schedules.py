"""Schedules: functions from a count of steps to a learning rate or another number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from xfunc.errors import fail

Rate: TypeAlias = float | Tensor
Schedule: TypeAlias = Callable[[int | Tensor], Rate]


def constant_schedule(value: Rate) -> Schedule:
    """A schedule that stays at one value.

    Args:
        value: a number, or a tensor of shape ``[]``.

    Returns:
        A function from a count of steps, an int or a tensor of shape ``[]``, to `value`.

    Example:
        >>> xf.optim.constant_schedule(0.1)(100)
        0.1

    Semantics: ``optax.constant_schedule``.
    """
    return lambda count: value


def linear_schedule(
    init_value: Rate, end_value: Rate, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """A schedule that goes from one value to another in a line, and stays there.

    Args:
        init_value: the value up to step `transition_begin`.
        end_value: the value from step ``transition_begin + transition_steps`` on.
        transition_steps: steps of the transition, at least 1.
        transition_begin: the step at which it begins.

    Returns:
        A function from a count of steps, an int or a tensor of shape ``[]``, to a float32 tensor
        of shape ``[]``.

    Raises:
        ValueError: `transition_steps` is less than 1.

    Example:
        >>> xf.optim.linear_schedule(1.0, 0.0, transition_steps=4)(1)
        tensor(0.7500)

    Semantics: ``optax.linear_schedule``.
    """
    _check_steps("linear_schedule", "transition_steps", transition_steps)

    def schedule(count: int | Tensor) -> Tensor:
        over = _fraction(count, transition_begin, transition_steps)
        return init_value + (end_value - init_value) * over

    return schedule


def cosine_decay_schedule(
    init_value: Rate, decay_steps: int, alpha: float = 0.0, exponent: float = 1.0
) -> Schedule:
    """A schedule that falls along half a period of the cosine.

    Args:
        init_value: the value at step 0.
        decay_steps: steps of the fall, at least 1.
        alpha: the value after it, as a fraction of `init_value`.
        exponent: the power of the cosine's curve.

    Returns:
        A function from a count of steps, an int or a tensor of shape ``[]``, to a float32 tensor
        of shape ``[]``.

    Raises:
        ValueError: `decay_steps` is less than 1.

    Example:
        >>> xf.optim.cosine_decay_schedule(2.0, decay_steps=10)(5)
        tensor(1.0000)

    Semantics: ``optax.cosine_decay_schedule``.
    """
    _check_steps("cosine_decay_schedule", "decay_steps", decay_steps)

    def schedule(count: int | Tensor) -> Tensor:
        left = (1 + torch.cos(math.pi * _fraction(count, 0, decay_steps))) / 2
        return init_value * ((1 - alpha) * left**exponent + alpha)

    return schedule


def warmup_cosine_decay_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    decay_steps: int,
    end_value: float = 0.0,
    exponent: float = 1.0,
) -> Schedule:
    """A schedule that rises in a line, and falls along half a period of the cosine.

    Args:
        init_value: the value at step 0.
        peak_value: the value at step `warmup_steps`, not 0.
        warmup_steps: steps of the rise, at least 0.
        decay_steps: steps of both together, more than `warmup_steps`.
        end_value: the value from step `decay_steps` on.
        exponent: the power of the cosine's curve.

    Returns:
        A function from a count of steps, an int or a tensor of shape ``[]``, to a float32 tensor
        of shape ``[]``.

    Raises:
        ValueError: `decay_steps` is not more than `warmup_steps`.

    Example:
        >>> rate = xf.optim.warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps=2, decay_steps=6)
        >>> [round(float(rate(step)), 2) for step in (0, 1, 2, 4, 6)]
        [0.0, 0.5, 1.0, 0.5, 0.0]

    Semantics: ``optax.warmup_cosine_decay_schedule``.
    """
    _check_steps(
        "warmup_cosine_decay_schedule", "decay_steps - warmup_steps", decay_steps - warmup_steps
    )
    alpha = end_value / peak_value
    fall = cosine_decay_schedule(peak_value, decay_steps - warmup_steps, alpha, exponent)
    if not warmup_steps:
        return fall
    return join_schedules(
        [linear_schedule(init_value, peak_value, warmup_steps), fall], [warmup_steps]
    )


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Follow schedules one after the other.

    Args:
        schedules: each counts its steps from its own beginning.
        boundaries: the steps at which the second and later ones begin, in rising order.

    Returns:
        A function from a count of steps, an int or a tensor of shape ``[]``, to a tensor of shape
        ``[]``.

    Raises:
        ValueError: there are not as many boundaries as schedules after the first one.

    Example:
        >>> halves = map(xf.optim.constant_schedule, (1.0, 0.5, 0.25))
        >>> rate = xf.optim.join_schedules([*halves], boundaries=[10, 20])
        >>> float(rate(9)), float(rate(10)), float(rate(20))
        (1.0, 0.5, 0.25)

    Semantics: ``optax.join_schedules``.
    """
    if len(boundaries) != len(schedules) - 1:
        fail(
            ValueError,
            f"join_schedules was given {len(schedules)} schedules and {len(boundaries)} boundaries",
            "give the step at which each schedule but the first begins.",
        )

    def schedule(count: int | Tensor) -> Tensor:
        count = torch.as_tensor(count)
        value = torch.as_tensor(schedules[0](count))
        for start, following in zip(boundaries, schedules[1:], strict=True):
            value = torch.where(count < start, value, torch.as_tensor(following(count - start)))
        return value

    return schedule


def _fraction(count: int | Tensor, begin: int, steps: int) -> Tensor:
    """The fraction of `steps`, counted from `begin`, that is over."""
    return ((torch.as_tensor(count) - begin) / steps).clamp(0.0, 1.0)


def _check_steps(function: str, name: str, steps: int) -> None:
    if steps < 1:
        fail(ValueError, f"{function}: {name} is {steps}", "use at least 1 step.")
