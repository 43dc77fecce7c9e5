"""Traced programs on disk: what finds them, and everything that must not."""

import dataclasses
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from tests.support.kept_program import W, X, by_torch, equal, run
from tests.support.kept_program import load as load
from xfunc.stages import kept


def set_at(*path: str, to: Any) -> Callable[[Any, pytest.MonkeyPatch], None]:
    def change(module: Any, patch: pytest.MonkeyPatch) -> None:
        owner = module
        for name in path[:-1]:
            owner = getattr(owner, name)
        patch.setattr(owner, path[-1], to, raising=False)

    return change


def patched(owner: Any, name: str, to: Any) -> Callable[[Any, pytest.MonkeyPatch], None]:
    return lambda module, patch: patch.setattr(owner, name, to)


def doubled(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return x * 2


EDITS = {
    "a helper of a helper": ("* 3.0", "* 4.0"),
    "another operation": ("torch.tanh", "torch.sin"),
    "a default": ("by=1.5", "by=1.6"),
    "a default of a keyword": ("plus=0.25", "plus=0.26"),
    "a global": ("RATE = 2.0", "RATE = 2.5"),
    "an entry of a dict": ("[1.0, 2.0]", "[1.0, 2.5]"),
    "an array": ("np.arange(3.0,", "np.arange(4.0,"),
    "the default of a dataclass": ("layers: int = 3", "layers: int = 2"),
    "an attribute of a base class": ("factor = 2.0", "factor = 2.5"),
    "a method of a base class": ("x + self.factor", "x - self.factor"),
    "an attribute of an object": ("Model(3.0)", "Model(3.5)"),
    "a function in a function": ("length=2", "length=3"),
    "a name that hides a builtin": ("ORDER =", "max ="),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_program_is_traced_again(load: Any, edit: tuple[str, str]) -> None:
    assert run(load().loss)[0] == 1
    traces, found = run(load().loss)
    assert traces == 0
    equal(found, by_torch(load().loss))
    module = load(edit) if edit[1] != "max =" else load(('ORDER = ("a", "b")', "max = min"))
    traces, found = run(module.loss)
    assert traces == 1
    equal(found, by_torch(module.loss))


CHANGES = {
    "a global": set_at("RATE", to=7.0),
    "a builtin": set_at("range", to=lambda n: [0]),
    "code": set_at("inner", "__code__", to=(lambda x: x * 5.0).__code__),
    "defaults": set_at("helper", "__defaults__", to=(9.0,)),
    "a method": set_at("Model", "shift", to=lambda self, x: x),
    "a class attribute": set_at("Model", "factor", to=-1.0),
    "an attribute": set_at("MODEL", "k", to=-0.5),
    "an entry": lambda module, patch: patch.setitem(module.TABLE, "a", [0.0, 9.0]),
    "a function of NumPy": patched(np, "sqrt", np.cbrt),
    "a function of torch": patched(F, "softmax", doubled),
    "another of torch's in its place": patched(F, "softmax", F.log_softmax),
    "an operation": patched(torch, "tanh", torch.sin),
    "a method of tensors": patched(torch.Tensor, "abs", torch.Tensor.exp),
    "a function of a function of torch": patched(F, "_get_softmax_dim", lambda *args: 0),
    "the default dtype": lambda module, patch: torch.set_default_dtype(torch.float64),
    "what is installed": patched(kept, "_installed", lambda: ("torch-2.9.1.dist-info",)),
    "xfunc": patched(kept, "_own_source", lambda: "other"),
    "a setting": patched(xf.config, "shard_as_in_scan", False),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_process_traces_again(
    load: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is the first process or the second that changes something."""
    try:
        for k, changes in enumerate((False, True, True, False)):
            xf.config.set_trace_cache_dir(tmp_path / f"traces{k // 2}")
            with monkeypatch.context() as patch:
                module = load()
                if changes:
                    change(module, patch)
                traces, found = run(module.loss)
                assert traces == 1
                equal(found, by_torch(module.loss))
                torch.set_default_dtype(torch.float32)
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_a_function_holds(load: Any) -> None:
    held = torch.ones(3, dtype=torch.float64)
    for k, tensor, wanted in [
        (2.0, held, 1),
        (2.0, held + 1, 0),  # Tensors are inputs.
        (3.0, held, 1),
        (2.0, held.float(), 1),
    ]:
        module = load()
        traces, found = run(module.by(k, tensor))
        assert traces == wanted
        equal(found, by_torch(module.by(k, tensor)))
        assert type(found["pair"]) is module.Pair


def test_arguments(load: Any) -> None:
    def call(n: Any, scale: Any = X) -> tuple[int, Any]:
        module = load()
        return run(lambda n, x: x * n.layers * module.RATE, n, scale, static_argnums=0)

    @dataclasses.dataclass(frozen=True)
    class Other:
        layers: int

    config = load().Config
    assert call(config(2))[0] == 1
    assert call(load().Config(2))[0] == 0
    assert call(load().Config(3))[0] == 1
    assert call(Other(2))[0] == 1
    assert call(load().Config(2), X.float())[0] == 1
    assert call(load().Config(2), X[:1])[0] == 1
    equal(call(load().Config(2), X[:1])[1], X[:1] * 4)


def test_a_found_program_has_derivatives_and_donates(load: Any) -> None:
    run(load().f)
    module = load()
    jitted = xf.jit(module.f, donate_argnums=0)
    assert run(module.f, W, X, donate_argnums=0)[0] == 1
    module = load()
    jitted = xf.jit(module.f, donate_argnums=0)
    w = xf.device_put(W.clone())
    jitted(w, X)
    assert xf.trace_count(jitted) == 0
    with pytest.raises(RuntimeError, match="was donated to a jitted function"):
        w.sum()
    module = load()
    jitted = xf.jit(module.loss)
    jitted(W, X)
    xf.clear_caches()
    jitted(W, X)
    assert xf.trace_count(jitted) == 0
    w = W.clone().requires_grad_()
    jitted(w, X).backward()
    assert w.grad is not None
    equal(w.grad, by_torch(module.f)[1])
    equal(xf.vmap(jitted, in_axes=(None, 0))(W, X[None]), by_torch(module.loss)[None])


@pytest.mark.parametrize(
    "name", ["clock", "draws", "computed", "imports", "counts", "reads", "arguments", "rule"]
)
def test_what_is_not_certain_is_not_kept(
    load: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = types.ModuleType("own_settings")
    settings.__dict__.update(rate=2.0, __file__=str(tmp_path / "own_settings.py"))
    monkeypatch.setitem(sys.modules, "own_settings", settings)
    (tmp_path / "number").write_text("2.0")
    for _ in range(2):
        module = load()
        module.FILE = str(tmp_path / "number")
        random.seed(0)
        assert run(getattr(module, name))[0] == 1
    assert not list((tmp_path / "traces").glob("*"))


def test_environment_variables_count(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wanted in [("2", 1), ("2", 0), ("3", 1)]:
        monkeypatch.setenv("FACTOR", value)
        traces, found = run(load().environment)
        assert traces == wanted
        equal(found, X * float(value))


@pytest.mark.parametrize("name", ["constant", "linear"])
def test_what_is_kept(load: Any, name: str) -> None:
    run(getattr(load(), name))
    traces, found = run(getattr(load(), name))
    assert traces == 0
    equal(found, by_torch(getattr(load(), name)))
