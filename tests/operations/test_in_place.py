"""Changes in place, as in plain torch: operations, their derivatives, and what is refused."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
X = torch.tensor([0.5, 0.25, -1.0])
M = torch.tensor([[0.5, 0.25, 1.0], [1.0, 2.0, 4.0], [3.0, 1.0, 2.0]])


@pytest.mark.filterwarnings("error")
def test_masked_scatter_in_place_under_hessian() -> None:
    mask = torch.tensor([True, False, True])

    def fun(x: Tensor) -> Tensor:
        y = x % 0.5
        y.masked_scatter_(mask, x.clone())
        return y.sin().sum() + x.sin().sum()

    x = torch.tensor([1.5625, 0.0625, 1.1875], dtype=torch.float64)
    h = 1e-5  # torch's own jacfwd of a gradient is wrong here.
    gradient = torch.func.grad(fun)
    want = [(gradient(x + h * e) - gradient(x - h * e)) / (2 * h) for e in torch.eye(3)]
    for hessian in (xf.hessian(fun), xf.jacrev(xf.grad(fun))):
        torch.testing.assert_close(hessian(x).cpu(), torch.stack(want), rtol=1e-7, atol=1e-9)


def shift(x: Tensor, k: Tensor) -> Tensor:
    y = x.clone()
    y[1:] = x[:-1]
    return y


def diffuse(x: Tensor, k: Tensor) -> Tensor:
    y = x.clone()
    y[1:-1] += 0.1 * (x[2:] - 2 * x[1:-1] + x[:-2])
    return y


def roll_row(x: Tensor, k: Tensor) -> Tensor:
    return x.index_copy(0, k[None], x[k].roll(1)[None])


def add_to_row(x: Tensor, k: Tensor) -> Tensor:
    return x.index_add(0, k[None], x.index_select(0, k[None]).roll(1, 1))


AROUND: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "a new dimension": lambda f, x: f(x + 1)[None],
    "a row of one": lambda f, x: f(x[None][0]).cumsum(0),
    "reshaped": lambda f, x: f(x + 1).reshape(2, -1) * 1,
    "map": lambda f, x: xf.map(lambda row: f(row).cumsum(0), torch.stack([x, -x])),
    "loop": lambda f, x: xf.fori_loop(0, 3, lambda _, x: f(x).sort(0)[0], x),
    "scan": lambda f, x: xf.scan(lambda c, _: (f(c), f(c)), x, None, length=3)[1],
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("fun", [shift, diffuse, roll_row, add_to_row])
def test_part_is_overwritten_with_another(fun: Callable[..., Tensor], around: str) -> None:
    """XLA reads what it has written already: https://github.com/openxla/xla/issues/49176."""
    x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    k = torch.tensor(2)

    def run(x: Tensor) -> Tensor:
        return AROUND[around](lambda x: fun(x, k), x)

    def loss(x: Tensor) -> Tensor:
        return (run(x) ** 2).sum()

    with xf.disable_jit():
        want = run(x)
    torch.testing.assert_close(xf.jit(run)(x).cpu(), want)
    if around not in ("map", "loop", "scan"):
        torch.testing.assert_close(xf.grad(loss)(x).cpu(), torch.func.grad(loss)(x))


# -- operations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.lerp_(M.double(), 0.5),
        lambda x: x.lerp_(M.double(), M.double().cos()),
        lambda x: x.polygamma_(1),
        lambda x: x.add_(x * 3, alpha=2),
        lambda x: x.index_put_((torch.tensor([0, 1, 0]),), x[0] * 2, accumulate=True),
        lambda x: torch.mul(x, M, out=x),
        lambda x: torch.cumsum(x, 0, out=x),
        lambda x: torch.where(x > 1, x, x * 2, out=x),
    ],
)
def test_in_place_operation_derivatives(change: Callable[[Tensor], Any]) -> None:
    """Next to the same change without a transform, by differences."""

    def fun(x: Tensor) -> Tensor:
        y = x.clone()
        change(y)
        return y

    wide, step = M.double() + 0.1, 1e-6
    direction = wide.cos()
    value, slope = xf.device_get(xf.jvp(fun, (wide,), (direction,)))
    want = (fun(wide + step * direction) - fun(wide - step * direction)) / (2 * step)
    torch.testing.assert_close(value, fun(wide))
    torch.testing.assert_close(slope, want, atol=1e-6, rtol=1e-6)
    (back,) = xf.vjp(fun, wide)[1](direction)
    torch.testing.assert_close((xf.device_get(back) * direction).sum(), (want * direction).sum())


