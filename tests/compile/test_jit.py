"""`jit`: forms and stages; and that lowering is abstract."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server
from tests.support.functions import scaled, vector
from xfunc.errors import TreeMismatchError

S = xf.ShapeDtypeStruct


pytestmark = [pytest.mark.usefixtures("cleared"), pytest.mark.quick]


# ------------------------------------------------------------------------------------------ forms


@xf.jit
def bare(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@xf.jit()
def called(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@xf.jit(static_argnames="k")
def with_options(x: torch.Tensor, k: int = 2) -> torch.Tensor:
    return x * k


@functools.partial(xf.jit, static_argnums=(1,))
def by_partial(x: torch.Tensor, k: int = 2) -> torch.Tensor:
    return x * k


class Model:
    def __init__(self, factor: float):
        self.factor = factor

    @xf.jit
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    @functools.partial(xf.jit, static_argnums=0)
    def static_self(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    @staticmethod
    @xf.jit
    def static(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


FORMS: dict[str, Callable[..., Any]] = {
    "bare": bare,
    "called": called,
    "with options": with_options,
    "partial": by_partial,
    "direct": xf.jit(scaled),
    "keyword": xf.jit(fun=scaled),
    "jit of jit": xf.jit(xf.jit(xf.jit(scaled))),
    "nested": xf.jit(lambda x: xf.jit(lambda y: y + x)(x)),
    "static self": Model(2.0).static_self,
    "static method": Model.static,
    "class method": xf.jit(Model.of_class),
    "jit of bound method": xf.jit(Model(2.0).plain),
    "callable object": xf.jit(Model(2.0)),
    "partial inside": xf.jit(functools.partial(scaled, k=2)),
    "partial outside": functools.partial(xf.jit(scaled), k=2),
    "default argument": xf.jit(lambda x, *, k=2: x * k),
    "builtin": xf.jit(lambda x: torch.add(x, x)),
    "torch function": functools.partial(xf.jit(torch.mul), torch.tensor(2.0)),
}


@pytest.mark.parametrize("name", FORMS)
def test_jit_forms(name: str) -> None:
    for _ in range(2):
        assert FORMS[name](vector()).tolist() == [2.0, 4.0, 6.0]


def test_jit_preserves_function_metadata() -> None:
    f = xf.jit(scaled)
    assert (f.__name__, f.__doc__, f.__module__, f.__wrapped__) == (
        "scaled", "Doubles.", scaled.__module__, scaled,
    )  # fmt: skip
    assert xf.jit(functools.partial(scaled, k=3))(vector()).tolist() == [3.0, 6.0, 9.0]


def test_jit_methods_see_own_object() -> None:
    for factor in (2.0, 3.0, 2.0):
        want = [factor, 2 * factor, 3 * factor]
        assert Model(factor).static_self(vector()).tolist() == want
        assert xf.jit(Model(factor).plain)(vector()).tolist() == want
    with pytest.raises(TypeError, match=r"Model\.method.*self.*\n.*test_jit.py"):
        Model(2.0).method(vector())


def test_disable_jit_runs_python_each_time() -> None:
    seen: list[float] = []

    @xf.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.sum().item())
        return x * 2

    with xf.disable_jit():
        for _ in range(2):
            assert f(vector()).tolist() == [2.0, 4.0, 6.0]
    assert seen == [6.0, 6.0]


# --------------------------------------------------------------------------------------- stages


def _two(x: torch.Tensor, p: dict[str, Any]) -> Any:
    return {"y": x @ p["w"], "n": [None, (x.sum(), p["k"])]}


def test_jit_trace_lower_and_compile() -> None:
    f = xf.jit(_two)
    structs = (S((2, 3), torch.float32), {"w": S((3, 4), torch.float32), "k": S((), torch.int64)})
    traced = f.trace(*structs)
    want = {"y": S((2, 4), torch.float32), "n": [None, (S((), torch.float32), S((), torch.int64))]}
    assert traced.out_info == want
    assert traced.in_avals == tuple(xf.tree.leaves((structs, {})))
    assert traced.in_tree == xf.tree.structure((structs, {}))
    assert traced.out_tree == xf.tree.structure(want)
    for lowered in (traced.lower(), f.lower(*structs)):
        text = lowered.as_text()
        assert "HloModule" in text
        assert "dot(" in text
        assert "f32[2,3]" in text
        with pytest.raises(ValueError, match=r"dialect.*'mhlo'"):
            lowered.as_text("mhlo")
    compiled = traced.lower().compile()
    arguments = (torch.ones(2, 3), {"w": torch.ones(3, 4), "k": 5})
    for _ in range(2):
        got = compiled(*arguments)
        assert got["y"].tolist() == [[3.0] * 4] * 2
        assert got["n"][1][1].item() == 5
    assert xf.trace_count(f) == 1
    f(*arguments)
    assert f.cache_info().traces == 1
    with pytest.raises(TreeMismatchError, match=r"_two(.|\n)*test_jit.py(.|\n)*Hint"):
        compiled(torch.ones(2, 5), arguments[1])
    with pytest.raises(TreeMismatchError, match="_two"):
        compiled(torch.ones(2, 3).double(), arguments[1])
    with pytest.raises(TreeMismatchError, match="_two"):
        compiled(arguments[0], {"w": torch.ones(3, 4)})


def test_jit_stages_with_static_and_donated_arguments() -> None:
    f = xf.jit(scaled, static_argnums=1, donate_argnums=0)
    compiled = f.lower(S((3,), torch.float32), 3).compile()
    assert compiled(vector()).tolist() == [3.0, 6.0, 9.0]  # As in JAX: without the static ones.
    f = xf.jit(scaled, static_argnames="k")
    assert f.trace(S((3,), torch.int32), k=2.5).out_info == S((3,), torch.float32)


def test_eval_shape_and_make_hlo() -> None:
    x = S((2, 3), torch.float32)
    assert xf.eval_shape(torch.sum, x) == S((), torch.float32)
    assert xf.eval_shape(lambda x: (x.T, None, {"a": x.long()}, 1), x) == (
        S((3, 2), torch.float32), None, {"a": S((2, 3), torch.int64)}, S((), torch.int64),
    )  # fmt: skip
    assert xf.eval_shape(xf.grad(lambda x: x.sum()), x) == x
    assert xf.eval_shape(xf.vmap(torch.sum), x) == S((2,), torch.float32)
    assert xf.eval_shape(lambda x: xf.scan(lambda c, y: (c + y, c), x[0], x), x) == (
        S((3,), torch.float32), x,
    )  # fmt: skip
    assert "tanh" in str(xf.make_hlo(torch.tanh)(x))
    assert "while(" in str(xf.make_hlo(lambda x: xf.scan(lambda c, y: (c + y, c), x[0], x))(x))
    with pytest.raises(RuntimeError, match=r"mat1 and mat2|size|shape"):
        xf.eval_shape(torch.matmul, x, x)


def test_jit_nested_is_a_call() -> None:
    inner = xf.jit(lambda x: torch.tanh(x) @ x)
    text = xf.jit(lambda x: inner(inner(x))).lower(S((3, 3), torch.float32)).as_text()
    assert text.count(" call(") == 2
    assert inner.cache_info().traces == 1


# ---------------------------------------------------------------------------------- abstractness

ABSTRACT = """
import os, resource, sys
import torch, xfunc as xf
from examples.llama import model

