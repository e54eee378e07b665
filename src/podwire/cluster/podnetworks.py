"""Pod networks of a node: names, VLANs and ranges, as the node's agent announces them on its Node (pure).

A node announces its pod networks with the other facts of routing, and none while the cluster has only one network. The
network ``default`` is that of pods without an annotation, with the pod CIDRs of the node.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Any

import msgspec

from podwire.cluster.names import NODE_ROUTING_FACTS
from podwire.model.node import Node

Network = IPv4Network | IPv6Network
DEFAULT_NETWORK = "default"
"""The network of pods that name none."""
SEPARATION_PRIORITY = 1121
"""The priority of the policy routing rules that separate a network, by its addresses as the source."""
FACT = "networks"
"""The key under which a node announces its pod networks."""


class NodePodNetwork(msgspec.Struct, frozen=True, gc=False):
    """A pod network as one node has it: the VLAN, and the range of each family from which its pods get addresses."""

    name: str
    vlan: int
    cidrs: tuple[str, ...] = ()

    @property
    def networks(self) -> tuple[Network, ...]:
        """``cidrs`` as values."""
        return tuple(map(ip_network, self.cidrs))

    def __str__(self) -> str:
        return f"{self.name} (VLAN {self.vlan})"


def announced_networks(details: Mapping[str, Any]) -> tuple[NodePodNetwork, ...]:
    """The pod networks in the facts that a node announces; none when they are not valid."""
    announced = details.get(FACT)
    if announced is None:
        return ()
    try:
        networks = msgspec.convert(announced, tuple[NodePodNetwork, ...])
        for network in networks:
            assert network.networks is not None
    except (msgspec.ValidationError, ValueError):
        return ()
    return networks


def pod_networks_on(node: Node) -> tuple[NodePodNetwork, ...]:
    """The pod networks that a Node announces."""
    text = node.metadata.annotations.get(NODE_ROUTING_FACTS, "")
    if f'"{FACT}"' not in text:
        return ()
    try:
        return announced_networks(msgspec.json.decode(text, type=dict[str, Any]))
    except msgspec.MsgspecError:
        return ()


def further_ranges(node: Node) -> tuple[Network, ...]:
    """The ranges of a node's pods besides its pod CIDRs: those of all pod networks but the default one."""
    further = (network for network in pod_networks_on(node) if network.name != DEFAULT_NETWORK)
    return tuple(cidr for network in further for cidr in network.networks)


def network_at(node: Node, address: IPv4Address | IPv6Address) -> NodePodNetwork | None:
    """The pod network of an address of a node's pods; None where it is in none."""
    for network in pod_networks_on(node):
        if any(cidr.version == address.version and address in cidr for cidr in network.networks):
            return network
    return None
