"""From a Service, its EndpointSlices and facts of the node to resolved ServicePorts (pure).

The choice of endpoints follows Kubernetes 1.36:

1. Topology: when every ready endpoint is hinted for nodes and one for this node, only those for this node count; else
   the same with zones; else all.
2. Cluster endpoints: ready ones that topology leaves; none: all that still serve while terminating.
3. Local endpoints: ready ones of this node; none: those of this node that still serve while terminating.

Hints never apply to local endpoints. :func:`explain` says of each endpoint why it is chosen or not, and the choice is
what it says, so the two cannot disagree. The cost is that of the one Service.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from ipaddress import ip_address, ip_network

import msgspec

from podwire.model import service as api
from podwire.model.meta import key_of
from podwire.proxy.servicemap import Endpoint, NodeFacts, ServicePort, of_family

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
PROXY_NAME_LABEL = "service.kubernetes.io/service-proxy-name"
HEADLESS_LABEL = "service.kubernetes.io/headless"

_FAMILIES = {"IPv4": "ip", "IPv6": "ip6"}
_PROTOCOLS = {"TCP": "tcp", "UDP": "udp", "SCTP": "sctp"}
_DEFAULT_AFFINITY_S = 10800
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CANONICAL = re.compile(rf"(?:{_OCTET}\.){{3}}{_OCTET}")


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """An endpoint of one port before the choice."""

    endpoint: Endpoint
    ready: bool
    serving: bool
    terminating: bool
    zones: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    entry: api.Endpoint = api.Endpoint()
    """As it stands in the slice."""
    slice_name: str = ""

    @property
    def leaving(self) -> bool:
        """Whether it still serves while it terminates."""
        return not self.ready and self.serving and self.terminating


class Why(StrEnum):
    """Why an endpoint is chosen (the first four) or not."""

    READY = "Ready"
    HINTED_FOR_NODE = "HintedForNode"
    HINTED_FOR_ZONE = "HintedForZone"
    TERMINATING_FALLBACK = "TerminatingFallback"
    """It terminates and still serves, and no endpoint is ready."""
    NOT_READY = "NotReady"
    NOT_SERVING = "NotServing"
    """It terminates and does not serve any more."""
    TERMINATING = "Terminating"
    """It terminates and still serves, and others are ready."""
    OTHER_NODE = "HintedForOtherNode"
    OTHER_ZONE = "HintedForOtherZone"
    NOT_LOCAL = "NotLocal"
    """It is on another node, where the policy is Local."""

    @property
    def chosen(self) -> bool:
        """Whether it may get connections."""
        return self in _CHOSEN


_CHOSEN = frozenset((Why.READY, Why.HINTED_FOR_NODE, Why.HINTED_FOR_ZONE, Why.TERMINATING_FALLBACK))


class Explained(msgspec.Struct, frozen=True, gc=False):
    """An endpoint, and why it is or is not among those of policy Cluster and among those of policy Local."""

    candidate: Candidate
    cluster: Why
    local: Why


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The outcome of the choice for one port."""

    cluster: tuple[Endpoint, ...]
    local: tuple[Endpoint, ...]
    any: bool


def handled(service: api.Service) -> bool:
    """Whether a Service has anything to program: not headless, not by name, not left to another proxy."""
    spec = service.spec
    return (
        PROXY_NAME_LABEL not in service.metadata.labels
        and spec.type != "ExternalName"
        and not service.headless
        and bool(spec.cluster_ip or spec.cluster_ips)
    )


def service_of(piece: api.EndpointSlice) -> str:
    """``namespace/name`` of the Service that a slice belongs to; empty when it belongs to none."""
    labels = piece.metadata.labels
    name = labels.get(SERVICE_NAME_LABEL, "")
    if not name or HEADLESS_LABEL in labels or piece.address_type not in _FAMILIES:
        return ""
    return f"{piece.metadata.namespace}/{name}"


def resolve(service: api.Service, slices: Iterable[api.EndpointSlice], node: NodeFacts) -> tuple[ServicePort, ...]:
    """The ports of one Service in both families, in the order of the Service; empty for one not handled."""
    if not handled(service):
        return ()
    pieces = tuple(slices)
    found: list[ServicePort] = []
    for family in ("ip", "ip6"):
        address = _cluster_ip(service.spec, family)
        if not address:
            continue
        of_type = tuple(piece for piece in pieces if _FAMILIES.get(piece.address_type) == family)
        for port in service.spec.ports:
            found.append(_resolve_port(service, port, address, family, (of_type, node)))
    return tuple(found)


