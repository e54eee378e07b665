"""Reduces Services and EndpointSlices to the fields that the proxy reads, with equal values stored once (pure).

Most fields of an API object are for other programs: applied manifests as annotations, owners, the pod of each endpoint.
Fields that are left out have their default values.
"""

from functools import lru_cache
from sys import intern
from typing import TypeVar

from msgspec.structs import replace

from podwire.cluster.names import PREFIX
from podwire.model.meta import ObjectMeta
from podwire.model.service import (
    HEADLESS_LABEL,
    PROXY_NAME_LABEL,
    SERVICE_NAME_LABEL,
    TRIGGER_TIME_ANNOTATION,
    Endpoint,
    EndpointSlice,
    Service,
    ServiceSpec,
)

_READ = (SERVICE_NAME_LABEL, HEADLESS_LABEL, PROXY_NAME_LABEL, TRIGGER_TIME_ANNOTATION)
_BALANCING = ("metallb.io/", "metallb.universe.tf/", PREFIX)
"""Prefixes of the annotations of load balancers."""
_NONE: dict[str, str] = {}

T = TypeVar("T")


@lru_cache(maxsize=1024)
def _once(value: T) -> T:
    """The first value that was equal to this value."""
    return value


def trim_service(service: Service) -> Service:
    """A Service with only the fields that the proxy reads, and the labels and annotations of load balancers."""
    meta = _meta(service.metadata, service.metadata.uid)
    if service.spec.type == "LoadBalancer":
        annotations = {key: text for key, text in service.metadata.annotations.items() if key.startswith(_BALANCING)}
        meta = replace(meta, labels=service.metadata.labels, annotations=annotations)
    return Service(metadata=meta, spec=_spec(service.spec), status=service.status)


def trim_slice(endpoint_slice: EndpointSlice) -> EndpointSlice:
    """An EndpointSlice with only the fields that the proxy reads."""
    return EndpointSlice(
        metadata=_meta(endpoint_slice.metadata),
        address_type=_once(endpoint_slice.address_type),
        endpoints=endpoint_slice.endpoints and tuple(map(_endpoint, endpoint_slice.endpoints)),
        ports=_once(endpoint_slice.ports),
    )


def _meta(meta: ObjectMeta, uid: str = "") -> ObjectMeta:
    return ObjectMeta(
        name=meta.name,
        namespace=intern(meta.namespace),
        uid=uid,
        resource_version=meta.resource_version,
        labels=_read(meta.labels),
        annotations=_read(meta.annotations),
    )


def _read(texts: dict[str, str]) -> dict[str, str]:
    if not texts:
        return _NONE
    return {key: texts[key] for key in _READ if key in texts} or _NONE


def _spec(spec: ServiceSpec) -> ServiceSpec:
    single = spec.cluster_ips == (spec.cluster_ip,)
    return replace(
        spec,
        type=intern(spec.type),
        selector=_NONE,
        ports=_once(spec.ports),
        cluster_ips=(spec.cluster_ip,) if single else spec.cluster_ips,
        ip_families=_once(spec.ip_families),
        ip_family_policy=_once(spec.ip_family_policy),
        external_traffic_policy=intern(spec.external_traffic_policy),
        internal_traffic_policy=_once(spec.internal_traffic_policy),
        session_affinity=intern(spec.session_affinity),
    )


def _endpoint(endpoint: Endpoint) -> Endpoint:
    return Endpoint(
        addresses=endpoint.addresses,
        conditions=_once(endpoint.conditions),
        node_name=_once(endpoint.node_name),
        zone=_once(endpoint.zone),
        hints=_once(endpoint.hints),
    )
