"""Which objects contribute to a resource of the engines: those that may be the cause when it is refused.

Routes of the entry name the object that each comes from; listeners have the name of their Gateway.
"""

from collections.abc import Iterable

from podwire.gateway.api.acceptance import ObjectKey
from podwire.gateway.envoy.resources import CLUSTER, ENDPOINTS, LISTENER, ROUTES, SECRET
from podwire.gateway.routes import EntryListener, Forward, GatewayEntry, StreamTarget


def owns(entry: GatewayEntry, kind: str, name: str) -> bool:
    """Whether a resource belongs to an entry."""
    names = {
        ROUTES: entry.tables.keys(),
        LISTENER: {listener.name for listener in entry.listeners},
        CLUSTER: entry.backends.keys(),
        ENDPOINTS: entry.backends.keys(),
        SECRET: entry.certificates.keys() | entry.authorities.keys(),
    }
    return name in names.get(kind, ())


def contributors(entry: GatewayEntry, kind: str, name: str) -> frozenset[ObjectKey]:
    """The objects behind a table, a listener or a backend; none for certificates, which are their own cause."""
    if kind == ROUTES and name in entry.tables:
        sources = [route.source for host in entry.tables[name].hosts for route in host.routes]
        return frozenset(key for source in sources if (key := object_of(source)))
    if kind == LISTENER:
        return frozenset(key for listener in entry.listeners if listener.name == name for key in _of_listener(listener))
    if kind in (CLUSTER, ENDPOINTS):
        return frozenset(_users_of(entry, name))
    return frozenset()


def object_of(source: str) -> ObjectKey | None:
    """The object that a source names."""
    kind, _, rest = source.partition(" ")
    key = rest.partition(" ")[0]
    return (kind, key) if kind.endswith("Route") and "/" in key else None


def _of_listener(listener: EntryListener) -> Iterable[ObjectKey]:
    yield ("Gateway", listener.name.removeprefix("gateway ").partition(":")[0])
    for target in _streams(listener):
        key = object_of(target.source)
        if key is not None:
            yield key


def _streams(listener: EntryListener) -> Iterable[StreamTarget]:
    targets = (listener.stream, *(server.stream for server in listener.servers))
    return (target for target in targets if target is not None)


def _users_of(entry: GatewayEntry, backend: str) -> Iterable[ObjectKey]:
    for table in entry.tables.values():
        for route in (route for host in table.hosts for route in host.routes):
            key = object_of(route.source)
            if key is not None and isinstance(route.action, Forward):
                used = {share.key for share in route.action.backends} | {mirror.key for mirror in route.action.mirrors}
                if backend in used:
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
