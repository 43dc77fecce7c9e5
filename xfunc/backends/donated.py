"""Donated arguments: programs reuse their buffers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NoReturn

import torch

from xfunc.backends.protocol import Executable
from xfunc.errors import fail


def run_donating(
    run: Executable,
    flat: Sequence[torch.Tensor],
    donated: Collection[int],
    name: str,
    given: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """Run a program, and make the donated tensors unusable.

    Args:
        run: the program.
        flat: its flat inputs.
        donated: which of them it takes over.
        name: of the program.
        given: the inputs that it reads, if the caller knows them.

    Raises:
        ValueError: a donated tensor occurs twice.
    """
    if not run.rejects_aliased_donation:
        check_given_once(flat, donated, name)
    outputs = run([flat[i] for i in run.inputs] if given is None else given)
    run.mark_donated([flat[i] for i in donated])
    return outputs


def check_given_once(flat: Sequence[object], donated: Collection[int], name: str) -> None:
    """Raise if an array to be donated occurs twice among the inputs of a program."""
    if len(set(map(id, flat))) < len(flat):
        ids = [id(flat[i]) for i in donated]
        others = {id(t) for i, t in enumerate(flat) if i not in donated}
        if len(set(ids)) < len(ids) or not others.isdisjoint(ids):
            fail_given_twice(name)


def fail_given_twice(name: str) -> NoReturn:
    """Raise: a donated buffer is also passed as another argument."""
    fail(
        ValueError,
        f"{name} was given one tensor twice, once to be donated",
        "pass a copy (t.clone()), or do not donate that argument.",
    )


def mark_donated(tensors: Iterable[torch.Tensor]) -> None:
    """Make tensors unusable, if they are plain tensors."""
    for t in tensors:
        if type(t) is torch.Tensor:
            t.__class__ = _Donated


def refuse(cls: type, func: object, types: object, args: object = (), kwargs: object = None) -> str:
    """The ``__torch_function__`` of a donated tensor."""
    if getattr(func, "__name__", "") == "__repr__":
        return "<donated tensor>"
    fail_donated()


def fail_donated() -> NoReturn:
    """Raise the error of a tensor that is used after a program has taken its buffer over."""
    fail(
        RuntimeError,
        "this tensor was donated to a jitted function, which has reused its buffer",
        "use the function's result instead, or leave the argument out of donate_argnums.",
    )


class _Donated(torch.Tensor):
    __torch_function__: Any = classmethod(refuse)
