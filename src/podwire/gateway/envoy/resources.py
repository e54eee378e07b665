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

MAKE_ORDER = (SECRET, CLUSTER, ENDPOINTS, LISTENER, ROUTES, HOST)
"""The order in which new resources are sent: what is named before what names it. Removals go the other way round."""

Resources = dict[str, dict[str, Json]]


class BuiltResources(msgspec.Struct, frozen=True):
    """An entry with settings, and its resources by type and name."""

    entry: GatewayEntry
    settings: EngineSettings
    resources: Resources


_NOTHING = BuiltResources(GatewayEntry(), EngineSettings(), {})


def resources(entry: GatewayEntry, settings: EngineSettings, before: BuiltResources = _NOTHING) -> Resources:
    """The resources of an entry, by type and name; those of ``before`` where nothing changed."""
    known, old = before.entry, before.resources
    listeners = {value.name: value for value in entry.listeners}
    old_listeners = {value.name: value for value in known.listeners} if settings == before.settings else {}
    certificates = _kept(entry.certificates, known.certificates, old.get(SECRET, {}), _secret)
    authorities = _kept(entry.authorities, known.authorities, old.get(SECRET, {}), _authority)
    return {
        SECRET: certificates | authorities,
        CLUSTER: _kept(entry.backends, known.backends, old.get(CLUSTER, {}), cluster),
        ENDPOINTS: _endpoints(entry, known, old.get(ENDPOINTS, {})),
        LISTENER: _kept(listeners, old_listeners, old.get(LISTENER, {}), lambda value: listener(value, settings)),
        ROUTES: {table_resource(name): route_table(name) for name in entry.tables},
        HOST: _hosts(entry, known, old.get(HOST, {})),
    }


def _kept(
    values: Mapping[str, T], known: Mapping[str, T], made: Mapping[str, Json], make: Callable[[T], Json]
) -> dict[str, Json]:
    """The resource of each value: that of before where the value is the same."""
    return {
        name: made[name] if name in made and _same(known.get(name), value) else make(value)
        for name, value in values.items()
    }


def _same(one: object, other: object) -> bool:
    return one is other or one == other


def _endpoints(entry: GatewayEntry, known: GatewayEntry, made: Mapping[str, Json]) -> dict[str, Json]:
    """Endpoints of backends; those of a backend with shares follow from other backends, and are made anew."""
    own = {key: backend for key, backend in entry.backends.items() if _has_own_endpoints(backend)}
    shared = {key: endpoints(backend, entry.backends) for key, backend in entry.backends.items() if backend.shares}
    return _kept(own, known.backends, made, lambda backend: endpoints(backend, {})) | shared


def _has_own_endpoints(backend: EntryBackend) -> bool:
    return not (backend.dns or backend.shares or backend.first_of)


def _hosts(entry: GatewayEntry, known: GatewayEntry, made: Mapping[str, Json]) -> dict[str, Json]:
    """The virtual hosts of all tables. They follow from their routes, and from which backends there are."""
    changed = entry.backends.keys() ^ known.backends.keys()
    result: dict[str, Json] = {}
    for name, table in entry.tables.items():
        result[host_resource(name, NOWHERE)] = nowhere(name)
        result |= _hosts_of_table(table, known.tables.get(name), entry.backends, changed, made)
    return result


def _hosts_of_table(
    table: RouteTable,
    before: RouteTable | None,
    backends: dict[str, EntryBackend],
    changed: set[str],
    made: Mapping[str, Json],
) -> dict[str, Json]:
    known = {host.hosts: host for host in before.hosts} if before is not None else {}
    everywhere, everywhere_before = _everywhere(table), _everywhere(before) if before is not None else None
    is_new = not _same(everywhere, everywhere_before)
    result = {}
    for host in table.hosts:
        name = host_resource(table.name, host.hosts[0])
        same = _same(known.get(host.hosts), host) and name in made
        if same and is_new and host.hosts[0].startswith("*"):
            same = False
        if same and changed:
            same = changed.isdisjoint(backend_keys(host, everywhere))
        result[name] = made[name] if same else virtual_host(table.name, host, everywhere, backends)
    return result


def _everywhere(table: RouteTable) -> VirtualHost | None:
    return next((host for host in table.hosts if "*" in host.hosts), None)


def _secret(certificate: Certificate) -> Json:
    chain = {"inlineString": certificate.chain}
    key = {"inlineString": certificate.key}
    return {"name": certificate.name, "tlsCertificate": {"certificateChain": chain, "privateKey": key}}


def _authority(authority: TrustedAuthority) -> Json:
    return {"name": authority.name, "validationContext": {"trustedCa": {"inlineString": authority.chain}}}
