"""The objects of a cluster that verdicts about packets depend on, and the pod or node behind an address (pure)."""

from collections.abc import Iterable

import msgspec

from podwire.cluster.addresses import pod_side_addresses, pods_by_address
from podwire.model.meta import Object, key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy


class Party(msgspec.Struct, frozen=True, kw_only=True):
    """One end of a connection."""

    address: str
    node: str = ""
    """The node of the pod, or the node that owns the address; empty for an address outside the cluster."""
    pod: Pod | None = None
    """The pod that owns the address; None: no pod owns it."""
    node_addresses: tuple[str, ...] = ()
    """For a node that sends from an address in its own pod range: the addresses in its Node status."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that an ``ipBlock`` must contain to match this end.

        A node is matched only by the addresses in its Node status: its address in its pod range is an internal detail
        of some routing backends, and a block with the pods' range must not match the node.
        """
        return self.node_addresses or (self.address,)

    @property
    def name(self) -> str:
        """The display name: ``namespace/name`` of the pod, ``node NAME``, or the address."""
        if self.pod is not None:
            return key_of(self.pod.metadata)
        return f"node {self.node}" if self.node else self.address


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that a verdict depends on; the lists may be in any order."""

    pods: tuple[Pod, ...] = ()
    namespaces: tuple[Object, ...] = ()
    nodes: tuple[Node, ...] = ()
    policies: tuple[NetworkPolicy, ...] = ()
    cluster_policies: tuple[ClusterNetworkPolicy, ...] = ()

    def labels_of(self, namespace: str) -> dict[str, str]:
        """The labels of a namespace; for an unknown namespace only the label with its name."""
        for known in self.namespaces:
            if known.metadata.name == namespace:
                return known.metadata.labels | {"kubernetes.io/metadata.name": namespace}
        return {"kubernetes.io/metadata.name": namespace}

    def party(self, address: str) -> Party:
        """The pod or node that owns an address, as an end of a connection."""
        return party_at(address, self.pods, self.nodes)


def party_at(address: str, pods: Iterable[Pod], nodes: Iterable[Node]) -> Party:
    """The pod or node, of these, that owns an address, as an end of a connection."""
    pod = pods_by_address(pods).get(address)
    if pod is not None:
        return Party(address=address, node=pod.spec.node_name, pod=pod)
    for node in nodes:
        if address in node.addresses:
            return Party(address=address, node=node.metadata.name)
        known = pod_side_addresses(node).get(address)
        if known is not None:
            return Party(address=address, node=node.metadata.name, node_addresses=known)
    return Party(address=address)