def activity():
    if os.environ.get("XFUNC_BACKEND") == "pjrt":
        import jax
        return jax.live_arrays()
    import torch_xla.debug.metrics as metrics
    names = set(metrics.metric_names())
    return names & {
        "TransferToDeviceTime", "OutboundData", "TransferFromDeviceTime", "InboundData",
        "ExecuteTime", "CompileTime", "ExecuteReplicatedTime",
    }

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def gradient(config):
    params = model.shapes(config)
    tokens = xf.ShapeDtypeStruct((8, 4096), torch.int64)
    batch = model.Batch(tokens, tokens)
    step = xf.jit(xf.value_and_grad(lambda p, b: model.loss(p, b, config)))
    return step.lower(params, batch).as_text()

assert not activity()
gradient(model.Config.tiny())
before = peak()
text = gradient(model.PUBLISHED["llama3.1-405b"])
grown = peak() - before
assert not activity(), activity()
assert "126,53248,16384" in text
assert grown < 300, f"grew by {grown:.0f} MB"
print("abstract", len(text), f"{grown:.0f} MB")
"""


def test_lower_gradient_of_405b_parameters_without_data(fresh: Server) -> None:
    done = fresh.run(ABSTRACT)
    assert "abstract" in done.stdout, done.stdout + done.stderr


def test_jit_donated_buffers_alias_their_own_results() -> None:
    """Else XLA pairs donated arguments with results of the same size, and copies all of them."""

    def step(state: Any, x: Any) -> Any:
        new = xf.tree.map(lambda p, m: (p - 0.1 * m, 0.9 * m + x.sum()), state["p"], state["m"])
        return {"p": {k: v[0] for k, v in new.items()}, "m": {k: v[1] for k, v in new.items()}}

    leaf = xf.ShapeDtypeStruct((8, 8), torch.float32)
    state = {"p": dict.fromkeys("abc", leaf), "m": dict.fromkeys("abc", leaf)}
    compiled = xf.jit(step, donate_argnums=0).lower(state, leaf).compile()
    text = compiled.as_text()
    assert text is not None
    pairs = re.findall(r"\{(\d+)\}: \((\d+), ", text.splitlines()[0])
    assert [a for a, _ in pairs] == [b for _, b in pairs] == [str(k) for k in range(6)]
