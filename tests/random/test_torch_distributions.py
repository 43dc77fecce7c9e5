"""torch.distributions in traced code: formulas, moments and gradients of draws, as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as D

import xfunc as xf

A, B = torch.tensor([0.7, 2.5, 6.0]), torch.tensor([1.5, 0.8, 3.0])
P = torch.tensor([0.2, 0.5, 0.9])
COVARIANCE = torch.tensor([[2.0, 0.6], [0.6, 1.0]])

# Each from two parameters, with respect to which draws are differentiated where they can be.
MADE: dict[str, Callable[[Any, Any], D.Distribution]] = {
    "Bernoulli": lambda p, _: D.Bernoulli(p),
    "Beta": D.Beta,
    "Binomial": lambda p, _: D.Binomial(12, p),
    "Categorical": lambda p, _: D.Categorical(p),
    "Cauchy": D.Cauchy,
    "Chi2": lambda a, _: D.Chi2(a),
    "ContinuousBernoulli": lambda p, _: D.ContinuousBernoulli(p),
    "Dirichlet": lambda a, _: D.Dirichlet(a),
    "Exponential": lambda a, _: D.Exponential(a),
    "FisherSnedecor": lambda a, b: D.FisherSnedecor(a + 2, b + 9),
    "Gamma": D.Gamma,
    "GeneralizedPareto": lambda a, b: D.GeneralizedPareto(a, b, 0.1),
    "Geometric": lambda p, _: D.Geometric(p),
    "Gumbel": D.Gumbel,
    "HalfCauchy": lambda a, _: D.HalfCauchy(a),
    "HalfNormal": lambda a, _: D.HalfNormal(a),
    "Independent": lambda a, b: D.Independent(D.Normal(a, b), 1),
    "InverseGamma": lambda a, b: D.InverseGamma(a + 5, b),
    "Kumaraswamy": D.Kumaraswamy,
    "LKJCholesky": lambda a, _: D.LKJCholesky(3, a[1]),
    "Laplace": D.Laplace,
    "LogNormal": lambda a, b: D.LogNormal(a, b / 4),
    "LogisticNormal": D.LogisticNormal,
    "LowRankMultivariateNormal": lambda a, b: D.LowRankMultivariateNormal(a, b[:, None], a),
    "MixtureSameFamily": lambda a, b: D.MixtureSameFamily(D.Categorical(a), D.Normal(a, b)),
    "Multinomial": lambda p, _: D.Multinomial(9, p),
    "MultivariateNormal": lambda a, _: D.MultivariateNormal(a[:2], COVARIANCE),
    "NegativeBinomial": lambda p, _: D.NegativeBinomial(5.0, p / 2),
    "Normal": D.Normal,
    "OneHotCategorical": lambda p, _: D.OneHotCategorical(p),
    "OneHotCategoricalStraightThrough": lambda p, _: D.OneHotCategoricalStraightThrough(p),
    "Pareto": lambda a, b: D.Pareto(b, a + 9),
    "Poisson": lambda a, _: D.Poisson(a),
    "RelaxedBernoulli": lambda p, _: D.RelaxedBernoulli(torch.tensor(0.5), p),
    "RelaxedOneHotCategorical": lambda p, _: D.RelaxedOneHotCategorical(torch.tensor(0.5), p),
    "StudentT": lambda a, b: D.StudentT(a + 9, a, b),
    "TransformedDistribution": lambda a, b: D.TransformedDistribution(
        D.Normal(a, b), [D.SigmoidTransform()]
    ),
    "Uniform": lambda a, b: D.Uniform(a, a + b),
    "Weibull": lambda a, b: D.Weibull(a, b + 1),
}
MADE = {name: make for name, make in MADE.items() if hasattr(D, name)}
LEFT_OUT = {
    "ExponentialFamily",  # abstract
    "Distribution",
    "VonMises",  # Their draws branch on values.
    "Wishart",
}
N = 20_000


def parameters(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    takes_p = any(s in name for s in ("Bernoulli", "inomial", "ategorical", "Geometric"))
    return (P if takes_p else A), B


def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.double().mean(0), x.double().var(0)


def same(got: torch.Tensor, want: torch.Tensor, error: torch.Tensor) -> None:
    """Equal up to five standard errors."""
    assert bool(((got - want).abs() <= 5 * error + 1e-6).all()), (got, want, error)


def test_all_distributions_are_drawn() -> None:
    known = {n for n, x in vars(D).items() if isinstance(x, type) and issubclass(x, D.Distribution)}
    assert known == MADE.keys() | LEFT_OUT


FORMULAS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "log_prob": lambda d, x: d.log_prob(x),
    "entropy": lambda d, x: d.entropy(),
    "perplexity": lambda d, x: d.perplexity(),
    "cdf": lambda d, x: d.cdf(x),
    "icdf": lambda d, x: d.icdf(torch.sigmoid(x)),
    "mean": lambda d, x: d.mean,
    "variance": lambda d, x: d.variance,
    "stddev": lambda d, x: d.stddev,
    "mode": lambda d, x: d.mode,
    "kl_divergence": lambda d, x: D.kl_divergence(d, d),
    "support": lambda d, x: d.enumerate_support(),
    "expand": lambda d, x: d.expand((4, *d.batch_shape)).log_prob(x),
}
WITHOUT_GRADIENT = {"cdf": ("Chi2", "Gamma", "InverseGamma")}  # in torch
REFUSED = {  # They branch on values.
    *((name, "mode") for name in ("Beta", "Dirichlet")),
    *(("StudentT", formula) for formula in ("variance", "stddev")),
    *(("Binomial", formula) for formula in ("entropy", "perplexity", "kl_divergence", "support")),
    *(("Multinomial", formula) for formula in ("entropy", "perplexity")),
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", MADE)
def test_formulas(name: str) -> None:
    make, given = MADE[name], parameters(name)
    torch.manual_seed(0)
    x = make(*given).sample((4,))
    for formula, compute in FORMULAS.items():

        def value(a: Any, b: Any, x: Any, compute: Any = compute) -> torch.Tensor:
            return compute(make(a, b), x)

        try:
            want = value(*given, x)
        except NotImplementedError:
            continue
        if (name, formula) in REFUSED:
            with pytest.raises(
                (TypeError, NotImplementedError), match=r"reads a traced|depends on"
            ):
                xf.jit(value)(*given, x)
            continue
        got = xf.jit(value)(*given, x).cpu()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)
        a, b = (t.clone().requires_grad_() for t in given)
        total = value(a, b, x).sum()
        if total.requires_grad and name not in WITHOUT_GRADIENT.get(formula, ()):
            wanted = torch.autograd.grad(total, (a, b), allow_unused=True, materialize_grads=True)
            grads = xf.jit(xf.grad(lambda a, b, x: value(a, b, x).sum(), (0, 1)))(*given, x)
            for g, w in zip(grads, wanted, strict=True):
                torch.testing.assert_close(g.cpu(), w, rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", MADE)
def test_moments_of_draws(name: str) -> None:
    make, given = MADE[name], parameters(name)

    @xf.jit
    def drawn(key: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with xf.random.implicit(key):
            return make(a, b).sample((N,))

    found = drawn(xf.random.key(0), *given).cpu()
    torch.manual_seed(0)
    d = make(*given)
    wanted = d.sample((N,))
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert found.tolist() != drawn(xf.random.key(1), *given).tolist()
    if "Cauchy" in name:  # It has no moments.
        found, wanted = map(torch.atan, (found, wanted))
    (mean, var), (m, v) = moments(found), moments(wanted)
    same(mean, m, ((var + v) / N).sqrt())
    squares, expected = moments((found - m) ** 2), moments((wanted - m) ** 2)
    same(squares[0], expected[0], ((squares[1] + expected[1]) / N).sqrt())


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", [n for n, make in MADE.items() if make(P, B).has_rsample])
def test_gradients_of_draws(name: str) -> None:
    """The gradient of a mean over draws, by pathwise derivatives, against torch's."""
    make, given = MADE[name], parameters(name)

    def of_each(x: torch.Tensor) -> torch.Tensor:
        weights = torch.arange(1.0, x[0].numel() + 1, device=x.device).reshape(x.shape[1:])
        return (torch.sin(x) * weights).flatten(1).sum(1)

    def ours(a: torch.Tensor, b: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        with xf.random.implicit(key):
            return of_each(make(a, b).rsample((1,)))[0]

    def theirs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return of_each(make(a, b).rsample((1,)))[0]

    n = 1000
    each = xf.vmap(xf.grad(ours, (0, 1)), in_axes=(None, None, 0))
    got = xf.jit(each)(*given, xf.random.split(xf.random.key(0), n))
    torch.manual_seed(0)
    found = list[tuple[torch.Tensor, ...]]()
    for _ in range(n):
        a, b = (t.clone().requires_grad_() for t in given)
        grads = torch.autograd.grad(theirs(a, b), (a, b), allow_unused=True)
        both = zip(grads, (a, b), strict=True)
        found.append(tuple(torch.zeros_like(t) if g is None else g for g, t in both))
    for g, w in zip(got, zip(*found, strict=True), strict=True):
        (mean, var), (m, v) = moments(g.cpu()), moments(torch.stack(w))
        same(mean, m, ((var + v) / n).sqrt())
