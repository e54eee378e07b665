"""Gateways and HTTPRoutes as an entry of the route model and as the status of every object: pure.

Each port of a Gateway is one listener of the engines, at a port of its own that the Gateway's Service leads to. An
HTTP port has one table; on an HTTPS port the server name chooses the listener, and each listener has its table.
Source: Gateway API v1.6, its API reference.
"""

from collections.abc import Callable, Mapping

import msgspec

from podwire.gateway.api.attachment import RouteAttachment, attach
from podwire.gateway.api.filters import Scheme
from podwire.gateway.api.hosts import HostRoutes, own_host, virtual_hosts
from podwire.gateway.api.listeners import CheckedListener, check_listeners
from podwire.gateway.api.rules import CompiledRoute, compile_route
from podwire.gateway.api.status import class_status, gateway_status, refusal, route_conditions
from podwire.gateway.backends import UpstreamFacts
from podwire.gateway.routes import (
    Certificate,
    EntryBackend,
    EntryListener,
    GatewayEntry,
    RouteTable,
    TlsServer,
)
from podwire.model.gatewayapi import (
    GROUP,
    Gateway,
    GatewayClass,
    GatewayClassStatus,
    GatewayStatus,
    GatewayStatusAddress,
    HttpRoute,
    ParentReference,
    ReferenceGrant,
    RouteParentStatus,
)
from podwire.model.meta import key_of

_ROUTED_SCHEME = Scheme("http", 80)
"""The scheme with which a route is checked where it is attached to nothing."""


class GatewayApiFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the translation reads.

    ``namespaces`` has the labels of namespaces. ``ports`` has, by Gateway, the port of the engines for each port of
    its Service, ``addresses`` the addresses of that. ``certificate`` gives the certificate of a Secret by its key, or
    the reason why it has none.
    """

    controller: str
    classes: tuple[GatewayClass, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    routes: tuple[HttpRoute, ...] = ()
    grants: tuple[ReferenceGrant, ...] = ()
    namespaces: Mapping[str, Mapping[str, str]] = {}
    ports: Mapping[str, Mapping[int, int]] = {}
    addresses: Mapping[str, tuple[GatewayStatusAddress, ...]] = {}
    upstreams: UpstreamFacts
    certificate: Callable[[str], Certificate | str]


class ApiTranslation(msgspec.Struct, frozen=True, kw_only=True):
    """The entry; the status of our classes, Gateways and routes by key; the ports that each Gateway needs."""

    entry: GatewayEntry = GatewayEntry()
    classes: Mapping[str, GatewayClassStatus] = {}
    gateways: Mapping[str, GatewayStatus] = {}
    routes: Mapping[str, tuple[RouteParentStatus, ...]] = {}
    ports: Mapping[str, tuple[int, ...]] = {}


def translate_api(facts: GatewayApiFacts) -> ApiTranslation:
    """The entry and the status of all objects."""
    return _ApiTranslator(facts).run()


class _ApiTranslator:
    """One translation."""

    def __init__(self, facts: GatewayApiFacts) -> None:
        self._facts = facts
        self._listeners: list[EntryListener] = []
        self._tables: dict[str, RouteTable] = {}
        self._backends: dict[str, EntryBackend] = {}
        self._certificates: dict[str, Certificate] = {}
        self._compiled: dict[tuple[str, Scheme], CompiledRoute] = {}

    def run(self) -> ApiTranslation:
        """The whole translation."""
        facts = self._facts
        classes = {value.metadata.name: class_status(value) for value in facts.classes if self._is_ours(value)}
        accepted = {name for name, status in classes.items() if status.conditions[0].status == "True"}
        gateways = {
            key_of(gateway.metadata): gateway
            for gateway in facts.gateways
            if gateway.spec.gateway_class_name in accepted
        }
        checked = {key: check_listeners(gateway, facts.grants, facts.certificate) for key, gateway in gateways.items()}
        attachments: dict[str, list[tuple[HttpRoute, RouteAttachment]]] = {key: [] for key in gateways}
        routes = {}
        for route in facts.routes:
            parents = tuple(self._parents(route, gateways, checked, attachments))
            if parents:
                routes[key_of(route.metadata)] = parents
        statuses, ports = {}, {}
        for key, gateway in gateways.items():
            known = facts.ports.get(key, {})
            is_served = refusal(gateway, checked[key]) is None
            served = tuple(entry for entry in checked[key] if entry.served and is_served)
            ports[key] = tuple(sorted({entry.listener.port for entry in served}))
            for port in ports[key]:
                if port in known:
                    group = tuple(entry for entry in served if entry.listener.port == port)
                    self._serve(key, known[port], group, attachments[key])
            statuses[key] = gateway_status(
                gateway,
                checked[key],
                _counts(attachments[key]),
                frozenset(known),
                facts.addresses.get(key, ()),
            )
        entry = GatewayEntry(
            listeners=tuple(self._listeners),
            tables=self._tables,
            backends=self._backends,
            certificates=self._certificates,
        )
        return ApiTranslation(entry=entry, classes=classes, gateways=statuses, routes=routes, ports=ports)

    def _is_ours(self, value: GatewayClass) -> bool:
        return value.spec.controller_name == self._facts.controller

    def _compile(self, route: HttpRoute, scheme: Scheme) -> CompiledRoute:
        key = (key_of(route.metadata), scheme)
        if key not in self._compiled:
            facts = self._facts
            self._compiled[key] = compile_route(route, scheme, facts.grants, facts.upstreams)
        return self._compiled[key]

    def _parents(
        self,
        route: HttpRoute,
        gateways: Mapping[str, Gateway],
        checked: Mapping[str, tuple[CheckedListener, ...]],
        attachments: dict[str, list[tuple[HttpRoute, RouteAttachment]]],
    ) -> list[RouteParentStatus]:
        """The status of a route at each of our Gateways; adds what it attaches to."""
        statuses = []
        namespace = route.metadata.namespace
        for parent in route.spec.parent_refs:
            key = _gateway_key(parent, namespace)
            if key not in gateways:
                continue
            labels = self._facts.namespaces.get(namespace, {})
            attachment = attach(gateways[key], checked[key], parent, namespace, labels, route.spec.hostnames)
            compiled = self._compile(route, _ROUTED_SCHEME)
            if not compiled.unsupported:
                attachments[key].append((route, attachment))
            conditions = route_conditions(
                attachment, compiled.unsupported, compiled.references, route.metadata.generation
            )
            statuses.append(
                RouteParentStatus(parent_ref=parent, controller_name=self._facts.controller, conditions=conditions)
            )
        return statuses

    def _serve(
        self,
        key: str,
        engine_port: int,
        listeners: tuple[CheckedListener, ...],
        attachments: list[tuple[HttpRoute, RouteAttachment]],
    ) -> None:
        """Adds the listener of a port of a Gateway."""
        port, protocol = listeners[0].listener.port, listeners[0].listener.protocol
        scheme = Scheme(protocol.lower(), port)
        name = f"gateway {key}:{port}"
        by_host = {
            own_host(entry.listener.hostname): self._attached(entry.listener.name, scheme, attachments)
            for entry in listeners
        }
        if protocol == "HTTP":
            self._tables[name] = RouteTable(name=name, hosts=virtual_hosts(by_host))
            self._listeners.append(
                EntryListener(name=name, port=engine_port, client_port=port, protocol="HTTP", table=name)
            )
            return
        servers = []
        for entry in listeners:
            own = own_host(entry.listener.hostname)
            table = f"{name} {entry.listener.name}"
            self._tables[table] = RouteTable(name=table, hosts=virtual_hosts({own: by_host[own]}))
            certificates = {f"gateway {value.name}": value for value in entry.certificates}
            self._certificates |= {
                label: msgspec.structs.replace(value, name=label) for label, value in certificates.items()
            }
            names = (entry.listener.hostname.lower(),) if entry.listener.hostname else ()
            servers.append(TlsServer(names=names, certificates=tuple(certificates), table=table))
        self._listeners.append(
            EntryListener(name=name, port=engine_port, client_port=port, protocol="HTTPS", servers=tuple(servers))
        )

    def _attached(
        self, listener: str, scheme: Scheme, attachments: list[tuple[HttpRoute, RouteAttachment]]
    ) -> tuple[HostRoutes, ...]:
        attached = []
        for route, attachment in attachments:
            for host in attachment.hosts.get(listener, ()):
                compiled = self._compile(route, scheme)
                self._backends |= compiled.backends
                attached.append(HostRoutes(host=host, routes=compiled.routes))
        return tuple(attached)


def _gateway_key(parent: ParentReference, namespace: str) -> str:
    """The key of the Gateway of a parent reference, empty for other kinds."""
    if (parent.group, parent.kind) != (GROUP, "Gateway"):
        return ""
    return f"{parent.namespace or namespace}/{parent.name}"


def _counts(attachments: list[tuple[HttpRoute, RouteAttachment]]) -> dict[str, int]:
    """How many routes are attached to each listener."""
    routes: dict[str, set[str]] = {}
    for route, attachment in attachments:
        for listener in attachment.hosts:
            routes.setdefault(listener, set()).add(key_of(route.metadata))
    return {listener: len(keys) for listener, keys in routes.items()}
