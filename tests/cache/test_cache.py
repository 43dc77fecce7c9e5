"""What makes a function trace again, and what must not."""

# Misuse is the subject here.
# pyright: reportFunctionMemberAccess=false, reportReturnType=false
from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server


def vector(*values: float) -> torch.Tensor:
    """One to three, unless told otherwise."""
    return torch.tensor(values or (1.0, 2.0, 3.0), dtype=torch.float32)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture(autouse=True)
def _fresh() -> None:
    xf.clear_caches()


# ----------------------------------------------------------------------------------- traced once


def test_a_training_step_traces_once() -> None:
    traced: list[str] = []

    def block(c: torch.Tensor, w: torch.Tensor) -> Any:
        traced.append("block")
        return torch.tanh(c @ w), None

    def loss(params: Any, x: torch.Tensor) -> torch.Tensor:
        traced.append("loss")
        return (xf.scan(block, x, params["w"])[0] @ params["head"]).square().mean()

    @functools.partial(xf.jit, donate_argnums=(0, 1))
    def step(params: Any, momentum: Any, x: torch.Tensor, rate: float) -> Any:
        traced.append("step")
        value, grads = xf.value_and_grad(loss)(params, x)
        momentum = xf.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return xf.tree.map(lambda p, m: p - rate * m, params, momentum), momentum, value

    generator = torch.Generator().manual_seed(0)
    params = {
        "w": torch.randn(4, 3, 3, generator=generator),
        "head": torch.randn(3, 1, generator=generator),
    }
    x = torch.randn(2, 3, generator=generator)
    ours, momentum = xf.device_put(params), xf.device_put(xf.tree.map(torch.zeros_like, params))
    values = []
    for i in range(100):
        ours, momentum, value = step(ours, momentum, x, 0.1 / (1 + i))
        values.append(value)
    info = step.cache_info()
    assert traced.count("step") == 1
    assert traced.count("loss") == 1
    assert traced.count("block") == 1
    assert xf.trace_count(step) == 1
    assert (info.hits, info.misses, info.traces, info.compiles, info.size) == (99, 1, 1, 1, 1)

    plain = {k: v.clone().requires_grad_() for k, v in params.items()}
    velocity = {k: torch.zeros_like(v) for k, v in params.items()}
    for i in range(100):
        y = x
        for w in plain["w"]:
            y = torch.tanh(y @ w)
        want = (y @ plain["head"]).square().mean()
        grads = torch.autograd.grad(want, list(plain.values()))
        torch.testing.assert_close(xf.device_get(values[i]), want.detach(), rtol=2e-3, atol=1e-5)
        with torch.no_grad():
            for (k, p), g in zip(plain.items(), grads, strict=True):
                velocity[k] = 0.9 * velocity[k] + g
                p -= 0.1 / (1 + i) * velocity[k]


class Model:
    scale = 2.0

    def __init__(self) -> None:
        self.weight = vector()
        self.power = 2

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.apply(x)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x**self.power * self.weight


_model = Model()
_module = torch.nn.Linear(3, 2)


def _power(x: torch.Tensor, *, n: int) -> torch.Tensor:
    return x**n


def _nested() -> Callable[..., Any]:
    factor = 3

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return lambda x: inner(x) + 1


# What is made anew for each call, and still counts as the same function.
REMADE: dict[str, Callable[[], Callable[..., Any]]] = {
    "lambda": lambda: xf.jit(lambda x: x * 2),
    "lambda with default": lambda: xf.jit(lambda x, k=2: x * k),
    "partial": lambda: xf.jit(functools.partial(_power, n=3)),
    "partial with a tensor": lambda: xf.jit(functools.partial(torch.mul, vector())),
    "bound method": lambda: xf.jit(_model.apply),
    "callable object": lambda: xf.jit(_model),
    "method of an equal object": lambda: xf.jit(Model().apply),
    "closure": lambda: xf.jit(_nested()),
    "closure over a new tensor": lambda: (lambda w: xf.jit(lambda x: x * w))(vector()),
    "closure over a new tree": lambda: (lambda p: xf.jit(lambda x: x * p["w"][0]))(
        {"w": [vector(), 1.0]}
    ),
    "nan": lambda: (lambda n: xf.jit(lambda x: x * n))(float("nan")),
    "module": lambda: xf.jit(lambda x: _module(x)),
    "grad": lambda: xf.grad(lambda x: x.sin().sum()),
    "jit of grad": lambda: xf.jit(xf.grad(lambda x: x.sin().sum())),
    "jit of vmap of grad": lambda: xf.jit(xf.vmap(xf.grad(lambda x: x.sin()))),
    "hessian": lambda: xf.jit(xf.hessian(lambda x: x.sin().sum())),
    "checkpoint": lambda: xf.jit(xf.grad(xf.checkpoint(lambda x: x.sin().sum()))),
    "jit of jit": lambda: xf.jit(xf.jit(double)),
    "scan": lambda: lambda x: xf.scan(lambda c, y: (c + y, c * y), torch.zeros(()), x),
    "scan in jit": lambda: xf.jit(
        lambda x: xf.scan(lambda c, y: (c + y, c * y), torch.zeros(()), x)
    ),
    "options": lambda: xf.jit(lambda x, k: x * k, static_argnames="k", donate_argnums=()),
}


