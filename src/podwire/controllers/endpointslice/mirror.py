"""The older Endpoints object of a Service, for clients that still read it. Pure.

One subset per list of ports, primary address type only, addresses in numeric order, 1,000 at most in all subsets
together: endpoints that are not ready are cut first, and the annotation ``endpoints.kubernetes.io/over-capacity``
reports it. Terminating endpoints are left out, unless the Service has ``publishNotReadyAddresses``.

Source: ``k8s.io/kubernetes/pkg/controller/endpoint``.
"""

from collections.abc import Iterable
from ipaddress import ip_address

from msgspec.structs import replace

from podwire.controllers.endpointslice.endpoints import Desired, Group
from podwire.model.meta import ObjectMeta
from podwire.model.service import (
    HEADLESS_LABEL,
    TRIGGER_TIME_ANNOTATION,
    Endpoint,
    EndpointAddress,
    Endpoints,
    EndpointSubset,
    Service,
)

_CAPACITY = 1000
OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"
MANAGED_BY = "endpoints.kubernetes.io/managed-by"


def render(service: Service, desired: Desired, primary: str) -> Endpoints:
    """The Endpoints object of a Service whose slices contain ``desired``."""
    groups: list[tuple[Group, list[Endpoint]]] = []
    everything = service.spec.publish_not_ready_addresses
    for group, endpoints in sorted(desired.items(), key=lambda item: str(item[0])):
        if group.address_type == primary:
            alive = _sorted(e for e in endpoints.values() if everything or not e.conditions.terminating)
            groups.append((group, alive))
    every = [endpoint for _, alive in groups for endpoint in alive]
    within_capacity = {id(endpoint) for endpoint in sorted(every, key=_last_if_not_ready)[:_CAPACITY]}
    subsets: list[EndpointSubset] = []
    for group, alive in groups:
        shown = [endpoint for endpoint in alive if id(endpoint) in within_capacity]
        ready = tuple(_address(endpoint) for endpoint in shown if endpoint.conditions.ready)
        unready = tuple(_address(endpoint) for endpoint in shown if not endpoint.conditions.ready)
        if ready or unready:
            subsets.append(EndpointSubset(addresses=ready, not_ready_addresses=unready, ports=group.ports))
    labels = dict(service.metadata.labels) | {MANAGED_BY: "endpoint-controller"}
    if service.headless:
        labels[HEADLESS_LABEL] = ""
    annotations = {OVER_CAPACITY: "truncated"} if len(every) > _CAPACITY else {}
    meta = ObjectMeta(
        name=service.metadata.name,
        namespace=service.metadata.namespace,
        labels=labels,
        annotations=annotations,
    )
    return Endpoints(metadata=meta, subsets=tuple(subsets))


def overlay(desired: Endpoints, present: Endpoints, trigger_time: str = "") -> Endpoints | None:
    """``desired`` with the annotations of others on ``present``; None when ``present`` needs no change.

    A write carries the time of the change that caused it, if that is known.
    """
    before = {key: text for key, text in present.metadata.annotations.items() if key != TRIGGER_TIME_ANNOTATION}
    annotations = {key: text for key, text in before.items() if key != OVER_CAPACITY} | desired.metadata.annotations
    same_labels = desired.metadata.labels == present.metadata.labels
    if present.subsets == desired.subsets and same_labels and annotations == before:
        return None
    return stamped(replace(desired, metadata=replace(desired.metadata, annotations=annotations)), trigger_time)


def stamped(item: Endpoints, trigger_time: str) -> Endpoints:
    """The Endpoints with the time of the change that caused them, if that is known."""
    if not trigger_time:
        return item
    annotations = item.metadata.annotations | {TRIGGER_TIME_ANNOTATION: trigger_time}
    return replace(item, metadata=replace(item.metadata, annotations=annotations))


def _last_if_not_ready(endpoint: Endpoint) -> bool:
    return not endpoint.conditions.ready


def _sorted(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    return sorted(endpoints, key=lambda endpoint: int(ip_address(endpoint.addresses[0])))


def _address(endpoint: Endpoint) -> EndpointAddress:
    return EndpointAddress(
        ip=endpoint.addresses[0],
        hostname=endpoint.hostname or "",
        node_name=endpoint.node_name,
        target_ref=endpoint.target_ref,
    )
