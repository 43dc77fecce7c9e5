"""Traced programs on disk whose arguments are of classes that this process has not met."""

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optree
import pytest
import torch
from torch.utils import _pytree as torch_pytree

import xfunc as xf
from tests.cache import test_trace_cache as behaviour
from xfunc import tree
from xfunc.stages import kept


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    xf.config.set_trace_cache_dir(tmp_path)
    yield tmp_path
    xf.config.set_trace_cache_dir(None)


INSTALLED = """
class Output(dict): pass
def split(x): return [*x.values()], [*x]
def joined(xs, names): return Output(zip(names, xs))
"""


def test_kept_program_with_node_class_not_adopted(
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


load = behaviour.load  # a fixture

CHANGES = {
    "what is installed": behaviour.patched(kept, "_installed", lambda: ("torch-2.9.1.dist-info",)),
    "xfunc": behaviour.patched(kept, "_own_source", lambda: "other"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_trace_cache_misses_changed_installation(
    load: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behaviour.check_misses(load, change, tmp_path, monkeypatch)
