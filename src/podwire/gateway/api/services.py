"""The Service of each Gateway: its name, its ports, and the ports of the engines that it leads to.

Engines serve all Gateways, so each port of a Gateway has a port of its own on the engines, between 10000 and 19999. It
is kept in the Service alone (``targetPort``): the leader allocates it, and every replica reads it there. Of two
Services that have the same one, the older keeps it.

The Service stands in the namespace of the engines, since a Service selects pods of its own namespace.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from podwire.cluster.names import GATEWAY_OF_SERVICE, GATEWAY_SERVICE
from podwire.model.gatewayapi import Gateway, GatewayStatusAddress
from podwire.model.meta import key_of
from podwire.model.service import Service

ENGINE_PORTS = range(10000, 20000)
SELECTOR = {"app": "podwire-gateway"}

Json = dict[str, Any]
PortsOfGateways = dict[str, dict[int, int]]


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
            if isinstance(target, int) and target in ENGINE_PORTS and target not in reserved:
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


def desired_service(gateway: Gateway, namespace: str, ports: Mapping[int, int], existing: Service | None) -> Json:
    """The Service of a Gateway; node ports that exist stay."""
    node_ports = {port.port: port.node_port for port in existing.spec.ports} if existing is not None else {}
    infrastructure = gateway.spec.infrastructure
    key = key_of(gateway.metadata)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(key),
            "namespace": namespace,
            "labels": {**infrastructure.labels, GATEWAY_SERVICE: "true"},
            "annotations": {**infrastructure.annotations, GATEWAY_OF_SERVICE: key},
        },
        "spec": {
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "selector": SELECTOR,
            "ports": [
                {
                    "name": f"port-{port}",
                    "port": port,
                    "protocol": "TCP",
                    "targetPort": target,
                    **({"nodePort": node_ports[port]} if node_ports.get(port) else {}),
                }
                for port, target in sorted(ports.items())
            ],
        },
    }


def differs(existing: Service, desired: Json) -> bool:
    """Whether a Service lacks something of the desired one; what others added counts for nothing."""
    meta = existing.metadata
    ports = [(port.port, port.target_port) for port in existing.spec.ports]
    desired_ports = [(port["port"], port["targetPort"]) for port in desired["spec"]["ports"]]
    return (
        ports != desired_ports
        or existing.spec.type != "LoadBalancer"
        or existing.spec.selector != SELECTOR
        or not desired["metadata"]["labels"].items() <= meta.labels.items()
        or not desired["metadata"]["annotations"].items() <= meta.annotations.items()
    )
