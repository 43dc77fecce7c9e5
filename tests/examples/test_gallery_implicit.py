"""Solutions and their derivatives in the gallery, against unrolled loops and scipy."""

from __future__ import annotations

from typing import Any

import scipy.integrate
import torch

import xfunc as xf
from examples.gallery import deep_equilibrium, neural_ode
from examples.gallery._perceptron import init, perceptron
from tests.support.gallery import Run


def double(tree: Any) -> Any:
    return xf.tree.map(lambda t: t.cpu().double(), tree)


def test_neural_ode_learns_the_pendulum(run: Run) -> None:
    result = run(neural_ode)
    assert result.after < 0.15 * result.before


def test_neural_ode_solution_is_that_of_scipy() -> None:
    start = torch.tensor([1.0, -0.5], dtype=torch.float64)
    got = neural_ode.runge_kutta(neural_ode.pendulum, start, 1.0, steps=40).cpu()
    solved = scipy.integrate.solve_ivp(
        lambda _, y: neural_ode.pendulum(torch.from_numpy(y)).numpy(),
        (0, 1), start.numpy(), rtol=1e-10, atol=1e-12,
    )  # fmt: skip
    torch.testing.assert_close(got, torch.from_numpy(solved.y[:, -1]), rtol=1e-6, atol=1e-6)


def test_neural_ode_adjoint_equals_autograd_through_the_solver() -> None:
    params = double(init(xf.random.key(0), 2, 8, 2))
    start = torch.tensor([0.3, -0.5], dtype=torch.float64)

    def adjoint(params: Any, y: torch.Tensor) -> torch.Tensor:
        return neural_ode.flow(params, y).sin().sum()

    def plain(params: Any, y: torch.Tensor) -> torch.Tensor:
        with xf.disable_jit():
            f = lambda y: perceptron(params, y)  # noqa: E731
            return neural_ode.runge_kutta(f, y, 1.0).sin().sum()

    got = xf.device_get(xf.grad(adjoint, argnums=(0, 1))(params, start))
    want = torch.func.grad(plain, argnums=(0, 1))(params, start)
    # They discretise the same integral differently: both are exact to the fourth order.
    torch.testing.assert_close(xf.tree.leaves(got), xf.tree.leaves(want), rtol=1e-4, atol=1e-5)


def test_deep_equilibrium_learns(run: Run) -> None:
    result = run(deep_equilibrium)
    assert result.losses[-1] < 0.05 * result.losses[0]


def test_deep_equilibrium_gradient_equals_the_unrolled_one() -> None:
    params = double(deep_equilibrium.init(xf.random.key(0), 6))
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]

    def implicit(params: Any, x: torch.Tensor) -> torch.Tensor:
        return deep_equilibrium.equilibrium(params, x).sin().sum()

    def unrolled(params: Any, x: torch.Tensor) -> torch.Tensor:
        z = torch.zeros(5, 6, dtype=torch.float64)
        for _ in range(200):
            z = deep_equilibrium.layer(params, x, z)
        return z.sin().sum()

    torch.testing.assert_close(implicit(params, x).cpu(), unrolled(params, x))
    got = xf.device_get(xf.grad(implicit, argnums=(0, 1))(params, x))
    del params["out"], got[0]["out"]
    want = torch.func.grad(unrolled, argnums=(0, 1))(params, x)
    torch.testing.assert_close(xf.tree.leaves(got), xf.tree.leaves(want), rtol=1e-6, atol=1e-9)
