"""From a Service and its pods to endpoints, grouped by what a slice can hold together. Pure.

A slice has one address type and one list of ports, and a named target port can be another number in each
pod; so endpoints are grouped by (address type, ports). ``ready`` is PodReady and not terminating, or
``publishNotReadyAddresses``; ``serving`` is PodReady alone. Left out are ended pods, pods without an address, and pods
on a node that is not there (nobody can say that they still run), unless ``publishNotReadyAddresses`` wants them.
Source: ``k8s.io/endpointslice`` (utils.go), KEP-1672, KEP-4444 (trafficDistribution).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from podwire.model.meta import ObjectReference
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.service import (
    Endpoint,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    HintTarget,
    Service,
    ServicePort,
)


@dataclass(frozen=True, slots=True)
class Group:
    """What the endpoints of one slice share."""

    address_type: str
    ports: tuple[EndpointPort, ...]


Desired = dict[Group, dict[str, Endpoint]]
"""Endpoints by group, then by identity (pod uid and address)."""


def desired(service: Service, pods: Iterable[Pod], nodes: Mapping[str, Node]) -> Desired:
    """All endpoints that the Service should have."""
    groups: Desired = {}
    families = address_types(service)
    for pod in pods:
        unknown = pod.spec.node_name not in nodes and not service.spec.publish_not_ready_addresses
        if pod.finished or unknown:
            continue
        ports = endpoint_ports(service, pod)
        for family in families:
            address = _address(pod, family)
            if address:
                endpoint = _endpoint(service, pod, address, nodes.get(pod.spec.node_name))
                groups.setdefault(Group(family, ports), {})[identity(endpoint)] = endpoint
    return groups


def address_types(service: Service) -> tuple[str, ...]:
    """The families of the Service's slices, primary first."""
    if service.spec.ip_families:
        return service.spec.ip_families
    given = [ip for ip in service.spec.cluster_ips or (service.spec.cluster_ip,) if ip not in ("", "None")]
    return tuple("IPv6" if ":" in ip else "IPv4" for ip in given) or ("IPv4",)


def endpoint_ports(service: Service, pod: Pod) -> tuple[EndpointPort, ...]:
    """The Service's ports as numbers in this pod; a named port that the pod lacks is left out."""
    ports: list[EndpointPort] = []
    for port in service.spec.ports:
        number = _target(port, pod)
        if number is not None:
            ports.append(
                EndpointPort(name=port.name, protocol=port.protocol, port=number, app_protocol=port.app_protocol)
            )
    return tuple(ports)


def identity(endpoint: Endpoint) -> str:
    """What makes two endpoints the same one at different times."""
    uid = endpoint.target_ref.uid if endpoint.target_ref is not None else ""
    return f"{uid} {endpoint.addresses[0] if endpoint.addresses else ''}"


def _target(port: ServicePort, pod: Pod) -> int | None:
    wanted = port.target_port
    if wanted is None or wanted in (0, ""):
        return port.port
    if isinstance(wanted, int):
        return wanted
    if wanted.isdigit():
        return int(wanted)
    sidecars = (c for c in pod.spec.init_containers if c.restart_policy == "Always")
    for container in (*pod.spec.containers, *sidecars):
        for declared in container.ports:
            if declared.name == wanted and declared.protocol == port.protocol:
                return declared.container_port
    return None


def _address(pod: Pod, family: str) -> str:
    for address in pod.addresses:
        if (":" in address) == (family == "IPv6"):
            return address
    return ""


def _endpoint(service: Service, pod: Pod, address: str, node: Node | None) -> Endpoint:
    terminating = pod.metadata.deletion_timestamp is not None
    serving = pod.ready
    ready = service.spec.publish_not_ready_addresses or (serving and not terminating)
    zone = (node.zone or None) if node is not None else None
    named = pod.spec.hostname and pod.spec.subdomain == service.metadata.name
    return Endpoint(
        addresses=(address,),
        conditions=EndpointConditions(ready=ready, serving=serving, terminating=terminating),
        hostname=pod.spec.hostname if named else None,
        node_name=pod.spec.node_name or None,
        zone=zone,
        hints=_hints(service, zone, pod.spec.node_name) if ready else None,
        target_ref=ObjectReference(
            kind="Pod", namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.metadata.uid
        ),
    )


def _hints(service: Service, zone: str | None, node: str) -> EndpointHints | None:
    wanted = service.spec.traffic_distribution
    zones = (HintTarget(name=zone),) if zone else ()
    if wanted in ("PreferClose", "PreferSameZone") and zones:
        return EndpointHints(for_zones=zones)
    if wanted == "PreferSameNode" and node:
        return EndpointHints(for_zones=zones, for_nodes=(HintTarget(name=node),))
    return None
