"""The objects of a cluster that verdicts about packets depend on, and the pod or node behind an address (pure)."""

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
    """Where it is: the node of a pod, or the node whose own address this is; empty outside of the cluster."""
    pod: Pod | None = None
    """The pod as policies see it."""
    also: tuple[str, ...] = ()
    """Of a node that sends from an address in its pods' ranges: the addresses by which it is known."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every address by which blocks speak of it."""
        return (self.address, *self.also)

    @property
    def name(self) -> str:
        """What a reader calls it: ``namespace/name``, ``node NAME`` or the address."""
        if self.pod is not None:
            return key_of(self.pod.metadata)
        return f"node {self.node}" if self.node else self.address


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What a verdict depends on; all lists may be in any order."""

    pods: tuple[Pod, ...] = ()
    namespaces: tuple[Object, ...] = ()
    nodes: tuple[Node, ...] = ()
    policies: tuple[NetworkPolicy, ...] = ()
    cluster_policies: tuple[ClusterNetworkPolicy, ...] = ()

    def labels_of(self, namespace: str) -> dict[str, str]:
        """The labels of a namespace; one that is not known has its name alone."""
        for known in self.namespaces:
            if known.metadata.name == namespace:
                return known.metadata.labels | {"kubernetes.io/metadata.name": namespace}
        return {"kubernetes.io/metadata.name": namespace}

    def party(self, address: str) -> Party:
        """Who has an address."""
        found = pods_by_address(self.pods).get(address)
        if found is not None:
            return Party(address=address, node=found.spec.node_name, pod=found)
        for node in self.nodes:
            if address in node.addresses:
                return Party(address=address, node=node.metadata.name)
            also = pod_side_addresses(node).get(address)
            if also is not None:
                return Party(address=address, node=node.metadata.name, also=also)
        return Party(address=address)
