"""Arguments whose buffers a program takes over."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from xfunc.backends.protocol import Executable
from xfunc.errors import fail


def run_donating(
    run: Executable,
    flat: Sequence[torch.Tensor],
    donated: Collection[int],
    name: str,
    kind: type[torch.Tensor],
) -> list[torch.Tensor]:
    """Run a program, and make the tensors that it took over unusable.

    Args:
        run: the program.
        flat: its flat inputs.
        donated: which of them it takes over.
        name: of the program.
        kind: the class of the runtime's tensors.

    Raises:
        ValueError: a donated tensor occurs twice.
    """
    if len(set(map(id, flat))) < len(flat):
        ids = [id(flat[i]) for i in donated]
        others = {id(t) for i, t in enumerate(flat) if i not in donated}
        if len(set(ids)) < len(ids) or not others.isdisjoint(ids):
            fail(
                ValueError,
                f"{name} was given one tensor twice, once to be donated",
                "pass a copy (t.clone()), or do not donate that argument.",
            )
    outputs = run([flat[i] for i in run.inputs])
    for i in donated:
        t = flat[i]
        if type(t) in (torch.Tensor, kind):
            t.__class__ = _Donated
    return outputs


class _Donated(torch.Tensor):
    """A tensor whose buffer a program has taken over."""

    @classmethod
    def __torch_function__(
        cls, func: object, types: object, args: object = (), kwargs: object = None
    ) -> str:
        if getattr(func, "__name__", "") == "__repr__":
            return "<donated tensor>"
        fail(
            RuntimeError,
            "this tensor was donated to a jitted function, which has reused its buffer",
            "use the function's result instead, or leave the argument out of donate_argnums.",
        )
