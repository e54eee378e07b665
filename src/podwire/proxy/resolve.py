"""Resolves a Service, its EndpointSlices and facts of the node to the ports to program (pure).

The choice of endpoints follows Kubernetes 1.36:

1. Topology: when every ready endpoint has node hints, and at least one hint names this node, only the endpoints hinted
   for this node are used; otherwise the same rule with zones; otherwise all.
2. Cluster endpoints: the ready endpoints that step 1 leaves. When no endpoint is ready: all endpoints that terminate
   and still serve.
3. Local endpoints: the ready endpoints of this node. When there are none: the endpoints of this node that terminate
   and still serve.

Hints never apply to local endpoints. :func:`explain` returns the reason why each endpoint is chosen or not, and
:func:`choose` uses these reasons, so the two cannot disagree. The cost depends only on the size of the one Service.
"""

from collections.abc import Iterable
from enum import StrEnum
from ipaddress import ip_network

import msgspec

from podwire.model import service as api
from podwire.model.meta import key_of
from podwire.model.service import HEADLESS_LABEL, PROXY_NAME_LABEL, SERVICE_NAME_LABEL
from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint, ResolvedPort, of_family
from podwire.proxy.validity import FAMILIES, MOST_AFFINITY_S, PROTOCOLS, canonical_address, usable_address, valid_port

_DEFAULT_AFFINITY_S = 10800


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """An endpoint of one port, before endpoints are chosen."""

    endpoint: ResolvedEndpoint
    ready: bool
    serving: bool
    terminating: bool
    zones: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    entry: api.Endpoint = api.Endpoint()
    """The endpoint as written in its EndpointSlice."""
    slice_name: str = ""

    @property
    def leaving(self) -> bool:
        """Whether the endpoint terminates and still serves."""
        return not self.ready and self.serving and self.terminating


class SelectionReason(StrEnum):
    """The reason why an endpoint is chosen (the first four) or not chosen."""

    READY = "Ready"
    HINTED_FOR_NODE = "HintedForNode"
    HINTED_FOR_ZONE = "HintedForZone"
    TERMINATING_FALLBACK = "TerminatingFallback"
    """The endpoint terminates and still serves, and no endpoint is ready."""
    NOT_READY = "NotReady"
    NOT_SERVING = "NotServing"
    """The endpoint terminates and no longer serves."""
    TERMINATING = "Terminating"
    """The endpoint terminates and still serves, and other endpoints are ready."""
    OTHER_NODE = "HintedForOtherNode"
    OTHER_ZONE = "HintedForOtherZone"
    NOT_LOCAL = "NotLocal"
    """The endpoint is on another node, and the traffic policy is Local."""

    @property
    def chosen(self) -> bool:
        """Whether the endpoint may get connections."""
        return self in _CHOSEN


_CHOSEN = frozenset(
    (
        SelectionReason.READY,
        SelectionReason.HINTED_FOR_NODE,
        SelectionReason.HINTED_FOR_ZONE,
        SelectionReason.TERMINATING_FALLBACK,
    )
)


