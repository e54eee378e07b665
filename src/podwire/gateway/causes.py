"""Which objects contribute to a resource of the engines: those that may be the cause when it is refused.

Routes of the entry name the object that each comes from, and so do listeners. Behind a listener that names none are the
objects of the tables that it leads to.
"""

from collections.abc import Iterable

from podwire.gateway.acceptance import ObjectKey
from podwire.gateway.envoy.resources import CLUSTER, ENDPOINTS, HOST, LISTENER, ROUTES, SECRET
from podwire.gateway.envoy.tables import host_resource, table_of, table_resource
from podwire.gateway.routes import EntryListener, EntryRoute, Forward, GatewayEntry, RouteTable, StreamTarget

_KINDS = ("Gateway", "ListenerSet", "Ingress")


def owns(entry: GatewayEntry, kind: str, name: str) -> bool:
    """Whether a resource belongs to an entry."""
    if kind in (ROUTES, HOST):
        return table_of(name) in entry.tables
    names = {
        LISTENER: {listener.name for listener in entry.listeners},
        CLUSTER: entry.backends.keys(),
        ENDPOINTS: entry.backends.keys(),
        SECRET: entry.certificates.keys() | entry.authorities.keys(),
    }
    return name in names.get(kind, ())


def contributors(entry: GatewayEntry, kind: str, name: str) -> frozenset[ObjectKey]:
    """The objects behind a virtual host, a listener or a backend; none for certificates, which are their own cause."""
    if kind in (ROUTES, HOST):
        table = entry.tables.get(table_of(name))
        return frozenset(_keys(_routes_of(table, name) if table is not None else ()))
    if kind == LISTENER:
        listeners = [listener for listener in entry.listeners if listener.name == name]
        return frozenset(key for listener in listeners for key in _of_listener(entry, listener))
    if kind in (CLUSTER, ENDPOINTS):
        return frozenset(_users_of(entry, name))
    return frozenset()


def object_of(source: str) -> ObjectKey | None:
    """The object that a source names."""
    kind, _, rest = source.partition(" ")
    key = rest.partition(" ")[0]
    return (kind, key) if (kind.endswith("Route") or kind in _KINDS) and "/" in key else None


def _keys(routes: Iterable[EntryRoute]) -> Iterable[ObjectKey]:
    return (key for route in routes if (key := object_of(route.source)))


def _routes_of(table: RouteTable, resource: str) -> Iterable[EntryRoute]:
    """The routes of a virtual host, and behind a wildcard those of all hosts; of a table, all routes."""
    for host in table.hosts:
        own = host_resource(table.name, host.hosts[0])
        if resource in (own, table_resource(table.name)) or ("*" in host.hosts and "/*." in resource):
            yield from host.routes


def _of_listener(entry: GatewayEntry, listener: EntryListener) -> Iterable[ObjectKey]:
    yield from (key for source in listener.sources if (key := object_of(source)))
    yield from (key for target in _streams(listener) if (key := object_of(target.source)))
    if not listener.sources:
        names = {listener.table, *(server.table for server in listener.servers)}
        tables = [entry.tables[name] for name in sorted(names) if name in entry.tables]
        yield from (key for table in tables for host in table.hosts for key in _keys(host.routes))


def _streams(listener: EntryListener) -> Iterable[StreamTarget]:
    targets = (listener.stream, *(server.stream for server in listener.servers))
    return (target for target in targets if target is not None)


def _users_of(entry: GatewayEntry, backend: str) -> Iterable[ObjectKey]:
    for table in entry.tables.values():
        for route in (route for host in table.hosts for route in host.routes):
            key = object_of(route.source)
            if key is not None and backend in _backends_of(route):
                yield key
    for target in (target for listener in entry.listeners for target in _streams(listener)):
        key = object_of(target.source)
        shared = {
            member.key
            for share in target.backends
            if share.key in entry.backends
            for member in entry.backends[share.key].shares
        }
        if key is not None and backend in {share.key for share in target.backends} | shared:
            yield key


def _backends_of(route: EntryRoute) -> set[str]:
    """The backends that a route names."""
    auth = route.limits.external_auth
    names = {auth.backend} if auth is not None else set()
    names |= {route.errors.backend} if route.errors is not None else set()
    if isinstance(route.action, Forward):
        names |= {share.key for share in route.action.backends} | {mirror.key for mirror in route.action.mirrors}
    return names
