"""The Service of each Gateway: its name, its ports, and the ports of the engines that it leads to.

Engines serve all Gateways, so each port of a Gateway has a port of its own on the engines, between 10000 and 19999. It
is kept in the Service alone (``targetPort``): the leader allocates it, and every replica reads it there. Of two
Services that have the same one, the older keeps it.

The Service stands in the namespace of the engines, since a Service selects pods of its own namespace.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from podwire.cluster.names import GATEWAY_OF_SERVICE, GATEWAY_SERVICE
from podwire.model.gatewayapi import Gateway, GatewayStatusAddress
from podwire.model.meta import key_of
from podwire.model.service import Service

ENGINE_PORTS = range(10000, 20000)
SELECTOR = {"app": "podwire-gateway"}
ADDRESSES = "metallb.io/loadBalancerIPs"
"""The annotation by which a Service asks a load balancer for addresses."""
GATEWAY_NAME = "gateway.networking.k8s.io/gateway-name"
_LABEL_LENGTH = 63

Json = dict[str, Any]
TrafficPolicy = Literal["Local", "Cluster"]
"""Whether a node leads connections to its own engine alone, which keeps the addresses of clients, or to all."""
PortsOfGateways = dict[str, dict[int, int]]
ServedPort = tuple[int, str]
"""A port of a Gateway and its transport protocol. TCP and UDP share the number on the engines too."""


def service_name(gateway: str) -> str:
    """The name of the Service of a Gateway, unique also where it has to be cut."""
    digest = hashlib.sha256(gateway.encode()).hexdigest()[:8]
    return f"gateway-{gateway.replace('/', '-').replace('.', '-')[:45].rstrip('-')}-{digest}"


def gateway_services(services: Iterable[Service], namespace: str) -> dict[str, Service]:
    """The Services of Gateways by the Gateway's key."""
    return {
        service.metadata.annotations[GATEWAY_OF_SERVICE]: service
        for service in services
        if service.metadata.namespace == namespace
        and GATEWAY_SERVICE in service.metadata.labels
        and service_name(service.metadata.annotations.get(GATEWAY_OF_SERVICE, "")) == service.metadata.name
    }


def engine_ports(services: Mapping[str, Service]) -> PortsOfGateways:
    """The port of the engines for each port of each Gateway, without those that an older Service has too."""
    reserved: set[int] = set()
    result: PortsOfGateways = {}
    by_age = sorted(services.items(), key=lambda item: (item[1].metadata.creation_timestamp or "", item[0]))
    for key, service in by_age:
        result[key] = {}
        for port in service.spec.ports:
            target = port.target_port
            if not isinstance(target, int) or target not in ENGINE_PORTS:
                continue
            if target not in reserved or result[key].get(port.port) == target:
                reserved.add(target)
                result[key][port.port] = target
    return result


def allocate_ports(needed: Iterable[int], own: Mapping[int, int], reserved: Iterable[int]) -> dict[int, int]:
    """A port of the engines for each needed port: its own where it has one, else the lowest free; none when all are."""
    used = set(reserved) | set(own.values())
    free = (port for port in ENGINE_PORTS if port not in used)
    allocated = {}
    for port in sorted(needed):
        target = own.get(port) or next(free, 0)
        if target:
            allocated[port] = target
    return allocated


def addresses_of_service(service: Service) -> tuple[GatewayStatusAddress, ...]:
    """The addresses that a load balancer gave a Service."""
    return tuple(
        GatewayStatusAddress(value=entry.ip)
        if entry.ip
        else GatewayStatusAddress(type="Hostname", value=entry.hostname)
        for entry in service.status.load_balancer.ingress
    )


def needed_ports(served: Iterable[ServedPort], named: Iterable[int], existing: Service | None) -> set[ServedPort]:
    """The ports of a Service: those that are served, and those that it has and that listeners still name."""
    known = set(named)
    owned = {
        (port.port, port.protocol)
        for port in (existing.spec.ports if existing is not None else ())
        if port.port in known
    }
    return {*served, *owned}


def desired_service(
    gateway: Gateway,
    namespace: str,
    ports: Mapping[int, int],
    needed: Iterable[ServedPort],
    existing: Service | None,
    traffic_policy: TrafficPolicy = "Local",
) -> Json:
    """The Service of a Gateway; node ports that exist stay. None as an annotation takes it away."""
    had = existing.spec.ports if existing is not None else ()
    node_ports = {(port.port, port.protocol): port.node_port for port in had}
    infrastructure = gateway.spec.infrastructure
    key = key_of(gateway.metadata)
    labels = {**infrastructure.labels, GATEWAY_SERVICE: "true"}
    if len(gateway.metadata.name) <= _LABEL_LENGTH:
        labels[GATEWAY_NAME] = gateway.metadata.name
    annotations: dict[str, str | None] = {**infrastructure.annotations, GATEWAY_OF_SERVICE: key}
    addresses = [entry.value for entry in gateway.spec.addresses if entry.value]
    if addresses:
        annotations[ADDRESSES] = ",".join(addresses)
    elif existing is not None and ADDRESSES in existing.metadata.annotations:
        annotations.setdefault(ADDRESSES, None)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(key),
            "namespace": namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "type": "LoadBalancer",
            "externalTrafficPolicy": traffic_policy,
            "selector": SELECTOR,
            "ports": [
                {
                    "name": f"port-{port}" if protocol == "TCP" else f"port-{port}-{protocol.lower()}",
                    "port": port,
                    "protocol": protocol,
                    "targetPort": ports[port],
                    **({"nodePort": node_ports[port, protocol]} if node_ports.get((port, protocol)) else {}),
                }
                for port, protocol in sorted(needed)
                if port in ports
            ],
        },
    }


def differs(existing: Service, desired: Json) -> bool:
    """Whether a Service lacks something of the desired one; what others added counts for nothing."""
    meta = existing.metadata
    ports = [(port.port, port.protocol, port.target_port) for port in existing.spec.ports]
    desired_ports = [(port["port"], port["protocol"], port["targetPort"]) for port in desired["spec"]["ports"]]
    return (
        ports != desired_ports
        or existing.spec.type != "LoadBalancer"
        or existing.spec.external_traffic_policy != desired["spec"]["externalTrafficPolicy"]
        or existing.spec.selector != SELECTOR
        or not desired["metadata"]["labels"].items() <= meta.labels.items()
        or any(meta.annotations.get(name) != text for name, text in desired["metadata"]["annotations"].items())
    )
