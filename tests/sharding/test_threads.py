"""Programs with collectives, called by several threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import xfunc as xf


def test_threads_running_collectives_at_once() -> None:
    """Each device gets the programs in one order: otherwise they would wait for each other."""
    mesh, together = xf.make_mesh((8,), "x"), threading.Barrier(4)
    x = torch.arange(64.0).reshape(8, 8)

    def work(k: int) -> list[float]:
        f = xf.jit(lambda a: (a @ a.T).sum() * k + (a.T @ a).mean())
        given = xf.device_put(x, xf.NamedSharding(mesh, xf.P("x")))
        together.wait(60)
        return [f(given).item() for _ in range(10)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    for k, values in enumerate(found):
        want = ((x @ x.T).sum() * k + (x.T @ x).mean()).item()
        assert values == pytest.approx([want] * 10)
