"""Which route of an entry a request takes: the rules that the engine follows, as a function.

``podwire why`` asks it about a URL, and the tests of both translators hold it against the tables of Kubernetes and of
Gateway API. The rules: the server name chooses the certificate and the table (exact name, then the longest wildcard,
then the server without names); the Host header chooses the virtual host (the same order, without its port, in lower
case); inside, the first route that matches decides. Regular expressions are matched whole.
"""

import re
from collections.abc import Iterable
from urllib.parse import parse_qsl

import msgspec

from podwire.gateway.patterns import matches_whole
from podwire.gateway.routes import (
    EntryListener,
    EntryRoute,
    GatewayEntry,
    PathMatch,
    RequestMatch,
    RouteTable,
    TlsServer,
    ValueMatch,
    VirtualHost,
)


class HttpRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A request as a client sends it; header names are in lower case, ``path`` may have a query."""

    port: int = 80
    server_name: str = ""
    host: str = ""
    method: str = "GET"
    path: str = "/"
    headers: dict[str, str] = {}


class RouteDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What was chosen, as far as it went; ``status`` is the answer when there is no route."""

    listener: EntryListener | None = None
    server: TlsServer | None = None
    table: RouteTable | None = None
    host: VirtualHost | None = None
    route: EntryRoute | None = None
    status: int = 0


def decide(entry: GatewayEntry, request: HttpRequest) -> RouteDecision:
    """The listener, table, virtual host and route of a request.

    Status 0 without a table says that the connection is refused.
    """
    listener = next((listener for listener in entry.listeners if listener.port == request.port), None)
    if listener is None:
        return RouteDecision()
    server = None
    name = listener.table
    if listener.servers:
        server = server_for(listener.servers, request.server_name)
        if server is None:
            return RouteDecision(listener=listener)
        name = server.table
    table = entry.tables.get(name)
    if table is None:
        return RouteDecision(listener=listener, server=server)
    host, route = route_of(table, request)
    status = 0 if route is not None else table.fallback
    return RouteDecision(listener=listener, server=server, table=table, host=host, route=route, status=status)


def server_for(servers: Iterable[TlsServer], server_name: str) -> TlsServer | None:
    """The server of a TLS handshake: the most specific name, else the one without names."""
    name = server_name.lower()
    ranked = [
        (_specificity(pattern, name, single_label=False), server)
        for server in servers
        for pattern in server.names or ("*",)
    ]
    rank, server = max(ranked, key=lambda pair: pair[0], default=(0, None))
    return server if rank else None


def route_of(table: RouteTable, request: HttpRequest) -> tuple[VirtualHost | None, EntryRoute | None]:
    """The virtual host and the first of its routes that matches."""
    host = host_for(table, request.host)
    if host is None:
        return None, None
    return host, next((route for route in host.routes if matches(route.match, request)), None)


def host_for(table: RouteTable, host: str) -> VirtualHost | None:
    """The virtual host of a Host header."""
    name = without_port(host)
    ranked = [
        (_specificity(pattern, name, single_label=virtual.single_label), virtual)
        for virtual in table.hosts
        for pattern in virtual.hosts
    ]
    rank, virtual = max(ranked, key=lambda pair: pair[0], default=(0, None))
    return virtual if rank else None


def without_port(host: str) -> str:
    """The host of a Host header, in lower case; an IPv6 address keeps its brackets."""
    return re.sub(r":\d*$", "", host.lower())


def _specificity(pattern: str, name: str, *, single_label: bool) -> int:
    """0 for no match; an exact name is more than any wildcard, a longer wildcard more than a shorter one."""
    if pattern == "*":
        return 1
    if not pattern.startswith("*."):
        return 100_000 if pattern == name else 0
    suffix = pattern[1:]
    if not name.endswith(suffix) or len(name) == len(suffix):
        return 0
    if single_label and "." in name.removesuffix(suffix):
        return 0
    return 1 + len(pattern)


def matches(match: RequestMatch, request: HttpRequest) -> bool:
    """Whether a request has everything that a match asks for."""
    path, _, query = request.path.partition("?")
    if match.method and match.method != request.method:
        return False
    if not path_matches(match.path, path):
        return False
    if not all(_value_matches(header, request.headers) for header in match.headers):
        return False
    parameters: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        parameters.setdefault(name, value)
    return all(_value_matches(parameter, parameters, lower=False) for parameter in match.query)


def path_matches(match: PathMatch, path: str) -> bool:
    """Whether a path without its query matches; a prefix covers whole elements."""
    if match.kind == "regex":
        return matches_whole(f"(?i){match.path}" if match.ignore_case else match.path, path)
    if match.kind == "exact":
        return path == match.path
    prefix = match.path.rstrip("/")
    return path == prefix or path.startswith(f"{prefix}/")


def _value_matches(match: ValueMatch, values: dict[str, str], *, lower: bool = True) -> bool:
    value = values.get(match.name.lower() if lower else match.name)
    if value is None:
        return False
    if match.kind == "present":
        return True
    return matches_whole(match.value, value) if match.kind == "regex" else value == match.value
