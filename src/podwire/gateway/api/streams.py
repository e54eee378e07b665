"""TLSRoutes, TCPRoutes and UDPRoutes as stream targets of the route model."""

import msgspec

from podwire.gateway.api.backendrefs import BackendCollector, BackendFacts, Use
from podwire.gateway.api.filters import UnsupportedRule
from podwire.gateway.api.references import NO_PROBLEM, ReferenceProblem
from podwire.gateway.routes import EntryBackend, StreamTarget, WeightedBackend
from podwire.model.gatewayroutes import StreamRoute, UdpRoute
from podwire.model.meta import key_of


class CompiledStream(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a route and its backends; with a problem in ``refused`` nothing is served."""

    target: StreamTarget | None = None
    backends: dict[str, EntryBackend] = {}
    references: ReferenceProblem = NO_PROBLEM
    refused: ReferenceProblem = NO_PROBLEM


def compile_stream(route: StreamRoute, facts: BackendFacts) -> CompiledStream:
    """A route of connections or datagrams; it may have one rule."""
    collector = BackendCollector(route, facts)
    try:
        target = _target(route, collector)
    except UnsupportedRule as unsupported:
        return CompiledStream(refused=unsupported.problem)
    backends = dict(collector.backends)
    if isinstance(route, UdpRoute) and len(target.backends) > 1:
        shared = EntryBackend(key=target.source, protocol="udp", shares=target.backends)
        backends[shared.key] = shared
        target = StreamTarget(source=target.source, backends=(WeightedBackend(key=shared.key),))
    return CompiledStream(
        target=target,
        backends=backends,
        references=collector.problem,
    )


def _target(route: StreamRoute, collector: BackendCollector) -> StreamTarget:
    if len(route.spec.rules) != 1:
        raise UnsupportedRule(f"spec.rules: expected one rule, got {len(route.spec.rules)}")
    use: Use = "udp" if isinstance(route, UdpRoute) else "tcp"
    shares = tuple(
        WeightedBackend(
            key=collector.backend(reference, f"spec.rules[0].backendRefs[{number}]", use), weight=reference.weight
        )
        for number, reference in enumerate(route.spec.rules[0].backend_refs)
    )
    return StreamTarget(
        source=f"{route.kind} {key_of(route.metadata)}", backends=tuple(share for share in shares if share.weight)
    )
