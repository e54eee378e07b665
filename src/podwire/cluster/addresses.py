"""Which pod or node an address belongs to (pure).

A pod that ended, or that uses the network of its node, owns no address: no policy selects it and it is no peer. An
address that two pods list belongs to the pod that is not being deleted, then to the younger pod.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from podwire.cluster.podnetworks import further_ranges
from podwire.model.meta import key_of
from podwire.model.node import Node
from podwire.model.pod import Pod


def owns_addresses(pod: Pod) -> bool:
    """Whether the addresses in a pod's status are its own: policies select the pod then, and it is a peer."""
    return not pod.finished and not pod.spec.host_network


def pods_by_address(pods: Iterable[Pod]) -> Mapping[str, Pod]:
    """The pod that owns each address."""
    owners: dict[str, Pod] = {}
    for pod in pods:
        if owns_addresses(pod):
            for address in pod.addresses:
                if address not in owners or precedence(owners[address]) < precedence(pod):
                    owners[address] = pod
    return owners


def precedence(pod: Pod) -> tuple[Any, ...]:
    """A sort key: of two pods that list an address, the pod with the higher key owns it."""
    meta = pod.metadata
    return (meta.deletion_timestamp is None, meta.creation_timestamp or "", meta.uid, key_of(meta))


def pod_side_addresses(node: Node) -> dict[str, tuple[str, ...]]:
    """The node's own addresses in its pod ranges, each with the addresses of that family in the Node's status.

    The first two addresses of a pod range never belong to a pod: the bridge or the tunnel device of the node has them.
    Packets that a node sends through a tunnel, for itself, for pods in its network and for clients of its node ports,
    come from there, while users can only write the addresses in the Node's status into policies.
    """
    addresses_by_family: dict[str, tuple[str, ...]] = {}
    for network in (*node.pod_networks, *further_ranges(node)):
        known = tuple(address for address in node.addresses if (":" in address) == (network.version == 6))
        if known and network.num_addresses > 2:
            addresses_by_family |= {str(network[0]): known, str(network[1]): known}
    return addresses_by_family
