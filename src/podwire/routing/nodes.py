"""The nodes of a cluster as routing sees them: addresses, pod CIDRs, and what each says about itself.

A node announces its :class:`Facts` as JSON in the annotation ``podwire.io/routing-facts`` (and the backend alone,
for people, in ``podwire.io/routing``); everything else is read from the Node object. A node without the annotation
(its agent has not come up yet) is taken to do what this node does.
"""

import hashlib
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
)

import msgspec

from podwire.cluster.names import NODE_ROUTING_FACTS
from podwire.model.node import Node

Address = IPv4Address | IPv6Address
Interface = IPv4Interface | IPv6Interface
Network = IPv4Network | IPv6Network


class Facts(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a node tells its peers: the backend it sends with, and those it can receive."""

    backend: str
    receives: tuple[str, ...] = ()
    mac: str = ""


class Peer(msgspec.Struct, frozen=True, gc=False, order=True, kw_only=True):
    """Another node; ``facts`` None means that it has announced nothing yet."""

    name: str
    addresses: tuple[Address, ...] = ()
    pod_cidrs: tuple[Network, ...] = ()
    facts: Facts | None = None

    def address(self, version: int) -> Address | None:
        """Its first address of a family, or None."""
        return next((a for a in self.addresses if a.version == version), None)


class Underlay(msgspec.Struct, frozen=True, gc=False):
    """The device that carries this node's own addresses, with their prefixes."""

    link: str
    mtu: int
    addresses: tuple[Interface, ...]

    def reaches(self, address: Address) -> bool:
        """Whether an address is on the same subnet, that is needs no router."""
        return any(address in own.network for own in self.addresses if own.version == address.version)


class Me(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """This node."""

    name: str
    addresses: tuple[Address, ...]
    pod_cidrs: tuple[Network, ...]
    underlay: Underlay

    def address(self, version: int) -> Address | None:
        """Its first address of a family, or None."""
        return next((a for a in self.addresses if a.version == version), None)


def peer_of(node: Node) -> Peer:
    """The peer that a Node object describes; what does not parse is left out."""
    return Peer(
        name=node.metadata.name,
        addresses=tuple(a for text in node.internal_ips if (a := _address(text)) is not None),
        pod_cidrs=pod_cidrs_of(node),
        facts=_facts(node.metadata.annotations.get(NODE_ROUTING_FACTS, "")),
    )


def alike(one: Node, other: Node) -> bool:
    """Whether two objects of a Node describe the same peer; much cheaper to see than :func:`peer_of`."""
    return _told(one) == _told(other)


def _told(node: Node) -> tuple[object, ...]:
    return (
        node.metadata.name,
        node.status.addresses,
        node.pod_cidrs,
        node.metadata.annotations.get(NODE_ROUTING_FACTS),
    )


def pod_cidrs_of(node: Node) -> tuple[Network, ...]:
    """The node's pod CIDRs in the order of its object; a CIDR without room for the node's own address is left out."""
    return tuple(network for network in node.pod_networks if network.num_addresses >= 2)


def node_address(cidr: Network) -> Address:
    """The address of a pod CIDR that is the node's own: the first after the network address."""
    return cidr[1]


def tunnel_mac(node: str) -> str:
    """The hardware address of a node's tunnel device: locally administered, the same after every start."""
    digest = hashlib.sha1(f"podwire {node}".encode(), usedforsecurity=False).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))


def _address(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _facts(text: str) -> Facts | None:
    try:
        return msgspec.json.decode(text, type=Facts)
    except msgspec.MsgspecError:
        return None
