"""Traced programs on disk that depend on static arguments: recipes with methods, and policies."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server
from tests.support.kept_program import W, X, equal, run
from tests.support.kept_program import load as load
from xfunc.backends.torch_xla import runtime
from xfunc.cache.observed import same

MORE = """
from jaxtyping import Float
KINDS = {"a": 2.0, "b": 3.0}
Rows = Float[torch.Tensor, "rows columns"]

@dataclasses.dataclass(frozen=True)
class Recipe:
    kind: str = "a"
    by: float = 3.0
    policy: object = xf.checkpoint_policies.save_only_these_names("h")
    @property
    def factor(self):
        return KINDS[self.kind] * sum(getattr(self, name) for name in ("by",))

def stepped(w: Rows, x: Rows, recipe):
    def layer(h):
        return torch.tanh(xf.checkpoint_name(h @ w, "h")) * recipe.factor
    return xf.grad(lambda h: xf.checkpoint(layer, policy=recipe.policy)(h).sum())(x)

def of_module(w, x, recipe):
    return x * getattr(recipe, "RATE")
"""
ADDED = ("RATE = 2.0\n", f"RATE = 2.0\n{MORE}")


def called(module: Any, recipe: Any = None, name: str = "stepped") -> tuple[int, Any]:
    return run(getattr(module, name), W, X, recipe or module.Recipe(), static_argnums=2)


def test_a_recipe_with_methods_and_a_policy_is_found(load: Any) -> None:
    assert called(load(ADDED))[0] == 1
    traces, found = called(load(ADDED))
    assert traces == 0
    with xf.disable_jit():
        module = load(ADDED)
        equal(found, module.stepped(W, X, module.Recipe()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"a": 2.0,', '{"a": 4.0,'),  # a global that only a method of the argument names
        ("KINDS[self.kind] *", "KINDS[self.kind] -"),
        ("by: float = 3.0", "by: float = 5.0"),
        ('save_only_these_names("h")', 'save_only_these_names("h", "k")'),
        ('save_only_these_names("h")', 'save_any_names_but_these("h")'),
        ("Float[", "Float["),
    ],
)
def test_what_a_recipe_reaches_counts(load: Any, old: str, new: str) -> None:
    before = called(load(ADDED))[1]
    edited = load((ADDED[0], ADDED[1].replace(old, new)))
    traces, found = called(edited)
    assert traces == (old != new)
    with xf.disable_jit():
        equal(found, edited.stepped(W, X, edited.Recipe()))
    assert old != new or torch.equal(before, found)


def test_a_recipe_changed_in_place_counts(load: Any) -> None:
    called(load(ADDED))
    module = load(ADDED)
    module.KINDS["a"] = 7.0
    traces, found = called(module)
    assert traces == 1
    with xf.disable_jit():
        equal(found, module.stepped(W, X, module.Recipe()))


def test_an_attribute_of_a_module_by_its_name_is_not_kept(load: Any, tmp_path: Path) -> None:
    for _ in range(2):
        module = load(ADDED)
        assert run(module.of_module, W, X, module, static_argnums=2)[0] == 1
    assert not list((tmp_path / "traces").glob("*"))


def test_shapes_are_found(load: Any) -> None:
    def shapes() -> tuple[int, Any]:
        module = load(ADDED)
        recipe = module.Recipe()
        stepped = lambda w, x: module.stepped(w, x, recipe)  # noqa: E731
        found = xf.eval_shape(stepped, W, X)
        return xf.trace_count(stepped), (found.shape, found.dtype)

    for wanted in (1, 0):
        assert shapes() == (wanted, (X.shape, X.dtype))


def test_a_part_of_a_library_that_is_not_loaded_yet_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "xml.sax.expatreader"
    importlib.import_module(name)
    links = {"xml.sax:expatreader": f"module {name}", "xml.sax:xmlreader": "module another"}
    assert same(links) == "xml.sax:xmlreader"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("xml.sax.expatreader", raising=True)
    assert same({"xml.sax:expatreader": f"module {name}"}) is None


def test_what_torch_xla_sets_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime.xla()
    ours = {name: value for name, (_, value) in runtime._set.items()}
    monkeypatch.setattr(runtime, "_set", {"A": (None, "1"), "B": ("x", "2"), "C": ("x", "3")})
    for name, value in {"A": "1", "B": "2", "C": "4"}.items():
        monkeypatch.setenv(name, value)
    found = runtime.environment()
    assert "A" not in found
    assert (found["B"], found["C"]) == ("x", "4")
    assert all(os.environ[name] == value for name, value in ours.items())


def test_compiled_programs_are_kept_by_torch_xla_where_it_can_read_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "")  # So that it is restored.
    monkeypatch.delenv("XLA_PERSISTENT_CACHE_PATH")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    for device, wanted in {"CPU": None, "TPU": str(tmp_path / "torch_xla")}.items():
        monkeypatch.setenv("PJRT_DEVICE", device)
        runtime._keep_programs()
        assert os.environ.get("XLA_PERSISTENT_CACHE_PATH") == wanted


TRAINING = """
import json, sys
import xfunc as xf
from examples.llama import config, train
from examples.llama.fit import fit
folder, programs, text = sys.argv[1:]
settings = f"folder={folder} programs={programs} data.files=[{text}] data.kind=text data.seq=32"
settings += " data.batch=2 data.vocab=300 train.steps=2 train.warmup=1 train.model=tiny"
outcome = fit(config.read(None, settings.split()))
print(json.dumps([xf.trace_count(train.train_step), "torch_xla" in sys.modules, outcome.held_out]))
"""


def test_the_training_program_starts_from_kept_programs(fresh: Server, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{k} bottles of water on the wall. " for k in range(2000)))
    env = {"XFUNC_BACKEND": "pjrt", "CPU_NUM_DEVICES": "1"}
    found = []
    for k in range(2):
        args = tmp_path / f"run{k}", tmp_path / "programs", text
        done = fresh.run(TRAINING, *args, env=env)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    (first, loaded, loss), (second, loaded_again, loss_again) = found
    assert first == 1
    assert loaded
    assert (second, loaded_again) == (0, False)
    assert loss == loss_again