def test_out_argument_holds_the_results() -> None:
    def fun(x: Tensor) -> tuple[Tensor, ...]:
        values, places = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
        found = torch.max(x, 0, out=(values, places))
        return values, places, found.values + 1, found.indices

    torch.testing.assert_close(xf.device_get(xf.jit(fun)(M)), fun(M))


def test_out_argument_of_integer_dtype_raises() -> None:
    def fun(x: Tensor) -> Tensor:
        return torch.add(x, 1.5, out=torch.zeros(3, 3, dtype=torch.int64))

    with pytest.raises(RuntimeError, match="can't be cast"):
        xf.jit(fun)(M)


def _into_empty(x: Tensor) -> tuple[Tensor, ...]:
    more, rank = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    values, places = torch.zeros(0), torch.zeros(2, 0, dtype=torch.int64)
    torch.add(x, 1, out=more)
    torch.linalg.matrix_rank(torch.outer(x, x), out=rank)
    torch.sort(x, out=(values, places))
    return more, rank, values, places


def test_empty_out_argument_gets_the_shape_of_the_result() -> None:
    found, mapped = xf.device_get((xf.jit(_into_empty)(X), xf.vmap(_into_empty)(M)))
    torch.testing.assert_close(found, _into_empty(X))
    torch.testing.assert_close(
        mapped, tuple(map(torch.stack, zip(*map(_into_empty, M), strict=True)))
    )


def test_derivative_through_empty_out_argument() -> None:
    def fun(x: Tensor) -> Tensor:
        return torch.mul(x, x, out=torch.zeros(0)).sum()

    torch.testing.assert_close(xf.device_get(xf.grad(fun)(X)), 2 * X)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda out: torch.linspace(0, 1, 7, out=out), (7,)),
        (lambda out: torch.logspace(0, 1, 7, out=out), (7,)),
        (lambda out: torch.full((2, 3), 2.7, out=out), (2, 3)),
        (lambda out: torch.eye(3, out=out), (3, 3)),
        (lambda out: torch.zeros(3, out=out), (3,)),
        (lambda out: torch.ones(3, out=out), (3,)),
        (lambda out: torch.arange(0, 3, out=out), (3,)),
    ],
)
def test_factory_computes_in_the_dtype_of_out(
    make: Callable[[Tensor], Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    def fun() -> Tensor:
        return make(torch.zeros(shape, dtype=dtype))

    torch.testing.assert_close(xf.device_get(xf.jit(fun)()), fun())


WIDE = torch.float64


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.sort(x, out=(M.to(WIDE), torch.zeros(3, 3, dtype=torch.int64))),
        lambda x: torch.sort(x, out=(M.clone(), torch.zeros(3, 3, dtype=torch.int32))),
        lambda x: torch.mm(x, x, out=M.to(WIDE)),
        lambda x: torch.matmul(x[0], x[1], out=torch.zeros((), dtype=WIDE)),
        lambda x: torch.addmm(x, x, x, out=M.to(torch.bfloat16)),
        lambda x: torch.gather(x, 0, torch.zeros(1, 3, dtype=torch.int64), out=M[:1].to(WIDE)),
        lambda x: torch.linalg.qr(x, out=(M.to(WIDE), M.to(WIDE))),
        lambda x: torch.isin(x, x[0], out=M.clone()),
        lambda x: torch.mean(x * 1j, out=torch.zeros(())),
        lambda x: torch.linalg.cross(x, x, out=M.to(WIDE)),
        lambda x: torch.logcumsumexp(x, 0, out=M.to(WIDE)),
        lambda x: torch.fft.irfft(x[0] + 0j, out=torch.zeros(4, dtype=torch.int64)),
        lambda x: torch.any(x, 0, out=X.clone()),
        lambda x: torch.signbit(x, out=M.clone()),
        lambda x: torch.kthvalue(x, 1, out=(X.to(WIDE), X.long())),
        lambda x: torch.gather(
            x[0, 0], 0, torch.zeros((), dtype=torch.int64), out=X.sum().to(WIDE)
        ),
    ],
)
def test_out_argument_of_dtype_that_torch_refuses(call: Callable[[Tensor], Any]) -> None:
    """Though the result could be cast."""
    with pytest.raises(RuntimeError, match=r"type|output|bool") as refused:
        call(M)
    with pytest.raises(RuntimeError, match=re.escape(str(refused.value))) as found:
        xf.jit(call)(M)
    assert "Hint: give `out` the dtype of the result" in "".join(found.value.__notes__)


