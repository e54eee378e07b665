"""Services that exist in DNS only: headless Services and aliases; the proxy has no rules for them (pure).

For a headless Service, clients get the addresses of the endpoints, and no port is translated: a connection to ``db:80``
goes to port 80 of the pods, whatever their target port is. Only a client that looks up the port by its name (SRV) gets
the target port.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from podwire.model.service import EndpointPort, EndpointSlice, ServicePort
from podwire.proxy.resolve import Candidate, survey
from podwire.proxy.servicemap import NodeFacts
from podwire.why.answer import EndpointChoice, Hop, ServiceMatch
from podwire.why.services.endpoints import dns_endpoints
from podwire.why.services.hop import ServiceWithSlices


class RequestedPort(NamedTuple):
    """The port in the question."""

    port: int
    protocol: str
    named: bool = False
    """Whether the port was given by its name."""


def explain_name(backed: ServiceWithSlices, requested: RequestedPort, facts: NodeFacts) -> Hop:
    """The hop for a Service that exists in DNS only: the answer of DNS to clients."""
    service, slices = backed
    spec, meta = service.spec, service.metadata
    offered = next(
        (p for p in spec.ports if (p.port, p.protocol.lower()) == (requested.port, requested.protocol)), None
    )
    endpoints: tuple[EndpointChoice, ...] = ()
    if spec.type == "ExternalName":
        reason, message = "ExternalName", f"the Service is an alias, DNS answers with {spec.external_name}"
    else:
        own = () if offered is None else dns_endpoints(*survey(slices, offered, facts.name))
        endpoints = own if requested.named else dns_endpoints(*_as_asked(slices, requested, facts.name))
        reason, message = "Headless", _answer(own, endpoints, requested)
    return Hop(
        node=facts.name,
        mode="",
        state="planned",
        outcome="untouched",
        reason=reason,
        message=message,
        service=ServiceMatch(
            namespace=meta.namespace,
            name=meta.name,
            type=spec.type,
            port_name=offered.name if offered is not None else "",
            port=requested.port,
            protocol=requested.protocol.upper(),
            frontend="Name",
        ),
        endpoints=endpoints,
    )


def _as_asked(
    slices: Iterable[EndpointSlice], requested: RequestedPort, node: str
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """The endpoints with the port of the question instead of their own ports."""
    protocol = requested.protocol.upper()
    ports = (EndpointPort(name="", port=requested.port, protocol=protocol),)
    asked = (msgspec.structs.replace(item, ports=ports) for item in slices)
    return survey(asked, ServicePort(port=requested.port, protocol=protocol), node)


def _answer(own: Iterable[EndpointChoice], endpoints: Iterable[EndpointChoice], requested: RequestedPort) -> str:
    """The answer of DNS, and a warning where the port is not translated."""
    if not any(end.used for end in endpoints):
        return "the Service is headless and no endpoint is ready, so DNS answers with no address"
    text = "the Service is headless, DNS answers with the addresses of its ready endpoints"
    other_ports = sorted({end.port for end in own if end.port != requested.port})
    if other_ports and not requested.named:
        listening = " and ".join(map(str, other_ports))
        text += f"; its port is not translated: connections go to port {requested.port} of the pods, not to {listening}"
    return text
