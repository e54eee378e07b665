"""Computes the slices' endpoints from Endpoints that users write. Pure.

The endpoints of a Service without a selector are written by its owner: as EndpointSlices, which are not changed, or as
the older Endpoints, which are copied to slices. Not copied are Endpoints with the label
``endpointslice.kubernetes.io/skip-mirror: "true"``, those of leader elections, and those of a Service with a selector
or without a Service. Of each subset the first 1,000 addresses are copied, with labels and annotations, except kubectl's
last-applied-configuration.

Source: ``k8s.io/kubernetes/pkg/controller/endpointslicemirroring``.
"""

from ipaddress import ip_address

from podwire.controllers.endpointslice.endpoints import Desired, Group
from podwire.controllers.endpointslice.plan import Origin
from podwire.model.service import (
    TRIGGER_TIME_ANNOTATION,
    Endpoint,
    EndpointAddress,
    EndpointConditions,
    Endpoints,
    EndpointSubset,
    Service,
)

MANAGER = "endpointslicemirroring-controller.k8s.io"
SKIP = "endpointslice.kubernetes.io/skip-mirror"
LEADER = "control-plane.alpha.kubernetes.io/leader"
_NOT_COPIED = frozenset(("kubectl.kubernetes.io/last-applied-configuration", TRIGGER_TIME_ANNOTATION))
_CAPACITY = 1000


def copied(item: Endpoints | None, service: Service | None) -> bool:
    """Whether the Endpoints are to be copied to slices."""
    if item is None or service is None or service.spec.selector or service.metadata.deletion_timestamp is not None:
        return False
    return item.metadata.labels.get(SKIP) != "true" and LEADER not in item.metadata.annotations


def of_endpoints(item: Endpoints) -> Origin:
    """The origin of slices of hand-written Endpoints: they belong to the Endpoints."""
    annotations = {key: text for key, text in item.metadata.annotations.items() if key not in _NOT_COPIED}
    return Origin(MANAGER, "Endpoints", item.metadata.labels, item.metadata, annotations)


def handwritten(item: Endpoints) -> Desired:
    """The endpoints by group, then by address; an address in several subsets of a group is ready if one says so."""
    groups: Desired = {}
    for subset in item.subsets:
        for address, ready in _addresses(subset):
            try:
                family = f"IPv{ip_address(address.ip).version}"
            except ValueError:
                continue
            endpoint = Endpoint(
                addresses=(address.ip,),
                conditions=EndpointConditions(ready=ready, serving=ready, terminating=False),
                hostname=address.hostname or None,
                node_name=address.node_name,
                target_ref=address.target_ref,
            )
            uid = address.target_ref.uid if address.target_ref is not None else ""
            groups.setdefault(Group(family, subset.ports), {}).setdefault(f"{uid} {address.ip}", endpoint)
    return groups


def _addresses(subset: EndpointSubset) -> list[tuple[EndpointAddress, bool]]:
    every = [(address, True) for address in subset.addresses]
    every += [(address, False) for address in subset.not_ready_addresses]
    return every[:_CAPACITY]