@pytest.mark.parametrize("name", REMADE)
def test_a_function_made_anew_traces_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from xfunc.program.program import Program

    runs: list[str] = []
    trace, joint = Program.trace, Program.joint
    monkeypatch.setattr(Program, "trace", lambda s: (runs.append("trace"), trace(s))[1])
    monkeypatch.setattr(Program, "joint", lambda s, *a: (runs.append("joint"), joint(s, *a))[1])
    arguments = (vector(), 2) if name == "options" else (vector(),)
    with torch.no_grad():
        first = REMADE[name]()(*arguments)
        made = len(runs)
        for _ in range(5):
            torch.testing.assert_close(
                xf.device_get(REMADE[name]()(*arguments)), xf.device_get(first), equal_nan=True
            )
    assert made > 0
    assert len(runs) == made


def test_trace_count_and_assert_max_traces() -> None:
    """Counting the runs by what a closure holds does not itself cause runs."""
    number, numbers, table = 0, [], {"n": 0}

    def fun(x: torch.Tensor) -> torch.Tensor:
        nonlocal number
        number += 1
        numbers.append(1)
        table["n"] += 1
        return x + 1

    f = xf.jit(fun)
    for n in (2, 2, 3, 2, 3):
        f(torch.zeros(n))
    assert number == len(numbers) == table["n"] == 2
    assert xf.trace_count(f) == xf.trace_count(fun) == 2
    xf.debug.assert_max_traces(f, 2)
    with pytest.raises(AssertionError, match=r"fun was traced 2 times, not at most 1"):
        xf.debug.assert_max_traces(f, 1)


# -------------------------------------------------------------------------- never a stale result


@dataclasses.dataclass
class Options:
    rate: float
    names: list[str]


def _with_number(k: Any) -> Callable[..., Any]:
    return lambda x: x * k


def _with_tree(p: Any) -> Callable[..., Any]:
    return lambda x: sum(xf.tree.leaves(p)) + x * len(xf.tree.leaves(p))


def _with_options(o: Options) -> Callable[..., Any]:
    return lambda x: x * o.rate + len(o.names)


def _with_inner(k: int) -> Callable[..., Any]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * k

    return lambda x: inner(x) + 1


def _with_inner_of_inner(k: int) -> Callable[..., Any]:
    return (lambda g: lambda x: g(x) + 1)(functools.partial(_with_inner(k)))


def _with_default(k: int) -> Callable[..., Any]:
    return lambda x, k=k: x * k


def _with_keyword_default(k: int) -> Callable[..., Any]:
    def fun(x: torch.Tensor, *, k: int = k) -> torch.Tensor:
        return x * k

    return fun


def _with_attribute(k: int) -> Callable[..., Any]:
    m = Model()
    m.power = k
    return m.apply


def _with_function_attribute(k: int) -> Callable[..., Any]:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return x * fun.k

    fun.k = k
    return fun


