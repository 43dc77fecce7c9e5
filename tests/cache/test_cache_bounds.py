"""Programs that go: cleared, the least recently used, those that torch_xla has evicted."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server
from tests.support.functions import double, vector

pytestmark = pytest.mark.usefixtures("cleared")


def test_clearing() -> None:
    f, g = xf.jit(lambda x: x * 2), xf.jit(lambda x: x * 3)
    for h in (f, g):
        h(vector())
    f.clear_cache()
    assert tuple(f.cache_info()) == (0, 0, 0, 0, 0)
    assert g.cache_info().size == 1
    xf.clear_caches()
    assert tuple(g.cache_info()) == (0, 0, 0, 0, 0)
    assert xf.trace_count(f) == 0
    assert f(vector()).tolist() == [2.0, 4.0, 6.0]
    assert f.cache_info().traces == 1


def test_lists_that_functions_appended_to_die_with_them() -> None:
    class Note:
        pass

    def make() -> tuple[Callable[[torch.Tensor], torch.Tensor], list[Note]]:
        log: list[Note] = []

        def f(x: torch.Tensor) -> torch.Tensor:
            log.append(Note())
            return x * 2

        return f, log

    def used() -> list[weakref.ref[Note]]:
        f, log = make()
        for _ in range(3):  # In which it is traced once.
            assert xf.jit(f)(vector()).tolist() == [2.0, 4.0, 6.0]
        return [weakref.ref(n) for n in log]

    notes = [n for _ in range(50) for n in used()]
    assert len(notes) == 50
    gc.collect()
    gc.collect()  # What the first let go, the second finds.
    assert [n() for n in notes] == [None] * 50


def test_the_number_of_objects_that_were_changed_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from xfunc.cache import volatile

    monkeypatch.setattr(volatile, "MOST", 3)
    logs: list[list[int]] = [[] for _ in range(5)]
    for log in logs:

        def f(x: torch.Tensor, log: list[int] = log) -> torch.Tensor:
            log.append(1)
            return x * 2

        xf.jit(lambda x, f=f: f(x))(vector())
    assert 0 < volatile.count() <= 3


def test_clearing_forgets_the_code_that_was_traced() -> None:
    from xfunc.core import locations
    from xfunc.trace import scopes

    lowered = xf.jit(double).lower(vector())
    assert "functions.py" in lowered.as_text()
    xf.clear_caches()
    tables = (locations._lines, scopes._stamps, scopes._origins, scopes._kept)
    assert [len(t) for t in tables] == [0] * 4
    assert "multiply" in lowered.as_text()  # without its lines
    assert "functions.py" in xf.jit(double).lower(vector()).as_text()


def test_the_least_recently_used_program_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    import xfunc.cache.programs

    monkeypatch.setattr(xfunc.cache.programs, "MAX_ENTRIES", 2)
    f = xf.jit(lambda x: x * 2)
    for n, traces, size in [(1, 1, 1), (2, 2, 2), (1, 2, 2), (3, 3, 2), (1, 3, 2), (2, 4, 2)]:
        assert f(torch.ones(n)).tolist() == [2.0] * n
        assert (f.cache_info().traces, f.cache_info().size) == (traces, size)


def test_the_number_of_functions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    import xfunc.cache.programs

    monkeypatch.setattr(xfunc.cache.programs, "MAX_FUNCTIONS", 3)
    made = [eval(f"lambda x: x * {k}") for k in range(6)]
    for k, f in [*enumerate(made), *enumerate(made)]:
        assert xf.jit(f)(vector()).tolist() == [k, 2 * k, 3 * k]
    assert len(xfunc.cache.programs._functions) <= 3


def test_a_function_in_use_stays_beyond_that_number(monkeypatch: pytest.MonkeyPatch) -> None:
    import xfunc.cache.programs

    monkeypatch.setattr(xfunc.cache.programs, "MAX_FUNCTIONS", 3)
    used = xf.jit(double)
    for k in range(6):
        assert used(vector()).tolist() == [2.0, 4.0, 6.0]
        xf.jit(eval(f"lambda x: x * {k}"))(vector())
    assert xf.trace_count(used) == xf.trace_count(double) == used.cache_info().traces == 1
    assert xf.jit(double)(vector()).tolist() == [2.0, 4.0, 6.0]  # They share the program.
    assert xf.trace_count(used) == 1
    for k in range(6):
        xf.jit(eval(f"lambda x: x + {k}"))(vector())
    xf.clear_caches()
    assert xf.trace_count(used) == 0
    assert used.cache_info().size == 0


def test_a_failed_trace_leaves_no_entry() -> None:
    fail = [True]

    def fun(x: torch.Tensor) -> torch.Tensor:
        if fail:
            raise KeyError("on purpose")
        return x * 2

    f = xf.jit(fun)
    for _ in range(2):
        with pytest.raises(KeyError, match="on purpose"):
            f(vector())
    assert f.cache_info().size == 0
    fail.clear()
    assert f(vector()).tolist() == [2.0, 4.0, 6.0]


# ---------------------------------------------------------------- torch_xla's own cache of programs

EVICTION = """
import torch, xfunc as xf
x = torch.arange(3.)
f, g = xf.jit(lambda x: x * 2), xf.jit(xf.grad(lambda x: (x ** 3).sum()))
h = xf.jit(lambda x: x + 1, donate_argnums=0)
for _ in range(4):
    assert f(x).tolist() == [0., 2., 4.]
    assert g(x).tolist() == [0., 3., 12.]
    assert h(xf.device_put(x)).tolist() == [1., 2., 3.]
    w = xf.device_put(x).requires_grad_()
    (f(w) * f(w)).sum().backward()
    assert w.grad.tolist() == [0., 8., 16.]
assert f.cache_info().traces <= 2, f.cache_info()
print("survived")
"""


def test_a_program_that_torch_xla_has_evicted_is_compiled_again(fresh: Server) -> None:
    done = fresh.run(EVICTION, env={"XLA_COMPILATION_CACHE_SIZE": "1"})
    assert "survived" in done.stdout, done.stdout + done.stderr
