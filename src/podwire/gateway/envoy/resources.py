"""All resources of Envoy that an entry needs, by type and name, as JSON values: the state of the engine as text.

Pure. With the resources of an earlier entry, those of which nothing changed are the same values again, so that a
change costs what it changes; see :mod:`podwire.gateway.envoy.snapshot`. A table of routes is a resource without hosts,
and each of its virtual hosts a resource of its own.

Cost of a change among 1,000 hosts: a comparison of each, 2 us.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from podwire.gateway.envoy.clusters import Json, cluster, endpoints
from podwire.gateway.envoy.headcheck import HEAD_CHECK, head_check
from podwire.gateway.envoy.listeners import listener
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.envoy.tables import (
    NOWHERE,
    backend_keys,
    host_resource,
    nowhere,
    route_table,
    table_resource,
    virtual_host,
)
from podwire.gateway.routes import Certificate, EntryBackend, GatewayEntry, RouteTable, TrustedAuthority, VirtualHost

T = TypeVar("T")

CLUSTER = "envoy.config.cluster.v3.Cluster"
ENDPOINTS = "envoy.config.endpoint.v3.ClusterLoadAssignment"
LISTENER = "envoy.config.listener.v3.Listener"
ROUTES = "envoy.config.route.v3.RouteConfiguration"
HOST = "envoy.config.route.v3.VirtualHost"
SECRET = "envoy.extensions.transport_sockets.tls.v3.Secret"
FILTER = "envoy.config.core.v3.TypedExtensionConfig"

MAKE_ORDER = (SECRET, FILTER, CLUSTER, ENDPOINTS, LISTENER, ROUTES, HOST)
"""The order in which new resources are sent: what is named before what names it. Removals go the other way round."""

Resources = dict[str, dict[str, Json]]


class BuiltResources(msgspec.Struct, frozen=True):
    """An entry with settings, and its resources by type and name; ``named`` has the backends of each virtual host."""

    entry: GatewayEntry = GatewayEntry()
    settings: EngineSettings = EngineSettings()
    resources: Resources = {}
    named: dict[str, frozenset[str]] = {}


def resources(entry: GatewayEntry, settings: EngineSettings) -> Resources:
    """The resources of an entry, by type and name."""
    return build_resources(entry, settings, BuiltResources()).resources


def build_resources(entry: GatewayEntry, settings: EngineSettings, before: BuiltResources) -> BuiltResources:
    """The resources of an entry; those of ``before`` where nothing changed."""
    known, old = before.entry, before.resources
    listeners = {value.name: value for value in entry.listeners}
    old_listeners = {value.name: value for value in known.listeners} if settings == before.settings else {}
    certificates = _reused(entry.certificates, known.certificates, old.get(SECRET, {}), _secret)
    authorities = _reused(entry.authorities, known.authorities, old.get(SECRET, {}), _authority)
    hosts, named = _HostBuilder(entry, before).hosts()
    newest = {
        SECRET: certificates | authorities,
        FILTER: {HEAD_CHECK: head_check()},
        CLUSTER: _reused(entry.backends, known.backends, old.get(CLUSTER, {}), cluster),
        ENDPOINTS: _endpoints(entry, known, old.get(ENDPOINTS, {})),
        LISTENER: _reused(listeners, old_listeners, old.get(LISTENER, {}), lambda value: listener(value, settings)),
        ROUTES: {table_resource(name): route_table(name, settings) for name in entry.tables},
        HOST: hosts,
    }
    return BuiltResources(entry, settings, newest, named)


def _reused(
    values: Mapping[str, T], known: Mapping[str, T], existing: Mapping[str, Json], make: Callable[[T], Json]
) -> dict[str, Json]:
    """The resource of each value: that of before where the value is the same."""
    same = {name for name, value in values.items() if (before := known.get(name)) is value or before == value}
    same &= existing.keys()
    return {name: existing[name] if name in same else make(value) for name, value in values.items()}


def _same(first: object, second: object) -> bool:
    return first is second or first == second


def _endpoints(entry: GatewayEntry, known: GatewayEntry, existing: Mapping[str, Json]) -> dict[str, Json]:
    """Endpoints of backends; those of a backend with shares follow from other backends, and are built anew."""
    own = {key: backend for key, backend in entry.backends.items() if _has_own_endpoints(backend)}
    shared = {key: endpoints(backend, entry.backends) for key, backend in entry.backends.items() if backend.shares}
    return _reused(own, known.backends, existing, lambda backend: endpoints(backend, {})) | shared


def _has_own_endpoints(backend: EntryBackend) -> bool:
    return not (backend.dns or backend.shares or backend.first_of)


class _HostBuilder:
    """The virtual hosts of all tables. They follow from their routes, and from which backends there are."""

    def __init__(self, entry: GatewayEntry, before: BuiltResources) -> None:
        self._entry = entry
        self._before = before
        self._existing = before.resources.get(HOST, {})
        self._changed = entry.backends.keys() ^ before.entry.backends.keys()

    def hosts(self) -> tuple[dict[str, Json], dict[str, frozenset[str]]]:
        """The virtual hosts, and the backends that each names."""
        hosts: dict[str, Json] = {}
        named: dict[str, frozenset[str]] = {}
        for name, table in self._entry.tables.items():
            hosts[host_resource(name, NOWHERE)] = nowhere(name)
            self._add(table, self._before.entry.tables.get(name), hosts, named)
        return hosts, named

    def _add(
        self,
        table: RouteTable,
        before: RouteTable | None,
        hosts: dict[str, Json],
        named: dict[str, frozenset[str]],
    ) -> None:
        known = {host.hosts[0]: host for host in before.hosts} if before is not None else {}
        everywhere, everywhere_before = _everywhere(table), _everywhere(before) if before is not None else None
        is_new = not _same(everywhere, everywhere_before)
        prefix = host_resource(table.name, "")
        for host in table.hosts:
            first = host.hosts[0]
            name = prefix + first
            keys = self._before.named.get(name)
            if (
                keys is not None
                and ((old := known.get(first)) is host or old == host)
                and not (is_new and first[0] == "*")
                and self._changed.isdisjoint(keys)
            ):
                hosts[name], named[name] = self._existing[name], keys
            else:
                hosts[name] = virtual_host(table.name, host, everywhere, self._entry.backends)
                named[name] = backend_keys(host, everywhere)


def _everywhere(table: RouteTable) -> VirtualHost | None:
    return next((host for host in table.hosts if "*" in host.hosts), None)


def _secret(certificate: Certificate) -> Json:
    chain = {"inlineString": certificate.chain}
    key = {"inlineString": certificate.key}
    return {"name": certificate.name, "tlsCertificate": {"certificateChain": chain, "privateKey": key}}


def _authority(authority: TrustedAuthority) -> Json:
    return {"name": authority.name, "validationContext": {"trustedCa": {"inlineString": authority.chain}}}
