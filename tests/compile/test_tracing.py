"""What tracing records, moves and keeps; and the upstream defects that it works around."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

MOVED_OR_RUN = {
    "TransferToDeviceTime",
    "OutboundData",
    "TransferFromDeviceTime",
    "InboundData",
    "ExecuteTime",
    "CompileTime",
}


NEVER_THE_SAME = itertools.count(3)


def activity(f: Callable[[], Any]) -> set[str]:
    """Which transfers, executions and compilations the runtime records during a call."""
    if os.environ.get("XFUNC_BACKEND") == "pjrt":
        return activity_of_jax(f)
    import torch_xla.debug.metrics as metrics  # pyright: ignore[reportMissingImports]

    metrics.clear_all()
    f()
    return MOVED_OR_RUN & set(metrics.metric_names())


def activity_of_jax(f: Callable[[], Any]) -> set[str]:
    import jax

    arrays, events = len(jax.live_arrays()), len(compilations())
    kept = f()
    moved = {"live arrays"} if len(jax.live_arrays()) != arrays else set()
    del kept
    return moved | set(compilations()[events:])


@functools.cache
def compilations() -> list[str]:
    """JAX's events of compilations, from the first call on."""
    import jax

    found: list[str] = []

    def note(event: str, duration_secs: float, **_: object) -> None:
        if "backend_compile" in event:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    return found