def _with_subclass(k: int) -> Callable[..., Any]:
    class Local(Model):
        scale = float(k)

        def apply(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    return Local().apply


def _with_two(pair: tuple[torch.Tensor, torch.Tensor]) -> Callable[..., Any]:
    a, b = pair
    return lambda x: x * a + x.sin() * b


_one, _two = vector(1, 2, 3), vector(4, 5, 6)

# A maker, and values that it gives different functions for. All are called with the same argument.
HELD: dict[str, tuple[Callable[[Any], Callable[..., Any]], list[Any]]] = {
    "number": (_with_number, [2, 3, 2]),
    "type of number": (_with_number, [2, 2.0, True, 1, 1.0, 0.0, -0.0]),
    "dtype of tensor": (_with_number, [_one, _one.double(), _one.int()]),
    "shape of tensor": (_with_number, [_one, _one[:1], _one[0], _one.expand(2, 3)]),
    "value of tensor": (_with_number, [_one, _two, _one + 1]),
    "tensor or number": (_with_number, [torch.tensor(2.0), 2.0, 2]),
    "tree": (_with_tree, [[1, 2], [1, 2, 3], {"a": 1, "b": 2}, [1, 5], [_one, 2], [2, _one]]),
    "order of a dict": (
        lambda d: lambda x: x * next(iter(d.values())),
        [{"a": 2.0, "b": 3.0}, {"b": 3.0, "a": 2.0}],
    ),
    "dataclass": (_with_options, [Options(1.0, []), Options(2.0, []), Options(2.0, ["a"])]),
    "nested function": (_with_inner, [1, 2, 3]),
    "partial of a nested function": (_with_inner_of_inner, [1, 2, 3]),
    "default": (_with_default, [1, 2, 3]),
    "keyword default": (_with_keyword_default, [1, 2, 3]),
    "attribute of self": (_with_attribute, [1, 2, 3]),
    "attribute of the function": (_with_function_attribute, [1, 2, 3]),
    "attribute of the class": (_with_subclass, [1, 2, 3]),
    "partial": (lambda n: functools.partial(_power, n=n), [1, 2, 3]),
    "partial of jit": (lambda n: functools.partial(torch.mul, n), [1, 2, 3]),
    "aliases": (_with_two, [(_one, _one), (_one, _two), (_two, _one), (_two, _two)]),
    "string": (lambda s: lambda x: getattr(torch, s)(x), ["sin", "cos", "sin"]),
    "function": (lambda f: lambda x: f(x), [torch.sin, torch.cos, double, Model()]),
    "dtype": (lambda d: lambda x: x.to(d), [torch.float64, torch.bfloat16]),
    "set": (lambda s: lambda x: x * sum(s), [{1, 2}, {1, 3}]),
    "array": (lambda a: lambda x: x * float(a.sum()), [_one.numpy(), _two.numpy()]),
    "None": (lambda n: lambda x: x if n is None else x * n, [None, 2]),
    "bytes": (lambda b: lambda x: x * b[0], [b"a", b"b"]),
}
OUTER: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "jit": xf.jit,
    "vmap": lambda f: xf.vmap(f, in_axes=None, axis_size=2),
    "jit of jit": lambda f: xf.jit(lambda x: xf.jit(f)(x)),
    "jit of vjp": lambda f: xf.jit(lambda x: xf.vjp(f, x)[0]),
    "jit of scan": lambda f: xf.jit(lambda x: xf.scan(lambda c, _: (c, f(x)), x, length=1)[1]),
}


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("name", HELD)
def test_a_changed_value_is_never_stale(name: str, outer: str) -> None:
    make, values = HELD[name]
    for value in [*values, *values]:
        got = xf.device_get(OUTER[outer](make(value))(_one))
        want = make(value)(_one)
        if outer == "vmap":
            want = torch.stack([want, want])
        if outer == "jit of scan":
            want = want[None]
        torch.testing.assert_close(got, want)
        assert got.dtype == want.dtype


def test_changed_content_of_what_one_function_holds() -> None:
    numbers, table, options = [1.0, 2.0], {"k": 2}, Options(1.0, [])
    model, count, seen = Model(), 1, {1}

    @xf.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        total = sum(numbers) + table["k"] + options.rate + len(options.names) + count + len(seen)
        return x * total + model.apply(x)

    def check() -> None:
        total = sum(numbers) + table["k"] + options.rate + len(options.names) + count + len(seen)
        want = vector() * total + model.apply(vector())
        for _ in range(2):
            torch.testing.assert_close(xf.device_get(f(vector())), want)

    check()
    numbers.append(3.0)
    check()
    numbers[0] = 7.0
    check()
    table["k"] = 5
    check()
    options.rate = 4.0
    check()
    options.names.append("a")
    check()
    count += 1
    check()
    seen.add(9)
    check()
    model.power = 3
    check()
    model.weight = vector(7, 8, 9)
    check()
    model.weight = vector(7, 8, 9).double()
    check()
    model.weight.mul_(2)
    check()


