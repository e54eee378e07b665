"""Plans the next step for a Service of type LoadBalancer, and the patches of its objects. Pure.

A Service with an address of this controller has Kubernetes' finalizer, so that it is not deleted before its address is
released, and an annotation with the name of its balancer. The finalizer alone does not identify the owner, since cloud
controllers set it too. So a Service without the annotation belongs to another controller and is not changed.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

from podwire.cluster.names import SERVICE_BALANCER
from podwire.model.service import LoadBalancerIngress, Service

FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
Patch = dict[str, object]


class Need(Enum):
    """The next step for a Service."""

    NOTHING = "nothing"
    ADDRESS = "address"
    RELEASE = "release"


def need(service: Service, balancers: Mapping[str, str]) -> Need:
    """The next step, from the names of balancers by the class that they serve.

    An address of one balancer is released before another balancer allocates one, unless the first one does not exist.
    """
    owner = service.metadata.annotations.get(SERVICE_BALANCER, "")
    if not wants(service):
        return Need.RELEASE if owner else Need.NOTHING
    balancer = balancers.get(service.spec.load_balancer_class or "", "")
    if owner != balancer and owner in balancers.values():
        return Need.RELEASE
    return Need.ADDRESS if balancer else Need.NOTHING


def wants(service: Service) -> bool:
    """Whether the Service needs an external address from any balancer."""
    return service.spec.type == "LoadBalancer" and service.metadata.deletion_timestamp is None


def claim(service: Service, name: str) -> Patch | None:
    """The patch that assigns the Service to a balancer; None when it is assigned."""
    meta = service.metadata
    if FINALIZER in meta.finalizers and meta.annotations.get(SERVICE_BALANCER) == name:
        return None
    finalizers = [*meta.finalizers, *(() if FINALIZER in meta.finalizers else (FINALIZER,))]
    return _patch(service, finalizers, name)


def release(service: Service) -> Patch | None:
    """The patch that removes the assignment; None when there is none."""
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
    """The patch of the status with the Service's addresses; None when the status has them."""
    if _addresses(service.status.load_balancer.ingress) == _addresses(ingress):
        return None
    entries = [{key: value for key, value in _address(entry).items() if value} for entry in ingress]
    return {"status": {"loadBalancer": {"ingress": entries or None}}}


def _addresses(ingress: Iterable[LoadBalancerIngress]) -> list[dict[str, str | None]]:
    return [_address(entry) for entry in ingress]


def _address(entry: LoadBalancerIngress) -> dict[str, str | None]:
    """An address without a mode has the mode VIP, as the API server writes it."""
    ip_mode = (entry.ip_mode or "VIP") if entry.ip else entry.ip_mode
    return {"ip": entry.ip, "hostname": entry.hostname, "ipMode": ip_mode}
