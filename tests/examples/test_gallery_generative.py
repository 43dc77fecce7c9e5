"""Generative models of the gallery, against torch's distributions, scipy and quadrature."""

from __future__ import annotations

import numpy as np
import scipy.stats
import torch
from torch.distributions import Independent, Normal, kl_divergence

import xfunc as xf
from examples.gallery import gan, normalizing_flow, vae
from examples.gallery._digits import digits
from tests.support.gallery import Run


def test_vae_bound_rises_and_lies_below_a_tighter_one(run: Run) -> None:
    result = run(vae)
    assert result.before < -500
    assert result.after > -60
    # The mean weight of many draws has a larger logarithm than the logarithms' mean: by Jensen.
    image = digits(xf.random.key(5), 1)[0][0]
    keys = xf.random.split(xf.random.key(6), 500)
    bounds = xf.vmap(vae.bound, in_axes=(None, None, 0))(result.weights, image, keys).cpu()
    assert bounds.std() > 0.1
    assert bounds.mean() < bounds.logsumexp(0) - torch.tensor(500.0).log()


def test_vae_divergence_equals_torch() -> None:
    mean, log_deviation = torch.randn(2, 5, dtype=torch.float64)
    standard = Independent(Normal(torch.zeros_like(mean), torch.ones_like(mean)), 1)
    want = kl_divergence(Independent(Normal(mean, log_deviation.exp()), 1), standard)
    torch.testing.assert_close(vae.divergence(mean, log_deviation).cpu(), want)


def test_gan_generates_points_of_the_distribution(run: Run) -> None:
    before, after, real = run(gan)

    def distance(points: torch.Tensor) -> float:
        """The largest Wasserstein distance of projections."""
        angles = np.linspace(0, np.pi, 8, endpoint=False)
        axes = np.stack([np.cos(angles), np.sin(angles)])
        pairs = zip((points.numpy() @ axes).T, (real.numpy() @ axes).T, strict=True)
        return max(scipy.stats.wasserstein_distance(a, b) for a, b in pairs)

    assert distance(before) > 0.2
    assert distance(after) < 0.1
    places = gan.eight_places(xf.random.key(9), 2000).cpu()
    angle = torch.arange(8) * (torch.pi / 4)
    centers = torch.stack([angle.cos(), angle.sin()], -1)
    for points in (after, places):
        nearest = torch.cdist(points, centers).argmin(-1)
        assert torch.bincount(nearest, minlength=8).min() > 100  # 250 if all are as likely


def test_normalizing_flow_density_integrates_to_one(run: Run) -> None:
    result = run(normalizing_flow)
    assert result.before < -2
    assert result.after > -1.3
    n, edge = 300, 4.0
    side = (torch.arange(n) + 0.5) * (2 * edge / n) - edge
    points = torch.cartesian_prod(side, side)
    density = xf.vmap(normalizing_flow.log_density, (None, 0))(result.params, points).cpu().exp()
    assert abs(density.double().sum().item() * (2 * edge / n) ** 2 - 1) < 0.01


def test_normalizing_flow_log_determinant_is_that_of_the_jacobian() -> None:
    key = xf.random.key(3)
    params = xf.tree.map(lambda t: t.cpu().double(), normalizing_flow.init(key, 5, 8))
    params["out"] = torch.randn(5, 8, 2, dtype=torch.float64) / 4

    for x in torch.randn(4, 2, dtype=torch.float64):
        _, log_det = normalizing_flow.to_base(params, x)
        with xf.disable_jit():
            jacobian = torch.autograd.functional.jacobian(
                lambda x: normalizing_flow.to_base(params, x)[0], x
            )
        assert isinstance(jacobian, torch.Tensor)
        want = torch.linalg.slogdet(jacobian).logabsdet
        torch.testing.assert_close(log_det.cpu(), want)