@pytest.mark.sample(3, seed=0)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("word", "sum nansum prod cumsum cumprod all any mean".split())
def test_out_argument_of_other_dtype_in_reductions(word: str, dtype: torch.dtype) -> None:
    """torch computes some in the dtype of `out`, and lets others cast as nowhere else."""
    func = getattr(torch, word)

    def fun(x: Tensor) -> Tensor:
        out = torch.zeros(x.shape if word.startswith("cum") else (), dtype=dtype)
        return func(x, 0, out=out)

    given = [torch.tensor(1.5), torch.tensor([1.5, 0.5]), torch.tensor([3, 200], dtype=torch.uint8)]
    for x in [*given, torch.tensor([True, False]), torch.tensor([1.5 + 0.5j, 1j])]:
        try:
            want = fun(x)
        except (RuntimeError, IndexError):
            continue
        torch.testing.assert_close(xf.device_get(xf.jit(fun)(x)), want)


@pytest.mark.parametrize("shape", [(), (0,), (3,)])
def test_cumprod_in_int8(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    got = xf.jit(lambda x: torch.cumprod(x, 0, dtype=torch.int8))(x)
    torch.testing.assert_close(xf.device_get(got), torch.cumprod(x, 0, dtype=torch.int8))


def test_tensor_set_under_vmap_is_refused() -> None:
    """torch.func leaves the tensor as it was, without an error."""
    with pytest.raises(xf.errors.UnsupportedOpError, match="gives a tensor other memory"):
        xf.vmap(lambda x: (x * 2).set_(torch.ones(3)))(M)


# -- vmap -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda z, a: z.add_(a),
        lambda z, a: z.__setitem__(0, a),
        lambda z, a: z.__setitem__(a > 0, 1.0),
        lambda z, a: torch.add(z, a, out=z),
        lambda z, a: z.index_put_((torch.tensor([0]),), a),
        lambda z, a: z.copy_(a),
    ],
)
def test_vmap_in_place_write_into_tensor_made_inside(
    write: Callable[[Tensor, Tensor], Any],
) -> None:
    def fun(a: Tensor) -> Tensor:
        z = torch.zeros(3)
        write(z, a)
        return z

    want = torch.stack([fun(a) for a in X])
    torch.testing.assert_close(xf.device_get(xf.vmap(fun)(X)), want)
    with pytest.raises(xf.errors.PurityError, match=r"that the mapped function did not make"):
        xf.jit(torch.func.vmap(fun))(X)


# -- forward mode of a part that has no floating result -------------------------------------------


@pytest.mark.parametrize("inner", [xf.checkpoint, xf.jit])
def test_jvp_of_inner_function_with_integer_result(inner: Callable[..., Any]) -> None:
    def fun(x: Tensor) -> Tensor:
        return x * inner(lambda a, n: n + 1)(x, torch.arange(3)).sum()

    got = xf.jvp(fun, (X,), (X,))
    torch.testing.assert_close(xf.device_get(got), (X * 6, X * 6))


