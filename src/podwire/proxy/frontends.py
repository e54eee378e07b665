"""The frontends of a Service port: address, protocol and port at which clients reach it (pure)."""

from ipaddress import IPv4Network, IPv6Network, ip_network

import msgspec

from podwire.proxy.servicemap import NodeFacts, ResolvedPort, of_family


class Frontend(msgspec.Struct, frozen=True, gc=False, order=True):
    """A frontend; a node port has an empty address."""

    address: str
    protocol: str
    port: int


def frontends(port: ResolvedPort) -> frozenset[Frontend]:
    """All frontends of a port."""
    addresses = {port.cluster_ip, *port.external_ips, *port.load_balancer_ips}
    result = {Frontend(address, port.protocol, port.port) for address in addresses}
    if port.node_port:
        result.add(Frontend("", port.protocol, port.node_port))
    return frozenset(result)


def admitted(port: ResolvedPort, facts: NodeFacts) -> tuple[IPv4Network | IPv6Network, ...]:
    """The sources that may connect to the load balancer addresses of a port.

    These are its source ranges. A node that connects to a load balancer address has that address as its source, so when
    a range contains the node, the load balancer addresses are added.
    """
    ranges = tuple(map(ip_network, port.source_ranges))
    own = (ip_network(address) for address in of_family(facts.addresses, port.family))
    if any(address.subnet_of(network) for address in own for network in ranges):  # type: ignore[arg-type]
        ranges += tuple(map(ip_network, port.load_balancer_ips))
    return tuple(dict.fromkeys(ranges))
