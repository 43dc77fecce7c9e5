"""The memory maps of compiled programs, which are limited in number."""

import gc
import os

import pytest
import torch

import xfunc as xf
from tests.support.functions import vector
from xfunc.backends import active, memory_maps

pytestmark = pytest.mark.usefixtures("alive_afterwards")


def test_memory_maps_exhausted_by_programs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a bound the process would end with SIGSEGV after some thousand programs."""
    xf.jit(torch.sin)(vector())
    limit = memory_maps.map_limit()
    kept = os.environ.get("XLA_COMPILATION_CACHE_SIZE")  # of torch_xla, where it is loaded
    assert kept is None or int(kept) <= limit // 100

    def compile_many() -> None:
        for n in range(17):
            xf.jit(lambda x, n=n: x + n)(vector())

    compile_many()
    monkeypatch.setattr(memory_maps, "map_limit", lambda: 100)
    xf.clear_caches()
    repair = "clear_caches" if active.runtime().name == "pjrt" else "CACHE_SIZE"
    with pytest.raises(xf.errors.CompileError, match=rf"(?s)holds \d+ memory maps.*{repair}"):
        compile_many()
    monkeypatch.undo()
    assert xf.jit(lambda x: x + 100)(vector()).shape == (3,)


@pytest.mark.usefixtures("pjrt")
def test_memory_maps_of_programs_are_freed() -> None:
    """JAX 0.12 keeps the programs that it has lowered, for as long as it lives."""

    def count() -> int:
        xf.clear_caches()
        gc.collect()
        return memory_maps.count_maps()

    xf.jit(lambda x: x.sin() + 1)(vector())
    before = count()
    for n in range(10):
        xf.jit(lambda x, n=n: x.sin() * n @ torch.ones(3, 3))(vector())
    during = memory_maps.count_maps()
    assert during > before + 30
    assert count() < before + 10