def test_arguments_that_differ_in_kind() -> None:
    f = xf.jit(lambda t: xf.tree.reduce(torch.add, xf.tree.map(lambda x: x * 2, t)))
    cases: list[Any] = [
        vector(), [vector()], (vector(),), {"a": vector()}, {"b": vector()}, vector().double(),
        vector(1, 2), [vector(), None], [None, vector()], 2.0, 2, True, [vector(), vector()],
    ]  # fmt: skip
    for n, case in enumerate(cases, 1):
        leaves = [
            x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in xf.tree.leaves(case)
        ]
        for _ in range(2):
            torch.testing.assert_close(
                xf.device_get(f(case)), functools.reduce(torch.add, [x * 2 for x in leaves])
            )
        assert xf.trace_count(f) == n


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def test_a_changed_global_mode_is_not_stale() -> None:
    f = xf.jit(lambda x: x.long() + torch.zeros(3) + 0.5)
    assert f(vector()).dtype == torch.float32
    with _default_dtype(torch.float64):
        assert f(vector()).dtype == torch.float64
        assert "global mode" in f.explain()
    assert f(vector()).dtype == torch.float32
    g = xf.jit(lambda a, b: a @ b)
    a = torch.ones(2, 2)
    assert g(a, a).dtype == torch.float32
    with torch.autocast("xla", dtype=torch.bfloat16):
        assert g(a, a).dtype == torch.bfloat16
    assert g(a, a).dtype == torch.float32


def test_a_changed_grad_mode_or_requires_grad_is_not_stale() -> None:
    f = xf.jit(lambda x, w: (x * w).sum())
    for _ in range(2):
        for rx in (False, True):
            for rw in (False, True):
                for on in (False, True):
                    x = xf.device_put(vector()).requires_grad_(rx)
                    w = xf.device_put(vector(4, 5, 6)).requires_grad_(rw)
                    with torch.set_grad_enabled(on):
                        y = f(x, w)
                    assert y.item() == 32
                    assert y.requires_grad == (on and (rx or rw))
                    if y.requires_grad:
                        y.backward()
                        assert (x.grad.tolist() if rx else None) == ([4, 5, 6] if rx else None)
                        assert (w.grad.tolist() if rw else None) == ([1, 2, 3] if rw else None)


# ----------------------------------------------------------------------------- captured tensors


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_captured_tensors_are_inputs(where: str) -> None:
    move = xf.device_put if where == "device" else lambda t: t
    weight = move(vector())

    @xf.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * weight

    for k in range(4):
        assert f(vector()).tolist() == xf.device_get(vector() * weight.cpu()).tolist(), k
        weight.add_(1)  # In place.
        assert f(vector()).tolist() == xf.device_get(vector() * weight.cpu()).tolist(), k
        weight[0] = 9.0
        assert f(vector()).tolist() == xf.device_get(vector() * weight.cpu()).tolist(), k
        weight = move(vector() * k)  # Another tensor.
    assert f.cache_info().traces == 1
    weight.data = move(vector(7, 7, 7))  # By the back door.
    assert f(vector()).tolist() == [7.0, 14.0, 21.0]


@pytest.mark.parametrize(
    "write",
    [lambda t: t.numpy().fill(1.0), lambda t: t.data.fill_(1.0), lambda t: t.detach().fill_(1.0)],
    ids=["numpy", "data", "detach"],
)
def test_a_captured_host_tensor_changed_by_the_back_door(write: Callable[[Any], Any]) -> None:
    weight = vector()
    f = xf.jit(lambda x: x * weight)
    assert f(vector()).tolist() == [1.0, 4.0, 9.0]
    write(weight)
    assert f(vector()).tolist() == [1.0, 2.0, 3.0]


def test_captured_parameters_are_seen_through_an_optimizer() -> None:
    module = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    f = xf.jit(lambda x: module(x).sum())
    for _ in range(3):
        y = f(vector())
        torch.testing.assert_close(xf.device_get(y), module(vector()).sum().detach())
        optimizer.zero_grad()
        y.backward()
        optimizer.step()
    assert f.cache_info().traces <= 2


def test_a_global_is_read_when_traced() -> None:
    """As in JAX; a tensor is an input all the same, so a changed one is seen."""
    f = xf.jit(lambda x: x * GLOBAL)
    assert f(vector()).tolist() == [1.0, 4.0, 9.0]
    GLOBAL.mul_(2)
    try:
        assert f(vector()).tolist() == [2.0, 8.0, 18.0]
    finally:
        GLOBAL.div_(2)


