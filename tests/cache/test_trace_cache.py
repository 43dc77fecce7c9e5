"""Traced programs on disk: what finds them and what must not, their files, static arguments."""

import dataclasses
import json
import random
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from tests.support.fresh import Server

SOURCE = """
import dataclasses, functools, math, os, random, sys, time
import numpy as np
import torch
import torch.nn.functional as F
import xfunc as xf

RATE = 2.0
TABLE = {"a": [1.0, 2.0]}
ARRAY = np.arange(3.0, dtype=np.float32)
FILE = None
ORDER = ("a", "b")

@dataclasses.dataclass(frozen=True)
class Config:
    layers: int = 3
    scale: float = 0.5

class Base:
    factor = 2.0
    def shift(self, x):
        return x + self.factor

class Model(Base):
    def __init__(self, k):
        self.k = k
    def __call__(self, x):
        return self.shift(x) * self.k

CONFIG, MODEL = Config(), Model(3.0)
Pair = __import__("collections").namedtuple("Pair", "x y")

def inner(x):
    return torch.tanh(x) * 3.0

def helper(x, by=1.5, *, plus=0.25):
    return inner(x) * by + plus

def body(x):
    for _ in range(CONFIG.layers):
        x = helper(x * CONFIG.scale)
    return MODEL(x) * RATE * TABLE["a"][1] + float(np.sqrt(ARRAY[-1]))

def loss(w, x):
    last, each = xf.scan(lambda h, _: (body(h @ w), h.sum()), x, length=2)
    return F.softmax(last, -1).square().sum() + last.abs().mean() + max(1, 2)

def f(w, x):
    return xf.value_and_grad(loss)(w, x)

def by(k, held):
    return lambda w, x: {"out": (x @ w) * k + held, "pair": Pair(x, [k])}

def linear(w, x):
    return torch.nn.Linear.forward(type("L", (), {"weight": w, "bias": None})(), x)

def reads(w, x):
    with open(FILE) as opened:
        return x * float(opened.read())

def clock(w, x):
    return x * time.perf_counter()

def draws(w, x):
    return x * random.Random(0).random()

def wall_clock(w, x):
    return x * time.time()

def global_draws(w, x):
    return x * random.random()

def computed(w, x):
    return x * globals()["RA" + "TE"]

def environment(w, x):
    return x * float(os.environ["FACTOR"])

def imports(w, x):
    import own_settings
    return x * own_settings.rate

def arguments(w, x):
    return x * len(sys.argv)

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, ct):
        return ct * 2

def rule(w, x):
    return Twice.apply(x)

def counts(w, x):
    TABLE["a"].append(0.0)
    return x * len(TABLE["a"])

def constant(w, x):
    return x + torch.tensor([1.0, 2.0, 3.0]) + xf.random.normal(xf.random.key(0), (3,))
"""

