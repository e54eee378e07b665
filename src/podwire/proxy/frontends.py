"""The ways in to a port of a Service, as data planes tell them apart (pure)."""

from ipaddress import IPv4Network, IPv6Network, ip_network

import msgspec

from podwire.proxy.servicemap import NodeFacts, ResolvedPort, of_family


class Frontend(msgspec.Struct, frozen=True, gc=False, order=True):
    """One way in; no address: a node port."""

    address: str
    protocol: str
    port: int


def frontends(port: ResolvedPort) -> frozenset[Frontend]:
    """All ways in to a port."""
    addresses = {port.cluster_ip, *port.external_ips, *port.load_balancer_ips}
    found = {Frontend(address, port.protocol, port.port) for address in addresses}
    if port.node_port:
        found.add(Frontend("", port.protocol, port.node_port))
    return frozenset(found)


def admitted(port: ResolvedPort, facts: NodeFacts) -> tuple[IPv4Network | IPv6Network, ...]:
    """The sources that may come to the addresses of a load balancer: its ranges.

    A node that may reach them comes with that very address, so where the ranges have the node, they are admitted too.
    """
    ranges = tuple(map(ip_network, port.source_ranges))
    own = (ip_network(address) for address in of_family(facts.addresses, port.family))
    if any(address.subnet_of(network) for address in own for network in ranges):  # type: ignore[arg-type]
        ranges += tuple(map(ip_network, port.load_balancer_ips))
    return tuple(dict.fromkeys(ranges))
