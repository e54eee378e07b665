"""The nodes of a cluster as routing uses them: addresses, pod CIDRs, and the facts that each node announces.

A node announces its :class:`RoutingFacts` as JSON in the annotation ``podwire.io/routing-facts`` (and the backend
alone, for users, in ``podwire.io/routing``); everything else is read from the Node object. A node without the
annotation (its agent has not started yet) is assumed to have the settings of this node, unless flanneld has announced
it (:mod:`podwire.routing.flannel.annotations`).
"""

from collections.abc import Mapping
from ipaddress import IPv4Interface, IPv6Interface, ip_address
from typing import Any

import msgspec
from msgspec.structs import replace

from podwire.cluster.cloudinterfaces import pod_networks_of, read_interfaces
from podwire.cluster.names import NODE_CLOUD_INTERFACES, NODE_ROUTING, NODE_ROUTING_FACTS
from podwire.model.ip import parse_address
from podwire.model.node import POD_BLOCKS, Node
from podwire.routing.flannel import annotations as flannel
from podwire.routing.networks import Address as Address
from podwire.routing.networks import ClusterSets
from podwire.routing.networks import Network as Network

Interface = IPv4Interface | IPv6Interface

READ_ANNOTATIONS = ("projectcalico.org/", flannel.PREFIX, NODE_CLOUD_INTERFACES)
"""The prefixes of annotations by which users and controllers set up a node for a backend, or flanneld announces one."""


_DOCUMENT = msgspec.json.Decoder(dict[str, Any])
_NAMES = ("backend", "receives", "sends")


