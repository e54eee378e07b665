"""Services that DNS alone knows: headless ones and aliases; no rule of the proxy takes part (pure)."""

from podwire.model.service import ServicePort
from podwire.proxy.resolve import survey
from podwire.proxy.servicemap import NodeFacts
from podwire.proxy.why.endpoints import listed
from podwire.proxy.why.hop import Backed
from podwire.trace.answer import EndpointSaid, Hop, ServiceSaid


def explain_name(backed: Backed, port: int, protocol: str, facts: NodeFacts) -> Hop:
    """What clients of the Service get: the answer of DNS."""
    service, pieces = backed
    spec, meta = service.spec, service.metadata
    offered = next((p for p in spec.ports if (p.port, p.protocol.lower()) == (port, protocol)), None)
    endpoints: tuple[EndpointSaid, ...] = ()
    if spec.type == "ExternalName":
        reason, message = "ExternalName", f"the Service is an alias, DNS answers with {spec.external_name}"
    else:
        wanted = offered or ServicePort(port=port, protocol=protocol.upper())
        candidates, doubles = survey(pieces, wanted, facts.name)
        endpoints = listed(candidates, doubles)
        reason, message = "Headless", "the Service is headless, DNS answers with the addresses of its ready endpoints"
    return Hop(
        node=facts.name,
        mode="",
        state="planned",
        outcome="untouched",
        reason=reason,
        message=message,
        service=ServiceSaid(
            namespace=meta.namespace,
            name=meta.name,
            type=spec.type,
            port_name=offered.name if offered is not None else "",
            port=port,
            protocol=protocol.upper(),
            frontend="Name",
        ),
        endpoints=endpoints,
    )
