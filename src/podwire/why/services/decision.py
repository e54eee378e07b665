"""The specified outcome of a connection to a Service by the rules of Kubernetes, with the reason (pure).

This module implements the specification a second time, without kernel rules: the kind of client, the traffic policy in
force, the endpoints that may serve, and the table of source translation. ``why`` takes reasons from this module and
facts from the kernel's rules; a disagreement of the two is part of the answer.

==============================  ========  ===================  ===================
masquerade                      policy    node port, external  cluster address
                                Cluster   address, Local       (each policy)
==============================  ========  ===================  ===================
a pod                           yes       no                   no
the node itself                 yes       yes                  yes
anybody else                    yes       no                   yes
an endpoint that meets itself   yes       yes                  yes
==============================  ========  ===================  ===================

The first column is for node ports and external addresses. Source: Kubernetes 1.36, pkg/proxy.
"""

from ipaddress import ip_address, ip_network
from typing import Literal

import msgspec

from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint, ResolvedPort, ServiceMap, of_family
from podwire.trace.packet import LocalAddresses, Packet
from podwire.why.answer import Outcome, Reason
from podwire.why.services.matching import Matched, in_ranges, is_cluster_ip

ClientKind = Literal["pod", "node", "external"]


class ServiceDecision(msgspec.Struct, frozen=True):
    """The specified outcome of a connection, with the reason."""

    outcome: Outcome
    reason: Reason
    endpoints: tuple[ResolvedEndpoint, ...] = ()
    local: bool = False
    """Whether the endpoints are chosen by policy Local."""
    masquerade: bool = False
    """Whether the endpoint sees the node's address; always true for an endpoint that connects to itself."""
    snat: Reason | None = None
    """Why ``masquerade`` is as it is."""


def client_of(packet: Packet, facts: NodeFacts, machine: LocalAddresses) -> ClientKind:
    """The kind of client that sends a packet, as far as the proxy can tell."""
    if machine.owns(packet.source) and not packet.input:
        return "node"
    if facts.pod_interface:
        name = facts.pod_interface
        came = packet.input.startswith(name[:-1]) if name.endswith("*") else packet.input == name
        return "pod" if came else "external"
    return "pod" if in_ranges(packet.source, of_family(facts.pod_cidrs, packet.family)) else "external"


def decide(
    front: Matched | None, packet: Packet, facts: NodeFacts, machine: LocalAddresses, services: ServiceMap
) -> ServiceDecision:
    """The specified outcome on a node of a packet for a frontend (None: the packet is for no frontend)."""
    if front is None:
        return _no_frontend(packet, facts, machine, services)
    client = client_of(packet, facts, machine)
    if front.kind == "LoadBalancerIP" and not _allowed(front.port, packet, facts):
        ranges = ", ".join(front.port.source_ranges)
        return _end("dropped", "SourceRanges", f"{packet.source} is not in loadBalancerSourceRanges ({ranges})")
    return _to_cluster_ip(front, client, facts) if front.internal else _from_outside(front, client, facts)


def _end(outcome: Outcome, reason: str, message: str) -> ServiceDecision:
    return ServiceDecision(outcome, Reason(reason=reason, message=message))


def _allowed(port: ResolvedPort, packet: Packet, facts: NodeFacts) -> bool:
    """Source ranges; a node that may reach its own load balancer address comes with that address."""
    if not port.source_ranges or in_ranges(packet.source, port.source_ranges):
        return True
    own = of_family(facts.addresses, port.family)
    return packet.source in port.load_balancer_ips and any(in_ranges(a, port.source_ranges) for a in own)


