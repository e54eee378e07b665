"""The facts of a cluster that policies are about, and who stands behind an address (pure).

A pod that ended, or that uses its node's network, is nobody here: policies do not select it and it is no peer. An
address that two pods list belongs to the one that is not being deleted, then to the younger one.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from podwire.model.meta import Object, key_of
from podwire.model.node import Node
from podwire.model.pod import ContainerPort, Pod
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
        found = owners(self.pods).get(address)
        if found is not None:
            return Party(address=address, node=found.spec.node_name, pod=found)
        for node in self.nodes:
            if address in addresses_of(node):
                return Party(address=address, node=node.metadata.name)
            also = inner_addresses(node).get(address)
            if also is not None:
                return Party(address=address, node=node.metadata.name, also=also)
        return Party(address=address)


def addresses_of(node: Node) -> tuple[str, ...]:
    """The addresses of a node, without its names."""
    return node.ips("InternalIP", "ExternalIP")


def inner_addresses(node: Node) -> dict[str, tuple[str, ...]]:
    """The node's own addresses in its pods' ranges, each with those of its family by which the node is known.

    A range's first address and the one behind it are never a pod's: they are those of a node's bridge or tunnel. What
    a node sends to pods elsewhere by a tunnel, for itself, for pods with its network and for clients of its node ports,
    comes from there, where users can only name the addresses in its Node.
    """
    found: dict[str, tuple[str, ...]] = {}
    for network in node.pod_networks:
        known = tuple(address for address in addresses_of(node) if (":" in address) == (network.version == 6))
        if known and network.num_addresses > 2:
            found |= {str(network[0]): known, str(network[1]): known}
    return found


def subject_to_policy(pod: Pod) -> bool:
    """Whether policies select a pod and it is a peer."""
    return not pod.finished and not pod.spec.host_network


def owners(pods: Iterable[Pod]) -> Mapping[str, Pod]:
    """The pod behind each address."""
    found: dict[str, Pod] = {}
    for pod in pods:
        if subject_to_policy(pod):
            for address in pod.addresses:
                if address not in found or rank(found[address]) < rank(pod):
                    found[address] = pod
    return found


def rank(pod: Pod) -> tuple[Any, ...]:
    """Of two pods that list an address, the one with the higher rank owns it."""
    meta = pod.metadata
    return (meta.deletion_timestamp is None, meta.creation_timestamp or "", meta.uid, key_of(meta))


def ports_of(pod: Pod) -> tuple[ContainerPort, ...]:
    """The declared ports of everything that runs as long as the pod: containers and sidecars."""
    sidecars = (each for each in pod.spec.init_containers if each.restart_policy == "Always")
    return tuple(port for container in (*pod.spec.containers, *sidecars) for port in container.ports)