class RoutingFacts(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The facts that a node announces to its peers: the backend it sends with, and the backends it can receive from.

    ``sends`` are other backends by which the node still sends to some peers during a switch; peers receive from them.
    ``details`` are further keys of the JSON object, which the backends write and read themselves.
    """

    backend: str
    receives: tuple[str, ...] = ()
    details: Mapping[str, Any] = {}
    sends: tuple[str, ...] = ()

    def annotations(self) -> dict[str, str]:
        """The annotations of the Node that announce the facts to peers and users."""
        lists = {"receives": self.receives, "sends": self.sends}
        document = {"backend": self.backend} | {key: names for key, names in lists.items() if names}
        text = msgspec.json.encode(document | dict(self.details)).decode()
        return {NODE_ROUTING_FACTS: text, NODE_ROUTING: self.backend}


class Peer(msgspec.Struct, frozen=True, gc=False, order=True, kw_only=True):
    """Another node; ``facts`` None means that it has announced none yet."""

    name: str
    addresses: tuple[Address, ...] = ()
    pod_cidrs: tuple[Network, ...] = ()
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    """Those of :data:`READ_ANNOTATIONS`."""
    facts: RoutingFacts | None = None

    def address(self, version: int) -> Address | None:
        """Its first address of a family, or None."""
        for address in self.addresses:
            if address.version == version:
                return address
        return None


class Device(msgspec.Struct, frozen=True, gc=False):
    """A network device of the node: its MTU in bytes, and the bridge, bond or team of which it is a port.

    ``mac`` is its hardware address, ``kind`` as in ``state.link``; ``lower`` is the device that carries it, empty when
    there is none.
    """

    mtu: int
    master: str = ""
    mac: str = ""
    kind: str = ""
    lower: str = ""


class PathRoute(msgspec.Struct, frozen=True, gc=False):
    """A route of another program to nodes; ``mtu`` is the route's, else that of its device, in bytes."""

    network: Network
    mtu: int


class Underlay(msgspec.Struct, frozen=True, gc=False):
    """The device that carries this node's own addresses, with their prefixes; ``devices`` are all devices by name.

    ``routes`` are the routes between nodes in the order in which the kernel prefers them; none where every path has the
    full MTU. ``neighbour_limits`` are ``gc_thresh2`` and ``gc_thresh3`` by family, which the initial network namespace
    alone shows.
    """

    link: str
    mtu: int
    addresses: tuple[Interface, ...]
    devices: Mapping[str, Device] = {}
    routes: tuple[PathRoute, ...] = ()
    neighbour_limits: Mapping[int, tuple[int, int]] = {}

    @property
    def device_mtu(self) -> int:
        """The MTU of the device itself, which is what the node can receive."""
        device = self.devices.get(self.link)
        return device.mtu if device is not None else self.mtu

    def path_mtu(self, address: Address) -> int:
        """The largest packet to a node, in bytes."""
        for route in self.routes:
            if route.network.version == address.version and address in route.network:
                return min(route.mtu, self.mtu)
        return self.mtu

    def reaches(self, address: Address) -> bool:
        """Whether an address is on the same subnet, so that packets need no router."""
        for own in self.addresses:  # noqa: SIM110 - half of the time that any() takes
            if address in own.network:
                return True
        return False


class NodeKey(msgspec.Struct, frozen=True, gc=False):
    """A key pair that the node keeps: the public half in base64, and the file of the private half."""

    public: str
    file: str


class LocalNode(msgspec.Struct, frozen=True, kw_only=True):
    """This node; ``run_dir`` is the directory for the files of a backend's child processes.

    ``facts`` are those that the node announced last: peers may still use them. ``keys`` are the key pairs that the node
    keeps, by backend and name (``backend.KeyHolder``). ``annotations`` are those of :data:`READ_ANNOTATIONS`.
    ``whole_cidrs``: ``pod_cidrs`` are addresses that a cloud assigned, and the node has none of its own in them.
    ``leg_obstacle`` is why no packet of a pod may pass the node unseen by a second interface; empty: it may.
    ``plain_checksums`` are the tunnel devices whose packets need checksums from the kernel.
    ``features`` are those of the kernel that backends asked for (``backend.FeatureUser``).
    ``sessions`` are the public keys of peers with which a session exists; None: they are not read, because no packets
    wait for sessions.
    ``learned`` are the networks to which the program of a backend has written routes (``backend.RouteLearner``), read
    likewise.
    """

    name: str
    addresses: tuple[Address, ...]
    pod_cidrs: tuple[Network, ...]
    underlay: Underlay
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    run_dir: str = "/run/podwire/routing"
    facts: RoutingFacts | None = None
    keys: Mapping[str, Mapping[str, NodeKey]] = {}
    whole_cidrs: bool = False
    leg_obstacle: str = ""
    plain_checksums: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()
    sessions: frozenset[str] | None = None
    learned: frozenset[str] | None = None

    def address(self, version: int) -> Address | None:
        """Its first address of a family, or None."""
        return next((a for a in self.addresses if a.version == version), None)


class ClusterView(msgspec.Struct, frozen=True, gc=False):
    """The whole cluster as one node knows it: all other nodes, and all pod networks, merged.

    ``sets`` are the addresses for rules of nftables (:func:`podwire.routing.clustersets.sets_of`).
    """

    peers: tuple[Peer, ...] = ()
    pod_networks: tuple[Network, ...] = ()
    sets: ClusterSets | None = None
    cluster_cidrs: tuple[Network, ...] = ()
    """The configured pod networks of the cluster; a node's pod CIDR is a part of one."""


def peer_of(node: Node) -> Peer:
    """The peer of a Node object; values that do not parse are left out."""
    peer = own_node_of(node)
    other = flannel.read(peer.annotations) if peer.facts is None else None
    if other is None:
        return peer
    return replace(
        peer,
        addresses=tuple(dict.fromkeys((*map(ip_address, other.addresses), *peer.addresses))),
        facts=RoutingFacts(other.backend, (other.backend,), other.details),
    )


def own_node_of(node: Node) -> Peer:
    """The node of a Node object as its own agent sees it: without what flanneld has announced on it before."""
    return Peer(
        name=node.metadata.name,
        addresses=_addresses(node),
        pod_cidrs=pod_cidrs_of(node),
        labels=node.metadata.labels,
        annotations=_read_annotations(node),
        facts=_facts(node.metadata.annotations.get(NODE_ROUTING_FACTS, "")),
    )


def is_same_peer(old: Node, new: Node) -> bool:
    """Whether two versions of a Node describe the same peer; much cheaper than :func:`peer_of`."""
    return _facts_of(old) == _facts_of(new)


def _facts_of(node: Node) -> tuple[object, ...]:
    return (
        node.metadata.name,
        node.status.addresses,
        node.pod_cidrs,
        node.metadata.labels,
        _read_annotations(node),
        node.metadata.annotations.get(NODE_ROUTING_FACTS),
    )


def _read_annotations(node: Node) -> Mapping[str, str]:
    return {key: text for key, text in node.metadata.annotations.items() if key.startswith(READ_ANNOTATIONS)}


def pod_cidrs_of(node: Node) -> tuple[Network, ...]:
    """The networks of the node's pods in the order of its object.

    A pod CIDR without room for the node's own address is left out, unless it is an address that a cloud assigned or
    that another node lends.
    """
    networks = pod_networks_of(node)
    if all(map(has_node_address, networks)):
        return networks
    whole = read_interfaces(node.metadata.annotations) is not None or POD_BLOCKS in node.metadata.annotations
    return networks if whole else tuple(filter(has_node_address, networks))


def node_address(cidr: Network) -> Address:
    """The node's own address in a pod CIDR: the first after the network address, if there are two."""
    return cidr[1] if has_node_address(cidr) else cidr[0]


def has_node_address(cidr: Network) -> bool:
    """Whether a pod CIDR has room for an address of the node; a single address is all for a pod."""
    return cidr.prefixlen < cidr.max_prefixlen


def _addresses(node: Node) -> tuple[Address, ...]:
    """As ``node.internal_ips``, as values: one parse instead of two."""
    addresses = []
    for address in node.status.addresses:
        if address.type == "InternalIP" and "%" not in address.address:
            try:
                addresses.append(parse_address(address.address))
            except ValueError:
                continue  # the API takes any text
    return tuple(addresses)


def _facts(text: str) -> RoutingFacts | None:
    if not text:
        return None
    try:
        document = _DOCUMENT.decode(text)
        names = msgspec.convert({key: document.pop(key) for key in _NAMES if key in document}, RoutingFacts)
    except msgspec.MsgspecError:
        return None
    return RoutingFacts(names.backend, names.receives, document, names.sends)