def _no_frontend(packet: Packet, facts: NodeFacts, machine: LocalAddresses, services: ServiceMap) -> ServiceDecision:
    address, port = packet.destination, f"port {packet.destination_port}/{packet.protocol.upper()}"
    if not packet.destination_port:
        port = "ICMP"
    if service := is_cluster_ip(services, address):
        return _end("refused", "NoSuchPort", f"Service {service} has no {port}")
    if any(ip_address(address) in ip_network(cidr) for cidr in of_family(facts.service_cidrs, packet.family)):
        return _end("dropped", "NoSuchService", f"{address} is in the Service range, and no Service has it")
    if machine.owns(address):
        for service, ports in services.items():
            if packet.protocol == "tcp" and any(p.health_check_node_port == packet.destination_port for p in ports):
                message = f"it is the healthCheckNodePort of Service {service}, which the node's agent answers"
                return _end("untouched", "HealthCheckNodePort", message)
        return _end("untouched", "NoNodePort", f"no Service has node {port} at {address}; it is for the node itself")
    return _end("untouched", "NoService", f"no Service has {address} {port}")


def _no_endpoint(front: Matched) -> ServiceDecision:
    """A frontend that no endpoint may serve."""
    if front.port.has_endpoints:
        field = "internalTrafficPolicy" if front.internal else "externalTrafficPolicy"
        return _end("dropped", "NoLocalEndpoint", f"{field} is Local, and no usable endpoint is on this node")
    return _end("refused", "NoEndpoints", "the Service has no usable endpoint")


def _forward(
    front: Matched, endpoints: tuple[ResolvedEndpoint, ...], snat: tuple[bool, str, str], *, local: bool
) -> ServiceDecision:
    count = "the only usable endpoint" if len(endpoints) == 1 else f"one of {len(endpoints)} usable endpoints"
    scope = " on this node" if local else ""
    masquerade, word, message = snat
    return ServiceDecision(
        outcome="forwarded",
        reason=Reason(reason="Endpoints", message=f"to {count}{scope}"),
        endpoints=endpoints,
        local=local,
        masquerade=masquerade,
        snat=Reason(reason=word, message=message),
    )


def _to_cluster_ip(front: Matched, client: ClientKind, facts: NodeFacts) -> ServiceDecision:
    endpoints = front.port.internal_endpoints
    if not endpoints:
        return _no_endpoint(front)
    if facts.masquerade_all:
        snat = True, "MasqueradeAll", "masqueradeAll is set: every client of a cluster IP gets the node's address"
    elif client == "pod":
        snat = False, "PodToClusterIP", "a pod that calls a cluster IP keeps its address"
    elif not (facts.pod_interface or of_family(facts.pod_cidrs, front.port.family)):
        snat = (
            False,
            "PodsNotKnown",
            "it is not configured which sources are pods, so all clients of a cluster IP keep their address",
        )
    elif client == "node":
        snat = True, "NodeToClusterIP", "a node that calls a cluster IP is masqueraded; only pods are not"
    else:
        snat = (
            True,
            "ExternalToClusterIP",
            "a client outside the cluster that calls a cluster IP is masqueraded, so that answers come back",
        )
    return _forward(front, endpoints, snat, local=front.port.internal_local)


def _from_outside(front: Matched, client: ClientKind, facts: NodeFacts) -> ServiceDecision:
    port = front.port
    if not port.external_local:
        message = "externalTrafficPolicy is Cluster: answers come back through this node"
        snat = True, "ExternalTrafficPolicyCluster", message
        return (
            _forward(front, port.cluster_endpoints, snat, local=False)
            if port.cluster_endpoints
            else _no_endpoint(front)
        )
    if client == "external":
        message = "externalTrafficPolicy is Local: the client's address is kept"
        snat = False, "ExternalTrafficPolicyLocal", message
        return _forward(front, port.local_endpoints, snat, local=True) if port.local_endpoints else _no_endpoint(front)
    if not port.cluster_endpoints:
        return _no_endpoint(front)
    if client == "pod":
        message = "externalTrafficPolicy is Local: a pod keeps its address, and may use every endpoint"
        snat = False, "PodToLocal", message
    else:
        known = bool(facts.pod_interface or of_family(facts.pod_cidrs, port.family))
        message = "externalTrafficPolicy is Local: the node itself may use every endpoint, and is masqueraded"
        snat = known, "NodeToLocal", message
    return _forward(front, port.cluster_endpoints, snat, local=False)
