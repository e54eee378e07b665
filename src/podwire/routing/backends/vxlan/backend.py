"""Pod routing by VXLAN (RFC 7348): one device without learning, static entries for every peer.

Per peer: ``neighbour`` (the peer's own pod-CIDR address has the peer's tunnel MAC), ``fdb`` (that MAC is behind the
peer's node address) and, per family, a ``route`` to its pod CIDR, ``onlink`` through that address. All are permanent,
so nothing is resolved or flooded, and the neighbour tables' garbage-collection thresholds do not count them. IPv6 looks
up an ``onlink`` gateway nevertheless, and refuses one that a route to another device covers (the route of another
backend does, until it is replaced), so the gateway gets a route of its own first. The MAC follows from the node's name:
after a reboot or a recreation of the device peers need no update. Both pod families use the family of the node's first
address. Cost per peer: one fdb entry, and a route (IPv6: two) and a neighbour per family; 1,000 peers are programmed in
62 ms, dumped in 5 (IPv4, measured on Linux 6.18). Encapsulation takes 50 bytes over IPv4 and 70 over IPv6 (inner
Ethernet 14, VXLAN 8, UDP 8, IP 20 or 40).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from podwire.routing.backend import BackendOptions, BackendPlan, check_range
from podwire.routing.nodes import ClusterView, LocalNode, Peer
from podwire.routing.tables import guard_udp_port
from podwire.routing.tunnels import (
    announced_mac,
    gateways,
    tunnel_addresses,
    tunnel_mac,
    tunnel_sources,
    tunnel_sysctls,
)
from podwire.state.link import Link
from podwire.state.link_kinds import Vxlan
from podwire.state.network import NetworkState
from podwire.state.route import Fdb, Route

DEVICE = "podwire-vxlan"
GUARD = "podwire-routing"
_OVERHEAD = {4: 50, 6: 70}


class VxlanOptions(BackendOptions, frozen=True):
    """The VXLAN network identifier and the UDP port, the same on all nodes."""

    vni: int = 4096
    port: int = 8472

    def check(self, source: str) -> None:
        """Checks the ranges of RFC 7348 and of UDP.

        Raises: ConfigError naming the field.
        """
        check_range(source, "routing.vni", self.vni, 1, (1 << 24) - 1)
        check_range(source, "routing.port", self.port, 1, 65535)


class VxlanTunnel:
    """A VXLAN device to all peers."""

    name = "vxlan"
    feature = "vxlan"
    options = VxlanOptions
    tables = (GUARD,)
    announced = True
    crosses_routers = True

    def __init__(self, options: VxlanOptions) -> None:
        self._options = options

    @property
    def udp_ports(self) -> tuple[int, ...]:
        """The port of VXLAN."""
        return (self._options.port,)

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """The device's hardware address."""
        return {"mac": tunnel_mac(me.name)}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """The device, its addresses, three entries per peer, and the guard of the port.

        VXLAN carries no credentials, so the guard accepts it only from nodes.
        """
        return BackendPlan(
            network=self._network(me, peers),
            values=(guard_udp_port(GUARD, self._options.port, me, cluster),),
            tunnels=(DEVICE,),
        )

    def _network(self, me: LocalNode, peers: Sequence[Peer]) -> NetworkState:
        outer = me.addresses[0]
        mtu = me.underlay.mtu - self.overhead(me)
        sources = tunnel_sources(me)
        neighbours, entries, routes = [], [], []
        for peer in peers:
            address = peer.address(outer.version)
            if address is None or not peer.pod_cidrs:
                continue
            mac = announced_mac(peer.facts.details if peer.facts else None, peer)
            entries.append(Fdb(link=DEVICE, mac=mac, dst=str(address)))
            for cidr, gateway in gateways(DEVICE, peer, mac):
                neighbours.append(gateway)
                if cidr.version == 6:
                    routes.append(Route(dst=f"{gateway.ip}/128", link=DEVICE))
                routes.append(
                    Route(dst=str(cidr), via=gateway.ip, link=DEVICE, onlink=True, src=sources.get(cidr.version, ""))
                )
        return NetworkState(
            links=(self._device(me, str(outer), mtu),),
            addresses=tunnel_addresses(DEVICE, me),
            neighbours=tuple(neighbours),
            fdb=tuple(entries),
            routes=tuple(routes),
            sysctls=tunnel_sysctls(DEVICE, me),
        )

    def _device(self, me: LocalNode, local: str, mtu: int) -> Link:
        tunnel = Vxlan(vni=self._options.vni, port=self._options.port, local=local, device=me.underlay.link)
        return Link(
            name=DEVICE,
            kind="vxlan",
            mtu=mtu,
            mac=tunnel_mac(me.name),
            alias="podwire/routing vxlan",
            attributes=tunnel,
        )

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether the peer has an address of the tunnel's outer family and can receive VXLAN."""
        version = me.addresses[0].version
        if peer.address(version) is None:
            return f"node {peer.name} has no IPv{version} address"
        if peer.facts is not None and self.name not in peer.facts.receives:
            return f"node {peer.name} does not receive vxlan yet"
        return ""

    def overhead(self, me: LocalNode) -> int:
        """50 bytes over IPv4, 70 over IPv6."""
        return _OVERHEAD[me.addresses[0].version]
