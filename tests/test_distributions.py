"""torch.distributions in traced functions, without `validate_args=False`."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as D

import xfunc as xf

A = torch.tensor([0.7, 1.3, 2.1])
B = torch.tensor([1.2, 0.6, 0.9])
P = torch.tensor([0.2, 0.5, 0.3])
M = torch.tensor([[2.0, 0.3, 0.1], [0.3, 1.5, 0.2], [0.1, 0.2, 1.0]])
REAL, WHOLE, UNIT = torch.tensor([0.3, 1.4, 2.2]), torch.tensor([0.0, 1.0, 1.0]), P
# How it is made of (a, b, p, m), and a point of its support.
MADE: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "Normal": (lambda a, b, p, m: D.Normal(a, b), REAL),
    "LogNormal": (lambda a, b, p, m: D.LogNormal(a, b), REAL),
    "HalfNormal": (lambda a, b, p, m: D.HalfNormal(b), REAL),
    "Laplace": (lambda a, b, p, m: D.Laplace(a, b), REAL),
    "Cauchy": (lambda a, b, p, m: D.Cauchy(a, b), REAL),
    "HalfCauchy": (lambda a, b, p, m: D.HalfCauchy(b), REAL),
    "Gumbel": (lambda a, b, p, m: D.Gumbel(a, b), REAL),
    "Uniform": (lambda a, b, p, m: D.Uniform(-a, b + 3), REAL),
    "Exponential": (lambda a, b, p, m: D.Exponential(a), REAL),
    "Gamma": (lambda a, b, p, m: D.Gamma(a, b), REAL),
    "InverseGamma": (lambda a, b, p, m: D.InverseGamma(a, b), REAL),
    "Chi2": (lambda a, b, p, m: D.Chi2(a), REAL),
    "Beta": (lambda a, b, p, m: D.Beta(a, b), UNIT),
    "Kumaraswamy": (lambda a, b, p, m: D.Kumaraswamy(a, b), UNIT),
    "Dirichlet": (lambda a, b, p, m: D.Dirichlet(a), UNIT),
    "StudentT": (lambda a, b, p, m: D.StudentT(a, b, b), REAL),
    "FisherSnedecor": (lambda a, b, p, m: D.FisherSnedecor(a, b), REAL),
    "Pareto": (lambda a, b, p, m: D.Pareto(b * 0.1, a), REAL),
    "Weibull": (lambda a, b, p, m: D.Weibull(a, b), REAL),
    "GeneralizedPareto": (lambda a, b, p, m: D.GeneralizedPareto(-a, b, p), REAL),
    "VonMises": (lambda a, b, p, m: D.VonMises(a, b), REAL),
    "Bernoulli": (lambda a, b, p, m: D.Bernoulli(p), WHOLE),
    "Bernoulli of logits": (lambda a, b, p, m: D.Bernoulli(logits=a), WHOLE),
    "ContinuousBernoulli": (lambda a, b, p, m: D.ContinuousBernoulli(p), UNIT),
    "Geometric": (lambda a, b, p, m: D.Geometric(p), WHOLE),
    "Binomial": (lambda a, b, p, m: D.Binomial(3, p), WHOLE),
    "NegativeBinomial": (lambda a, b, p, m: D.NegativeBinomial(a, p), WHOLE),
    "Poisson": (lambda a, b, p, m: D.Poisson(a), WHOLE),
    "Categorical": (lambda a, b, p, m: D.Categorical(p), torch.tensor(2)),
    "Categorical of logits": (lambda a, b, p, m: D.Categorical(logits=a), torch.tensor(1)),
    "OneHotCategorical": (lambda a, b, p, m: D.OneHotCategorical(p), torch.eye(3)[1]),
    "Multinomial": (lambda a, b, p, m: D.Multinomial(2, p), torch.tensor([1.0, 0.0, 1.0])),
    "MultivariateNormal": (lambda a, b, p, m: D.MultivariateNormal(a, m), REAL),
    "of scale_tril": (lambda a, b, p, m: D.MultivariateNormal(a, scale_tril=m.tril()), REAL),
    "LowRank": (
        lambda a, b, p, m: D.LowRankMultivariateNormal(a, m[:, :1], b),
        REAL,
    ),
    "Independent": (lambda a, b, p, m: D.Independent(D.Normal(a, b), 1), REAL),
    "Transformed": (
        lambda a, b, p, m: D.TransformedDistribution(D.Normal(a, b), [D.AffineTransform(1.0, b)]),
        REAL,
    ),
    "Mixture": (
        lambda a, b, p, m: D.MixtureSameFamily(D.Categorical(p), D.Normal(a, b)),
        torch.tensor(0.4),
    ),
    "RelaxedBernoulli": (lambda a, b, p, m: D.RelaxedBernoulli(torch.tensor(0.5), p), UNIT),
}

# What torch computes by looking at its parameters.
READ = {
    "Beta": ("mode",),
    "Dirichlet": ("mode",),
    "StudentT": ("variance",),
    "Binomial": ("entropy",),
    "Multinomial": ("entropy",),
}
REFUSED = (xf.errors.UnsupportedOpError, xf.errors.ConcretizationError)


def facts(name: str, a: Any, b: Any, p: Any, m: Any) -> dict[str, Any]:
    made, point = MADE[name]
    d = made(a, b, p, m)
    found = {"log_prob": d.log_prob(point)}
    for what in {"entropy", "mean", "variance", "mode"}.difference(READ.get(name, ())):
        try:
            value = getattr(d, what)
            found[what] = value() if callable(value) else value
        except NotImplementedError:
            continue
    with contextlib.suppress(NotImplementedError):
        found["cdf"] = d.cdf(point)
    return found


@pytest.mark.parametrize("name", MADE)
def test_as_in_eager_torch(name: str) -> None:
    def total(*args: torch.Tensor) -> torch.Tensor:
        return MADE[name][0](*args).log_prob(MADE[name][1]).sum()

    def both(*args: torch.Tensor) -> Any:
        return facts(name, *args), xf.grad(total, argnums=(0, 1, 2, 3))(*args)

    found, grads = xf.device_get(xf.jit(both)(A, B, P, M))
    torch.testing.assert_close(found, facts(name, A, B, P, M), rtol=1e-3, atol=1e-4, equal_nan=True)
    leaves = [t.clone().requires_grad_() for t in (A, B, P, M)]
    expected = torch.autograd.grad(total(*leaves), leaves, allow_unused=True)
    expected = tuple(
        torch.zeros_like(t) if g is None else g for g, t in zip(expected, leaves, strict=True)
    )
    torch.testing.assert_close(grads, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", READ)
def test_what_reads_the_parameters_is_refused(name: str) -> None:
    def f(*args: torch.Tensor) -> Any:
        value = getattr(MADE[name][0](*args), READ[name][0])
        return value() if callable(value) else value

    with pytest.raises(REFUSED, match=r"(?s)reads a traced value|depends on data"):
        xf.jit(f)(A, B, P, M)


DIVERGENCES = "Normal Gamma Beta Dirichlet Bernoulli Categorical Laplace Exponential".split()


def test_divergences() -> None:
    def all_of(a: Any, b: Any, p: Any, m: Any) -> dict[str, Any]:
        def between(name: str) -> Any:
            made = MADE[name][0]
            return D.kl_divergence(made(a, b, p, m), made(b, a, p.flip(0), m))

        return {name: between(name) for name in [*DIVERGENCES, "Independent"]}

    found = xf.device_get(xf.jit(all_of)(A, B, P, M))
    torch.testing.assert_close(found, all_of(A, B, P, M), rtol=1e-3, atol=1e-4)


SAMPLED = "Normal LogNormal Laplace Gumbel Uniform Exponential MultivariateNormal Bernoulli".split()


@pytest.mark.parametrize("name", SAMPLED)
def test_samples(name: str) -> None:
    @xf.jit
    def draw(key: Any, a: Any, b: Any, p: Any, m: Any) -> Any:
        with xf.random.implicit(key):
            d = MADE[name][0](a, b, p, m)
            return d.sample((4000,)), d.mean, d.stddev

    sample, mean, stddev = xf.device_get(draw(xf.random.key(3), A, B, P, M))
    assert sample.shape == (4000, 3)
    assert ((sample.mean(0) - mean).abs() < 8 * stddev / 4000**0.5).all()
    if name != "LogNormal":  # Its fourth moment is too great.
        torch.testing.assert_close(sample.std(0), stddev, rtol=0.15, atol=0.0)


def test_reparametrised_samples_are_differentiated() -> None:
    def f(b: torch.Tensor, key: Any) -> torch.Tensor:
        with xf.random.implicit(key):
            return D.Normal(A, b).rsample().sum()

    key = xf.random.key(0)
    slope = xf.device_get(xf.grad(f)(B, key))
    torch.testing.assert_close(slope.dot(B) + A.sum(), xf.device_get(xf.jit(f)(B, key)))


def test_validation_is_left_out_only_while_tracing() -> None:
    xf.jit(lambda b: D.Normal(0.0, b).log_prob(torch.tensor(0.0)))(-B)
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        D.Normal(A, -B)
    with pytest.raises(xf.errors.ConcretizationError, match="reads a traced value"):
        xf.jit(lambda b: D.Normal(0.0, b, validate_args=True).mean)(B)