class ExplainedEndpoint(msgspec.Struct, frozen=True, gc=False):
    """An endpoint, and why it is chosen or not, for traffic policy Cluster and for traffic policy Local."""

    candidate: Candidate
    cluster: SelectionReason
    local: SelectionReason


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The endpoints chosen for one port; ``any``: whether a usable endpoint exists on any node."""

    cluster: tuple[ResolvedEndpoint, ...]
    local: tuple[ResolvedEndpoint, ...]
    any: bool


def handled(service: api.Service) -> bool:
    """Whether this proxy programs a Service: it has a cluster address and names no other proxy."""
    spec = service.spec
    return (
        PROXY_NAME_LABEL not in service.metadata.labels
        and spec.type != "ExternalName"
        and not service.headless
        and bool(spec.cluster_ip or spec.cluster_ips)
    )


def service_of(endpoint_slice: api.EndpointSlice) -> str:
    """``namespace/name`` of the Service that a slice belongs to; empty without one, and for other proxies."""
    labels = endpoint_slice.metadata.labels
    name = labels.get(SERVICE_NAME_LABEL, "")
    if (
        not name
        or HEADLESS_LABEL in labels
        or PROXY_NAME_LABEL in labels
        or endpoint_slice.address_type not in FAMILIES
    ):
        return ""
    return f"{endpoint_slice.metadata.namespace}/{name}"


def resolve(service: api.Service, slices: Iterable[api.EndpointSlice], node: NodeFacts) -> tuple[ResolvedPort, ...]:
    """The ports of one Service, IPv4 first, each family in the order of the Service; empty when it is not handled."""
    if not handled(service):
        return ()
    all_slices = tuple(slices)
    resolved: list[ResolvedPort] = []
    for family in ("ip", "ip6"):
        address = _cluster_ip(service.spec, family)
        if not address:
            continue
        family_slices = tuple(s for s in all_slices if FAMILIES.get(s.address_type) == family)
        for port in filter(_programmable, service.spec.ports):
            resolved.append(_resolve_port(service, port, address, family, (family_slices, node)))
    return tuple(resolved)


def _programmable(port: api.ServicePort) -> bool:
    return valid_port(port.port) and (port.protocol or "TCP") in PROTOCOLS


def _resolve_port(
    service: api.Service,
    port: api.ServicePort,
    address: str,
    family: str,
    inputs: tuple[tuple[api.EndpointSlice, ...], NodeFacts],
) -> ResolvedPort:
    slices, node = inputs
    spec = service.spec
    external_ips = spec.external_ips if node.external_ips else ()
    external = spec.type in ("NodePort", "LoadBalancer") or bool(external_ips)
    candidates = gather(slices, port, node.name)
    choice = choose(candidates, node)
    node_port = port.node_port if spec.type in ("NodePort", "LoadBalancer") and valid_port(port.node_port) else 0
    external_local = external and spec.external_traffic_policy == "Local"
    checked = spec.type == "LoadBalancer" and external_local and valid_port(spec.health_check_node_port)
    health = spec.health_check_node_port if checked else 0
    return ResolvedPort(
        service=key_of(service.metadata),
        port_name=port.name,
        protocol=PROTOCOLS[port.protocol or "TCP"],
        family=family,
        port=port.port,
        cluster_ip=address,
        node_port=node_port,
        external_ips=_addresses(external_ips, family) if external_ips else (),
        load_balancer_ips=_load_balancer_ips(service, family),
        source_ranges=_source_ranges(spec.load_balancer_source_ranges, family),
        internal_local=spec.internal_traffic_policy == "Local",
        external_local=external_local,
        cluster_endpoints=choice.cluster,
        local_endpoints=choice.local,
        has_endpoints=choice.any,
        serving=frozenset(str(c.endpoint) for c in candidates if c.serving),
        affinity_s=_affinity(spec),
        health_check_node_port=health,
        local_ready=_local_ready(candidates) if health else (),
    )


def _local_ready(candidates: tuple[Candidate, ...]) -> tuple[str, ...]:
    return tuple(sorted({c.endpoint.address for c in candidates if c.ready and c.endpoint.local}))


def _affinity(spec: api.ServiceSpec) -> int:
    if spec.session_affinity != "ClientIP":
        return 0
    config = spec.session_affinity_config
    if config is None or config.client_ip is None:
        return _DEFAULT_AFFINITY_S
    timeout_s = config.client_ip.timeout_seconds
    return timeout_s if 0 < timeout_s <= MOST_AFFINITY_S else _DEFAULT_AFFINITY_S


def _cluster_ip(spec: api.ServiceSpec, family: str) -> str:
    for text in spec.cluster_ips or (spec.cluster_ip,):
        if address := usable_address(text, family):
            return address
    return ""


def _addresses(texts: Iterable[str], family: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (usable_address(text, family) for text in texts))))


def _load_balancer_ips(service: api.Service, family: str) -> tuple[str, ...]:
    if service.spec.type != "LoadBalancer":
        return ()
    ingress = service.status.load_balancer.ingress
    return _addresses((entry.ip for entry in ingress if entry.ip and entry.ip_mode != "Proxy"), family)


def _source_ranges(texts: tuple[str, ...], family: str) -> tuple[str, ...]:
    """The ranges of a family; empty, which means no restriction, if one has length 0. Invalid ranges are left out."""
    if not texts:
        return ()
    ranges: list[str] = []
    for text in texts:
        address, _, prefix = text.strip().partition("/")
        try:
            network = ip_network(f"{canonical_address(address)}/{int(prefix)}", strict=False)
        except ValueError:
            continue
        if network.prefixlen == 0 and (network.version == 6) == (family == "ip6"):
            return ()
        ranges.append(str(network))
    return of_family(tuple(dict.fromkeys(ranges)), family)


def gather(slices: Iterable[api.EndpointSlice], port: api.ServicePort, node_name: str) -> tuple[Candidate, ...]:
    """All endpoints of one port, each ``address:port`` once, in the order of their text.

    When two entries have the same address, the entry that does not terminate is used: a new pod took over the address.
    """
    return survey(slices, port, node_name)[0]


def survey(
    slices: Iterable[api.EndpointSlice], port: api.ServicePort, node_name: str
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """The endpoints of :func:`gather`, and the entries that it ignores because their address is used already."""
    candidates: dict[str, Candidate] = {}
    duplicates: list[Candidate] = []
    for endpoint_slice in slices:
        for slice_port in endpoint_slice.ports or ():
            if slice_port.name is None and port.name:
                continue
            same_name = (slice_port.name or "") == port.name
            if not same_name or slice_port.protocol != (port.protocol or "TCP"):
                continue
            if slice_port.port is None or not valid_port(slice_port.port):
                continue
            for entry in endpoint_slice.endpoints or ():
                candidate = _candidate(entry, slice_port.port, node_name, endpoint_slice)
                if candidate is None:
                    continue
                text = str(candidate.endpoint)
                previous = candidates.setdefault(text, candidate)
                if previous.terminating and not candidate.terminating:
                    candidates[text], candidate = candidate, previous
                if candidates[text] is not candidate:
                    duplicates.append(candidate)
    return tuple(candidates[text] for text in sorted(candidates)), tuple(duplicates)


def _candidate(entry: api.Endpoint, port: int, node_name: str, endpoint_slice: api.EndpointSlice) -> Candidate | None:
    """The endpoint of an entry; None when its address is no address of a host in the family of the slice."""
    family = FAMILIES.get(endpoint_slice.address_type, "")
    address = usable_address(entry.addresses[0], family) if entry.addresses else ""
    if not address:
        return None
    conditions = entry.conditions
    hints = entry.hints
    return Candidate(
        endpoint=ResolvedEndpoint(address, port, entry.node_name == node_name),
        ready=conditions.ready is not False,
        serving=conditions.serving is not False,
        terminating=bool(conditions.terminating),
        zones=frozenset(hint.name for hint in hints.for_zones) if hints else frozenset(),
        nodes=frozenset(hint.name for hint in hints.for_nodes) if hints else frozenset(),
        entry=entry,
        slice_name=endpoint_slice.metadata.name,
    )


def choose(candidates: tuple[Candidate, ...], node: NodeFacts) -> Choice:
    """The endpoints to use, chosen by the three steps in the module docstring."""
    explained = explain(candidates, node)
    return Choice(
        cluster=tuple(e.candidate.endpoint for e in explained if e.cluster in _CHOSEN),
        local=tuple(e.candidate.endpoint for e in explained if e.local in _CHOSEN),
        any=any(c.ready or c.leaving for c in candidates),
    )


def explain(candidates: tuple[Candidate, ...], node: NodeFacts) -> tuple[ExplainedEndpoint, ...]:
    """The reason why each endpoint is used or not, in the order of ``candidates``."""
    ready = tuple(c for c in candidates if c.ready)
    local_ready = any(c.endpoint.local for c in ready)
    hinted, not_hinted = _topology(ready, node)
    explained: list[ExplainedEndpoint] = []
    for c in candidates:
        if c.ready:
            matches = hinted is SelectionReason.READY or (
                node.name in c.nodes if hinted is SelectionReason.HINTED_FOR_NODE else node.zone in c.zones
            )
            local = SelectionReason.READY if c.endpoint.local else SelectionReason.NOT_LOCAL
            explained.append(ExplainedEndpoint(c, hinted if matches else not_hinted, local))
        elif c.leaving:
            cluster = SelectionReason.TERMINATING if ready else SelectionReason.TERMINATING_FALLBACK
            local = SelectionReason.TERMINATING if local_ready else SelectionReason.TERMINATING_FALLBACK
            explained.append(ExplainedEndpoint(c, cluster, local if c.endpoint.local else SelectionReason.NOT_LOCAL))
        else:
            reason = SelectionReason.NOT_SERVING if c.terminating else SelectionReason.NOT_READY
            explained.append(ExplainedEndpoint(c, reason, reason))
    return tuple(explained)


def _topology(ready: tuple[Candidate, ...], node: NodeFacts) -> tuple[SelectionReason, SelectionReason]:
    """The reason of a ready endpoint that is hinted for this node or zone, and that of any other ready endpoint."""
    if ready and all(c.nodes for c in ready) and any(node.name in c.nodes for c in ready):
        return SelectionReason.HINTED_FOR_NODE, SelectionReason.OTHER_NODE
    if node.zone and ready and all(c.zones for c in ready) and any(node.zone in c.zones for c in ready):
        return SelectionReason.HINTED_FOR_ZONE, SelectionReason.OTHER_ZONE
    return SelectionReason.READY, SelectionReason.READY
