"""Backends of routes: which Service port a reference names, and the endpoints behind it.

Endpoints are taken from the EndpointSlices of a Service, without the hop through its cluster address: those that are
ready, or, if none is, those that still serve while they end. Where every one of them has hints
(``trafficDistribution``, topology-aware routing), those that the hints give to the engine's node or zone are taken,
if there is one. A Service of type ExternalName is no backend, since its name could point anywhere.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from podwire.cluster.names import GATEWAY_HEALTH_PATH
from podwire.gateway.routes import EntryBackend, EntryEndpoint, EntryValue
from podwire.model.service import EndpointHints, EndpointSlice, Service, ServicePort

_H2C = ("kubernetes.io/h2c", "h2c", "grpc")
"""Application protocols that are HTTP/2 without TLS."""


class Place(msgspec.Struct, frozen=True):
    """The node of an engine and its zone; empty where they are not known."""

    node: str = ""
    zone: str = ""


class UpstreamFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Services by key, and the EndpointSlices of a key; ``place`` is where the engine is."""

    services: Mapping[str, Service]
    slices: Callable[[str], Iterable[EndpointSlice]]
    place: Place = Place()


class Resolved(EntryValue, frozen=True):
    """The backend of a reference, or why there is none: in one word, as Gateway API has it, and in a sentence."""

    backend: EntryBackend | None = None
    port: ServicePort | None = None
    reason: str = "BackendNotFound"
    problem: str = ""


def resolve(
    facts: UpstreamFacts, namespace: str, name: str, port: str | int, transport: Literal["TCP", "UDP"] = "TCP"
) -> Resolved:
    """The backend of a port, by its number or name, of a Service."""
    service = facts.services.get(f"{namespace}/{name}")
    if service is None:
        return Resolved(problem=f"Service {namespace}/{name} does not exist")
    if service.spec.type == "ExternalName":
        return Resolved(problem=f"Service {namespace}/{name} is of type ExternalName, which is not served")
    ports = [entry for entry in service.spec.ports if port in (entry.port, entry.name)]
    if not ports:
        return Resolved(problem=f"Service {namespace}/{name} has no port {port}")
    service_port = next((entry for entry in ports if entry.protocol == transport), ports[0])
    if service_port.protocol != transport:
        problem = f"port {port} of Service {namespace}/{name} is for {service_port.protocol}, not for {transport}"
        return Resolved(reason="UnsupportedProtocol", problem=problem)
    slices = facts.slices(f"{namespace}/{name}")
    return Resolved(
        backend=EntryBackend(
            key=f"{namespace}/{name}:{service_port.port}",
            endpoints=endpoints_of(slices, service_port, facts.place),
            protocol="udp" if transport == "UDP" else _protocol(service_port),
            health_path=_health_path(service),
        ),
        port=service_port,
    )


def endpoints_of(
    slices: Iterable[EndpointSlice],
    port: ServicePort,
    place: Place = Place(),  # noqa: B008 - a frozen value
) -> tuple[EntryEndpoint, ...]:
    """The endpoints of a port, sorted; those that end only where no other one is ready."""
    ready: dict[EntryEndpoint, EndpointHints | None] = {}
    ending: dict[EntryEndpoint, EndpointHints | None] = {}
    for part in slices:
        number = next((entry.port for entry in part.ports or () if (entry.name or "") == port.name), None)
        if not number or part.address_type == "FQDN":
            continue
        for endpoint in part.endpoints or ():
            conditions = endpoint.conditions
            if not endpoint.addresses:
                continue
            address = EntryEndpoint(address=endpoint.addresses[0], port=number)
            if conditions.ready is not False:
                ready[address] = endpoint.hints
            elif conditions.serving and conditions.terminating:
                ending[address] = endpoint.hints
    return tuple(sorted(_near(ready or ending, place), key=lambda entry: (entry.address, entry.port)))


def _near(endpoints: Mapping[EntryEndpoint, EndpointHints | None], place: Place) -> Iterable[EntryEndpoint]:
    """The endpoints that the hints give to the node, else to the zone, else all; all where one has no hints."""
    hinted = {endpoint: hints for endpoint, hints in endpoints.items() if hints is not None}
    if len(hinted) < len(endpoints):
        return endpoints
    nodes = [end for end, hints in hinted.items() if place.node in {target.name for target in hints.for_nodes}]
    zones = [end for end, hints in hinted.items() if place.zone in {target.name for target in hints.for_zones}]
    return nodes or zones or endpoints


def _health_path(service: Service) -> str:
    """The path that the annotation asks for; one that is no path is none."""
    path = service.metadata.annotations.get(GATEWAY_HEALTH_PATH, "")
    return path if path.startswith("/") and path.isprintable() else ""


def _protocol(port: ServicePort) -> Literal["http", "h2c"]:
    return "h2c" if (port.app_protocol or "").lower() in _H2C else "http"
