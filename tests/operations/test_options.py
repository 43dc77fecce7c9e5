"""Options that torch takes as numbers, as traced tensors: `alpha` of sums, slopes, bounds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

Tensor = torch.Tensor
X, Y, Z = torch.tensor([1.5, -2.0]), torch.tensor([0.3, 4.1]), torch.tensor([2.5, -0.7])
FACTOR = 0.3
INF, NAN = torch.inf, torch.nan
SPECIAL = torch.tensor([-INF, -30.0, -1.5, -0.3, -0.0, 0.0, 0.3, 0.7, 1.5, 30.0, INF, NAN])
MATRIX = torch.tensor([[1.5, -2.0], [0.25, 3.0]])
LABELS, SIGNS = torch.tensor([1, 0]), torch.tensor([1.0, -1.0])

SUMS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, z, k: torch.add(x, y, alpha=k),
    "sub": lambda x, y, z, k: x.sub(y, alpha=k),
    "rsub": lambda x, y, z, k: torch.rsub(x, y, alpha=k),
    "a number": lambda x, y, z, k: torch.add(x, 3, alpha=k),
    "add_": lambda x, y, z, k: x.clone().add_(y, alpha=k),
    "sub_": lambda x, y, z, k: x.clone().sub_(y, alpha=k),
    "itself": lambda x, y, z, k: (w := x * 1).add_(w, alpha=k),
    "addcmul": lambda x, y, z, k: torch.addcmul(x, y, z, value=k),
    "addcmul_": lambda x, y, z, k: x.clone().addcmul_(y, z, value=k),
    "addcdiv": lambda x, y, z, k: x.addcdiv(y, z, value=k),
    "addcdiv_": lambda x, y, z, k: x.clone().addcdiv_(y, z, value=k),
}
HALVES = [torch.bfloat16, torch.float16]


def _square(x: Tensor) -> Tensor:
    return x[:, None] * x[:2]


OPTIONS: dict[str, Callable[..., Tensor]] = {
    "addmm": lambda x, k: torch.addmm(x[:2], _square(x), MATRIX.to(x), beta=k, alpha=k),
    "addmm_": lambda x, k: _square(x)[3:5].clone().addmm_(MATRIX.to(x), MATRIX.to(x), beta=k),
    "addmv": lambda x, k: torch.addmv(x, _square(x), x[:2], alpha=k),
    "addr": lambda x, k: torch.addr(_square(x), x, x[:2], beta=k, alpha=2),
    "addr of zero": lambda x, k: torch.addr(_square(x), x, x[:2], beta=k * 0, alpha=k),
    "addr of a zero": lambda x, k: torch.addr(_square(x), x, x[:2], beta=0, alpha=k),
    "baddbmm": lambda x, k: torch.baddbmm(x[:2], _square(x)[None], MATRIX[None].to(x), beta=k),
    "addbmm": lambda x, k: torch.addbmm(x[:2], _square(x)[None], MATRIX[None].to(x), alpha=k),
    "clamp": lambda x, k: torch.clamp(x, k, 1.5),
    "clip": lambda x, k: x.clip(min=-0.3, max=k),
    "clamp_": lambda x, k: x.clone().clamp_(-0.3, k),
    "hardtanh": lambda x, k: F.hardtanh(x, -k, k),
    "hardtanh, a bound": lambda x, k: F.hardtanh(x, -1.5, k),
    "relu6": lambda x, k: F.hardtanh(x, max_val=k, min_val=0.0, inplace=False),
    "threshold": lambda x, k: F.threshold(x, k, 20.0),
    "threshold_": lambda x, k: torch.threshold_(x.clone(), 0.3, k),
    "hardshrink": lambda x, k: F.hardshrink(x, k),
    "softshrink": lambda x, k: F.softshrink(x, k),
    "nan_to_num": lambda x, k: torch.nan_to_num(x, k),
    "nan_to_num, infinities": lambda x, k: x.nan_to_num(posinf=k, neginf=-k),
    "logit": lambda x, k: torch.logit(x, k),
    "special.logit": lambda x, k: torch.special.logit(x.sigmoid(), eps=k),
    "isclose": lambda x, k: torch.isclose(x, x + 0.5, rtol=k, equal_nan=True),
    "isclose, absolute": lambda x, k: x.isclose(x.flip(0), atol=k),
    "pad": lambda x, k: F.pad(x, (1, 2), value=k),
    "leaky_relu": lambda x, k: F.leaky_relu(x, k),
    "leaky_relu, in place": lambda x, k: F.leaky_relu(x.clone(), k, inplace=True),
    "elu": lambda x, k: F.elu(x, k),
    "celu": lambda x, k: F.celu(x, alpha=k),
    "celu_": lambda x, k: torch.celu_(x.clone(), k),
    "softplus": lambda x, k: F.softplus(x, k),
    "softplus, threshold": lambda x, k: F.softplus(x, 1.0, k),
    "huber_loss": lambda x, k: F.huber_loss(x, x * 0.2 - 0.1, delta=k),
    "huber_loss, sum": lambda x, k: F.huber_loss(x, x * 0.2 - 0.1, "sum", k),
    "huber_loss of each": lambda x, k: F.huber_loss(x, x * 0.2 - 0.1, "none", k),
    "smooth_l1_loss": lambda x, k: F.smooth_l1_loss(x, x * 0.2 - 0.1, beta=k),
    "smooth_l1_loss of zero": lambda x, k: F.smooth_l1_loss(x, x * 0.2, beta=k * 0),
    "cross_entropy": lambda x, k: F.cross_entropy(
        _square(x)[3:5], LABELS.to(x.device), label_smoothing=k
    ),
    "cross_entropy of probabilities": lambda x, k: F.cross_entropy(
        x[3:9], x[3:9].softmax(0), label_smoothing=k
    ),
    "margin_ranking_loss": lambda x, k: F.margin_ranking_loss(
        x[3:5], x[5:7], SIGNS.to(x), margin=k
    ),
    "hinge_embedding_loss": lambda x, k: F.hinge_embedding_loss(x[3:5], SIGNS.to(x), k),
}
INDICES: dict[str, Callable[..., Tensor]] = {
    "roll": lambda x, k: torch.roll(x, k, 1),
    "roll of all": lambda x, k: x.roll(k),
    "select": lambda x, k: torch.select(x, 1, k),
    "select of the last": lambda x, k: x.select(-1, index=k),
    "select_scatter": lambda x, k: x.select_scatter(x[:, 0] * 2, 1, k),
    "tril": lambda x, k: torch.tril(x, diagonal=k),
    "triu_": lambda x, k: x.clone().triu_(k),
}
IN_PYTHON = [  # torch parses the others' arguments in C++, and refuses what requires a gradient.
    *("hardtanh", "hardtanh, a bound", "relu6", "threshold", "pad", "leaky_relu", "elu", "celu"),
    *("leaky_relu, in place", "huber_loss", "huber_loss, sum", "huber_loss of each"),
    *("smooth_l1_loss", "cross_entropy", "cross_entropy of probabilities"),
    *("margin_ranking_loss", "hinge_embedding_loss"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("name", SUMS)
def test_alpha_traced_equals_number(name: str, dtype: torch.dtype) -> None:
    function, given = SUMS[name], [v.to(dtype) for v in (X, Y, Z)]
    want = function(*given, FACTOR)
    got = xf.jit(function)(*given, FACTOR).cpu()
    assert got.dtype == dtype
    exact = function(*(v.double() for v in given), torch.tensor(FACTOR).to(dtype).item())
    if dtype in HALVES:  # No further from the exact value than torch is, but for one rounding.
        slack = torch.finfo(dtype).eps * exact.abs()
        assert ((got - exact).abs() <= (want - exact).abs() + slack).all()
    else:
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.quick
@pytest.mark.parametrize("name", SUMS)
def test_alpha_batched(name: str) -> None:
    function = SUMS[name]
    x, y, z = (v.double() for v in (X, Y, Z))
    k = torch.tensor([FACTOR, -1.5], dtype=torch.float64)
    want = torch.stack([function(x, y, z, f) for f in k.tolist()])
    torch.testing.assert_close(
        xf.vmap(function, in_axes=(None, None, None, 0))(x, y, z, k).cpu(), want
    )


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("name", OPTIONS)
def test_option_traced_equals_number(name: str, dtype: torch.dtype) -> None:
    function, x = OPTIONS[name], SPECIAL.to(dtype)
    got = xf.jit(function)(x, torch.tensor(FACTOR, dtype=torch.float64))
    # torch rounds some options to a half precision, and others not.
    tolerance = 1e-2 if dtype in HALVES else 1e-6
    want = function(x, FACTOR)
    torch.testing.assert_close(got.cpu(), want, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", OPTIONS)
def test_option_batched(name: str) -> None:
    function, k = OPTIONS[name], torch.tensor([0.25, 0.3], dtype=torch.float64)
    x = SPECIAL.double()
    want = torch.stack([function(x, f) for f in k.tolist()])
    got = xf.vmap(function, in_axes=(None, 0))(x, k).cpu()
    torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("name", [n for n in OPTIONS if "isclose" not in n])
def test_derivative_beside_a_traced_option(name: str) -> None:
    function = OPTIONS[name]
    bound = 0.31 if "clamp" in name or name == "clip" else FACTOR  # torch 2.15 halves a tie there.
    x = torch.tensor([-1.5, -0.4, -0.2, 0.0, bound, 0.6, 0.7, 1.4, -2.5, 3.5], dtype=torch.float64)
    weights = torch.linspace(0.5, 2, function(x, FACTOR).numel(), dtype=torch.float64)

    def total(x: Tensor, k: Any) -> Tensor:
        return (function(x, k).flatten() * weights.to(x.device)).sum()

    want = torch.func.grad(total)(x, FACTOR)
    got = xf.jit(xf.grad(total))(x, torch.tensor(FACTOR, dtype=torch.float64)).cpu()
    torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("name", IN_PYTHON)
def test_derivative_with_respect_to_an_option(name: str) -> None:
    function, k = OPTIONS[name], torch.tensor(FACTOR + 0.01, dtype=torch.float64)
    x = torch.tensor([-1.5, -0.4, -0.2, 0.1, 0.3, 0.6, 0.7, 1.5, -2.5, 3.5], dtype=torch.float64)

    def total(k: Any) -> Tensor:
        return function(x.to(k.device) if isinstance(k, Tensor) else x, k).sum()

    step = 1e-6
    want = (total(k.item() + step) - total(k.item() - step)) / (2 * step)
    torch.testing.assert_close(xf.grad(total)(k).cpu(), want, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(xf.jit(xf.jacfwd(total))(k).cpu(), want, rtol=1e-6, atol=1e-7)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
@pytest.mark.parametrize("name", INDICES)
def test_index_traced_equals_number(name: str, dtype: torch.dtype) -> None:
    function, x = INDICES[name], torch.arange(1, 13).reshape(3, 4).to(dtype)
    k = torch.arange(-3, 3)
    want = torch.stack([function(x, int(n)) for n in k])
    got = torch.stack([xf.jit(function)(x, n).cpu() for n in k])
    assert torch.equal(got, want)
    assert got.dtype == want.dtype
    assert torch.equal(xf.vmap(function, in_axes=(None, 0))(x, k).cpu(), want)
    if dtype.is_floating_point:
        grad = xf.vmap(xf.grad(lambda x, n: (function(x, n) ** 2).sum()), in_axes=(None, 0))
        slope = torch.func.grad(lambda x, n: (function(x, n) ** 2).sum())
        assert torch.equal(grad(x, k).cpu(), torch.stack([slope(x, int(n)) for n in k]))


def test_dropout_of_a_traced_rate() -> None:
    x, rates = torch.linspace(1, 2, 64), torch.tensor([0.0, 0.25, 1.0])

    def dropped(p: Any, x: Tensor) -> Tensor:
        with xf.random.implicit(xf.random.key(3)):
            return F.dropout(x, p)

    want = [xf.jit(dropped, static_argnums=0)(p, x).cpu() for p in rates.tolist()]
    got = xf.vmap(dropped, in_axes=(0, None))(rates, x).cpu()
    torch.testing.assert_close(got, torch.stack(want))
    slope = xf.jit(xf.grad(lambda x, p: dropped(p, x).sum()))
    for p in rates.tolist():
        kept = dropped(p, torch.ones(64))
        torch.testing.assert_close(slope(x, p).cpu(), kept)


def test_differentiated_option_parsed_in_c_is_explained() -> None:
    def f(k: Any) -> Tensor:
        return torch.add(X.to(k.device), X.to(k.device), alpha=k).sum()

    with pytest.raises(TypeError, match="'alpha' must be Number, not Tensor") as raised:
        xf.grad(f)(torch.tensor(FACTOR))
    (note,) = raised.value.__notes__
    assert "add takes only a number there, not a value that is differentiated" in note
    assert "Hint: compute with tensors: x + alpha * y" in note
    with pytest.raises(TypeError, match="invalid combination of arguments") as raised:
        xf.grad(lambda k: X.to(k.device).clamp(0.1, k).sum())(torch.tensor(FACTOR))
    (note,) = raised.value.__notes__
    assert "clamp takes only a number there" in note
    assert "Hint: make all bounds tensors: x.clamp(torch.tensor(0.0), bound)." in note


def test_reduction_that_torch_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="average is not a valid value for reduction"):
        xf.jit(lambda x, k: F.huber_loss(x, x, "average", k))(X, 0.5)


def test_alpha_of_integers() -> None:
    n = torch.tensor([1, 2])
    assert xf.jit(lambda n, k: n.add(n, alpha=k))(n, 3).tolist() == [4, 8]
    assert xf.jit(lambda n, k: n.clamp(2, k))(n * 2, 3).tolist() == [2, 3]
    with pytest.raises(RuntimeError, match="alpha"):
        torch.add(n, n, alpha=0.5)
    with pytest.raises(RuntimeError, match="argument alpha must not be a floating point"):
        xf.jit(lambda n, k: n.add(n, alpha=k))(n, 0.5)


def test_number_options_traced_are_refused() -> None:
    wants: dict[str, Callable[..., Any]] = {
        r"torch\.layer_norm": lambda x, k: F.layer_norm(x, (2,), eps=k),
        r"torch\.linalg\.vector_norm": torch.linalg.vector_norm,
        r"torch\.clamp": lambda x, k: torch.clamp(x.long(), 0.5, k.long()),
    }
    for name, function in wants.items():
        with pytest.raises(xf.errors.ConcretizationError, match=f"{name} reads a traced value"):
            xf.jit(function)(X, torch.tensor(0.5))
