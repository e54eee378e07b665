"""From a Service, its EndpointSlices and facts of the node to resolved ServicePorts (pure).

The choice of endpoints follows Kubernetes 1.36:

1. Topology: when every ready endpoint is hinted for nodes and one for this node, only those for this node count; else
   the same with zones; else all.
2. Cluster endpoints: ready ones that topology leaves; none: all that still serve while terminating.
3. Local endpoints: ready ones of this node; none: those of this node that still serve while terminating.

Hints never apply to local endpoints. The cost is that of the one Service.
"""

from collections.abc import Iterable
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


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """An endpoint of one port before the choice."""

    endpoint: Endpoint
    ready: bool
    serving: bool
    terminating: bool
    zones: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()


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
        external_ips=_addresses(external_ips, family),
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
    addresses = spec.cluster_ips or (spec.cluster_ip,)
    found = _addresses(addresses, family)
    return found[0] if found else ""


def canonical_address(text: str) -> str:
    """The address in its usual form; leading zeros are read as decimal, as older objects have them. Empty: none."""
    text = text.strip()
    if "." in text and ":" not in text:
        text = ".".join(part.lstrip("0") or "0" for part in text.split("."))
    try:
        return str(ip_address(text))
    except ValueError:
        return ""


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
    found: dict[str, Candidate] = {}
    for piece in pieces:
        for slice_port in piece.ports or ():
            if slice_port.name is None and port.name:
                continue
            same_name = (slice_port.name or "") == port.name
            if not same_name or slice_port.protocol != (port.protocol or "TCP") or not slice_port.port:
                continue
            for entry in piece.endpoints or ():
                candidate = _candidate(entry, slice_port.port, node_name)
                if candidate is None:
                    continue
                text = str(candidate.endpoint)
                if text not in found or (found[text].terminating and not candidate.terminating):
                    found[text] = candidate
    return tuple(found[text] for text in sorted(found))


def _candidate(entry: api.Endpoint, port: int, node_name: str) -> Candidate | None:
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
    )


def choose(candidates: tuple[Candidate, ...], node: NodeFacts) -> Choice:
    """The endpoints to use, by the three steps above."""
    ready = tuple(c for c in candidates if c.ready)
    leaving = tuple(c for c in candidates if not c.ready and c.serving and c.terminating)
    cluster = _by_topology(ready, node) or leaving
    local = tuple(c for c in ready if c.endpoint.local) or tuple(c for c in leaving if c.endpoint.local)
    return Choice(tuple(c.endpoint for c in cluster), tuple(c.endpoint for c in local), bool(ready or leaving))


def _by_topology(ready: tuple[Candidate, ...], node: NodeFacts) -> tuple[Candidate, ...]:
    if ready and all(c.nodes for c in ready):
        here = tuple(c for c in ready if node.name in c.nodes)
        if here:
            return here
    if node.zone and ready and all(c.zones for c in ready):
        here = tuple(c for c in ready if node.zone in c.zones)
        if here:
            return here
    return ready