W = torch.linspace(-0.1, 0.1, 9, dtype=torch.float64).reshape(3, 3)
X = torch.linspace(0, 0.1, 6, dtype=torch.float64).reshape(2, 3)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Loads the program from its file, anew each time, as another process would."""
    xf.config.set_trace_cache_dir(tmp_path / "traces")

    def load(*edits: tuple[str, str]) -> types.ModuleType:
        text = SOURCE
        for old, new in edits:
            assert text.count(old) == 1
            text = text.replace(old, new)
        file = tmp_path / "kept_program.py"
        file.write_text(text)
        module = types.ModuleType("kept_program")
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, "kept_program", module)
        exec(compile(text, str(file), "exec"), vars(module))
        xf.clear_caches()
        return module

    yield load
    xf.config.set_trace_cache_dir(None)


def run(fun: Any, *args: Any, **settings: Any) -> tuple[int, Any]:
    """How often a function is traced in its first call, and its result."""
    jitted = xf.jit(fun, **settings)
    found = jitted(*(args or (W, X)))
    return xf.trace_count(jitted), xf.device_get(found)


def by_torch(fun: Any, *args: Any) -> Any:
    with xf.disable_jit():
        return fun(*(args or (W, X)))


def equal(got: Any, want: Any) -> None:
    for g, w in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        g, w = torch.as_tensor(g).cpu(), torch.as_tensor(w).cpu()
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-7, equal_nan=True)


# ------------------------------------------------------------------ what finds a program


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


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_trace_cache_misses_edited_program(load: Any, edit: tuple[str, str]) -> None:
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
    "a setting": patched(xf.config, "shard_as_in_scan", False),
}


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_trace_cache_misses_changed_process_state(
    load: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_misses(load, change, tmp_path, monkeypatch)


def check_misses(load: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_trace_cache_of_closure(load: Any) -> None:
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


def test_trace_cache_of_static_arguments(load: Any) -> None:
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


def test_trace_cache_hit_differentiates_and_donates(load: Any) -> None:
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
def test_trace_cache_skips_impure_functions(
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


@pytest.mark.parametrize("name", ["wall_clock", "global_draws"])
def test_trace_cache_refuses_functions_that_draw(load: Any, name: str, tmp_path: Path) -> None:
    with pytest.raises(xf.errors.PurityError, match="each call of the program would repeat"):
        run(getattr(load(), name))
    assert not list((tmp_path / "traces").glob("*"))


def test_trace_cache_of_environment_variable(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wanted in [("2", 1), ("2", 0), ("3", 1)]:
        monkeypatch.setenv("FACTOR", value)
        traces, found = run(load().environment)
        assert traces == wanted
        equal(found, X * float(value))


@pytest.mark.parametrize("name", ["constant", "linear"])
def test_trace_cache_hit_in_reloaded_program(load: Any, name: str) -> None:
    run(getattr(load(), name))
    traces, found = run(getattr(load(), name))
    assert traces == 0
    equal(found, by_torch(getattr(load(), name)))


# ------------------------------------------------------------------ files and processes


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "another"])
def test_trace_cache_replaces_damaged_file(load: Any, damage: str, tmp_path: Path) -> None:
    run(load().f)
    (file,) = (tmp_path / "traces").iterdir()
    data = whole = file.read_bytes()
    if damage == "another":
        run(load().constant)
        (data,) = [p.read_bytes() for p in file.parent.iterdir() if p != file]
    at = len(whole) // 2
    flipped = whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :]
    file.write_bytes({"cut": whole[:at], "flipped": flipped, "empty": b"", "another": data}[damage])
    traces, found = run(load().f)
    assert traces == 1
    equal(found, by_torch(load().f))
    assert run(load().f)[0] == 0


def test_trace_cache_unwritable_folder_warns(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    xf.config.set_trace_cache_dir(tmp_path / "file")
    with pytest.warns(UserWarning, match="traced programs cannot be kept in .*file"):
        equal(run(load().f)[1], by_torch(load().f))

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    xf.config.set_trace_cache_dir(tmp_path / "full")
    monkeypatch.setattr(tempfile, "mkstemp", full)
    with pytest.warns(UserWarning, match="traced programs cannot be kept in .*No space left"):
        equal(run(load().f)[1], by_torch(load().f))


def test_trace_cache_permission_denied_warns_once(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: Path) -> object:
        raise PermissionError(13, "Permission denied", f"{folder}/tmp{next(numbers)}")

    numbers = iter(range(9))
    monkeypatch.setattr(tempfile, "mkstemp", lambda dir: refused(dir))
    xf.config.set_trace_cache_dir(tmp_path / "refused")
    with pytest.warns(UserWarning, match="cannot be kept in .*refused: Permission denied$"):
        run(load().f)
    run(load().constant)  # Warnings are errors.
    assert next(numbers) == 2


@pytest.mark.parametrize("folder", [b"/tmp", 5, [], False, "a\0b"])
@pytest.mark.parametrize("setting", ["set_trace_cache_dir", "set_compilation_cache_dir"])
def test_cache_dir_settings_refuse_non_paths(setting: str, folder: Any) -> None:
    kind = ValueError if isinstance(folder, str) else TypeError
    with pytest.raises(kind, match=rf"^config\.{setting} was given .*, which is no path"):
        getattr(xf.config, setting)(folder)


def test_trace_cache_dir_expands_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, load: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    xf.config.set_trace_cache_dir("~/at home")
    run(load().f)
    assert [p.suffix for p in (tmp_path / "at home").iterdir()] == [".trace"]


SCRIPT = """if True:
    import json, sys
    import torch, xfunc as xf

    xf.config.set_trace_cache_dir(sys.argv[1])
    sys.path.insert(0, sys.argv[2])
    import kept_program

    jitted = xf.jit(kept_program.f)
    w, x = torch.load(sys.argv[3])
    loss, grad = xf.device_get(jitted(w, x))
    loaded = "torch_xla" in sys.modules
    print(json.dumps([xf.trace_count(jitted), loaded, loss.item(), grad.tolist()]))