def literals(x: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    index = torch.tensor([1, 0])
    return (table[index] + torch.tensor(2.5) + torch.arange(2) + x * 3).sum()


@pytest.mark.parametrize(
    "make",
    [
        lambda f: f,
        lambda f: xf.grad(f),
        lambda f: lambda x: xf.jvp(f, (x,), (x,)),
        xf.hessian,
    ],
)
@pytest.mark.usefixtures("executables_not_kept")
def test_lower_transfers_and_runs_nothing(make: Callable[[Any], Any]) -> None:
    x = xf.ShapeDtypeStruct((2,), torch.float32)
    xf.device_put(torch.ones(2))  # The device client is up before anything is counted.
    n = next(NEVER_THE_SAME)
    assert activity(lambda: xf.jit(lambda x: x * n)(torch.ones(2)).tolist())
    assert activity(lambda: xf.jit(make(literals)).lower(x)) == set()


def test_jit_literals_are_constants() -> None:
    got = xf.jit(literals)(torch.ones(2))
    torch.testing.assert_close(got.cpu(), literals(torch.ones(2)))
    text = xf.jit(literals).lower(torch.ones(2)).as_text()
    assert "constant({ { 1, 2 }, { 3, 4 } })" in text
    assert "ENTRY %literals" in text
    assert text.split("ENTRY")[1].count("parameter(") == 1


def test_scan_body_traced_once_in_training_step() -> None:
    runs = {"loss": 0, "body": 0}

    def body(c: torch.Tensor, w: torch.Tensor) -> Any:
        runs["body"] += 1
        return torch.tanh(c @ w), None

    def loss(ws: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        runs["loss"] += 1
        return xf.scan(body, x, ws)[0].sum()

    step = xf.jit(lambda ws, x: xf.value_and_grad(loss)(ws, x))
    for _ in range(3):
        step(torch.ones(4, 3, 3), torch.ones(2, 3))
    assert runs == {"loss": 1, "body": 1}


def test_scan_is_one_loop_for_any_length() -> None:
    def lowered(n: int) -> str:
        x = xf.ShapeDtypeStruct((n, 3), torch.float32)
        f = xf.value_and_grad(lambda x: xf.scan(lambda c, v: (c * v.sin(), c), x[0], x)[0].sum())
        return xf.jit(f).lower(x).as_text()

    assert lowered(7).count(" while(") == lowered(70).count(" while(") == 2
    assert lowered(7).count(" = ") == lowered(70).count(" = ")


@pytest.mark.parametrize("read", [lambda r: r[:2], lambda r: r.to(torch.float32), torch.clone])
def test_scan_body_capturing_traced_value_reused_by_grad(
    read: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def f(x: torch.Tensor, ws: torch.Tensor) -> torch.Tensor:
        r = x * 2
        return xf.scan(lambda c, w: (c * w + read(r).sum() + len(r), None), x, ws)[0].sum()

    x, ws = torch.ones(3), torch.full((4, 3), 0.5)
    value = xf.jit(f)(x, ws)
    again, _ = xf.value_and_grad(f)(x, ws)
    assert value.item() == again.item()


TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "jit": xf.jit,
    "vmap": xf.vmap,
    "grad": lambda f: xf.grad(lambda x: f(x).sum()),
    "jacfwd": xf.jacfwd,
    "hessian": lambda f: xf.hessian(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: xf.jvp(f, (x,), (x,))[1],
    "torch.func.jvp of jit": lambda f: lambda x: torch.func.jvp(xf.jit(f), (x,), (x,))[1],
    "torch.func.jacfwd of jit": lambda f: torch.func.jacfwd(xf.jit(f)),
    "torch.func.hessian of jit": lambda f: torch.func.hessian(xf.jit(lambda x: f(x).sum())),
    "torch.func.grad of jit": lambda f: torch.func.grad(xf.jit(lambda x: f(x).sum())),
}


class Sine(torch.autograd.Function):
    """Whose tangent is zero in inference mode in older versions of torch."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, tangent: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tangent * ctx.saved_tensors[0].cos()


with torch.inference_mode():
    _slope: Any = torch.func.jvp(Sine.apply, (torch.zeros(1),), (torch.ones(1),))[1]
MODES: list[Any] = [torch.inference_mode, torch.no_grad]
CASES = [
    (name, mode)
    for name in TRANSFORMED
    for mode in MODES[1 if "torch.func" in name and not _slope.any() else 0 :]
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_transforms_in_inference_mode_and_no_grad(name: str, mode: Any) -> None:
    x, c = torch.tensor([0.3, 2.0, -1.0]), torch.tensor([1.5, -0.5, 3.0])

    def of(c: torch.Tensor) -> Any:
        return TRANSFORMED[name](lambda x: x.sin() * c.sum() * x)

    want = of(c)(x)
    outside = [xf.device_put(t) for t in (x, c)]
    with mode():
        inside = [x.clone(), c.clone()]
        for a, b in ((x, c), outside, inside, (outside[0], inside[1])):
            torch.testing.assert_close(of(b)(a).cpu(), want.cpu())


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_in_inference_mode_and_no_grad_within_a_trace(name: str, mode: Any) -> None:
    x, c = torch.tensor([0.3, 2.0, -1.0]), torch.tensor([1.5, -0.5, 3.0])

    def of(x: torch.Tensor) -> Any:
        return TRANSFORMED[name](lambda x: x.sin() * c.sum() * x)(x * 1)

    def within(x: torch.Tensor) -> Any:
        with mode():
            return of(x)

    torch.testing.assert_close(xf.jit(within)(x).cpu(), of(x).cpu())


def test_inference_mode_within_a_trace_makes_values_without_derivative() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            factor = x[1:].unsqueeze(0).t().clone().mul_(2)
            with torch.inference_mode(False):
                again = x.view(1, 3) * 3
        return (x * factor.flatten().sum() + again).sum()

    x = torch.tensor([1.0, 2.0, 3.0])
    value, slope = xf.jit(xf.value_and_grad(loss))(x)
    assert value.item() == 78
    assert slope.tolist() == [13.0] * 3
    assert xf.jvp(loss, (x,), (torch.ones(3),))[1].item() == 39
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (torch, "is_autocast_enabled"),
        (torch.autocast, "__init__"),
        (torch.inference_mode, "__enter__"),
        (torch.compiler, "is_compiling"),
    ],
)
def test_function_of_torch_that_is_replaced_between_traces_stays(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    xf.eval_shape(torch.sin, torch.ones(2))
    usual = getattr(owner, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return usual(*args, **kwargs)

    monkeypatch.setattr(owner, name, replaced)
    xf.eval_shape(torch.cos, torch.ones(2))
    assert getattr(owner, name) is replaced


def test_scan_checkpoint_policy_changes_residuals() -> None:
    def residual_bytes(policy: Any) -> str:
        def body(c: torch.Tensor, w: torch.Tensor) -> Any:
            return torch.tanh(torch.tanh(c @ w) @ w), None

        def loss(ws: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return xf.scan(body, x, ws, checkpoint_policy=policy)[0].sum()

        shapes = (
            xf.ShapeDtypeStruct((5, 3, 3), torch.float32),
            xf.ShapeDtypeStruct((2, 3), torch.float32),
        )
        return xf.jit(xf.grad(loss)).lower(*shapes).as_text()

    keep = residual_bytes(xf.checkpoint_policies.everything_saveable)
    recompute = residual_bytes(xf.checkpoint_policies.nothing_saveable)
    # Everything: both tanh and the carry are stacked. Nothing: the carry alone.
    assert keep.count("f32[5,2,3]{2,1,0} dynamic-update-slice") == 3
    assert recompute.count("f32[5,2,3]{2,1,0} dynamic-update-slice") == 1
    assert recompute.count("tanh(") == keep.count("tanh(") + 2


def test_checkpoint_recomputes_behind_barrier() -> None:
    f = xf.checkpoint(lambda x: torch.sin(torch.sin(x)).sum())
    text = xf.jit(xf.grad(f)).lower(xf.ShapeDtypeStruct((3,), torch.float32)).as_text()
    assert "opt-barrier" in text


def test_inference_mode_turns_multithreaded_autograd_on() -> None:
    """Why `Trace` sets the mode of autograd's threads after the inference mode."""
    with torch.autograd.set_multithreading_enabled(False), torch.inference_mode(False):
        assert torch._C._is_multithreading_enabled()


def test_grad_and_value_and_grad_do_not_share_programs() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * x).sum()

    x = torch.ones(2)
    value, gradient = xf.value_and_grad(f)(x)
    assert value.item() == 2.0
    assert xf.grad(f)(x).tolist() == gradient.tolist() == [2.0, 2.0]


def test_block_until_ready_returns_its_argument() -> None:
    y = xf.jit(lambda x: {"a": x + 1})(torch.ones(2))
    assert xf.block_until_ready(y) is y


def test_vjp_of_integer_output_names_path() -> None:
    with pytest.raises(TypeError, match=r"returned int64\[2\] at output\['n'\], which is not fl"):
        xf.vjp(lambda x: {"n": x.long(), "x": x}, torch.ones(2))


def test_jit_leaked_constant_names_its_line() -> None:
    kept = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        kept.append(torch.tensor([1.0, 2.0] * 4_000))
        return y

    line = f.__code__.co_firstlineno + 2
    with pytest.raises(
        xf.errors.LeakError, match=rf"torch\.tensor.*\n.*test_tracing.py:{line} in f"
    ):
        xf.jit(f)(torch.ones(2))


@pytest.mark.parametrize(
    "transform",
    [
        xf.jit,
        lambda fun: lambda x: xf.grad(lambda x: fun(x).sum())(x),
        lambda fun: lambda x: xf.jvp(fun, (x,), (x,))[1],
        lambda fun: lambda x: xf.vmap(xf.jacrev(fun))(torch.stack([x, 2 * x])),
        lambda fun: lambda x: xf.scan(lambda c, _: (fun(c), None), x, length=2)[0],
        lambda fun: xf.jit(lambda x: xf.jit(fun)(x) + xf.checkpoint(fun)(x)),
        lambda fun: lambda x: xf.linearize(fun, x)[1](x),
    ],
)
def test_constants_that_code_keeps_get_their_data(transform: Any) -> None:
    kept: dict[int, torch.Tensor] = {}

    @functools.cache
    def table(n: int) -> torch.Tensor:
        return torch.arange(n) / 4 + torch.tensor([1.0, 2.0, 3.0])

    def fun(x: torch.Tensor, keeps: bool = True) -> torch.Tensor:
        n = len(x)
        if not keeps:
            return (x * (torch.arange(n) / 4 + torch.tensor([1.0, 2.0, 3.0])) * 2).sin()
        if n not in kept:
            kept[n] = table(n) * 2
        return (x * kept[n]).sin()

    x = torch.tensor([0.1, 0.2, 0.3])
    want = transform(lambda x: fun(x, False))(x)
    for _ in range(2):
        torch.testing.assert_close(transform(fun)(x).cpu(), want.cpu())
    assert kept[3].tolist() == [2.0, 4.5, 7.0]
    assert table(3).tolist() == [1.0, 2.25, 3.5]


def test_constants_that_code_keeps_get_their_data_where_a_trace_fails() -> None:
    @functools.cache
    def table() -> torch.Tensor:
        return torch.arange(3.0)

    def fun(x: torch.Tensor) -> torch.Tensor:
        return x * table() if x.sum() > 0 else x

    with pytest.raises(xf.errors.ConcretizationError, match="reads a traced value"):
        xf.jit(fun)(torch.ones(3))
    assert table().tolist() == [0.0, 1.0, 2.0]


def test_assigning_to_data_what_it_is() -> None:
    def fun(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        w.data = w.data.to(x.device, x.dtype)
        return (w * x).sin().sum()

    w, x = torch.tensor([0.5, 1.0]), torch.tensor([2.0, -1.0])
    torch.testing.assert_close(xf.jit(xf.grad(fun))(w, x).cpu(), x * (w * x).cos())
    with pytest.raises(xf.errors.PurityError, match=r"assigning to \.data changes"):
        xf.jit(fun)(w, x.double())
