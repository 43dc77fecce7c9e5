"""Graph network: the two sides of a karate club, predicted from two of its members.

Edges are a list of pairs, and a node sums the messages along its edges: `xf.segment_sum`, which has
a gradient and goes through `jit` with the number of nodes as a static size. No matrix of neighbours
is made.

In JAX: `jax.ops.segment_sum`, as in `jraph`.
"""

from typing import NamedTuple

import networkx as nx
import torch
import torch.nn.functional as F
from torch import Tensor

import xfunc as xf
from examples.gallery._training import minimize

Params = list[Tensor]  # of each layer, [in, out]


class Graph(NamedTuple):
    """A directed graph; each edge of an undirected one is there both ways."""

    senders: Tensor  # [edges]
    receivers: Tensor
    nodes: int


class Result(NamedTuple):
    """The graph, the side of each member, and the trained network's scores [nodes, 2]."""

    graph: Graph
    sides: Tensor
    scores: Tensor
    accuracy: float


def network(params: Params, graph: Graph, features: Tensor) -> Tensor:
    """Graph convolutions of features [nodes, features]."""
    ones = torch.ones(len(graph.senders), dtype=features.dtype)
    degree = 1 + xf.segment_sum(ones, graph.receivers, graph.nodes)
    scale = degree.rsqrt()[:, None]
    for i, weight in enumerate(params):
        messages = scale * ((features.tanh() if i else features) @ weight)
        received = xf.segment_sum(messages[graph.senders], graph.receivers, graph.nodes)
        features = scale * (received + messages)  # its own message, too
    return features


def karate_club() -> tuple[Graph, Tensor]:
    """Who met whom, and the side that each member took when the club split."""
    club = nx.karate_club_graph()
    pairs = torch.tensor(list(club.edges)).T
    senders, receivers = torch.cat([pairs, pairs.flip(0)], 1)
    sides = torch.tensor([club.nodes[i]["club"] == "Officer" for i in club]).long()
    return Graph(senders, receivers, len(club)), sides


def main() -> Result:
    """Train on the sides of the two leaders, and tell those of all members."""
    graph, sides = karate_club()
    features, leaders = torch.eye(graph.nodes), torch.tensor([0, graph.nodes - 1])

    def loss(params: Params, _: Tensor) -> Tensor:
        return F.cross_entropy(network(params, graph, features)[leaders], sides[leaders])

    keys, sizes = xf.random.split(xf.random.key(0), 3), [(graph.nodes, 8), (8, 8), (8, 2)]
    start = [xf.random.normal(k, n) / n[0] ** 0.5 for k, n in zip(keys, sizes, strict=True)]
    params, _ = minimize(loss, start, xf.optim.adam(0.01), torch.arange(200))
    scores = network(params, graph, features).cpu()
    accuracy = (scores.argmax(-1) == sides).float().mean().item()
    print(f"{graph.nodes} members, 2 of known side: {accuracy:.0%} of all are told right")
    return Result(graph, sides, scores, accuracy)


if __name__ == "__main__":
    main()
