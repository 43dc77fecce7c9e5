"""`jit`: forms, static and donated arguments, scalars, stages; and that lowering is abstract."""

# Misuse is the subject here.
# pyright: reportPossiblyUnboundVariable=false
from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server
from xfunc.errors import TreeMismatchError

S = xf.ShapeDtypeStruct


@pytest.fixture(autouse=True)
def _fresh() -> None:
    xf.clear_caches()


def vector() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0])


def scaled(x: torch.Tensor, k: Any = 2) -> torch.Tensor:
    """Doubles."""
    return x * k


SCALED: Any = scaled  # for calls that its types refuse


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
def test_forms(name: str) -> None:
    for _ in range(2):
        assert FORMS[name](vector()).tolist() == [2.0, 4.0, 6.0]


def test_a_jitted_function_looks_like_the_function() -> None:
    f = xf.jit(scaled)
    assert (f.__name__, f.__doc__, f.__module__, f.__wrapped__) == (
        "scaled", "Doubles.", __name__, scaled,
    )  # fmt: skip
    assert xf.jit(functools.partial(scaled, k=3))(vector()).tolist() == [3.0, 6.0, 9.0]


def test_methods_see_their_own_object() -> None:
    for factor in (2.0, 3.0, 2.0):
        want = [factor, 2 * factor, 3 * factor]
        assert Model(factor).static_self(vector()).tolist() == want
        assert xf.jit(Model(factor).plain)(vector()).tolist() == want
    with pytest.raises(TypeError, match=r"Model\.method.*self.*\n.*test_jit.py"):
        Model(2.0).method(vector())


def test_under_disable_jit_python_runs_each_time() -> None:
    seen: list[float] = []

    @xf.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.sum().item())
        return x * 2

    with xf.disable_jit():
        for _ in range(2):
            assert f(vector()).tolist() == [2.0, 4.0, 6.0]
    assert seen == [6.0, 6.0]


# ------------------------------------------------------------------------------ static arguments


@dataclasses.dataclass(frozen=True)
class Config:
    power: int
    names: tuple[str, ...] = ()


def _by_config(x: torch.Tensor, config: Any, *rest: Any, flag: Any = False) -> torch.Tensor:
    y = x**config.power if isinstance(config, Config) else x * float(config)
    return y + 1 if flag is True else y


def test_static_arguments_count_by_value_and_type() -> None:
    f = xf.jit(_by_config, static_argnums=1, static_argnames="flag")
    traces = 0
    for config, flag, new in [
        (Config(2), False, True), (Config(2), False, False), (Config(3), False, True),
        (Config(3), True, True), (1, False, True), (1.0, False, True), (True, False, True),
        (1, 1, True), (1, True, True), (1, False, False),
    ]:  # fmt: skip
        want = _by_config(vector(), config, flag=flag)
        got = f(vector(), config, flag=flag)
        torch.testing.assert_close(xf.device_get(got), want)
        traces += new
        assert f.cache_info().traces == traces, (config, flag)


