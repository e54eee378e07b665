"""Whether all objects of the API have taken effect in controllers, in cluster DNS and in every kernel (pure).

Nothing is guessed from time. Each agent lists the version of each object whose consequences its kernel holds
(:mod:`podwire.cluster.inforce`): when these are the versions in the API, everything is in force. The expected
EndpointSlices are computed from Services and pods as the controller does it.
"""

from collections.abc import Iterable, Mapping

from podwire.cluster.inforce import Versions, difference
from podwire.cluster.names import NODE_ROUTING
from podwire.controllers.endpointslice.endpoints import desired
from podwire.local.probe.plan import DNS_SERVICE, ProbeInputs
from podwire.model.meta import ObjectMeta, key_of
from podwire.model.service import (
    HEADLESS_LABEL,
    PROXY_NAME_LABEL,
    SERVICE_NAME_LABEL,
    EndpointPort,
    EndpointSlice,
    Service,
)

_SERVICES, _SLICES = "services", "endpointslices"


def unsettled(inputs: ProbeInputs, pages: Mapping[str, Iterable[str]]) -> str:
    """What has not taken effect yet, empty when everything has; ``pages`` are the status pages of the nodes' agents."""
    desired_versions = versions(inputs)
    return (
        _routing(inputs)
        or _endpoints(inputs)
        or _dns(inputs)
        or next(filter(None, (_node(node, lines, desired_versions) for node, lines in sorted(pages.items()))), "")
    )


def versions(inputs: ProbeInputs) -> Versions:
    """The versions of the objects that agents follow."""
    world = inputs.world
    services = (s.metadata for s in inputs.services if PROXY_NAME_LABEL not in s.metadata.labels)
    slices = (s.metadata for s in inputs.slices if not {PROXY_NAME_LABEL, HEADLESS_LABEL} & s.metadata.labels.keys())
    return {
        "pods": _of(pod.metadata for pod in world.pods),
        "namespaces": _of(namespace.metadata for namespace in world.namespaces),
        "nodes": _of(node.metadata for node in world.nodes),
        "networkpolicies": _of(policy.metadata for policy in world.policies),
        "clusternetworkpolicies": _of(policy.metadata for policy in world.cluster_policies),
        _SERVICES: _of(services),
        _SLICES: _of(slices),
    }


def _of(metas: Iterable[ObjectMeta]) -> dict[str, str]:
    return {key_of(meta).lstrip("/"): meta.resource_version for meta in metas}


def _node(node: str, lines: Iterable[str], expected: Versions) -> str:
    problem = difference(lines, expected)
    return f"{node}: {problem}" if problem else ""


def _routing(inputs: ProbeInputs) -> str:
    """A node that has not announced its routing facts yet."""
    silent = [node.metadata.name for node in inputs.world.nodes if NODE_ROUTING not in node.metadata.annotations]
    return f"the way to pods of {silent[0]} is not known yet" if silent else ""


def _endpoints(inputs: ProbeInputs) -> str:
    """A Service whose EndpointSlices do not match its pods; empty when there is none."""
    nodes = {node.metadata.name: node for node in inputs.world.nodes}
    have: dict[str, set[tuple[object, ...]]] = {}
    for endpoint_slice in inputs.slices:
        name = endpoint_slice.metadata.labels.get(SERVICE_NAME_LABEL, "")
        have.setdefault(f"{endpoint_slice.metadata.namespace}/{name}", set()).update(_ends(endpoint_slice))
    for service in inputs.services:
        key, selector = key_of(service.metadata), service.spec.selector
        if not selector or service.spec.type == "ExternalName" or service.metadata.deletion_timestamp:
            continue
        own = [
            pod
            for pod in inputs.pods
            if pod.metadata.namespace == service.metadata.namespace and selector.items() <= pod.metadata.labels.items()
        ]
        desired_endpoints = {
            (group.address_type, _numbers(group.ports), end.addresses[0], end.conditions.ready)
            for group, ends in desired(service, own, nodes).items()
            for end in ends.values()
        }
        if desired_endpoints != have.get(key, set()):
            return f"endpoints of Service {key} are not written yet"
    return ""


def _ends(endpoint_slice: EndpointSlice) -> Iterable[tuple[object, ...]]:
    for end in endpoint_slice.endpoints or ():
        for address in end.addresses[:1]:
            yield endpoint_slice.address_type, _numbers(endpoint_slice.ports or ()), address, end.conditions.ready


def _numbers(ports: Iterable[EndpointPort]) -> frozenset[tuple[str, str, int]]:
    return frozenset((port.name or "", port.protocol or "TCP", port.port or 0) for port in ports)


def _dns(inputs: ProbeInputs) -> str:
    """Why cluster DNS is not ready; empty when it is."""
    service = next((s for s in inputs.services if key_of(s.metadata) == DNS_SERVICE), None)
    if service is None or _ready(service, inputs.slices):
        return ""
    return "cluster DNS is not ready yet"


def _ready(service: Service, slices: Iterable[EndpointSlice]) -> bool:
    name, namespace = service.metadata.name, service.metadata.namespace
    own = (s for s in slices if (s.metadata.namespace, s.metadata.labels.get(SERVICE_NAME_LABEL)) == (namespace, name))
    return any(end.conditions.ready is not False for endpoint_slice in own for end in endpoint_slice.endpoints or ())
