"""What is to be done for a Service of type LoadBalancer, and what its objects say then. Pure.

A Service whose address is given out here carries Kubernetes' finalizer, so that it does not go before its address is
taken back, and an annotation with the name of who gave it. The finalizer alone says nothing: clouds' controllers set
it too. So without the annotation a Service is somebody else's, and is left alone in whatever state it is.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

from podwire.cluster.names import SERVICE_BALANCER
from podwire.model.service import LoadBalancerIngress, Service

FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
Patch = dict[str, object]


class Need(Enum):
    """What a Service needs of the controller."""

    NOTHING = "nothing"
    ADDRESS = "address"
    RELEASE = "release"


def need(service: Service, balancers: Mapping[str, str]) -> Need:
    """What is to be done, given the names of balancers by the class that they serve.

    An address that one balancer gave is released before another gives one, unless nobody is there to release it.
    """
    owner = service.metadata.annotations.get(SERVICE_BALANCER, "")
    if not wants(service):
        return Need.RELEASE if owner else Need.NOTHING
    wanted = balancers.get(service.spec.load_balancer_class or "", "")
    if owner != wanted and owner in balancers.values():
        return Need.RELEASE
    return Need.ADDRESS if wanted else Need.NOTHING


def wants(service: Service) -> bool:
    """Whether the Service wants an address from outside, whoever gives it."""
    return service.spec.type == "LoadBalancer" and service.metadata.deletion_timestamp is None


def claim(service: Service, name: str) -> Patch | None:
    """The patch that puts the Service into a balancer's hands; None when it is in them."""
    meta = service.metadata
    if FINALIZER in meta.finalizers and meta.annotations.get(SERVICE_BALANCER) == name:
        return None
    finalizers = [*meta.finalizers, *(() if FINALIZER in meta.finalizers else (FINALIZER,))]
    return _patch(service, finalizers, name)


def let_go(service: Service) -> Patch | None:
    """The patch that makes the Service nobody's; None when it is."""
    meta = service.metadata
    if FINALIZER not in meta.finalizers and SERVICE_BALANCER not in meta.annotations:
        return None
    return _patch(service, [name for name in meta.finalizers if name != FINALIZER], None)


def _patch(service: Service, finalizers: Iterable[str], owner: str | None) -> Patch:
    version = service.metadata.resource_version
    return {
        "metadata": {
            "finalizers": list(finalizers),
            "annotations": {SERVICE_BALANCER: owner},
            "resourceVersion": version,
        }
    }


def status(service: Service, ingress: tuple[LoadBalancerIngress, ...]) -> Patch | None:
    """The patch of the status that says where the Service is reached; None when it says so."""
    if _places(service.status.load_balancer.ingress) == _places(ingress):
        return None
    entries = [{key: value for key, value in _place(one).items() if value} for one in ingress]
    return {"status": {"loadBalancer": {"ingress": entries or None}}}


def _places(ingress: Iterable[LoadBalancerIngress]) -> list[dict[str, str | None]]:
    return [_place(one) for one in ingress]


def _place(one: LoadBalancerIngress) -> dict[str, str | None]:
    """An address without a mode is one of mode VIP, as the API server writes it."""
    return {"ip": one.ip, "hostname": one.hostname, "ipMode": (one.ip_mode or "VIP") if one.ip else one.ip_mode}
