"""`Offloaded`: stores the residuals of another policy in the host's memory."""

from __future__ import annotations

import dataclasses

from xfunc.graph.node import Node
from xfunc.remat.joint_graph import JointGraph
from xfunc.remat.policies import GraphPolicy, Offload, Policy
from xfunc.remat.residuals import is_several


@dataclasses.dataclass(frozen=True)
class Offloaded(GraphPolicy):
    """Keep the residuals of a policy, and the states of a loop's steps, in the host's memory.

    Single numbers stay on the device.

    Attributes:
        policy: chooses the residuals.
    """

    policy: Policy
    place = Offload()

    def choose(self, graph: JointGraph) -> frozenset[Node]:
        arrays = [n for n in graph.nodes if not is_several(n) and n.dims]
        if isinstance(self.policy, GraphPolicy):
            kept = self.policy.choose(graph)
        else:
            kept = frozenset(n for n in arrays if self.policy(n))
        states = graph.params.keys() - graph.available
        return frozenset(n for n in arrays if n in kept or n in states)
