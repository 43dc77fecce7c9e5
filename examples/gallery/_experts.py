"""The weights of a layer of experts, and the layer computed densely, on one device."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import xfunc as xf


class Params(NamedTuple):
    """Tensors, or specs: of the router, and of one network for each expert."""

    router: Any  # [features, experts]
    up: Any  # [experts, features, hidden]
    down: Any  # [experts, hidden, features]


def init(key: Tensor, features: int, hidden: int, experts: int) -> Params:
    """Random weights."""
    a, b, c = xf.random.split(key, 3)
    return Params(
        xf.random.normal(a, (features, experts)) / features**0.5,
        xf.random.normal(b, (experts, features, hidden)) / features**0.5,
        xf.random.normal(c, (experts, hidden, features)) / hidden**0.5,
    )


def dense(params: Params, x: Tensor) -> Tensor:
    """The layer without any capacity: each token in every expert, of which it keeps one."""
    gates = torch.softmax(x @ params.router, -1)
    chosen = F.one_hot(gates.argmax(-1), gates.shape[-1]).to(x.dtype)
    hidden = torch.relu(torch.einsum("td,edh->teh", x, params.up))
    return torch.einsum("teh,ehd,te->td", hidden, params.down, gates * chosen)
