"""The pictures of the gallery's page, drawn from what the examples return."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import networkx as nx
import torch
from PIL import Image

import xfunc as xf
from examples.gallery import kalman_filter, neural_ode, normalizing_flow, vae
from examples.gallery._perceptron import perceptron


def draw_kalman_filter(result: kalman_filter.Result, axes: Any) -> None:
    """Positions over time, and the filtered ones with twice their deviation."""
    time, means, deviations = range(60), result.means[:60], result.deviations[:60]
    band = means - 2 * deviations, means + 2 * deviations
    axes.fill_between(time, *band, alpha=0.3, label="filtered, two deviations")
    axes.plot(time, result.observations[:60], ".", label="observed")
    axes.plot(time, result.positions[:60], "k", lw=1, label="true")
    axes.set(xlabel="time", ylabel="position")
    axes.legend(frameon=False)


def draw_gan(result: Any, axes: Any) -> None:
    """Real points and generated ones."""
    for points, name in ((result.real, "real"), (result.after, "generated")):
        axes.plot(*points[:500].T, ".", ms=3, alpha=0.5, label=name)
    axes.set_aspect("equal")
    axes.legend(frameon=False, loc="center")


def draw_normalizing_flow(result: normalizing_flow.Result, axes: Any) -> None:
    """The density on the plane."""
    x, y = torch.meshgrid(torch.linspace(-2, 2, 120), torch.linspace(-1.5, 1.5, 90), indexing="xy")
    points = torch.stack([x, y], -1).reshape(-1, 2)
    density = xf.jit(xf.vmap(normalizing_flow.log_density, (None, 0)))(result.params, points).exp()
    axes.pcolormesh(x, y, density.cpu().reshape(x.shape), cmap="magma")
    axes.set_aspect("equal")


def draw_vae(result: vae.Result, axes: Any) -> None:
    """Images of random points, 4 rows of 10."""
    z = xf.random.normal(xf.random.key(1), (40, vae.LATENT))
    images = perceptron(result.weights.decoder, z, torch.relu).sigmoid().cpu()
    rows = images.reshape(4, 10, 28, 28).transpose(1, 2).reshape(4 * 28, 10 * 28)
    axes.imshow(rows, cmap="gray")
    axes.axis("off")


def draw_graph_network(result: Any, axes: Any) -> None:
    """The club, with the told side of each member; the borders are the true ones."""
    club = nx.karate_club_graph()
    colors = ["tab:blue", "tab:orange"]
    nx.draw_networkx(
        club,
        nx.spring_layout(club, seed=4),
        ax=axes,
        node_color=[colors[i] for i in result.scores.argmax(-1).tolist()],
        edgecolors=[colors[i] for i in result.sides.tolist()],
        linewidths=3,
        node_size=150,
        font_size=7,
        edge_color="lightgray",
    )
    axes.axis("off")


def draw_neural_ode(result: neural_ode.Result, axes: Any) -> None:
    """Paths of 8 seconds, of the pendulum and of the network."""

    def path(f: Any, start: torch.Tensor) -> torch.Tensor:
        def step(y: torch.Tensor, _: None) -> Any:
            return neural_ode.runge_kutta(f, y, 0.1, steps=2), y

        return xf.device_get(xf.scan(step, start, length=80)[1])

    fields = {
        "true": (neural_ode.pendulum, "k-"),
        "learned": (lambda y: perceptron(result.params, y), "C1--"),
    }
    for start in torch.tensor([[2.0, 0.0], [-1.0, -1.5]]):
        for name, (field, style) in fields.items():
            axes.plot(*path(field, start).T, style, label=name if start[0] > 0 else None)
    axes.set(xlabel="angle", ylabel="speed")
    axes.legend(frameon=False)


PICTURES = {
    "gan": (draw_gan, (4, 4)),
    "graph_network": (draw_graph_network, (5, 4)),
    "kalman_filter": (draw_kalman_filter, (6, 3)),
    "neural_ode": (draw_neural_ode, (5, 3.5)),
    "normalizing_flow": (draw_normalizing_flow, (5, 3.75)),
    "vae": (draw_vae, (6, 2.5)),
}


def save(name: str, result: Any, path: Path) -> None:
    """Write the picture of an example, if it has one."""
    if name not in PICTURES:
        return
    draw, size = PICTURES[name]
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    draw(result, axes)
    figure.savefig(file := io.BytesIO(), dpi=80)
    plt.close(figure)
    Image.open(file).convert("RGB").quantize(64).save(path, optimize=True)
