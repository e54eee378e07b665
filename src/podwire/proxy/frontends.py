"""The ways in to a port of a Service, as data planes tell them apart (pure)."""

import msgspec

from podwire.proxy.servicemap import ServicePort


class Frontend(msgspec.Struct, frozen=True, gc=False, order=True):
    """One way in; no address: a node port."""

    address: str
    protocol: str
    port: int


def frontends(port: ServicePort) -> frozenset[Frontend]:
    """All ways in to a port."""
    addresses = {port.cluster_ip, *port.external_ips, *port.load_balancer_ips}
    found = {Frontend(address, port.protocol, port.port) for address in addresses}
    if port.node_port:
        found.add(Frontend("", port.protocol, port.node_port))
    return frozenset(found)
