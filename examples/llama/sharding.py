"""How the model lies on a mesh, in one place.

The mesh has three axes, of which any may be 1. Over ``data`` the batch is divided and the weights
are not (data parallel); over ``fsdp`` the batch and the weights are (fully sharded data parallel);
over ``tensor`` each matrix product is (tensor parallel). What moves between the devices follows
from that; XLA writes it.
"""

from typing import Any

import torch

import xfunc as xf
from xfunc import NamedSharding, P

from . import model
from .optimizer import AdamWState
from .train import State

AXES = ("data", "fsdp", "tensor")
BATCH = P(("data", "fsdp"))
_INTO = P(None, "tensor", "fsdp")  # [layers, out, in]: the products are divided by features
_OUT_OF = P(None, "fsdp", "tensor")  # and added up over them
PARAMS: dict[str, Any] = {
    "embed": P("fsdp", "tensor"),
    "layers": {
        "attn_norm": P(None, "fsdp"),
        "wq": _INTO,
        "wk": _INTO,
        "wv": _INTO,
        "wo": _OUT_OF,
        "mlp_norm": P(None, "fsdp"),
        "w_gate": _INTO,
        "w_up": _INTO,
        "w_down": _OUT_OF,
    },
    "norm": P("fsdp"),
    "head": P("fsdp", "tensor"),
}


def params(config: model.Config, mesh: xf.AbstractMesh) -> dict[str, Any]:
    """The tree of shardings of `model.init`."""
    specs = {k: v for k, v in PARAMS.items() if k != "head" or not config.tied}
    return xf.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def state(config: model.Config, mesh: xf.AbstractMesh) -> State:
    """The tree of shardings of `train.init`: the moments lie where their weights do."""
    weights, whole = params(config, mesh), NamedSharding(mesh, P())
    return _state(weights, whole)


def abstract_state(
    config: model.Config, mesh: xf.AbstractMesh, dtype: torch.dtype = torch.bfloat16
) -> State:
    """The state of a model that need not fit anywhere, to lower a step for."""
    weights = xf.tree.map(
        lambda a, sharding: xf.ShapeDtypeStruct(a.shape, dtype, sharding),
        model.shapes(config, dtype),
        params(config, mesh),
    )
    return _state(weights, xf.ShapeDtypeStruct((), torch.int64, NamedSharding(mesh, P())))


def _state(weights: Any, step: Any) -> State:
    return State(weights, AdamWState(step, weights, weights))
