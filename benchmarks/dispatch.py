"""Dispatch: host time of a call whose program is already compiled, outputs fed back as inputs.

One operation (16x16 add), against

- the bare ``_run_cached_graph`` of torch_xla on the same executable;
- the same operation on lazy tensors and ``torch_xla.sync()``.

A call like a train step, from a dictionary of 300 leaves to a new one, donated or not, against the
bare call on the same executable.

The same calls with the backend ``"pjrt"``, against those with torch_xla just before, and against
JAX's own part in them.

The device is waited for after each turn, outside the timer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch_xla  # pyright: ignore[reportMissingImports]

import xfunc as xf
from benchmarks.timing import Contender, Row, race, table, wait
from xfunc.backends.pjrt.array import array_of, make
from xfunc.backends.torch_xla.executable import Executable

LEAVES = 300
CALLS = 16  # in flight at once; XLA's CPU client lets the host wait beyond 32


class Loop:
    """Calls a function on its own last result."""

    def __init__(self, fun: Any, start: Any):
        self.fun, self.state = fun, start

    def __call__(self) -> None:
        self.state = self.fun(self.state)


def executable(fun: Any, *args: Any) -> Executable:
    """The executable that a jitted function runs for these arguments."""
    entry = fun.trace(*args).parts.entry
    return entry.program.lowering.executable(entry.donated)


def raw(fun: Any, leaves: list[torch.Tensor], *args: Any) -> Loop:
    """The bare call of a jitted function's executable; all leaves have the same shape."""
    key, run = executable(fun, *args)._hash, torch_xla._XLAC._run_cached_graph
    return Loop(lambda inputs: run(key, inputs), leaves)


def one_op() -> list[Row]:
    """A call that does next to nothing."""
    add = xf.jit(lambda x: x + 1)

    def lazy(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch_xla.sync()
        return x

    def start() -> torch.Tensor:
        return xf.device_put(torch.zeros(16, 16))

    contenders = {
        "ours": Loop(add, start()),
        "raw": raw(add, [start()], start()),
        "lazy": Loop(lazy, start()),
    }
    best = race({n: Contender(c, wait) for n, c in contenders.items()}, 400, CALLS, 30)
    return [
        Row("one add: bare cached graph", best["ours"], best["raw"], 3),
        Row("one add: lazy tensor and sync", best["ours"], best["lazy"], 1),
    ]


def many_leaves(donate: bool) -> Row:
    """A call with many arguments and results."""
    step = xf.jit(
        lambda params: {k: p + 1 for k, p in params.items()},
        donate_argnums=0 if donate else None,
    )

    def start() -> dict[str, torch.Tensor]:
        return {f"weight{i}": xf.device_put(torch.zeros(16, 16)) for i in range(LEAVES)}

    contenders = {
        "ours": Loop(step, start()),
        "raw": raw(step, list(start().values()), start()),
    }
    best = race({n: Contender(c, wait) for n, c in contenders.items()}, 200, CALLS, 30)
    name = f"{LEAVES} leaves{', donated' * donate}: bare cached graph"
    return Row(name, best["ours"], best["raw"], 1.5)


def on_pjrt(one: float, many: float) -> list[Row]:
    """The calls with the other backend, against one add and the bare call with torch_xla.

    And against the least that one add may take: JAX's call of the executable, and a tensor.
    """
    xf.config.set_backend("pjrt")
    try:
        weights = {f"weight{i}": xf.device_put(torch.zeros(16, 16)) for i in range(LEAVES)}
        start, fun = xf.device_put(torch.zeros(16, 16)), xf.jit(lambda x: x + 1)
        run: Any = executable(fun, start)
        run([start])

        def bare(array: Any) -> Any:
            return run._run(array)[0]

        def least(tensor: Any) -> Any:
            return make(run._run(tensor._jax_array)[0], tensor._jax_aval)

        step = xf.jit(lambda params: {k: p + 1 for k, p in params.items()}, donate_argnums=0)
        calls = {
            "one": Loop(fun, start),
            "least": Loop(least, start),
            "jax": Loop(bare, array_of(start)),
        }
        best = race({n: Contender(c, _wait_for_jax) for n, c in calls.items()}, 400, CALLS, 30)
        best |= race({"many": Contender(Loop(step, weights), _wait_for_jax)}, 200, CALLS, 30)
    finally:
        xf.config.set_backend("torch_xla")
    return [
        Row("pjrt, one add: torch_xla", best["one"], one, 0.5),
        Row("pjrt, one add: JAX's call and a tensor", best["one"], best["least"], 2),
        Row("pjrt, one add: JAX's call", best["one"], best["jax"], 3),
        Row(f"pjrt, {LEAVES} leaves, donated: bare cached graph", best["many"], many, 0.7),
    ]


def _wait_for_jax() -> None:
    xf.block_until_ready(None)


def main() -> None:
    """Print the table."""
    xf.config.set_backend("torch_xla")  # whatever XFUNC_BACKEND says: `on_pjrt` switches
    one, donated = one_op(), many_leaves(donate=True)
    rows = [*one, many_leaves(donate=False), donated]
    rows += on_pjrt(one[0].ours, donated.theirs)
    print(table("dispatch: host time of one call", rows))
