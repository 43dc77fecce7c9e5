"""Scatters with indices that the devices divide unevenly, which ended the process in XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.sharding import NamedSharding
from xfunc.sharding import PartitionSpec as P

Tensor = torch.Tensor
X = torch.tensor([[3.0, -1.0, 0.5], [0.0, 2.0, -4.0], [1.5, 2.5, 0.25], [-2.0, 7.0, 5.0]])
PLACES = torch.tensor([[3, 0, 2], [1, 1, 0], [0, 3, 3], [2, 2, 1]])
UPDATES = X.flip(0) * 1.5 - 1

VALUES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "scatter": lambda x, places, updates: x.scatter(1, places[:, :1] % 3, updates),
    "scatter_add": lambda x, places, updates: x.scatter_add(0, places, updates),
    "amin": lambda x, places, updates: x.scatter_reduce(0, places, updates, "amin"),
    "amax": lambda x, places, updates: x.scatter_reduce(1, places % 3, updates, "amax"),
    "prod": lambda x, places, updates: x.scatter_reduce(0, places, updates, "prod"),
    "index_add": lambda x, places, updates: x.index_add(1, places[2].int() % 3, updates),
    # What fills the last part are zeros in an array, but not in its cosine.
    "scatter_add of cosines": lambda x, places, updates: x.scatter_add(0, places, updates.cos()),
    "index_add of cosines": lambda x, places, updates: x.index_add(1, places[2] % 3, updates.cos()),
    "scatter_add of where": lambda x, places, updates: x.scatter_add(
        1, places % 3, (updates == updates.cummax(0)[0]).float()
    ),
}
DIFFERENTIATED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cummax": lambda x, places: torch.cummax(x, 0)[0],
    "cummin": lambda x, places: torch.cummin(x, 1)[0],
    "gather": lambda x, places: x.gather(0, places),
    "sort": lambda x, places: x.sort(0)[0],
    "amin of both": lambda x, places: x.scatter_reduce(0, places, x.cos(), "amin"),
}
SPECS = [("x",), (None, "x"), ("x", "y"), (("x", "y"),), (None, ("x", "y"))]


def results(grad: Callable[..., Any], x: Tensor, places: Tensor, updates: Tensor) -> dict[str, Any]:
    """Values, and gradients by a transform."""
    found = {name: fun(x, places, updates) for name, fun in VALUES.items()}
    for name, fun in DIFFERENTIATED.items():
        found[f"gradient of {name}"] = grad(lambda x, fun=fun: (fun(x, places) * updates).sum())(x)
    return found


@xf.jit
def corners(*args: Tensor) -> dict[str, Any]:
    """The results for a part of each argument, which stays where it is."""
    return results(xf.grad, *[x[:4, :3] for x in args])


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_scatter_with_unevenly_divided_indices(mesh: Any, spec: Any) -> None:
    args = [torch.nn.functional.pad(x, (0, 5, 0, 4)) for x in (X, PLACES, UPDATES)]
    found = xf.device_get(corners(*xf.device_put(args, NamedSharding(mesh, P(*spec)))))
    torch.testing.assert_close(found, results(torch.func.grad, X, PLACES, UPDATES))
