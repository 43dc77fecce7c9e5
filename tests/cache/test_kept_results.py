"""The structures of results that traced programs on disk may have, and those that they may not."""

import dataclasses
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import optree
import pytest
import torch
from torch.utils import _pytree as torch_pytree

import xfunc as xf
from xfunc import tree


class Outer:
    class Pair(NamedTuple):
        x: Any
        y: Any


@dataclasses.dataclass
class Noted:
    x: Any
    note: Any


xf.tree.register_dataclass(Noted, ["x"], ["note"])


class Unreadable:
    def __reduce__(self) -> Any:
        raise OSError("cannot be read")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    xf.config.set_trace_cache_dir(tmp_path)
    yield tmp_path
    xf.config.set_trace_cache_dir(None)


def noting(note: Any) -> Callable[[torch.Tensor], Noted]:
    return lambda x: Noted(x * 2, note)


KEPT: dict[str, Callable[[torch.Tensor], Any]] = {
    "max": lambda x: torch.max(x, 0),
    "sort": lambda x: torch.sort(x),
    "topk": lambda x: x.topk(2),
    "slogdet": lambda x: torch.linalg.slogdet(x[:, :2]),
    "a nested class": lambda x: Outer.Pair(x, x * 2),
    "keys that are dtypes": lambda x: {torch.float32: x.float(), torch.int32: x.int()},
    "a dtype": noting(torch.bfloat16),
    "a size": noting(torch.Size([2, 3])),
    "a device": noting(torch.device("cpu")),
    "a range": noting(range(2, 5)),
    "a slice": noting(slice(1, None)),
}


@pytest.mark.parametrize("fun", KEPT.values(), ids=KEPT)
def test_kept(folder: Path, fun: Callable[[torch.Tensor], Any]) -> None:
    x = torch.tensor([[2.0, 3.0, 1.0], [5.0, 1.0, 4.0]])
    for wanted in (1, 0):
        xf.clear_caches()
        jitted = xf.jit(fun)
        found = jitted(x)
        assert xf.trace_count(jitted) == wanted
        leaves, structure = xf.tree.flatten(fun(x))
        assert xf.tree.structure(found) == structure
        for a, b in zip(xf.tree.leaves(found), leaves, strict=True):
            torch.testing.assert_close(a.cpu(), b)


INSTALLED = """
class Output(dict): pass
def split(x): return [*x.values()], [*x]
def joined(xs, names): return Output(zip(names, xs))
"""


def test_a_class_that_another_process_has_not_met(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed one, of which torch's pytrees know how to take it apart."""
    module = types.ModuleType("installed_outputs")
    module.__file__ = "/site-packages/installed_outputs.py"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(INSTALLED, module.__file__, "exec"), vars(module))
    output: Any = module.__dict__["Output"]
    torch_pytree.register_pytree_node(output, module.__dict__["split"], module.__dict__["joined"])

    def fun(given: Any) -> Any:
        return output(out=given["x"] * 2)

    for wanted in (1, 0):
        xf.clear_caches()
        jitted = xf.jit(fun)
        found = jitted(output(x=torch.ones(2)))
        assert xf.trace_count(jitted) == wanted
        assert type(found) is output
        assert found["out"].tolist() == [2.0, 2.0]
        optree.unregister_pytree_node(output, namespace=tree.NAMESPACE)
        tree._adopted.discard(output)


def helper(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    "note", [helper, len, lambda: 0, Unreadable()], ids=lambda x: type(x).__name__
)
def test_not_kept(folder: Path, note: Any) -> None:
    """The call succeeds nevertheless."""
    fun = noting(note)
    for _ in range(2):
        xf.clear_caches()
        jitted = xf.jit(fun)
        found = jitted(torch.ones(2))
        assert (found.x.tolist(), found.note) == ([2.0, 2.0], note)
        assert xf.trace_count(jitted) == 1
    assert not list(folder.iterdir())
