"""Shared by backends with a tunnel device: its addresses, its hardware address, its sysctls, the route to a peer.

A tunnel device holds the address of this node in each of its pod CIDRs; a peer is the neighbour behind the device that
has the same address of its own pod CIDR. The hardware address follows from the node's name, so that after a reboot or a
new device no peer needs an update.
"""

import hashlib
from collections.abc import Iterator, Mapping

from podwire.routing.entries import neighbour_at, route_to
from podwire.routing.nodes import LocalNode, Network, Peer, has_node_address, node_address
from podwire.state.address import unpack_ip
from podwire.state.route import Address, Neighbour, Route, Sysctl


def tunnel_mac(node: str) -> str:
    """The hardware address of a node's tunnel device: locally administered, the same after every start."""
    digest = hashlib.sha1(f"podwire {node}".encode(), usedforsecurity=False).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))


def announced_mac(details: object, peer: Peer) -> str:
    """The hardware address under ``mac`` in the facts that a peer announces, else the one of the peer's name."""
    mac = details.get("mac", "") if isinstance(details, Mapping) else ""
    return mac if mac and isinstance(mac, str) else tunnel_mac(peer.name)


def tunnel_addresses(device: str, me: LocalNode) -> tuple[Address, ...]:
    """The addresses of this node's tunnel device, one for each pod CIDR."""
    own = (cidr for cidr in me.pod_cidrs if has_node_address(cidr))
    return tuple(Address(link=device, cidr=f"{node_address(cidr)}/{cidr.max_prefixlen}") for cidr in own)


def tunnel_sources(me: LocalNode) -> dict[int, str]:
    """The source addresses of the node's own packets into a tunnel, by IP version: the first pod CIDR's."""
    return {cidr.version: str(node_address(cidr)) for cidr in reversed(me.pod_cidrs) if has_node_address(cidr)}


def gateways(device: str, peer: Peer, mac: str) -> Iterator[tuple[Network, Neighbour]]:
    """Each pod CIDR of a peer with the neighbour behind an Ethernet tunnel device that is the way to it.

    The neighbour of a single address, which another node lends, is that of the peer's first range of the family.
    """
    for cidr in peer.pod_cidrs:
        carrier = cidr if has_node_address(cidr) else _carrier(cidr, peer)
        yield cidr, neighbour_at(_node_text(carrier), mac, link=device)


def _carrier(single: Network, peer: Peer) -> Network:
    """The first range of the peer in the family of a single address; the address itself when there is none."""
    ranges = (cidr for cidr in peer.pod_cidrs if cidr.version == single.version and has_node_address(cidr))
    return next(ranges, single)


def _node_text(cidr: Network) -> str:
    """The text of :func:`podwire.routing.nodes.node_address`."""
    if cidr.version == 4 and has_node_address(cidr):
        return unpack_ip((int(cidr.network_address) + 1).to_bytes(4, "big"))
    return str(node_address(cidr))


def tunnel_routes(device: str, peer: Peer, sources: Mapping[int, str]) -> Iterator[Route]:
    """The routes to a peer's pods by a device without neighbours."""
    return (route_to(cidr, link=device, src=sources.get(cidr.version, "")) for cidr in peer.pod_cidrs)


def tunnel_sysctls(device: str, me: LocalNode) -> tuple[Sysctl, ...]:
    """Loose reverse-path filtering, and no router advertisements (CVE-2020-13597).

    While a peer switches its backend, its packets arrive by another device than the one for packets to it. 2 takes
    precedence over a strict net.ipv4.conf.all.rp_filter.
    """
    sysctls = [Sysctl(path=f"net/ipv4/conf/{device}/rp_filter", value="2")]
    if any(cidr.version == 6 for cidr in me.pod_cidrs):
        sysctls.append(Sysctl(path=f"net/ipv6/conf/{device}/accept_ra", value="0"))
    return tuple(sysctls)


def no_outer_address(me: LocalNode, peer: Peer) -> str:
    """Empty when the peer has an address of the family in which this node sends outer packets, else the reason."""
    version = me.addresses[0].version
    return "" if peer.address(version) is not None else f"node {peer.name} has no IPv{version} address"


def not_receiving(peer: Peer, backend: str) -> str:
    """Empty when the peer announces that it receives from a backend, or announces nothing yet, else the reason."""
    if peer.facts is None or backend in peer.facts.receives:
        return ""
    return f"node {peer.name} does not receive {backend} yet"
