"""``autopath [ZONE...] @kubernetes|FILE``: walks the search path of a pod on behalf of its resolver. Pure.

How it works: a resolver that looks for ``www.example.com`` asks for it below each domain of its search path first. A
request below the first domain of the path of the asking pod (its namespace is that of its address) is tried below all
domains here, and then as it is; the first answer that exists is sent at once, with an alias from the name that was
asked for. When nothing exists, the answer is that of the first name, and the resolver goes on as usual.

Needs ``pods verified``, and requests whose source is the address of the pod. Cost: one look-up of the zone for each
domain instead of one request.
"""

from collections.abc import Iterator
from typing import Self

import msgspec

from podwire.dns import wire
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, zone_names
from podwire.dns.metrics import Series
from podwire.dns.names import ROOT, address_bytes, encode_name, match_zone
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps
from podwire.dns.wire import ResourceRecord
from podwire.dns.zone import Zone
from podwire.errors import ProtocolError

_MOST = 255


class AutoPath:
    """Completes names; ``search`` is a fixed path, without one it is that of the asking pod."""

    per_client = True

    def __init__(self, zones: tuple[bytes, ...], domain: str, cluster: Zone, search: tuple[bytes, ...] = ()) -> None:
        self._zones = zones
        self._domain = encode_name(domain)
        self._cluster = cluster
        self._fixed = search
        self.successes = 0
        """How many names were completed."""
        self._paths: dict[str, tuple[bytes, ...]] = {}

    @classmethod
    def read(cls, directives: tuple[Directive, ...], scope: PluginScope) -> Self:
        """The plugin.

        Raises: ConfigError without a source, or when the pods are not watched.
        """
        directive = directives[-1]
        expect(len(directives) == 1, directive, "expected this plugin once in a server block")
        expect(bool(directive.arguments) and not directive.block, directive, "expected zones and @kubernetes or a file")
        *zones, source = directive.arguments
        names = zone_names(directive, tuple(zones), scope.zones)
        if source == "@kubernetes":
            expect(scope.pods == "verified", directive, "expected pods verified in kubernetes, to know pods by address")
            return cls(names, scope.domain, scope.cluster)
        expect(not source.startswith("@"), directive, f"podwire knows search paths of @kubernetes, not of {source}")
        expect(source in scope.files, directive, f"cannot read {source}")
        lines = [line.split() for line in scope.files[source].splitlines()]
        listed = [fields[1:] for fields in lines if fields[:1] == ["search"]]
        expect(bool(listed), directive, f"{source} has no line with search")
        return cls(names, scope.domain, scope.cluster, zone_names(directive, tuple(listed[-1])))

    def search_path(self, client: str) -> tuple[bytes, ...]:
        """The domains of the client's search path; empty when it is no known pod."""
        if self._fixed:
            return self._fixed
        namespace = self._cluster.index.pod_namespace(address_bytes(client.partition("%")[0]))
        if not namespace:
            return ()
        path = self._paths.get(namespace)
        if path is None:
            service = b"\x03svc" + self._domain
            own = encode_name(namespace)[:-1] + service
            path = self._paths[namespace] = (own, service, self._domain)
        return path

    def names(self, name: bytes, client: str) -> tuple[bytes, ...]:
        """The names to try for a request, the original one first; empty when the request is not completed."""
        if match_zone(name, self._zones) is None:
            return ()
        path = self.search_path(client)
        if not path or not name.lower().endswith(path[0]):
            return ()
        base = name[: len(name) - len(path[0])]
        if not base or not _ends_label(base):
            return ()
        tried = (name, *(base + domain for domain in path[1:]), base + ROOT)
        return tuple(candidate for candidate in tried if len(candidate) <= _MOST)

    def series(self) -> Iterator[Series]:
        """How many names were completed."""
        yield "coredns_autopath_success_total", (), self.successes

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The reply for the first name that exists."""
        first: PluginReply | None = None
        query = request.query
        for name in self.names(query.name, request.client):
            try:
                reply = yield from following(request if name == query.name else request.renamed(name))
            except ProtocolError:
                break
            if first is None:
                first = reply
            if reply.rcode == wire.NXDOMAIN:
                continue
            if reply.rcode != wire.NOERROR or name == query.name:
                return reply if name == query.name else first
            self.successes += 1
            return _aliased(query, name, reply.expanded())
        return first if first is not None else (yield from following(request))


def _ends_label(base: bytes) -> bool:
    """Whether the first bytes of a name are whole labels."""
    offset = 0
    while offset < len(base):
        offset += 1 + base[offset]
    return offset == len(base)


def _aliased(query: wire.Query, name: bytes, reply: PluginReply) -> PluginReply:
    """The reply as an answer to the name that was asked for: an alias, then the records."""
    records = reply.answer.records
    if not records:
        return msgspec.structs.replace(reply, query=query)
    alias = ResourceRecord(query.name, wire.CNAME, min(record.ttl for record in records), names=(name,))
    return msgspec.structs.replace(reply.with_records((alias, *records)), query=query, plugin="autopath")
