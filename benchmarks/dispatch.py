"""Dispatch: host time of a call whose program is already compiled, outputs fed back as inputs.

One add, 60 operations, and dictionaries of 50 and 300 leaves like those of a train step, donated or
not, against

- `jax.jit`'s call of the same function;
- the bare call of the executable that it compiled, on a list;
- `jax.jit`'s call and a tensor for each result: the least that xfunc may take, unless it is given
  tensors to use again, as donated ones.

And a function of an array and, call after call, of a number, an array of NumPy or a tensor of the
CPU, which JAX is given as an array of NumPy too; and a call whose result is read by `float`.

The device is waited for after each turn, outside the timer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import xfunc as xf
from benchmarks.timing import Contender, Loop, Row, race, table
from xfunc.backends.pjrt.array import make

ROUNDS = 300
CALLS = 16  # in flight at once; XLA's CPU client lets the host wait beyond 32


def one(x: Any) -> Any:
    """One operation."""
    return x + 1


def sixty(x: Any) -> Any:
    """60 operations."""
    for _ in range(30):
        x = x * 0.5 + 1
    return x


def each(leaves: dict[str, Any]) -> dict[str, Any]:
    """One operation on each leaf."""
    return {k: x + 1 for k, x in leaves.items()}


def calls(name: str, fun: Callable[[Any], Any], leaves: int, donate: bool) -> list[Row]:
    """The calls of a function of some leaves, or of one array."""
    donated = (0,) if donate else ()

    def start(array: Callable[[], Any]) -> Any:
        return {f"weight{i}": array() for i in range(leaves)} if leaves else array()

    def tensor() -> torch.Tensor:
        return xf.device_put(torch.zeros(16, 16))

    def array() -> jax.Array:
        return jnp.zeros((16, 16), "float32")

    of_jax = jax.jit(fun, donate_argnums=donated)
    bare = of_jax.lower(start(array)).compile().runtime_executable()
    assert bare is not None
    loops = {
        "xfunc": Loop(xf.jit(fun, donate_argnums=donated), start(tensor)),
        "jax": Loop(of_jax, start(array)),
        "bare": Loop(bare.execute, jax.tree.leaves(start(array))),
    }
    if not leaves:
        loops["least"] = Loop(lambda x: make(of_jax(x._jax_array), x._jax_aval), tensor())
    elif not donate:

        def least(given: dict[str, Any]) -> dict[str, Any]:
            found = of_jax({k: x._jax_array for k, x in given.items()})
            return {k: make(x, given[k]._jax_aval) for k, x in found.items()}

        loops["least"] = Loop(least, start(tensor))
    waiting = {n: Contender(c, lambda: xf.block_until_ready(None)) for n, c in loops.items()}
    best = race(waiting, ROUNDS, CALLS, 30)
    name += ", donated" * donate
    rows = [Row(f"{name}: jax.jit", best["xfunc"], best["jax"], 1.2 if leaves else 2)]
    rows.append(Row(f"{name}: bare executable", best["xfunc"], best["bare"], 3))
    if "least" in best:
        target = 1.2 if leaves else 1.3
        rows.append(Row(f"{name}: jax.jit and tensors", best["xfunc"], best["least"], target))
    return rows


def scaled(x: Any, by: Any) -> Any:
    """The product of a state and another argument."""
    return x * by


def host_data() -> list[Row]:
    """The calls of a function that takes something from the host each time."""
    array = np.full((16, 16), 0.5, "float32")
    given = {
        "a number": (0.5, 0.5),
        "an array of NumPy": (array, array),
        "a tensor of the CPU": (torch.from_numpy(array.copy()), array),
    }
    rows: list[Row] = []
    for name, (ours, theirs) in given.items():
        f, g = xf.jit(scaled), jax.jit(scaled)
        loops = {
            "xfunc": Loop(lambda x, f=f, by=ours: f(x, by), xf.device_put(torch.ones(16, 16))),
            "jax": Loop(lambda x, g=g, by=theirs: g(x, by), jnp.ones((16, 16), "float32")),
        }
        waiting = {n: Contender(c, lambda: xf.block_until_ready(None)) for n, c in loops.items()}
        best = race(waiting, ROUNDS, CALLS, 30)
        rows.append(Row(f"and {name}: jax.jit", best["xfunc"], best["jax"], 4))
    return rows


def read() -> Row:
    """A call whose result is read."""

    def reading(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def step(x: Any) -> Any:
            result = call(x)
            float(result)
            return result

        return step

    loops = {
        "xfunc": Loop(reading(xf.jit(one)), xf.device_put(torch.ones(()))),
        "jax": Loop(reading(jax.jit(one)), jnp.ones(())),
    }
    waiting = {n: Contender(c, lambda: xf.block_until_ready(None)) for n, c in loops.items()}
    best = race(waiting, ROUNDS, CALLS, 30)
    return Row("one add, and `float` of the result: jax.jit", best["xfunc"], best["jax"], 4)


def main() -> None:
    """Print the table."""
    xf.default_backend()  # First: JAX by itself would ask libtpu for its machine.
    rows = calls("one add", one, 0, False) + calls("60 operations", sixty, 0, False)
    for leaves in (50, 300):
        for donate in (False, True):
            rows += calls(f"{leaves} leaves", each, leaves, donate)
    rows += [*host_data(), read()]
    print(table("dispatch: host time of one call", rows))
