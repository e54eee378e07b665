"""GRPCRoute, TLSRoute, TCPRoute and UDPRoute (``gateway.networking.k8s.io/v1``), as far as they are used.

Source: Gateway API v1.6.
"""

from podwire.model.gatewayapi import (
    API_VERSION,
    BackendReference,
    HttpHeaderFilter,
    HttpMirrorFilter,
    HttpRoute,
    HttpRouteStatus,
    HttpValueMatch,
    ParentReference,
    SessionPersistence,
)
from podwire.model.meta import Fact, ObjectMeta


class GrpcMethodMatch(Fact, frozen=True):
    """A gRPC service and method; ``type`` is Exact or RegularExpression, what is empty is any."""

    type: str = "Exact"
    service: str = ""
    method: str = ""


class GrpcRouteMatch(Fact, frozen=True):
    """What a gRPC request must have, all of it."""

    method: GrpcMethodMatch | None = None
    headers: tuple[HttpValueMatch, ...] = ()


class GrpcRouteFilter(Fact, frozen=True):
    """A filter; ``type`` names the field that is set. Other types than these are refused."""

    type: str = ""
    request_header_modifier: HttpHeaderFilter | None = None
    response_header_modifier: HttpHeaderFilter | None = None
    request_mirror: HttpMirrorFilter | None = None


class GrpcBackendRef(BackendReference, frozen=True):
    """A backend with its share of the requests and the filters for those."""

    weight: int = 1
    filters: tuple[GrpcRouteFilter, ...] = ()


class GrpcRouteRule(Fact, frozen=True):
    """Requests that have one of the matches, and what happens to them."""

    name: str | None = None
    matches: tuple[GrpcRouteMatch, ...] = ()
    filters: tuple[GrpcRouteFilter, ...] = ()
    backend_refs: tuple[GrpcBackendRef, ...] = ()
    session_persistence: SessionPersistence | None = None


class GrpcRouteSpec(Fact, frozen=True):
    """What a route asks for; without rules it is one rule with neither matches nor backends."""

    parent_refs: tuple[ParentReference, ...] = ()
    hostnames: tuple[str, ...] = ()
    rules: tuple[GrpcRouteRule, ...] = ()


class GrpcRoute(Fact, frozen=True):
    """``gateway.networking.k8s.io/v1`` GRPCRoute."""

    api_version: str = API_VERSION
    kind: str = "GRPCRoute"
    metadata: ObjectMeta = ObjectMeta()
    spec: GrpcRouteSpec = GrpcRouteSpec()
    status: HttpRouteStatus = HttpRouteStatus()


class StreamBackendRef(BackendReference, frozen=True):
    """A backend with its share of the connections."""

    weight: int = 1


class StreamRouteRule(Fact, frozen=True):
    """The backends of all connections of a route."""

    name: str | None = None
    backend_refs: tuple[StreamBackendRef, ...] = ()


class StreamRouteSpec(Fact, frozen=True):
    """What a route of connections or datagrams asks for; it has one rule."""

    parent_refs: tuple[ParentReference, ...] = ()
    rules: tuple[StreamRouteRule, ...] = ()


class TlsRouteSpec(StreamRouteSpec, frozen=True):
    """What a route of TLS connections asks for; ``hostnames`` are server names."""

    hostnames: tuple[str, ...] = ()


class TlsRoute(Fact, frozen=True):
    """``gateway.networking.k8s.io/v1`` TLSRoute."""

    api_version: str = API_VERSION
    kind: str = "TLSRoute"
    metadata: ObjectMeta = ObjectMeta()
    spec: TlsRouteSpec = TlsRouteSpec()
    status: HttpRouteStatus = HttpRouteStatus()


class TcpRoute(Fact, frozen=True):
    """``gateway.networking.k8s.io/v1`` TCPRoute."""

    api_version: str = API_VERSION
    kind: str = "TCPRoute"
    metadata: ObjectMeta = ObjectMeta()
    spec: StreamRouteSpec = StreamRouteSpec()
    status: HttpRouteStatus = HttpRouteStatus()


class UdpRoute(Fact, frozen=True):
    """``gateway.networking.k8s.io/v1`` UDPRoute."""

    api_version: str = API_VERSION
    kind: str = "UDPRoute"
    metadata: ObjectMeta = ObjectMeta()
    spec: StreamRouteSpec = StreamRouteSpec()
    status: HttpRouteStatus = HttpRouteStatus()


StreamRoute = TlsRoute | TcpRoute | UdpRoute
ApiRoute = HttpRoute | GrpcRoute | StreamRoute


def hostnames_of(route: ApiRoute) -> tuple[str, ...]:
    """The host names that a route asks for; routes of plain connections have none."""
    return () if isinstance(route, TcpRoute | UdpRoute) else route.spec.hostnames
