"""The plan that a local copy of a cluster gets: the same patches, with the nodes and the identity of the copy. Pure.

Steps by hand are left out, since the copy has neither the API servers nor the kubelets of the cluster, and so is the
gate that waits for API servers. The patches stay as they are: what is tried is what will be applied.
"""

from collections.abc import Sequence

import msgspec

from podwire.upgrade.plan.values import UpgradePlan, UpgradeStep, identified
from podwire.upgrade.rehearsal.nodes import CopiedNode, copied_waves


def copied_plan(plan: UpgradePlan, nodes: Sequence[CopiedNode], cluster: str) -> UpgradePlan:
    """The plan for the copy whose identity is ``cluster``; generations are not compared, since they begin again."""
    steps = tuple(_copied(step, nodes) for step in plan.steps if step.action != "manual")
    components = tuple(msgspec.structs.replace(component, generation=0) for component in plan.components)
    return identified(
        msgspec.structs.replace(plan, cluster=cluster, nodes=len(nodes), components=components, steps=steps)
    )


def _copied(step: UpgradeStep, nodes: Sequence[CopiedNode]) -> UpgradeStep:
    gates = tuple(gate for gate in step.gates if gate != "api-servers")
    return msgspec.structs.replace(step, gates=gates, waves=copied_waves(step.waves, nodes))


def left_out(plan: UpgradePlan) -> tuple[UpgradeStep, ...]:
    """The steps by hand, which a rehearsal does not try."""
    return tuple(step for step in plan.steps if step.action == "manual")