def test_a_static_argument_by_position_and_by_name_is_one() -> None:
    f = xf.jit(scaled, static_argnums=1)
    for _ in range(2):
        assert f(vector(), 3).tolist() == f(vector(), k=3).tolist() == [3.0, 6.0, 9.0]
    assert f(vector()).tolist() == [2.0, 4.0, 6.0]
    g = xf.jit(scaled, static_argnames=("k",))
    assert g(vector(), 3).tolist() == g(k=3, x=vector()).tolist() == [3.0, 6.0, 9.0]
    h = xf.jit(scaled, static_argnums=-1)
    assert h(vector(), 3).tolist() == [3.0, 6.0, 9.0]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: xf.jit(SCALED, static_argnums=1)(vector(), [1]), ValueError, "not hashable.*list"),
        (lambda: xf.jit(SCALED, static_argnames="k")(vector(), k={}), ValueError, "'k'.*hashable"),
        (lambda: xf.jit(SCALED, static_argnums=5), ValueError, "none at 5"),
        (lambda: xf.jit(SCALED, static_argnames="z"), ValueError, "no parameter 'z'"),
        (lambda: xf.jit(SCALED, donate_argnums=5), ValueError, "none at 5"),
        (lambda: xf.jit(SCALED, donate_argnames="z"), ValueError, "no parameter 'z'"),
        (lambda: xf.jit(SCALED, static_argnums=1, donate_argnums=1), ValueError, "both static"),
        (lambda: xf.jit(SCALED)("text"), TypeError, r"'text' \(a str\) as x\n"),
        (lambda: xf.jit(SCALED)({"a": [1, object()]}), TypeError, r"as x\['a'\]\[1\]\n"),
        (lambda: xf.jit(SCALED)(vector(), k=len), TypeError, r" as k\n"),
        (lambda: xf.jit(lambda *a: a)(1, "b"), TypeError, r"'b'.* as a\[1\]|argument 1"),
        (lambda: xf.jit(SCALED)(), TypeError, "missing 1 required.*'x'"),
        (lambda: xf.jit(SCALED)(1, 2, 3), TypeError, "takes from 1 to 2|positional"),
        (lambda: xf.jit(SCALED)(vector(), z=1), TypeError, "unexpected keyword.*'z'"),
        (lambda: xf.jit(SCALED, static_argnums=1)(1, 2, 3), TypeError, "positional"),
        (lambda: xf.jit(SCALED, static_argnums=1)(vector(), torch.zeros(3)), ValueError, "static"),
    ],
)  # fmt: skip
def test_wrong_arguments(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


def test_wrong_arguments_name_the_line() -> None:
    for call in (
        lambda: xf.jit(SCALED)({"a": "text"}),
        lambda: xf.jit(SCALED, static_argnums=1)(vector(), [1]),
        lambda: xf.jit(SCALED, static_argnums=7),
        lambda: xf.jit(lambda x: x["b"].nonzero())({"b": vector()}),
    ):
        line = call.__code__.co_firstlineno
        with pytest.raises((TypeError, ValueError, NotImplementedError), match=f"jit.py:{line}"):
            call()


# ------------------------------------------------------------------------------- dynamic arguments


def test_python_numbers_are_dynamic() -> None:
    f = xf.jit(lambda x: x)
    for value, dtype in [
        (2, torch.int64), (3, torch.int64), (2.0, torch.float32), (3.5, torch.float32),
        (True, torch.bool), (False, torch.bool), (1j, torch.complex64), (2j, torch.complex64),
        (-(2**63), torch.int64), (float("inf"), torch.float32),
    ]:  # fmt: skip
        got = f(value)
        assert got.dtype == dtype
        assert got.item() == value
    assert f.cache_info().traces == 4
    g = xf.jit(scaled)
    for k in range(5):
        assert g(vector(), k).tolist() == [k, 2.0 * k, 3.0 * k]
    assert g.cache_info().traces == 1


def test_keyword_arguments() -> None:
    def total(*args: Any, **kwargs: Any) -> Any:
        return sum(args) + sum(v * len(k) for k, v in kwargs.items())

    f = xf.jit(total)
    assert f(vector(), aa=vector(), b=vector()).tolist() == [4.0, 8.0, 12.0]
    assert f(vector(), b=vector(), aa=vector()).tolist() == [4.0, 8.0, 12.0]
    assert f(b=vector(), aa=vector()).tolist() == [3.0, 6.0, 9.0]
    assert f(vector(), vector()).tolist() == [2.0, 4.0, 6.0]
    g = xf.jit(lambda x, y: x - y)
    assert g(y=vector(), x=vector() * 3).tolist() == g(vector() * 3, vector()).tolist()


# ------------------------------------------------------------------------------------ donation


def _step(state: Any, x: torch.Tensor) -> Any:
    return {"a": state["a"] + x, "b": [state["b"][0] * 2]}


def _state() -> Any:
    return xf.device_put({"a": torch.ones(3), "b": [torch.full((4,), 3.0)]})


@pytest.mark.parametrize(
    "options", [{"donate_argnums": 0}, {"donate_argnames": "state"}, {"donate_argnums": (0,)}]
)
def test_donated_arguments_give_right_results_and_are_gone(options: Any) -> None:
    f = xf.jit(_step, **options)
    state, x = _state(), xf.device_put(vector())
    for k in range(1, 4):
        old, state = state, f(state, x)
        assert state["a"].tolist() == [1 + k, 1 + 2 * k, 1 + 3 * k]
        assert state["b"][0].tolist() == [3.0 * 2**k] * 4
        for gone in xf.tree.leaves(old):
            for use in (lambda t: t + 1, lambda t: t.tolist(), torch.Tensor.sum, xf.jit(scaled)):
                with pytest.raises(RuntimeError, match=r"donated(.|\n)*Hint"):
                    use(gone)
            assert repr(gone)
    with pytest.raises(RuntimeError, match="donated"):
        f(old, x)
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert f.cache_info().traces == 1
    assert f(state=state, x=x)["a"].tolist() == [5.0, 9.0, 13.0]


def test_donating_on_a_call_in_a_trace_or_of_a_host_tensor_is_harmless() -> None:
    f = xf.jit(lambda x: x + 1, donate_argnums=0)
    assert xf.jit(lambda x: f(x) + x)(vector()).tolist() == [3.0, 5.0, 7.0]
    x = vector()
    assert f(x).tolist() == [2.0, 3.0, 4.0]
    assert x.tolist() == [1.0, 2.0, 3.0]
    x = xf.device_put(vector())
    assert xf.grad(lambda x: f(x).sum())(x).tolist() == [1.0, 1.0, 1.0]
    assert x.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "arguments", [lambda x: (x, x), lambda x: ([x, x], 1), lambda x: ((x, [x]), x)]
)
def test_a_tensor_donated_twice_is_an_error(arguments: Callable[[Any], Any]) -> None:
    f = xf.jit(lambda a, b: xf.tree.map(lambda t: t + 1, (a, b)), donate_argnums=0)
    x = xf.device_put(vector())
    for _ in range(2):
        with pytest.raises(ValueError, match=r"twice(.|\n)*test_jit.py(.|\n)*clone"):
            f(*arguments(x))
    assert x.tolist() == [1.0, 2.0, 3.0]


