"""The older Endpoints object of a Service, for clients that still read it. Pure.

One subset per list of ports, primary address type only, addresses in numeric order, 1,000 at most (the rest
is cut, with the annotation ``endpoints.kubernetes.io/over-capacity``). Terminating endpoints are left out.
Source: ``k8s.io/kubernetes/pkg/controller/endpoint``.
"""

from collections.abc import Iterable
from ipaddress import ip_address

from podwire.controllers.endpointslice.endpoints import Desired
from podwire.controllers.endpointslice.plan import HEADLESS
from podwire.model.meta import ObjectMeta
from podwire.model.service import Endpoint, EndpointAddress, Endpoints, EndpointSubset, Service

_CAPACITY = 1000
MANAGED_BY = "endpoints.kubernetes.io/managed-by"


def render(service: Service, wanted: Desired, primary: str) -> Endpoints:
    """The Endpoints object of a Service whose slices are ``wanted``."""
    subsets: list[EndpointSubset] = []
    total = 0
    for group, endpoints in sorted(wanted.items(), key=lambda item: str(item[0])):
        if group.address_type != primary:
            continue
        alive = _sorted(endpoint for endpoint in endpoints.values() if not endpoint.conditions.terminating)
        total += len(alive)
        alive = alive[:_CAPACITY]
        ready = tuple(_address(endpoint) for endpoint in alive if endpoint.conditions.ready)
        unready = tuple(_address(endpoint) for endpoint in alive if not endpoint.conditions.ready)
        if ready or unready:
            subsets.append(EndpointSubset(addresses=ready, not_ready_addresses=unready, ports=group.ports))
    labels = dict(service.metadata.labels) | {MANAGED_BY: "endpoint-controller"}
    if service.headless:
        labels[HEADLESS] = ""
    annotations = {"endpoints.kubernetes.io/over-capacity": "truncated"} if total > _CAPACITY else {}
    meta = ObjectMeta(
        name=service.metadata.name,
        namespace=service.metadata.namespace,
        labels=labels,
        annotations=annotations,
    )
    return Endpoints(metadata=meta, subsets=tuple(subsets))


def _sorted(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    return sorted(endpoints, key=lambda endpoint: int(ip_address(endpoint.addresses[0])))


def _address(endpoint: Endpoint) -> EndpointAddress:
    return EndpointAddress(
        ip=endpoint.addresses[0],
        hostname=endpoint.hostname or "",
        node_name=endpoint.node_name,
        target_ref=endpoint.target_ref,
    )
