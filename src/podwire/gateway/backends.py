"""Backends of routes: which Service port a reference names, and the endpoints behind it.

Endpoints are taken from the EndpointSlices of a Service, without the hop through its cluster address: those that are
ready, or, if none is, those that still serve while they end. A Service of type ExternalName is no backend, since its
name could point anywhere.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from podwire.gateway.routes import EntryBackend, EntryEndpoint, EntryValue
from podwire.model.service import EndpointSlice, Service, ServicePort

_H2C = ("kubernetes.io/h2c", "h2c", "grpc")
"""Application protocols that are HTTP/2 without TLS."""


class UpstreamFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Services by key, and the EndpointSlices of a key."""

    services: Mapping[str, Service]
    slices: Callable[[str], Iterable[EndpointSlice]]


class Resolved(EntryValue, frozen=True):
    """The backend of a reference, or why there is none: in one word, as Gateway API has it, and in a sentence."""

    backend: EntryBackend | None = None
    reason: str = "BackendNotFound"
    problem: str = ""


def resolve(facts: UpstreamFacts, namespace: str, name: str, port: str | int) -> Resolved:
    """The backend of a port, by its number or name, of a Service."""
    service = facts.services.get(f"{namespace}/{name}")
    if service is None:
        return Resolved(problem=f"Service {namespace}/{name} does not exist")
    if service.spec.type == "ExternalName":
        return Resolved(problem=f"Service {namespace}/{name} is of type ExternalName, which is not served")
    service_port = next((entry for entry in service.spec.ports if port in (entry.port, entry.name)), None)
    if service_port is None:
        return Resolved(problem=f"Service {namespace}/{name} has no port {port}")
    if service_port.protocol != "TCP":
        problem = f"port {port} of Service {namespace}/{name} is for {service_port.protocol}, not for TCP"
        return Resolved(reason="UnsupportedProtocol", problem=problem)
    slices = facts.slices(f"{namespace}/{name}")
    return Resolved(
        backend=EntryBackend(
            key=f"{namespace}/{name}:{service_port.port}",
            endpoints=endpoints_of(slices, service_port),
            protocol=_protocol(service_port),
        )
    )


def endpoints_of(slices: Iterable[EndpointSlice], port: ServicePort) -> tuple[EntryEndpoint, ...]:
    """The endpoints of a port, sorted; those that end only where no other one is ready."""
    ready: set[EntryEndpoint] = set()
    ending: set[EntryEndpoint] = set()
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
                ready.add(address)
            elif conditions.serving and conditions.terminating:
                ending.add(address)
    return tuple(sorted(ready or ending, key=lambda entry: (entry.address, entry.port)))


def _protocol(port: ServicePort) -> Literal["http", "h2c"]:
    return "h2c" if (port.app_protocol or "").lower() in _H2C else "http"