def _changed_after_use(x: Tensor) -> Tensor:
    y = x * 2
    z = xf.checkpoint(torch.sin)(y)
    y += 1
    return (y * z).sum()


def _with_other_memory(x: Tensor) -> Tensor:
    y = torch.ones(4) * 2
    y.set_(torch.cat([x, x]))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return y.sum()


def _resized(x: Tensor) -> Tensor:
    y = x * 2
    return y.resize_(2, 2).sum()


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda: xf.grad(_changed_after_use)(ONES), "is changed in place after it was used"),
        (lambda: xf.vmap(_with_other_memory)(ONES.expand(2, 4)), "gives a tensor other memory"),
        (lambda: xf.jvp(_resized, (ONES,), (ONES,)), "gives a tensor other memory"),
        (
            lambda: xf.jit(lambda x: torch.add(x.sum(), 1, out=x.clone()))(ONES),
            r"add gives float32\[\], but `out` has another shape \(float32\[4\]\)",
        ),
        *(
            (lambda out=out: xf.jit(out)(ONES, ONES[:0]), r"another shape \(float32\[0\]\)")
            for out in (
                lambda x, y: torch.add(x, 1, out=y),
                lambda x, y: torch.add(x, 1, out=torch.zeros(3, 0)[1]),
            )
        ),
    ],
)
def test_in_place_change_without_support_is_refused(run: Callable[[], Any], says: str) -> None:
    with pytest.raises(xf.errors.UnsupportedOpError, match=says):
        run()


ONES = torch.ones(4)


@pytest.mark.parametrize("vjp", [xf.vjp, torch.func.vjp])
@pytest.mark.parametrize(
    "change", [lambda v: v.diagonal().fill_(3), lambda v: v[0].mul_(3), lambda v: v[:1].neg_()]
)
def test_pullback_of_view_whose_base_has_changed(vjp: Any, change: Callable[..., Any]) -> None:
    c = torch.arange(6.0).reshape(2, 3)

    def inner(vjp: Any, scale: torch.Tensor) -> torch.Tensor:
        def f(x: torch.Tensor) -> torch.Tensor:
            v = (x * c).mT
            change(v)
            return v

        out, pull = vjp(f, c + 1)
        return (pull(out.cos())[0] * scale).sum()

    want = torch.func.grad(lambda s: inner(torch.func.vjp, s))(c)
    found = xf.jit(xf.grad(lambda s: inner(vjp, s)))(c)
    torch.testing.assert_close(xf.device_get(found), want)


def test_jacfwd_of_squeeze_in_place_of_scalar() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = xf.fori_loop(0, 2, lambda i, c: torch.tanh(x.clone()), torch.tanh(x))
        y.squeeze_()
        return y * 2

    x = torch.tensor(0.5)
    torch.testing.assert_close(xf.jacfwd(f)(x).cpu(), 2 - 2 * torch.tanh(x) ** 2)


