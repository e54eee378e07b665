"""The interfaces of a cloud whose addresses a node gives to its pods: a Node annotation, written and read (pure).

Where a cloud's network has no routes to pod CIDRs, each pod has an address of the network itself: a secondary address
of an interface (ENI) of its node. The controller ``cloudaddresses`` adds interfaces and addresses, and writes them to
the Node. The agent gives the addresses to pods, and leads packets of each pod out of the interface with its address.
"""

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_interface, ip_network

import msgspec

from podwire.cluster.names import NODE_CLOUD_INTERFACES
from podwire.cluster.podnetworks import further_ranges
from podwire.model.node import Node

Network = IPv4Network | IPv6Network


class PodInterface(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An interface of a node: its number at the instance, hardware address, own address with prefix, and router.

    ``pods`` are the addresses and prefixes for pods. All are of one family: an interface with both is there twice.
    ``address`` is empty where the device needs none: with IPv6 it speaks to its router by its link-local address.
    """

    index: int
    mac: str
    address: str
    gateway: str
    pods: tuple[str, ...] = ()

    @property
    def networks(self) -> tuple[Network, ...]:
        """``pods`` as networks, merged."""
        networks = [ip_network(text) for text in self.pods]
        v4 = collapse_addresses(network for network in networks if network.version == 4)
        v6 = collapse_addresses(network for network in networks if network.version == 6)
        return (*v4, *v6)


class NodeInterfaces(msgspec.Struct, frozen=True):
    """All interfaces of a node for pods; ``networks`` are those of the cloud's whole network (the VPC)."""

    networks: tuple[str, ...] = ()
    interfaces: tuple[PodInterface, ...] = ()

    def lacks(self, other: "NodeInterfaces") -> bool:
        """Whether ``other`` has addresses for pods that are not here."""
        mine = {(interface.mac, pods) for interface in self.interfaces for pods in interface.pods}
        return any((interface.mac, pods) not in mine for interface in other.interfaces for pods in interface.pods)

    @property
    def pod_networks(self) -> tuple[Network, ...]:
        """The networks of pods, in the order of the interfaces."""
        return tuple(network for interface in self.interfaces for network in interface.networks)

    def annotation(self) -> dict[str, str]:
        """The annotation of the Node."""
        return {NODE_CLOUD_INTERFACES: msgspec.json.encode(self).decode()}


def read_interfaces(annotations: Mapping[str, str]) -> NodeInterfaces | None:
    """The interfaces in a Node's annotations; None without the annotation, none of them when it is not valid."""
    text = annotations.get(NODE_CLOUD_INTERFACES)
    if text is None:
        return None
    try:
        read = msgspec.json.decode(text, type=NodeInterfaces)
        for interface in read.interfaces:
            if interface.address:
                ip_interface(interface.address)
            ip_address(interface.gateway)
            for pods in interface.pods:
                ip_network(pods)
        for network in read.networks:
            ip_network(network)
    except (msgspec.MsgspecError, ValueError):
        return NodeInterfaces()
    return read


def pod_networks_of(node: Node) -> tuple[Network, ...]:
    """The networks of a node's pods: of its interfaces if it has some, else its pod CIDRs, without further networks."""
    interfaces = read_interfaces(node.metadata.annotations)
    return node.pod_networks if interfaces is None else interfaces.pod_networks


def pod_ranges_of(node: Node) -> tuple[Network, ...]:
    """The networks of a node's pods, with its ranges of further pod networks."""
    return (*pod_networks_of(node), *further_ranges(node))
