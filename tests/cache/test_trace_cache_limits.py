"""What differs between processes is not kept on disk, nor are results that cannot be stored."""

import dataclasses
import functools
import os
import platform
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import xfunc as xf

hash_of = hash


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    xf.config.set_trace_cache_dir(tmp_path)
    yield tmp_path
    xf.config.set_trace_cache_dir(None)


def traces(fun: Callable[..., Any]) -> int:
    xf.clear_caches()
    jitted = xf.jit(fun)
    jitted(torch.ones(3))
    return xf.trace_count(jitted)


class Item:
    def __init__(self, id: int):
        self.id, self.hash = id, id

    def __hash__(self) -> int:
        return hash(("Item", self.id))


ITEM = Item(2)
OPERATORS = torch.library.Library("beside", "DEF")
OPERATORS.define("number() -> Tensor")
# Without a frame of Python, as one in C++.
OPERATORS.impl("number", functools.partial(torch.ones, ()), "CompositeExplicitAutograd")

NOT_KEPT: dict[str, Callable[[torch.Tensor], Any]] = {
    "hash": lambda x: x * (hash("text") % 7),
    "hash by another name": lambda x: x * (hash_of("text") % 7),
    "hash as an argument": lambda x: x * (next(iter(map(hash, ["text"]))) % 7),
    "__hash__": lambda x: x * ("text".__hash__() % 7),
    "id": lambda x: x * (id(ITEM) % 7),
    "an order of addresses": lambda x: x * sorted([ITEM, Item(3)], key=id)[0].id,
    "a thread": lambda x: x * (threading.get_ident() % 7),
    "the name of a thread": lambda x: x * len(threading.current_thread().name),
    "the seed": lambda x: x * (torch.initial_seed() % 7),
    "a generator": lambda x: x * (torch.default_generator.initial_seed() % 7),
    "threads": lambda x: x * torch.get_num_threads(),
    "more threads": lambda x: x * torch.get_num_interop_threads(),
    "precision": lambda x: x * len(torch.get_float32_matmul_precision()),
    "an operator of another package": lambda x: x + torch.ops.beside.number(),
    "GPUs": lambda x: x * torch.cuda.device_count(),
    "NumPy's errors": lambda x: x * len(np.geterr()["over"]),
    "NumPy's printing": lambda x: x * np.get_printoptions()["precision"],
    "processors": lambda x: x * (os.cpu_count() or 1),
    "the process": lambda x: x * (os.getpid() % 7),
    "the host": lambda x: x * len(socket.gethostname()),
    "the system": lambda x: x * len(platform.node()),
    "the machine": lambda x: x * len(platform.machine()),
}


@pytest.mark.filterwarnings("ignore:Please use the new API settings")
@pytest.mark.parametrize("fun", NOT_KEPT.values(), ids=NOT_KEPT)
def test_trace_cache_skips_process_dependent_calls(
    folder: Path, fun: Callable[[torch.Tensor], Any]
) -> None:
    platform.machine()  # From now on the module has the answers at hand.
    platform.node()
    assert [traces(fun), traces(fun)] == [1, 1]
    assert not list(folder.iterdir())


def test_trace_cache_keeps_attributes_named_id_and_hash(folder: Path) -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return x * ITEM.id * ITEM.hash

    assert [traces(fun), traces(fun)] == [1, 0]


def test_trace_cache_keeps_dict_lookup_by_key(folder: Path) -> None:
    table = {ITEM: 2.0}
    assert [traces(lambda x: x * table[ITEM]) for _ in range(2)] == [1, 0]


def test_trace_cache_keeps_settings_restored_by_packages(folder: Path) -> None:
    """``F.dropout`` and NumPy's warnings, say."""

    def fun(x: torch.Tensor) -> torch.Tensor:
        with np.errstate(over="ignore"), torch.autocast("cpu", torch.bfloat16):
            return torch.nn.functional.dropout(x, 0.5, training=False) * float(np.float64(2.0))

    assert [traces(fun), traces(fun)] == [1, 0]


class Layer:
    def __init__(self, name: str, weight: float):
        self.name, self.weight = name, torch.tensor(weight)

    def __hash__(self) -> int:
        return 0  # So the order of a set is that in which it was made.


@pytest.mark.parametrize("kind", [set, frozenset])
def test_trace_cache_skips_sets_of_tensor_holders(folder: Path, kind: Callable[..., Any]) -> None:
    """Captured tensors are found by their order, which is another in each process."""

    def made(*names: str) -> Callable[[torch.Tensor], torch.Tensor]:
        layers = kind([Layer(name, {"a": 2.0, "b": 5.0}[name]) for name in names])

        def fun(x: torch.Tensor) -> torch.Tensor:
            found = {layer.name: layer.weight for layer in layers}
            return x * found["a"] - found["b"]

        return fun

    for names in ("ab", "ba"):
        xf.clear_caches()
        assert xf.jit(made(*names))(torch.ones(())).item() == -3.0
    assert not list(folder.iterdir())


class Settings:
    skipped = frozenset(["a", "b"])


@pytest.mark.parametrize("number", [1, 2])
def test_trace_cache_keeps_set_membership(folder: Path, number: int) -> None:
    names, numbers = {"a", "b"}, {number, 3}

    def fun(x: torch.Tensor) -> torch.Tensor:
        known = "a" in names and "a" in Settings.skipped and "a" in {"a", "b"}
        return x * known * Settings.skipped.isdisjoint("c") * sum(numbers)

    assert [traces(fun), traces(fun)] == [1, 0]
    names.add("c")
    assert traces(fun) == 1


# ------------------------------------------------------------------ structures of results


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
def test_trace_cache_keeps_result_structures(
    folder: Path, fun: Callable[[torch.Tensor], Any]
) -> None:
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


def helper(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    "note", [helper, len, lambda: 0, Unreadable()], ids=lambda x: type(x).__name__
)
def test_trace_cache_skips_results_that_cannot_be_stored(folder: Path, note: Any) -> None:
    """The call succeeds nevertheless."""
    fun = noting(note)
    for _ in range(2):
        xf.clear_caches()
        jitted = xf.jit(fun)
        found = jitted(torch.ones(2))
        assert (found.x.tolist(), found.note) == ([2.0, 2.0], note)
        assert xf.trace_count(jitted) == 1
    assert not list(folder.iterdir())