@pytest.mark.sample(10, seed=0)
@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.mul_(y),
        lambda y: y.div_(y.t()),
        lambda y: y.copy_(y * y),
        lambda y: y[0].mul_(y[0]),
        lambda y: y.__setitem__(0, y[1] * y[0]),
    ],
)
@pytest.mark.parametrize("transform", [lambda f: xf.grad(f), lambda f: xf.jit(xf.grad(f))])
def test_in_place_change_by_own_value_is_no_leak(
    change: Callable[[Tensor], Any], transform: Callable[[Any], Any]
) -> None:
    """What such a change keeps for its derivative is its own result: a cycle in C++."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        change(y)
        return (x * 3).sum()

    assert transform(f)(torch.ones(2, 2)).tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_in_place_change_by_own_value_does_not_hide_leak() -> None:
    kept = []

    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.mul_(y)
        kept.append(x * 4)
        return (x * 3).sum()

    with pytest.raises(xf.errors.LeakError, match="outlived its trace"):
        xf.grad(f)(torch.ones(2, 2))
    with pytest.raises(xf.errors.LeakError, match="outlived its trace"):
        kept[0].sin()


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[0].clone().eq_(x),
        lambda x: x[0].clone().pow_(x),
        lambda x: x[:1].clone().floor_divide_(x),
        lambda x: x[:1].clone().clamp_(min=x),
        lambda x: x[:1].clone().logical_or_(x),
        lambda x: operator.imod(x[:1].clone(), x),
    ],
)
def test_in_place_change_that_would_broadcast_its_target_raises(change: Any) -> None:
    x = torch.tensor([1.0, 2.0])
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape") as wanted:
        change(x)
    words = re.escape(str(wanted.value))
    for transformed in (xf.jit(change), lambda x: xf.vmap(change)(x[None])):
        with pytest.raises(RuntimeError, match=words):
            transformed(x)


BATCHES = torch.tensor([[[1.0, -2.0], [0.5, 3.0]], [[2.0, 0.0], [-1.5, 4.0]]])
NUMBERS = (True, 0.5, 1e-5)
NORMS: dict[str, Callable[..., Any]] = {
    "batch_norm": lambda x, m, v: torch.batch_norm(x, None, None, m, v, *NUMBERS, False),
    "instance_norm": lambda x, m, v: torch.instance_norm(x, None, None, m, v, *NUMBERS, False),
    "native": lambda x, m, v: torch.native_batch_norm(x, None, None, m, v, *NUMBERS),
    "legit": lambda x, m, v: torch.ops.aten._native_batch_norm_legit(x, None, None, m, v, *NUMBERS),
    "update": lambda x, m, v: torch.ops.aten._batch_norm_with_update(
        x, None, None, m, v, *NUMBERS[1:]
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_running_statistics(name: str, dtype: torch.dtype) -> None:
    def f(x: Tensor) -> Any:
        mean, variance = torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype)
        return NORMS[name](x, mean, variance), mean, variance

    x, digits = BATCHES.to(dtype), 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(xf.device_get(xf.jit(f)(x)), f(x), rtol=digits, atol=digits)


@pytest.mark.parametrize("name", ["batch_norm", "instance_norm"])
def test_running_statistics_that_a_schema_hides_are_refused(name: str) -> None:
    def f(x: Tensor) -> Tensor:
        statistics = torch.zeros(2), torch.ones(2)
        return getattr(torch.ops.aten, name)(x, None, None, *statistics, *NUMBERS, False)

    with pytest.raises(xf.errors.UnsupportedOpError, match="changes running statistics"):
        xf.jit(f)(BATCHES)


@pytest.mark.filterwarnings("ignore:index_reduce")  # It is in beta, in eager torch.
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax"])
@pytest.mark.parametrize("name", ["scatter_reduce_", "index_reduce_"])
def test_forward_mode_of_reductions_in_place(name: str, reduce: str) -> None:
    at = torch.tensor([0, 2, 2])

    def f(x: Tensor, source: Tensor) -> Tensor:
        y = x.sin()
        getattr(y, name)(0, at, source, reduce)
        return y

    x = X.double()
    source, eps = x.exp(), 1e-6
    _, found = xf.jvp(f, (x, source), (x.cos(), source.cos()))
    ahead, behind = (f(x + e * x.cos(), source + e * source.cos()) for e in (eps, -eps))
    torch.testing.assert_close(found.cpu(), (ahead - behind) / (2 * eps))


def test_nan_to_num_in_place_of_complex_numbers() -> None:
    x = torch.tensor([complex("nan+1j"), complex("2-infj"), complex(3, 4)])
    found = xf.jit(lambda x: (x.clone().nan_to_num_(0.5, 3.0), torch.nan_to_num_(x * 1)))(x)
    want = x.clone().nan_to_num_(0.5, 3.0), x.clone().nan_to_num_()
    assert all(torch.equal(f.cpu(), w) for f, w in zip(found, want, strict=True))
