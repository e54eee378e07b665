"""What the proxy keeps of Services and EndpointSlices: what it reads, with equal values held once (pure).

An object as the API sends it is mostly what others wrote for others: applied manifests as annotations, owners, the pod
behind each endpoint. What is left out has its default.
"""

from functools import lru_cache
from sys import intern
from typing import TypeVar

from msgspec.structs import replace

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
_NONE: dict[str, str] = {}

T = TypeVar("T")


@lru_cache(maxsize=1024)
def _once(value: T) -> T:
    """The first value that was equal to this one."""
    return value


def trim_service(service: Service) -> Service:
    """A Service without what the proxy does not read."""
    return Service(
        metadata=_meta(service.metadata, service.metadata.uid), spec=_spec(service.spec), status=service.status
    )


def trim_slice(piece: EndpointSlice) -> EndpointSlice:
    """A slice without what the proxy does not read."""
    return EndpointSlice(
        metadata=_meta(piece.metadata),
        address_type=_once(piece.address_type),
        endpoints=piece.endpoints and tuple(map(_endpoint, piece.endpoints)),
        ports=_once(piece.ports),
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
    one = spec.cluster_ips == (spec.cluster_ip,)
    return replace(
        spec,
        type=intern(spec.type),
        selector=_NONE,
        ports=_once(spec.ports),
        cluster_ips=(spec.cluster_ip,) if one else spec.cluster_ips,
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