GLOBAL = vector()


def test_a_dead_capture_does_not_lend_its_identity() -> None:
    """A new tensor at the address of a dead one is not taken for it."""
    for k in range(50):
        w = torch.full((3,), float(k))
        assert xf.jit(lambda x, w=w: x + w)(torch.zeros(3)).tolist() == [k] * 3
        del w


def test_nested_staging_does_not_keep_an_outer_value() -> None:
    def outer(x: torch.Tensor, n: int) -> torch.Tensor:
        inner = xf.jit(lambda y: y * x)
        return sum(inner(x + i) for i in range(n))

    f = xf.jit(outer, static_argnums=1)
    for n in (1, 2, 3, 2):
        for x in (vector(), vector(4, 5, 6)):
            want = sum((x + i) * x for i in range(n))
            torch.testing.assert_close(xf.device_get(f(x, n)), want)


# ---------------------------------------------------------------------- clearing, bounds, reports


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
    assert "test_cache.py" in lowered.as_text()
    xf.clear_caches()
    tables = (locations._lines, scopes._stamps, scopes._origins, scopes._kept)
    assert [len(t) for t in tables] == [0] * 4
    assert "multiply" in lowered.as_text()  # without its lines
    assert "test_cache.py" in xf.jit(double).lower(vector()).as_text()


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


def _held(k: Any) -> Any:
    factor = k
    return xf.jit(lambda x, n=0: x * factor)


