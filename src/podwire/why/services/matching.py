"""Finds the Service ports that an address and port belong to on a node (pure).

As in the data planes, addresses of Services take precedence over node ports. Two Services may have the same external
address and port; all of them are returned, in the order of their names.
"""

from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_network
from typing import Literal

import msgspec

from podwire.proxy.nodeports import localhost_node_ports, within
from podwire.proxy.servicemap import NodeFacts, ResolvedPort, ServiceMap
from podwire.trace.packet import LocalAddresses, Packet

Kind = Literal["ClusterIP", "LoadBalancerIP", "ExternalIP", "NodePort"]


class Matched(msgspec.Struct, frozen=True):
    """The port of a Service that a packet is sent to, and the kind of its address."""

    kind: Kind
    port: ResolvedPort

    @property
    def internal(self) -> bool:
        """Whether the packet uses the cluster address, for which internalTrafficPolicy holds."""
        return self.kind == "ClusterIP"

    @property
    def local(self) -> bool:
        """Whether the policy in force is Local."""
        return self.port.internal_local if self.internal else self.port.external_local

    @property
    def policy(self) -> str:
        """The policy in force, as the Service's field has it."""
        field = "internalTrafficPolicy" if self.internal else "externalTrafficPolicy"
        return f"{field}: {'Local' if self.local else 'Cluster'}"


def find(services: ServiceMap, facts: NodeFacts, machine: LocalAddresses, packet: Packet) -> tuple[Matched, ...]:
    """The Service ports that a packet is for; several only where Services claim the same address and port."""
    ports = [
        port
        for _, of_service in sorted(services.items())
        for port in of_service
        if port.family == packet.family and port.protocol == packet.protocol
    ]
    matches = tuple(_by_address(ports, packet))
    if matches or not is_node_port_address(facts, machine, packet.destination):
        return matches
    return tuple(Matched("NodePort", port) for port in ports if port.node_port == packet.destination_port != 0)


def _by_address(ports: Iterable[ResolvedPort], packet: Packet) -> Iterator[Matched]:
    for port in ports:
        if port.port != packet.destination_port:
            continue
        if port.cluster_ip == packet.destination:
            yield Matched("ClusterIP", port)
        elif packet.destination in port.load_balancer_ips:
            yield Matched("LoadBalancerIP", port)
        elif packet.destination in port.external_ips:
            yield Matched("ExternalIP", port)


def is_node_port_address(facts: NodeFacts, machine: LocalAddresses, address: str) -> bool:
    """Whether node ports answer at an address of the node."""
    if not facts.node_port_ranges:
        return address in facts.addresses
    if ip_address(address).is_loopback:
        return localhost_node_ports(facts) and ":" not in address and in_ranges(address, facts.node_port_ranges)
    return machine.owns(address) and bool(within((address,), facts.node_port_ranges))


def is_cluster_ip(services: ServiceMap, address: str) -> str:
    """The Service whose cluster address it is, as ``namespace/name``; empty when it is none."""
    return next((key for key, ports in services.items() if any(p.cluster_ip == address for p in ports)), "")


def in_ranges(address: str, ranges: Iterable[str]) -> bool:
    """Whether an address lies in one of the networks."""
    value = ip_address(address)
    return any(value in ip_network(text) for text in ranges)
