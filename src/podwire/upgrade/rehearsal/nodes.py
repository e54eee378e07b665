"""Which nodes a local copy of a cluster has, and which waves they are in. Pure.

A copy has a few nodes; each stands for one node of the cluster and has its labels and taints. Chosen are, in this
order, the canaries of the plan, one node of the control plane, one node of each zone, and then nodes by name.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from podwire.model.meta import Fact
from podwire.model.node import Taint
from podwire.upgrade.inventory.inventory import Inventory, InventoryNode
from podwire.upgrade.plan.values import UpgradePlan, Wave

_HOSTNAME = "kubernetes.io/hostname"
_CONDITION_TAINTS = "node.kubernetes.io/"
"""Taints that controllers set and take away by the conditions of a node."""


class CopiedNode(Fact, frozen=True, kw_only=True):
    """A node of the copy, and the node of the cluster that it stands for."""

    name: str
    original: str
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()

    @property
    def patch(self) -> dict[str, object]:
        """The merge patch that gives the Node of the copy the labels and taints of the original."""
        patch: dict[str, object] = {"metadata": {"labels": dict(self.labels)}}
        if self.taints:
            patch["spec"] = {"taints": [msgspec.to_builtins(taint) for taint in self.taints]}
        return patch


def choose_nodes(inventory: Inventory, plan: UpgradePlan, most: int) -> tuple[CopiedNode, ...]:
    """At most ``most`` nodes, named ``node-1``, ``node-2``, ... as a local cluster names them."""
    nodes = {node.name: node for node in inventory.nodes if node.ready}
    ordered = dict.fromkeys(name for name in _preferred(nodes, plan) if name in nodes)
    return tuple(_copied(number, nodes[name]) for number, name in enumerate(list(ordered)[:most], start=1))


def _preferred(nodes: Mapping[str, InventoryNode], plan: UpgradePlan) -> Iterator[str]:
    for step in plan.steps:
        if step.waves:
            yield from step.waves[0].nodes[:1]
    yield from [node.name for node in nodes.values() if node.control_plane][:1]
    zones: set[str] = set()
    for node in nodes.values():
        if node.zone not in zones and not node.control_plane:
            zones.add(node.zone)
            yield node.name
    yield from nodes


def _copied(number: int, node: InventoryNode) -> CopiedNode:
    labels = {key: value for key, value in node.metadata.labels.items() if key != _HOSTNAME}
    taints = tuple(taint for taint in node.spec.taints if not taint.key.startswith(_CONDITION_TAINTS))
    return CopiedNode(name=f"node-{number}", original=node.name, labels=labels, taints=taints)


def copied_waves(waves: Sequence[Wave], nodes: Sequence[CopiedNode]) -> tuple[Wave, ...]:
    """The waves with the nodes of the copy; waves none of whose nodes has a copy are left out."""
    names = {node.original: node.name for node in nodes}
    copied = (tuple(names[name] for name in wave.nodes if name in names) for wave in waves)
    return tuple(
        msgspec.structs.replace(wave, nodes=members) for wave, members in zip(waves, copied, strict=True) if members
    )
