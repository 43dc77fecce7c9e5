"""Fitting and sampling in the gallery, against scipy and a known distribution."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch

import xfunc as xf
from examples.gallery import gauss_newton, hmc, kalman_filter
from tests.support.gallery import Run

NOISE = torch.tensor([-0.7, 0.3], dtype=torch.float64)


def joint_log_likelihood(noise: np.ndarray, observations: np.ndarray) -> float:
    """The log density of all observations as one vector with a normal distribution."""
    n, move = len(observations), np.array([[1.0, 1.0], [0.0, 1.0]])
    # The positions are a linear function of the first state and of the later kicks.
    effects = np.zeros((n, 2 + n))
    state = np.hstack([np.eye(2), np.zeros((2, n))])
    for t in range(n):
        effects[t] = state[0]
        state = move @ state
        state[1, 2 + t] = np.exp(noise[0])
    cov = effects @ effects.T + np.exp(2 * noise[1]) * np.eye(n)
    return float(scipy.stats.multivariate_normal(np.zeros(n), cov).logpdf(observations))


def log_likelihood(noise: torch.Tensor, observations: torch.Tensor) -> torch.Tensor:
    parameters = kalman_filter.Noise(noise[0], noise[1])
    return kalman_filter.kalman_filter(parameters, observations)[0]


@pytest.mark.quick
def test_kalman_filter_likelihood_is_that_of_the_joint_distribution() -> None:
    observations = torch.randn(12, dtype=torch.float64).cumsum(0)
    want = joint_log_likelihood(NOISE.numpy(), observations.numpy())
    torch.testing.assert_close(log_likelihood(NOISE, observations).item(), want)


def test_kalman_filter_gradient_equals_finite_differences() -> None:
    observations = torch.randn(12, dtype=torch.float64).cumsum(0)
    got = xf.grad(log_likelihood)(NOISE, observations).cpu().numpy()
    for direction, slope in zip(np.eye(2), got, strict=True):
        ends = [NOISE.numpy() + sign * 1e-5 * direction for sign in (1, -1)]
        values = [joint_log_likelihood(noise, observations.numpy()) for noise in ends]
        np.testing.assert_allclose(slope, (values[0] - values[1]) / 2e-5, rtol=1e-6)


def test_kalman_filter_fit_is_the_maximum(run: Run) -> None:
    result = run(kalman_filter)
    assert result.log_likelihoods[-1] > result.log_likelihoods[0] + 100
    error = (result.means - result.positions).square().mean().sqrt()
    assert error < 0.6 * (result.observations - result.positions).square().mean().sqrt()
    observations = result.observations.double().numpy()
    noise = torch.stack(result.noise).double().numpy()
    fitted = joint_log_likelihood(noise, observations)
    np.testing.assert_allclose(result.log_likelihoods[-1], fitted, rtol=1e-4)
    for direction in 0.1 * np.eye(2):
        for sign in (1, -1):
            assert joint_log_likelihood(noise + sign * direction, observations) < fitted


def test_hmc_samples_have_the_mean_and_covariance(run: Run) -> None:
    """Chains are independent, so the spread of their means is the error of the mean of all."""
    result = run(hmc)
    assert result.accepted > 0.8
    assert result.samples.shape == (64, 500, 2)
    centered = (result.samples - hmc.MEAN).double()
    products = centered[..., :, None] * centered[..., None, :]
    for values, want, precision in (
        (centered, torch.zeros(2), 0.05),
        (products.flatten(2), hmc.COVARIANCE.flatten(), 0.1),
    ):
        of_chains = values.mean(1)
        error = of_chains.std(0) / 64**0.5
        assert (error < precision).all()
        assert ((of_chains.mean(0) - want).abs() < 4.5 * error).all()


def test_gauss_newton_finds_the_solution_of_scipy(run: Run) -> None:
    result = run(gauss_newton)
    names = ("height", "center", "width")
    x, y = result.x.double(), result.y.double()

    def residuals(flat: np.ndarray) -> np.ndarray:
        params = dict(zip(names, torch.from_numpy(flat).reshape(3, 2), strict=True))
        distance = (x[:, None] - params["center"]) / params["width"]
        peaks = params["height"] * (-0.5 * distance**2).exp()
        return (peaks.sum(1) - y).numpy()

    guess = np.array([1.0, 1.0, -2.0, 2.0, 1.0, 1.0])
    best = scipy.optimize.least_squares(residuals, guess)
    got = torch.cat([result.params[name] for name in names])
    np.testing.assert_allclose(got, best.x, rtol=2e-3)
    np.testing.assert_allclose(result.errors[-1], best.cost, rtol=1e-4)


def test_conjugate_gradients_solve() -> None:
    a = torch.randn(5, 5, dtype=torch.float64)
    a, b = a @ a.T + torch.eye(5), torch.randn(5, dtype=torch.float64)
    got = gauss_newton.conjugate_gradients(lambda v: a @ v, b).cpu()
    torch.testing.assert_close(got, torch.linalg.solve(a, b), rtol=1e-3, atol=1e-4)
