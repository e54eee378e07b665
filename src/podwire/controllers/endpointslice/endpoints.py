"""Computes the endpoints of a Service from its pods, in groups that a slice can hold. Pure.

A slice has one address type and one list of ports, and a named target port can have different numbers in different
pods; so endpoints are grouped by (address type, ports). ``ready`` is PodReady and not terminating, or
``publishNotReadyAddresses``; ``serving`` is PodReady alone. Left out are ended pods, pods without an address, and pods
on a missing node (it is unknown whether they run), unless ``publishNotReadyAddresses`` is set.

Source: ``k8s.io/endpointslice`` (utils.go), KEP-1672, KEP-4444 (trafficDistribution).
"""

from collections.abc import Iterable, Mapping

import msgspec

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


class Group(msgspec.Struct, frozen=True):
    """The common properties of the endpoints of one slice."""

    address_type: str
    ports: tuple[EndpointPort, ...]


Desired = dict[Group, dict[str, Endpoint]]
"""Endpoints by group, then by identity (pod uid and address)."""


def desired(service: Service, pods: Iterable[Pod], nodes: Mapping[str, Node]) -> Desired:
    """All desired endpoints of the Service."""
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
    cluster_ips = [ip for ip in service.spec.cluster_ips or (service.spec.cluster_ip,) if ip not in ("", "None")]
    return tuple("IPv6" if ":" in ip else "IPv4" for ip in cluster_ips) or ("IPv4",)


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
    """The text that identifies an endpoint over time."""
    uid = endpoint.target_ref.uid if endpoint.target_ref is not None else ""
    return f"{uid} {endpoint.addresses[0] if endpoint.addresses else ''}"


def _target(port: ServicePort, pod: Pod) -> int | None:
    target = port.target_port
    if target is None or target in (0, ""):
        return port.port
    if isinstance(target, int):
        return target
    if target.isdigit():
        return int(target)
    sidecars = (c for c in pod.spec.init_containers if c.restart_policy == "Always")
    for container in (*pod.spec.containers, *sidecars):
        for declared in container.ports:
            if declared.name == target and declared.protocol == port.protocol:
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
    distribution = service.spec.traffic_distribution
    zones = (HintTarget(name=zone),) if zone else ()
    if distribution in ("PreferClose", "PreferSameZone") and zones:
        return EndpointHints(for_zones=zones)
    if distribution == "PreferSameNode" and node:
        return EndpointHints(for_zones=zones, for_nodes=(HintTarget(name=node),))
    return None