def _resolve_port(
    service: api.Service,
    port: api.ServicePort,
    address: str,
    family: str,
    world: tuple[tuple[api.EndpointSlice, ...], NodeFacts],
) -> ServicePort:
    pieces, node = world
    spec = service.spec
    external_ips = spec.external_ips if node.external_ips else ()
    external = spec.type in ("NodePort", "LoadBalancer") or bool(external_ips)
    candidates = gather(pieces, port, node.name)
    choice = choose(candidates, node)
    node_port = port.node_port if spec.type in ("NodePort", "LoadBalancer") else 0
    external_local = external and spec.external_traffic_policy == "Local"
    health = spec.health_check_node_port if spec.type == "LoadBalancer" and external_local else 0
    return ServicePort(
        service=key_of(service.metadata),
        port_name=port.name,
        protocol=_PROTOCOLS.get(port.protocol or "TCP", "tcp"),
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
    return config.client_ip.timeout_seconds


def _cluster_ip(spec: api.ServiceSpec, family: str) -> str:
    for text in spec.cluster_ips or (spec.cluster_ip,):
        address = canonical_address(text)
        if address and (":" in address) == (family == "ip6"):
            return address
    return ""


def canonical_address(text: str) -> str:
    """The address in its usual form; leading zeros are read as decimal, as older objects have them. Empty: none."""
    if _CANONICAL.fullmatch(text):  # as nearly all are; to parse one costs ten times as much
        return text
    plain = text.strip()
    if "." in plain and ":" not in plain:
        plain = ".".join(part.lstrip("0") or "0" for part in plain.split("."))
    try:
        canonical = str(ip_address(plain))
    except ValueError:
        return ""
    return text if canonical == text else canonical  # of equal texts one is enough


def _addresses(texts: Iterable[str], family: str) -> tuple[str, ...]:
    canonical = tuple(dict.fromkeys(filter(None, (canonical_address(text) for text in texts if text != "None"))))
    return of_family(canonical, family)


def _load_balancer_ips(service: api.Service, family: str) -> tuple[str, ...]:
    if service.spec.type != "LoadBalancer":
        return ()
    ingress = service.status.load_balancer.ingress
    return _addresses((entry.ip for entry in ingress if entry.ip and entry.ip_mode != "Proxy"), family)


def _source_ranges(texts: tuple[str, ...], family: str) -> tuple[str, ...]:
    """The ranges of a family; a range of everything means no restriction, one that is not valid is left out."""
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


def gather(pieces: Iterable[api.EndpointSlice], port: api.ServicePort, node_name: str) -> tuple[Candidate, ...]:
    """All endpoints of one port, each ``address:port`` once, in the order of their text.

    Of two entries for one address, the one that does not terminate counts: a new pod took over the address.
    """
    return survey(pieces, port, node_name)[0]


def survey(
    pieces: Iterable[api.EndpointSlice], port: api.ServicePort, node_name: str
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """The endpoints of :func:`gather`, and the entries that do not count beside them."""
    found: dict[str, Candidate] = {}
    doubles: list[Candidate] = []
    for piece in pieces:
        for slice_port in piece.ports or ():
            if slice_port.name is None and port.name:
                continue
            same_name = (slice_port.name or "") == port.name
            if not same_name or slice_port.protocol != (port.protocol or "TCP") or not slice_port.port:
                continue
            for entry in piece.endpoints or ():
                candidate = _candidate(entry, slice_port.port, node_name, piece.metadata.name)
                if candidate is None:
                    continue
                text = str(candidate.endpoint)
                known = found.setdefault(text, candidate)
                if known.terminating and not candidate.terminating:
                    found[text], candidate = candidate, known
                if found[text] is not candidate:
                    doubles.append(candidate)
    return tuple(found[text] for text in sorted(found)), tuple(doubles)


def _candidate(entry: api.Endpoint, port: int, node_name: str, slice_name: str) -> Candidate | None:
    address = canonical_address(entry.addresses[0]) if entry.addresses else ""
    if not address:
        return None
    conditions = entry.conditions
    hints = entry.hints
    return Candidate(
        endpoint=Endpoint(address, port, entry.node_name == node_name),
        ready=conditions.ready is not False,
        serving=conditions.serving is not False,
        terminating=bool(conditions.terminating),
        zones=frozenset(hint.name for hint in hints.for_zones) if hints else frozenset(),
        nodes=frozenset(hint.name for hint in hints.for_nodes) if hints else frozenset(),
        entry=entry,
        slice_name=slice_name,
    )


def choose(candidates: tuple[Candidate, ...], node: NodeFacts) -> Choice:
    """The endpoints to use, by the three steps above."""
    explained = explain(candidates, node)
    return Choice(
        cluster=tuple(one.candidate.endpoint for one in explained if one.cluster in _CHOSEN),
        local=tuple(one.candidate.endpoint for one in explained if one.local in _CHOSEN),
        any=any(c.ready or c.leaving for c in candidates),
    )


def explain(candidates: tuple[Candidate, ...], node: NodeFacts) -> tuple[Explained, ...]:
    """Why each endpoint is used or not, in the order given."""
    ready = tuple(c for c in candidates if c.ready)
    local_ready = any(c.endpoint.local for c in ready)
    near, far = _topology(ready, node)
    found: list[Explained] = []
    for c in candidates:
        if c.ready:
            meant = near is Why.READY or (node.name in c.nodes if near is Why.HINTED_FOR_NODE else node.zone in c.zones)
            found.append(Explained(c, near if meant else far, Why.READY if c.endpoint.local else Why.NOT_LOCAL))
        elif c.leaving:
            cluster = Why.TERMINATING if ready else Why.TERMINATING_FALLBACK
            local = Why.TERMINATING if local_ready else Why.TERMINATING_FALLBACK
            found.append(Explained(c, cluster, local if c.endpoint.local else Why.NOT_LOCAL))
        else:
            why = Why.NOT_SERVING if c.terminating else Why.NOT_READY
            found.append(Explained(c, why, why))
    return tuple(found)


def _topology(ready: tuple[Candidate, ...], node: NodeFacts) -> tuple[Why, Why]:
    """What a ready endpoint is that hints mean for this node, and what any other is."""
    if ready and all(c.nodes for c in ready) and any(node.name in c.nodes for c in ready):
        return Why.HINTED_FOR_NODE, Why.OTHER_NODE
    if node.zone and ready and all(c.zones for c in ready) and any(node.zone in c.zones for c in ready):
        return Why.HINTED_FOR_ZONE, Why.OTHER_ZONE
    return Why.READY, Why.READY
