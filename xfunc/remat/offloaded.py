"""`Offloaded`: what another policy keeps, kept in the host's memory."""

from __future__ import annotations

import dataclasses

from xfunc.remat.joint_graph import JointGraph
from xfunc.remat.policies import GraphPolicy, Offload, Policy


@dataclasses.dataclass(frozen=True)
class Offloaded(GraphPolicy):
    """Keep in the host's memory what a policy keeps, and the states of a loop's steps.

    Single numbers stay on the device.

    Attributes:
        policy: says what is kept.
    """

    policy: Policy
    place = Offload()

    def choose(self, graph: JointGraph) -> frozenset[int]:
        arrays = [i for i in graph.instructions if not i.shape.is_tuple and i.shape.dims]
        if isinstance(self.policy, GraphPolicy):
            kept = self.policy.choose(graph)
        else:
            kept = frozenset(i.id for i in arrays if self.policy(i))
        states = {i.id for i in arrays if i.opcode == "parameter" and i.id not in graph.at_hand}
        return frozenset(i.id for i in arrays if i.id in kept or i.id in states)
