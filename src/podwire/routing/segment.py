"""A layer 2 segment between the nodes of a cluster, as the state of one node (pure).

Each node has a bridge with one port, which leads to the other nodes. The bridge holds the node's own address of each of
its pod CIDRs; the next hop to the pods of a peer is the same address of the peer. Neighbours are permanent, so no ARP
and no neighbour discovery is needed, and no other station can redirect packets with forged answers. The port is
``locked``: the bridge drops frames unless the forwarding table has their source behind the port, and the table has
exactly the nodes of the cluster (net/bridge/br_input.c). So other stations of the network reach no pod by the segment.

The port is a new device on top of the uplink. The uplink itself keeps its addresses, routes and hardware address, and
no packet is lost when the segment is made or removed. Pods stay behind their node's routing table, where Services and
NetworkPolicies see every packet; as ports of the bridge they would bypass both.

The hardware address follows from the name and the first address of the node: peers need no update when the device is
made again, and clusters that share a network have different ones.

Cost per peer: one forwarding entry, and a route (IPv6: two) and a neighbour per family. No bytes in the packet.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from podwire.errors import ConfigError
from podwire.routing.backend import BackendPlan
from podwire.routing.direct import behind_router
from podwire.routing.entries import forwarding_to, route_to
from podwire.routing.nodes import Address, ClusterView, LocalNode, Peer
from podwire.routing.paths import PathState, PeerPath, follow_route, next_neighbour
from podwire.routing.peerstates import PeerStates
from podwire.routing.tunnels import gateways, tunnel_addresses, tunnel_sources, tunnel_sysctls
from podwire.state.address import mac_text
from podwire.state.link import NAME_MAX, Link
from podwire.state.network import NetworkState, Object, merge
from podwire.state.route import Route


class NodeSegment(msgspec.Struct, frozen=True):
    """The segment of the backend ``backend``.

    ``uplink`` is the device that leads to the other nodes, empty for the one with the node's addresses. ``bridge`` is
    the name of the bridge, empty for that of the backend.
    ``peer_states`` and ``members`` are kept from plan to plan.
    """

    backend: str
    uplink: str = ""
    bridge: str = ""
    peer_states: PeerStates = msgspec.field(default_factory=PeerStates)
    members: PeerStates = msgspec.field(default_factory=PeerStates)

    @property
    def device(self) -> str:
        """The name of the bridge."""
        return self.bridge or f"podwire-{self.backend}"

    def lower(self, me: LocalNode) -> str:
        """The name of the uplink."""
        return self.uplink or me.underlay.link

    def mtu(self, me: LocalNode) -> int:
        """The MTU of the uplink in bytes."""
        if not self.uplink or self.uplink == me.underlay.link:
            return me.underlay.mtu
        device = me.underlay.devices.get(self.uplink)
        return device.mtu if device is not None else me.underlay.mtu

    def refusal(self, me: LocalNode) -> str:
        """Why the uplink cannot be used; empty when it can."""
        name = self.lower(me)
        device = me.underlay.devices.get(name)
        field = f"routing.{self.backend}.uplink"
        if device is None:
            return f"{field}: node {me.name} has no device {name!r}"
        if device.master:
            return f"{field}: {name} of node {me.name} is a port of {device.master}; use {device.master}"
        return ""

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """The hardware address; nothing while the uplink cannot be used."""
        return {} if self.refusal(me) else {self.backend: {"mac": segment_mac(me.name, me.addresses)}}

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Empty when the peer is in the segment, else the reason why not."""
        if reason := self.refusal(me):
            return reason
        if peer.facts is not None and self.backend not in peer.facts.details:
            return f"node {peer.name} does not receive {self.backend} yet"
        if not self._mac(peer):
            return f"node {peer.name} announces no hardware address for {self.backend}"
        return "" if self.uplink and self.uplink != me.underlay.link else behind_router(me, peer)

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView, port: Link) -> BackendPlan:
        """The bridge with ``port``, and the way to ``peers``; nothing while the uplink cannot be used."""
        if self.refusal(me):
            return BackendPlan()
        mtu, mac, alias = self.mtu(me), segment_mac(me.name, me.addresses), f"podwire/routing {self.backend}"
        bridge = Link(name=self.device, kind="bridge", mtu=mtu, mac=mac, alias=alias)
        member = msgspec.structs.replace(port, mtu=mtu, mac=mac, alias=alias, master=self.device, locked=True)
        common = NetworkState(
            links=(bridge, member),
            addresses=tunnel_addresses(self.device, me),
            sysctls=tunnel_sysctls(self.device, me),
        )
        sources = tunnel_sources(me)
        routes = self.peer_states.merged(peers, sources, lambda peer: self._way(peer, sources))
        members = self.members.merged(cluster.peers, port.name, lambda peer: self._member(peer, port.name))
        return BackendPlan(network=merge([common, routes, members]), tunnels=(self.device,))

    def _way(self, peer: Peer, sources: Mapping[int, str]) -> Iterator[Object]:
        """The routes to a peer, and their next hops."""
        for cidr, gateway in gateways(self.device, peer, self._mac(peer)):
            yield gateway
            if cidr.version == 6:
                yield Route(dst=f"{gateway.ip}/128", link=self.device)
            yield route_to(cidr, gateway.ip, link=self.device, src=sources.get(cidr.version, ""), onlink=True)

    def _member(self, peer: Peer, port: str) -> Iterator[Object]:
        """The entry by which a peer may send to this node; more peers may than it sends to.

        A peer may send as soon as it knows this node, which may be before this node knows what the peer announces: its
        hardware address follows from its Node.
        """
        yield forwarding_to(self._mac(peer) or segment_mac(peer.name, peer.addresses), link=port, bridge=True)

    def path(self, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The path to a pod of a peer: the route to the bridge, and the neighbour entry of its next hop."""
        path = follow_route(state.network, peer, address, (self.device,))
        if path.missing or path.route is None or next_neighbour(state.network, path.route) is not None:
            return path
        return msgspec.structs.replace(path, missing=(f"no neighbour entry for {path.route.via} on {self.device}",))

    def overhead(self, me: LocalNode) -> int:
        """Bytes by which the MTU of the uplink is smaller than that of the device with the node's addresses."""
        return max(0, me.underlay.mtu - self.mtu(me))

    def _mac(self, peer: Peer) -> str:
        """The hardware address of a peer; empty when it is not in the segment or announces an invalid address."""
        if peer.facts is None:
            return segment_mac(peer.name, peer.addresses)
        announced = peer.facts.details.get(self.backend)
        mac = announced.get("mac") if isinstance(announced, Mapping) else None
        try:
            return mac_text(mac) if isinstance(mac, str) else ""
        except ValueError:
            return ""


def check_uplink(source: str, path: str, name: str) -> None:
    """Checks the name of an uplink; the empty name stands for the device with the node's addresses.

    Raises: ConfigError when the kernel has no devices of such names.
    """
    if (
        len(name.encode()) > NAME_MAX
        or any(letter in "/:" or letter.isspace() for letter in name)
        or name in (".", "..")
    ):
        problem = f"{name!r} is not a device name: expected at most {NAME_MAX} bytes without / : and spaces"
        raise ConfigError(source, path, problem)
    if name.startswith("podwire-"):
        raise ConfigError(
            source, path, f"{name} is a device of podwire: expected a device that leads to the other nodes"
        )


def segment_mac(node: str, addresses: Sequence[Address]) -> str:
    """The hardware address of a node in a segment: locally administered, the same after every start."""
    first = addresses[0] if addresses else ""
    digest = hashlib.sha1(f"podwire segment {node} {first}".encode(), usedforsecurity=False).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))