"""


def test_trace_cache_across_processes(fresh: Server, tmp_path: Path) -> None:
    """Two at once, and one after them, which does not trace; none loads torch_xla."""
    (tmp_path / "kept_program.py").write_text(SOURCE)
    torch.save((W, X), tmp_path / "inputs")
    args = tmp_path / "traces", tmp_path, tmp_path / "inputs"
    env = {"XFUNC_BACKEND": "pjrt", "CPU_NUM_DEVICES": "1"}
    both = [fresh.start(SCRIPT, *args, env=env) for _ in range(2)]
    done = [*(p.wait() for p in both), fresh.run(SCRIPT, *args, env=env)]
    for one, wanted in zip(done, [(1, False), (1, False), (0, False)], strict=True):
        assert one.returncode == 0, one.stderr
        traces, loaded, *found = json.loads(one.stdout.splitlines()[-1])
        assert (traces, loaded) == wanted
        assert found == json.loads(done[0].stdout.splitlines()[-1])[2:]
    assert [p.suffix for p in (tmp_path / "traces").iterdir()] == [".trace"]


# ------------------------------------------------------------------ static arguments


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


def test_trace_cache_hit_of_recipe_with_methods_and_policy(load: Any) -> None:
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
def test_trace_cache_of_edited_recipe(load: Any, old: str, new: str) -> None:
    before = called(load(ADDED))[1]
    edited = load((ADDED[0], ADDED[1].replace(old, new)))
    traces, found = called(edited)
    assert traces == (old != new)
    with xf.disable_jit():
        equal(found, edited.stepped(W, X, edited.Recipe()))
    assert old != new or torch.equal(before, found)


def test_trace_cache_misses_mutated_recipe_global(load: Any) -> None:
    called(load(ADDED))
    module = load(ADDED)
    module.KINDS["a"] = 7.0
    traces, found = called(module)
    assert traces == 1
    with xf.disable_jit():
        equal(found, module.stepped(W, X, module.Recipe()))


def test_trace_cache_skips_getattr_of_module(load: Any, tmp_path: Path) -> None:
    for _ in range(2):
        module = load(ADDED)
        assert run(module.of_module, W, X, module, static_argnums=2)[0] == 1
    assert not list((tmp_path / "traces").glob("*"))


def test_eval_shape_uses_trace_cache(load: Any) -> None:
    def shapes() -> tuple[int, Any]:
        module = load(ADDED)
        recipe = module.Recipe()
        stepped = lambda w, x: module.stepped(w, x, recipe)  # noqa: E731
        found = xf.eval_shape(stepped, W, X)
        return xf.trace_count(stepped), (found.shape, found.dtype)

    for wanted in (1, 0):
        assert shapes() == (wanted, (X.shape, X.dtype))


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


@pytest.mark.slow
def test_llama_fit_starts_from_trace_cache(fresh: Server, tmp_path: Path) -> None:
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