def _static(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n


def _first(x, *rest, **named):
    return xf.tree.leaves(x)[0] * 2


_X = vector()
_one_shape, _many = torch.ones(3), {f"w{i}": torch.ones(2) for i in range(40)}
_OF_ARGUMENTS: dict[str, tuple[Any, Any, str]] = {
    "shape": ({"w": _one_shape}, {"w": torch.ones(4)}, "x['w'] changed from float32[3] to "),
    "dtype": (_one_shape, _one_shape.double(), "x changed from float32[3] to float64[3]"),
    "number": (_one_shape, 2, "x changed from float32[3] to int64[]"),
    "new": ({"w": _one_shape}, {"w": _one_shape, "b": _one_shape}, "x['b'] is new: float32[3]"),
    "gone": ([_one_shape] * 2, [_one_shape], "x[1] is gone: float32[3]"),
    "nested": ([_one_shape], [[_one_shape]], "x[0][0] is new: float32[3]\nx[0] is gone"),
    "container": ([_one_shape], (_one_shape,), "x changed from list to tuple"),
    "inner": ({"a": [_one_shape]}, {"a": (_one_shape,)}, "x['a'] changed from list to tuple"),
    "None": ({"a": _X, "b": None}, {"a": _X, "b": ()}, "x['b'] changed from NoneType"),
    "many": (
        _many,
        {k: v.double() for k, v in _many.items()},
        "x['w0'] changed from float32[2] to float64[2]\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _OF_ARGUMENTS)
def test_explain_names_the_path(name: str) -> None:
    before, after, says = _OF_ARGUMENTS[name]
    f = xf.jit(functools.partial(_first))
    f.clear_cache()
    f(before)
    assert "first call" in f.explain()
    f(after)
    assert f"last miss: {says}" in f.explain()
    assert len(f.explain()) < 500
    if name == "many":
        assert f.explain().endswith("... and 35 more")


_explained = xf.grad(lambda x, n, **named: xf.tree.leaves(x)[0].sum())
_OF_VALUES = {
    "number": (lambda: _explained(_X, 3), lambda: _explained(_X, 4), "n went from 3 to 4"),
    "type": (lambda: _explained(_X, 1), lambda: _explained(_X, True), "n went from 1 to True"),
    "inside": (
        lambda: _explained(vector(), {"lr": 0.5}),
        lambda: _explained(vector(), {"lr": 0.25}),
        "n['lr'] went from 0.5 to 0.25",
    ),
    "array": (
        lambda: _explained(vector(), 2),
        lambda: _explained(vector(), vector()),
        "n went from 2 to float32[3]",
    ),
    "keyword": (
        lambda: _explained(vector(), 0, train=True),
        lambda: _explained(vector(), 0, train=False),
        "train went from True to False",
    ),
    "nearest": (
        lambda: (_explained(vector(), 7), _explained(torch.ones(5), 9)),
        lambda: _explained(vector(), 8),
        "n went from 7 to 8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _OF_VALUES)
def test_explain_names_values(name: str) -> None:
    before, after, says = _OF_VALUES[name]
    cache = _explained._staged.cache
    cache.clear()
    before()
    after()
    assert cache.last_miss == says


def test_explain_names_static_arguments_and_what_is_held() -> None:
    f = xf.jit(lambda x, n, mode="a": x * n, static_argnames=("n", "mode"))
    f.clear_cache()
    f(vector(), 2)
    f(vector(), 3)
    assert "the static argument n went from 2 to 3" in f.explain()
    f(vector(), 3, mode="b")
    assert "the static argument mode went from not given to 'b'" in f.explain()
    f(vector(1), 3)
    assert "x changed from float32[3] to float32[1]" in f.explain()

    def held(k: Any) -> Any:
        factor = k
        return xf.jit(lambda x: x * factor)

    held(5)(vector())
    held(6)(vector())
    assert "a value that the function holds changed: 5 -> 6 in factor" in held(6).explain()


def test_explain_of_a_class_with_static_fields() -> None:
    def f(x):
        return x.x * 2

    tag = dataclasses.make_dataclass("Tag", ["x", "tag"])
    xf.tree.register_dataclass(tag, meta_fields=("tag",))
    jitted = xf.jit(f)
    jitted(tag(vector(), "a"))
    jitted(tag(vector(), "b"))
    assert "x (Tag) changed in what its class keeps beside its leaves" in jitted.explain()


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


def _asks_a_shape(x: torch.Tensor) -> torch.Tensor:
    """The functions inside hold a traced value of which they never compute with the data."""
    k = x * 2

    def outer(c: torch.Tensor, _: None) -> Any:
        def inner(d: torch.Tensor) -> torch.Tensor:
            return d * k.shape[0] + torch.zeros(k.shape, dtype=k.dtype, device=k.device)

        return xf.scan(lambda d, _: (xf.jit(inner)(d), None), c, None, length=2)[0], None

    return xf.scan(outer, x, None, length=2)[0]


@pytest.mark.parametrize("first", ["jit", "jacrev", "jvp", "vmap"])
@pytest.mark.parametrize("second", ["jit", "jacrev", "jvp", "vmap"])
def test_values_of_an_enclosing_trace_that_are_only_held(first: str, second: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    ways: dict[str, Any] = {
        "jit": lambda f: f(x),
        "jacrev": lambda f: xf.jacrev(f)(x).sum(0),
        "jvp": lambda f: xf.jvp(f, (x,), (x,))[1],
        "vmap": lambda f: xf.vmap(f)(torch.stack([x, x]))[1],
    }
    want = {k: torch.full((3,), 81.0) if k == "jacrev" else 81 * x for k in ways}
    for name in (first, second):
        torch.testing.assert_close(ways[name](xf.jit(_asks_a_shape)).cpu(), want[name])


def _rebinds(x: torch.Tensor) -> torch.Tensor:
    """Cached functions close over variables that get other values before the trace ends."""
    y = x * 2
    a = xf.jit(lambda z: z * y)(x)
    y = xf.cond(a.sum() > 0, lambda: y + 1, lambda: y)
    y, total = xf.scan(lambda c, v: (c * v + y.sum(), v), y, torch.ones(2, 3))
    kept = {"y": y}
    y = xf.checkpoint(lambda z: z * y + kept["y"])(y)
    kept["y"] = total
    return (y * a).sum()


def test_variables_that_are_rebound_after_a_function_was_cached() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])

    def plain(x: torch.Tensor) -> torch.Tensor:
        a = 2 * x * x
        y = 2 * x + 1
        s = y.sum()
        y = y + s
        y = y + s
        return ((y * y + y) * a).sum()

    ways: list[Any] = [
        lambda t, f: f(x),
        lambda t, f: t.grad(f)(x),
        lambda t, f: t.jvp(f, (x,), (x,))[1],
        lambda t, f: t.hessian(f)(x),
        lambda t, f: t.vmap(t.grad(f))(torch.stack([x, x + 1])),
    ]
    for way in ways:
        want = way(torch.func, plain)
        torch.testing.assert_close(way(xf, xf.jit(_rebinds)).cpu(), want)


def test_a_counter_of_runs_counts_traces_once() -> None:
    runs = 0

    def f(x: torch.Tensor) -> torch.Tensor:
        nonlocal runs
        runs += 1
        return x.sin().sum()

    x = torch.ones(3)
    for _ in range(3):
        xf.jit(f)(x)
    assert runs == 1
