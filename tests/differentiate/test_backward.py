"""torch's own autograd through staged functions, against plain torch on the CPU in float64."""

# torch declares gradients as optional.
# pyright: reportReturnType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server

Fun = Callable[..., torch.Tensor]
close = torch.testing.assert_close


def arguments(where: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, generator=g, dtype=torch.float64)
    w = torch.randn(3, 3, generator=g, dtype=torch.float64)
    if where == "device":
        x, w = xf.device_put((x, w))
    return x.requires_grad_(), w.requires_grad_()


def _plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x @ w) * x).sum()


def _plain_loop(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    c = x
    for _ in range(4):
        c = torch.tanh(c @ w) + x
    return c.square().sum()


def _plain_stack(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    c, ys = x, []
    for row in w:
        c = torch.sin(c * row)
        ys.append(c.sum())
    return torch.stack(ys).prod() + c.sum()


def _scan_loop(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    c, _ = xf.scan(lambda c, _: (torch.tanh(c @ w) + x, None), x, length=4)
    return c.square().sum()


def _scan_stack(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def body(c: torch.Tensor, row: torch.Tensor) -> Any:
        c = torch.sin(c * row)
        return c, c.sum()

    c, ys = xf.scan(body, x, w)
    return ys.prod() + c.sum()


def _captured(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return xf.jit(lambda: (torch.tanh(x @ w) * x).sum())()


def _half_captured(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return xf.jit(lambda y: (torch.tanh(y @ w) * x).sum())(x)


def _tree(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    f = xf.jit(lambda p: {"y": torch.tanh(p["x"] @ p["w"][0]), "n": p["k"], "z": None})
    out = f({"x": x, "w": [w], "k": 3})
    assert not out["n"].requires_grad
    return (out["y"] * x.to(out["y"].device)).sum()


def _mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Staged, plain lazy torch_xla, staged."""
    f = xf.jit(lambda a, b: a @ b)
    y = torch.tanh(f(x, w))
    return xf.jit(lambda a, b: (a * b).sum())(y, x)


FUNCTIONS: dict[str, tuple[Fun, Fun]] = {
    "jit": (xf.jit(_plain), _plain),
    "jit of jit": (xf.jit(xf.jit(_plain)), _plain),
    "captured": (_captured, _plain),
    "half captured": (_half_captured, _plain),
    "tree": (_tree, _plain),
    "mixed": (_mixed, _plain),
    "checkpoint": (xf.checkpoint(_plain), _plain),
    "jit of checkpoint": (xf.jit(xf.checkpoint(_plain)), _plain),
    "vmap": (lambda x, w: xf.vmap(torch.dot)(torch.tanh(xf.jit(torch.matmul)(w.T, x))[None],
                                             xf.jit(lambda x: x)(x)[None]).sum(), _plain),
    "scan": (_scan_loop, _plain_loop),
    "jit of scan": (xf.jit(_scan_loop), _plain_loop),
    "scan over a tensor": (_scan_stack, _plain_stack),
    "jit of scan over a tensor": (xf.jit(_scan_stack), _plain_stack),
    "of xf.grad": (
        lambda x, w: xf.grad(_plain)(x, w).square().sum(),
        lambda x, w: torch.autograd.grad(_plain(x, w), x, create_graph=True)[0].square().sum(),
    ),
    "of xf.grad of scan": (
        lambda x, w: xf.grad(_scan_loop)(x, w).square().sum(),
        lambda x, w: torch.autograd.grad(_plain_loop(x, w), x, create_graph=True)[0].square().sum(),
    ),
}  # fmt: skip
CASES = [(n, where) for n in FUNCTIONS for where in ("cpu", "device")]
pairs = pytest.mark.parametrize(("name", "where"), CASES, ids=[f"{n}-{w}" for n, w in CASES])


def _expected(name: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    x, w = arguments()
    y = FUNCTIONS[name][1](x, w)
    y.backward()
    return y.detach(), [x.grad, w.grad]


@pytest.mark.sample(3, seed=0)
@pairs
def test_backward(name: str, where: str) -> None:
    y_want, want = _expected(name)
    for _ in range(2):
        leaves = arguments(where)
        y = FUNCTIONS[name][0](*leaves)
        y.backward()
        close(xf.device_get(y.detach()), y_want)
        close(xf.device_get([t.grad for t in leaves]), want)
        assert all(t.grad.device == t.device for t in leaves)


@pytest.mark.sample(3, seed=0)
@pairs
def test_backward_one_argument_requires_grad(name: str, where: str) -> None:
    _, want = _expected(name)
    for i in (0, 1):
        leaves = arguments(where)
        leaves[1 - i].requires_grad_(False)
        FUNCTIONS[name][0](*leaves).backward()
        close(xf.device_get(leaves[i].grad), want[i])
        assert leaves[1 - i].grad is None


@pytest.mark.sample(3, seed=0)
@pairs
def test_backward_twice(name: str, where: str) -> None:
    def second(fun: Fun, where: str) -> list[torch.Tensor]:
        leaves = arguments(where)
        grads = torch.autograd.grad(fun(*leaves), leaves, create_graph=True)
        sum(g.sin().sum() for g in grads).backward()
        return xf.device_get([g.detach() for g in grads] + [t.grad for t in leaves])

    ours, plain = FUNCTIONS[name]
    close(second(ours, where), second(plain, "cpu"), rtol=1e-9, atol=1e-9)


@pairs
def test_backward_retain_graph_and_accumulation(name: str, where: str) -> None:
    _, want = _expected(name)
    leaves = arguments(where)
    y = FUNCTIONS[name][0](*leaves)
    y.backward(retain_graph=True)
    y.backward()
    FUNCTIONS[name][0](*leaves).backward()
    close(xf.device_get([t.grad for t in leaves]), [3 * g for g in want])
    with pytest.raises(RuntimeError, match=r"second time|freed"):
        y.backward()


@pairs
def test_requires_grad_under_no_grad_and_detach(name: str, where: str) -> None:
    if not name.startswith("of xf"):
        x, w = arguments(where)
        with torch.no_grad():
            assert not FUNCTIONS[name][0](x, w).requires_grad
        assert not FUNCTIONS[name][0](x.detach(), w.detach()).requires_grad
    leaves = arguments(where)
    y = FUNCTIONS[name][0](*leaves)
    assert y.requires_grad
    assert y.grad_fn is not None
    assert not y.detach().requires_grad


@pytest.mark.sample(6, seed=0)
@pairs
def test_torch_func_of_staged_function(name: str, where: str) -> None:
    ours, plain = FUNCTIONS[name]
    x, w = (t.detach() for t in arguments(where))
    a, b = (t.detach() for t in arguments())
    if name.startswith("of xf"):
        plain = {"of xf.grad": _plain, "of xf.grad of scan": _plain_loop}[name]
        close(
            xf.device_get(torch.func.grad(ours, (0, 1))(x, w)),
            torch.func.grad(lambda x, w: torch.func.grad(plain)(x, w).square().sum(), (0, 1))(a, b),
        )
        return
    close(xf.device_get(torch.func.grad(ours, (0, 1))(x, w)), torch.func.grad(plain, (0, 1))(a, b))
    close(
        xf.device_get(torch.func.grad(torch.func.grad(lambda x: ours(x, w)) and (
            lambda x: torch.func.grad(lambda y: ours(y, w))(x).sum()))(x)),
        torch.func.grad(lambda x: torch.func.grad(lambda y: plain(y, b))(x).sum())(a),
    )  # fmt: skip
    out, pullback = torch.func.vjp(ours, x, w)
    close(xf.device_get(pullback(torch.ones_like(out))), torch.func.grad(plain, (0, 1))(a, b))


def test_backward_trains_module() -> None:
    def train(stage: Callable[[Fun], Fun]) -> tuple[list[float], list[torch.Tensor]]:
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
        ).double()
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
        loss = stage(lambda x: module(x).square().mean())
        x = arguments()[1].detach()
        values = []
        for _ in range(5):
            optimizer.zero_grad()
            y = loss(x)
            y.backward()
            optimizer.step()
            values.append(y.item())
        return values, [p.detach().clone() for p in module.parameters()]

    close(train(xf.jit), train(lambda f: f))
    close(train(lambda f: xf.jit(xf.checkpoint(f))), train(lambda f: f))


def test_backward_frozen_parameter() -> None:
    module = torch.nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    f = xf.jit(lambda x: module(x).sum())
    for frozen in (True, False, True):
        module.zero_grad()
        module.bias.requires_grad_(not frozen)
        f(torch.ones(3)).backward()
        assert module.weight.grad.tolist() == [[1.0] * 3] * 2
        assert (module.bias.grad is None) == frozen
    other = copy.deepcopy(module)
    assert xf.jit(lambda x: other(x).sum())(torch.ones(3)).requires_grad


def test_backward_of_several_outputs() -> None:
    f = xf.jit(lambda x: (x.sin(), x.cos(), x.detach(), x.long(), x))
    x = xf.device_put(arguments()[0].detach()).requires_grad_()
    out = f(x)
    assert [o.requires_grad for o in out] == [True, True, False, False, True]
    out[0].sum().backward(retain_graph=True)
    close(xf.device_get(x.grad), x.detach().cpu().cos())
    (out[1] * out[4]).sum().backward()
    p = x.detach().cpu()
    close(xf.device_get(x.grad), p.cos() + p.cos() - p * p.sin())


def test_backward_hooks_and_unused_arguments() -> None:
    f = xf.jit(lambda x, unused, n: (x * 3).sum())
    x, w = arguments("device")
    seen: list[list[float]] = []
    x.register_hook(lambda g: seen.append(g.tolist()))
    f(x, w, torch.tensor([1, 2])).backward()
    assert seen == [[3.0, 3.0, 3.0]]
    assert w.grad is None or not w.grad.any()
    y = x * 2  # Not a leaf.
    y.retain_grad()
    f(y, w, 1).backward()
    assert y.grad.tolist() == [3.0, 3.0, 3.0]


def test_jit_gradcheck() -> None:
    x, w = arguments()
    f = xf.jit(_plain)
    assert torch.autograd.gradcheck(lambda x, w: f(x, w).cpu(), (x, w))
    assert torch.autograd.gradgradcheck(lambda x, w: f(x, w).cpu(), (x, w))


def test_backward_traces_once() -> None:
    f = xf.jit(_plain)
    f.clear_cache()
    for k in range(4):
        x, w = arguments("device")
        (f(x, w) * k).backward()
    assert f.cache_info().traces <= 2
    assert f.cache_info().size <= 2


def _slopes(x: torch.Tensor) -> torch.Tensor:
    """3 sin(x)² cos(x)², as libraries write it: flows that are monotonic, energies, scores."""
    with torch.enable_grad():
        x = x.clone()
        x.requires_grad_()
        y = (x.sin() ** 3).sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
    return slope * x.cos()


@pytest.mark.parametrize(
    "transform",
    [
        lambda fun: lambda x: xf.jvp(fun, (x,), (x + 1,))[1],
        lambda fun: xf.jit(xf.jacfwd(fun)),
        lambda fun: xf.jacrev(fun),
        lambda fun: xf.hessian(lambda x: fun(x).square().sum()),
        lambda fun: lambda x: xf.linearize(fun, x)[1](x + 1),
        lambda fun: lambda x: xf.vmap(xf.grad(lambda x, s: fun(x * s).sum()), (None, 0))(x, x),
        lambda fun: lambda x: xf.vmap(lambda s: xf.jvp(fun, (x * s,), (x,))[1])(x),
        lambda fun: (
            lambda x: xf.jvp(
                lambda x: xf.scan(lambda c, _: (fun(c), None), x, length=2)[0], (x,), (x + 1,)
            )[1]
        ),
    ],
)
def test_autograd_grad_of_a_copy_in_transforms(transform: Any) -> None:
    x = torch.tensor([0.3, 0.7, 1.1], dtype=torch.float64)
    want = transform(lambda x: 3 * x.sin() ** 2 * x.cos() ** 2)(x)
    torch.testing.assert_close(transform(_slopes)(x).cpu(), want.cpu())


def test_autograd_in_transforms_that_torch_would_not_follow_is_refused() -> None:
    x, match = torch.rand(3), r"torch\.autograd does not follow values that vmap batches"
    with pytest.raises(xf.errors.UnsupportedOpError, match=match):
        xf.vmap(_slopes)(torch.stack([x, x]))

    def product(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.functional.vjp(torch.sin, x, x, create_graph=True)[1]

    with pytest.raises(xf.errors.UnsupportedOpError, match=match):
        xf.jvp(product, (x,), (x,))


def test_autograd_grad_to_fourth_order() -> None:
    x = xf.device_put(torch.tensor(0.7, dtype=torch.float64)).requires_grad_()
    y = xf.jit(lambda x: x.sin())(x)
    for want in ("cos", "-sin", "-cos", "sin"):
        (y,) = torch.autograd.grad(y, x, create_graph=True)
        value = getattr(torch, want.lstrip("-"))(torch.tensor(0.7, dtype=torch.float64))
        close(xf.device_get(y.detach()), -value if want[0] == "-" else value)


LATE = """
import torch, xfunc as xf
w = torch.ones(3, requires_grad=True)
(w * 2).sum().backward()  # Starts torch's autograd threads, before torch_xla is loaded.
assert xf.grad(lambda x: (x * x).sum())(torch.ones(3)).tolist() == [2.0] * 3
w.grad = None
xf.jit(lambda x: (x * x).sum())(w).backward()
assert w.grad.tolist() == [2.0] * 3
print("survived")
"""


def test_backward_on_cpu_before_device_starts(fresh: Server) -> None:
    done = fresh.run(LATE)
    assert "survived" in done.stdout, done.stdout + done.stderr


def test_vmap_of_vmap_of_grad_with_partly_batched_closure() -> None:
    """vmap of vmap of grad, where a nested function has no argument that the outer one maps."""

    def f(x: Any, w: Any) -> Any:
        return xf.jit(lambda a, b: a * xf.jit(lambda c: c.sin())(b).sum())(x, w).square().sum()

    def plain(x: Any, w: Any) -> Any:
        return (x * w.sin().sum()).square().sum()

    def per_example(vmap: Any, grad: Any, f: Any) -> Any:
        inner = vmap(grad(f, argnums=(0, 1)), (None, 0))
        return vmap(inner, (0, None))

    x, w = torch.randn(2, 8, dtype=torch.float64), torch.randn(3, 8, 8, dtype=torch.float64)
    got = per_example(xf.vmap, xf.grad, f)(x, w)
    want = per_example(torch.func.vmap, torch.func.grad, plain)(x, w)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.cpu(), b)


def in_scan(f: Any) -> Any:
    return lambda a: xf.scan(lambda c, _: (f(c), None), a, length=1)[0]


def in_cond(f: Any) -> Any:
    return lambda a: xf.cond(a.sum() > 0, f, f, a)


@pytest.mark.parametrize("wrap", [xf.jit, xf.checkpoint, in_scan, in_cond])
def test_grad_of_grad_mixed_second_derivative(wrap: Any) -> None:
    """What the outer gradient is taken of reaches the inner function by its cotangent only."""

    def first(x: Any, w: Any) -> Any:
        return xf.grad(lambda x, w: (wrap(lambda a: a * a)(x) * w).sum())(x, w).square().sum()

    x, w = torch.rand(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    torch.testing.assert_close(xf.grad(first, 1)(x, w).cpu(), 8 * x * x * w)

    def examples(x: Any, w: Any) -> Any:
        one = xf.vmap(lambda a: xf.grad(lambda y: (wrap(lambda z: z * z)(y) * w).sum())(a))
        return one(x[:, None]).square().sum()

    torch.testing.assert_close(
        xf.grad(examples, 1)(x, w).cpu(), 8 * (x * x).sum() * w.sum() * torch.ones(3).double()
    )


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_backward_anomaly_mode() -> None:
    """It reads gradients to find NaN: not those of a trace, but those of its program."""
    fun = xf.jit(lambda x: x.sqrt())
    good, bad = torch.ones(2, requires_grad=True), torch.full((2,), -1.0, requires_grad=True)
    with torch.autograd.detect_anomaly():
        fun(good).sum().backward()
        with pytest.raises(RuntimeError, match="returned nan values in its 0th output"):
            fun(bad).sum().backward()
        assert torch.is_anomaly_check_nan_enabled()
        assert xf.grad(lambda x: x.sqrt().sum())(torch.ones(2)).tolist() == [0.5, 0.5]
    assert good.grad is not None
    assert good.grad.tolist() == [0.5, 0.5]


def _square(x: Any) -> Any:
    return x.sin() * x


def _both_passes(x: Any) -> Any:
    forward, backward = xf.fwd_and_bwd(_square, 0)
    out, residuals = forward(x)
    return out, backward(residuals, x.exp())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda x: xf.vjp(_square, x)[0], _square),
        (
            lambda x: xf.vjp(_square, x)[1](x.exp()),
            lambda x: torch.func.vjp(_square, x)[1](x.exp()),
        ),
        (
            lambda x: xf.vjp(_square, x.detach())[1](x.exp()),
            lambda x: torch.func.vjp(_square, x.detach())[1](x.exp()),
        ),
        (lambda x: xf.linearize(_square, x)[0], _square),
        (
            lambda x: xf.linearize(_square, x)[1](x.exp()),
            lambda x: torch.func.jvp(_square, (x,), (x.exp(),))[1],
        ),
        (
            lambda x: xf.linearize(_square, x.detach())[1](x.exp()),
            lambda x: torch.func.jvp(_square, (x.detach(),), (x.exp(),))[1],
        ),
        (_both_passes, lambda x: (_square(x), torch.func.vjp(_square, x)[1](x.exp())[0])),
    ],
    ids=["vjp", "pullback", "cotangent", "linearize", "push", "tangent", "both passes"],
)
def test_backward_through_results_in_two_steps(ours: Any, theirs: Any) -> None:
    """Functions that return a function, whose residuals are kept unless a gradient is taken."""
    grads = []
    for fun in ours, theirs:
        x = torch.linspace(-1, 2, 5, dtype=torch.float64, requires_grad=True)
        loss = torch.stack([leaf.cos().sum() for leaf in xf.tree.leaves(fun(x))]).sum()
        loss.backward()
        grads.append(x.grad)
    close(*grads)