def test_donated_scalars_have_buffers_of_their_own() -> None:
    f = xf.jit(lambda a, b: (a + 1, b + 1), donate_argnums=(0, 1))
    for _ in range(2):  # torch_xla would remember a buffer that is gone by now
        a, b = xf.device_put((torch.tensor(7), torch.tensor(7)))
        assert xf.device_get(f(a, b)) == (8, 8)
    assert xf.device_get(f(torch.tensor(7), torch.tensor(7))) == (8, 8)


def test_donating_a_captured_tensor_is_an_error() -> None:
    w = xf.device_put(vector())
    f = xf.jit(lambda x: x * w, donate_argnums=0)
    with pytest.raises(ValueError, match="twice"):
        f(w)
    assert w.tolist() == [1.0, 2.0, 3.0]


def test_donating_an_argument_that_is_returned_or_unused() -> None:
    f = xf.jit(lambda x, y: (x, x), donate_argnums=(0, 1))
    got = f(xf.device_put(vector()), xf.device_put(vector()))
    assert [t.tolist() for t in got] == [[1.0, 2.0, 3.0]] * 2
    g = xf.jit(lambda x: (x, x + 1), donate_argnums=0)
    x = xf.device_put(vector())
    assert [t.tolist() for t in g(x)] == [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]


def test_donating_a_view_does_not_corrupt_its_base() -> None:
    base = xf.device_put(torch.arange(6.0))
    view = base[:3]
    f = xf.jit(lambda x: x * 10, donate_argnums=0)
    assert f(view).tolist() == [0.0, 10.0, 20.0]
    assert base.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_donating_what_requires_grad() -> None:
    f = xf.jit(lambda x: (x * x).sum(), donate_argnums=0)
    x = xf.device_put(vector()).requires_grad_()
    f(x).backward()
    assert x.grad.tolist() == [2.0, 4.0, 6.0]


# --------------------------------------------------------------------------------------- stages


def _two(x: torch.Tensor, p: dict[str, Any]) -> Any:
    return {"y": x @ p["w"], "n": [None, (x.sum(), p["k"])]}


def test_stages() -> None:
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


def test_stages_with_static_and_donated_arguments() -> None:
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


def test_a_nested_jit_is_called() -> None:
    inner = xf.jit(lambda x: torch.tanh(x) @ x)
    text = xf.jit(lambda x: inner(inner(x))).lower(S((3, 3), torch.float32)).as_text()
    assert text.count(" call(") == 2
    assert inner.cache_info().traces == 1


# ---------------------------------------------------------------------------------- abstractness

ABSTRACT = """
import resource, sys
import torch, xfunc as xf
from examples.llama import model
import torch_xla.debug.metrics as metrics

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def gradient(config):
    params = model.shapes(config)
    tokens = xf.ShapeDtypeStruct((8, 4096), torch.int64)
    batch = model.Batch(tokens, tokens)
    step = xf.jit(xf.value_and_grad(lambda p, b: model.loss(p, b, config)))
    return step.lower(params, batch).as_text()

metrics.clear_all()
gradient(model.Config.tiny())
before = peak()
text = gradient(model.PUBLISHED["llama3.1-405b"])
grown = peak() - before
names = set(metrics.metric_names())
moved = names & {"TransferToDeviceTime", "OutboundData", "TransferFromDeviceTime", "InboundData"}
assert not moved, moved
assert not names & {"ExecuteTime", "CompileTime", "ExecuteReplicatedTime"}, names
assert "126,53248,16384" in text
assert grown < 300, f"grew by {grown:.0f} MB"
print("abstract", len(text), f"{grown:.0f} MB")
"""


def test_the_gradient_of_405_billion_parameters_is_lowered_without_data(fresh: Server) -> None:
    done = fresh.run(ABSTRACT)
    assert "abstract" in done.stdout, done.stdout + done.stderr


def test_each_result_takes_the_memory_of_its_own_argument() -> None:
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
