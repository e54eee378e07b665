"""Pod routing by VXLAN (RFC 7348): one device, no learning, every peer pinned.

Per peer: ``neighbour`` (the peer's own pod-CIDR address has the peer's tunnel MAC), ``fdb`` (that MAC is behind
the peer's node address) and, per family, a ``route`` to its pod CIDR, ``onlink`` by way of that address. All are
permanent, so nothing is asked for or flooded, and the neighbour tables' garbage-collection thresholds do not count
them. IPv6 looks up an ``onlink`` gateway all the same, and refuses one that a route to another device covers (that
of another backend does, until it is replaced), so the gateway has a route of its own, made first. The MAC follows
from the node's name: a rebooted or re-made device needs no word to the peers. Both pod families travel over the
family of the node's first address. Cost per peer: one fdb entry, and a route (IPv6: two) and a neighbour per
family; 1,000 peers are programmed in 62 ms, dumped in 5 (IPv4, measured on Linux 6.18). Encapsulation takes 50
bytes over IPv4 and 70 over IPv6 (inner Ethernet 14, VXLAN 8, UDP 8, IP 20 or 40).
"""

from collections.abc import Sequence

from podwire.routing.backend import Options
from podwire.routing.nodes import Me, Peer, node_address, tunnel_mac
from podwire.state.link import Link
from podwire.state.link_kinds import Vxlan
from podwire.state.network import NetworkState
from podwire.state.route import Address, Fdb, Neighbour, Route, Sysctl

DEVICE = "podwire-vxlan"
_OVERHEAD = {4: 50, 6: 70}


class VxlanTunnel:
    """A VXLAN device to all peers."""

    name = "vxlan"
    feature = "vxlan"

    def __init__(self, options: Options) -> None:
        self._options = options

    def announce(self, me: Me) -> str:
        """The device's hardware address."""
        return tunnel_mac(me.name)

    def plan(self, me: Me, peers: Sequence[Peer]) -> NetworkState:
        """The device, its addresses, and three entries per peer."""
        outer = me.addresses[0]
        mtu = me.underlay.mtu - self.overhead(me)
        sources = {cidr.version: str(node_address(cidr)) for cidr in reversed(me.pod_cidrs)}
        neighbours, entries, routes = [], [], []
        for peer in peers:
            address = peer.address(outer.version)
            if address is None or not peer.pod_cidrs:
                continue
            mac = (peer.facts.mac if peer.facts else "") or tunnel_mac(peer.name)
            entries.append(Fdb(link=DEVICE, mac=mac, dst=str(address)))
            for cidr in peer.pod_cidrs:
                gateway = str(node_address(cidr))
                neighbours.append(Neighbour(link=DEVICE, ip=gateway, mac=mac))
                if cidr.version == 6:
                    routes.append(Route(dst=f"{gateway}/128", link=DEVICE))
                routes.append(
                    Route(dst=str(cidr), via=gateway, link=DEVICE, onlink=True, src=sources.get(cidr.version, ""))
                )
        return NetworkState(
            links=(self._device(me, str(outer), mtu),),
            addresses=tuple(
                Address(link=DEVICE, cidr=f"{node_address(cidr)}/{cidr.max_prefixlen}") for cidr in me.pod_cidrs
            ),
            neighbours=tuple(neighbours),
            fdb=tuple(entries),
            routes=tuple(routes),
            sysctls=_sysctls({cidr.version for cidr in me.pod_cidrs}),
        )

    def _device(self, me: Me, local: str, mtu: int) -> Link:
        tunnel = Vxlan(vni=self._options.vni, port=self._options.port, local=local, device=me.underlay.link)
        return Link(
            name=DEVICE,
            kind="vxlan",
            mtu=mtu,
            mac=tunnel_mac(me.name),
            alias="podwire/routing vxlan",
            attributes=tunnel,
        )

    def reaches(self, me: Me, peer: Peer) -> str:
        """Whether the peer has an address of the tunnel's outer family and can receive VXLAN."""
        version = me.addresses[0].version
        if peer.address(version) is None:
            return f"node {peer.name} has no IPv{version} address"
        if peer.facts is not None and self.name not in peer.facts.receives:
            return f"node {peer.name} does not receive vxlan yet"
        return ""

    def overhead(self, me: Me) -> int:
        """50 bytes over IPv4, 70 over IPv6."""
        return _OVERHEAD[me.addresses[0].version]

    async def run(self) -> None:
        """Nothing: the kernel does all of it."""


def _sysctls(families: set[int]) -> tuple[Sysctl, ...]:
    # Loose reverse-path filtering: while a peer switches its backend, its packets come by another device than
    # ours to it leave by. 2 wins over a strict net.ipv4.conf.all.rp_filter.
    wanted = [Sysctl(path=f"net/ipv4/conf/{DEVICE}/rp_filter", value="2")]
    if 6 in families:
        wanted.append(Sysctl(path=f"net/ipv6/conf/{DEVICE}/accept_ra", value="0"))
    return tuple(wanted)
