"""Gateways and their routes as an entry of the route model and as the status of every object: pure.

Each port of a Gateway is one listener of the engines, at a port of its own that the Gateway's Service leads to.
Source: Gateway API v1.6, its API reference.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from podwire.gateway.api.attachment import (
    RouteAttachment,
    RouteKey,
    attach,
    route_key,
    without_rivals,
)
from podwire.gateway.api.authorities import ClientChecks
from podwire.gateway.api.backendrefs import BackendFacts
from podwire.gateway.api.backendtls import PolicyTable, ServicePortName
from podwire.gateway.api.compiler import CompilerMemo, RouteCompiler
from podwire.gateway.api.filters import Scheme
from podwire.gateway.api.listeners import CheckedListener, ListenerChecker, checked_certificate
from podwire.gateway.api.listenersets import ParentView, attached_sets, parent_of, refused_set, set_status
from podwire.gateway.api.references import NO_PROBLEM, ReferenceProblem
from podwire.gateway.api.rules import CompiledRoute
from podwire.gateway.api.services import ServedPort
from podwire.gateway.api.serving import Attached, EntryBuilder
from podwire.gateway.api.status import (
    GatewayProblems,
    class_status,
    gateway_status,
    refusal,
    route_conditions,
)
from podwire.gateway.backends import UpstreamFacts
from podwire.gateway.routes import Certificate, GatewayEntry, TrustedAuthority
from podwire.model.backendtls import BackendTlsPolicy, PolicyAncestorStatus
from podwire.model.gatewayapi import (
    GROUP,
    Gateway,
    GatewayClass,
    GatewayClassStatus,
    GatewayStatus,
    GatewayStatusAddress,
    ListenerSet,
    ListenerSetStatus,
    ParentReference,
    ReferenceGrant,
    RouteParentStatus,
)
from podwire.model.gatewayroutes import ApiRoute
from podwire.model.meta import key_of

_ROUTED_SCHEME = Scheme("http", 80)
"""The scheme with which a route is checked where it is attached to nothing."""


class GatewayApiFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the translation reads.

    ``namespaces`` has the labels of namespaces. ``ports`` has, by Gateway, the port of the engines for each port of
    its Service, ``addresses`` the addresses of that. ``certificate`` gives the certificate of a Secret by its key, or
    the reason why it has none; ``authority`` does so for the authorities of a ConfigMap, and ``system`` has those of
    the system, in PEM form. ``refused`` has what engines said about objects that they refuse; of ``withheld`` ones
    nothing is served.
    """

    controller: str
    classes: tuple[GatewayClass, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    sets: tuple[ListenerSet, ...] = ()
    routes: tuple[ApiRoute, ...] = ()
    policies: tuple[BackendTlsPolicy, ...] = ()
    grants: tuple[ReferenceGrant, ...] = ()
    namespaces: Mapping[str, Mapping[str, str]] = {}
    ports: Mapping[str, Mapping[int, int]] = {}
    addresses: Mapping[str, tuple[GatewayStatusAddress, ...]] = {}
    upstreams: UpstreamFacts
    certificate: Callable[[str], Certificate | str]
    authority: Callable[[str], TrustedAuthority | str] = lambda key: f"ConfigMap {key} does not exist"
    system: str = ""
    refused: Mapping[RouteKey, str] = {}
    withheld: frozenset[RouteKey] = frozenset()
    version: tuple[int, ...] | None = None
    """While it is the same, so are ``policies``, ``grants``, ``upstreams`` and ``authority``; None says nothing."""


class ApiTranslation(msgspec.Struct, frozen=True, kw_only=True):
    """The entry; the status of our classes, Gateways, ListenerSets and routes by key; the ports of each Gateway."""

    entry: GatewayEntry = GatewayEntry()
    classes: Mapping[str, GatewayClassStatus] = {}
    gateways: Mapping[str, GatewayStatus] = {}
    sets: Mapping[str, ListenerSetStatus] = {}
    routes: Mapping[RouteKey, tuple[RouteParentStatus, ...]] = {}
    policies: Mapping[str, tuple[PolicyAncestorStatus, ...]] = {}
    ports: Mapping[str, tuple[ServedPort, ...]] = {}


class _CheckedGateway(msgspec.Struct):
    """A Gateway, what is wrong with it, and what is attached."""

    gateway: Gateway
    listeners: tuple[CheckedListener, ...]
    by_set: Mapping[str, list[CheckedListener]]
    """The listeners of the Gateway itself (without a key), and of each ListenerSet that is attached."""
    problems: GatewayProblems
    compiler: RouteCompiler
    attached: Attached
    used: set[ServicePortName]


def translate_api(facts: GatewayApiFacts, memo: CompilerMemo | None = None) -> ApiTranslation:
    """The entry and the status of all objects; ``memo`` has what earlier translations compiled."""
    return _ApiTranslator(facts, memo or CompilerMemo()).run()


class _ApiTranslator:
    """One translation."""

    def __init__(self, facts: GatewayApiFacts, memo: CompilerMemo) -> None:
        self._facts = facts
        self._builder = EntryBuilder()
        self._policies = PolicyTable(facts.policies, facts.authority, facts.system)
        self._memo = memo
        backends = BackendFacts(grants=facts.grants, upstreams=facts.upstreams, policies=self._policies)
        memo.renew(backends, facts.version)
        self._gateways: dict[str, _CheckedGateway] = {}
        self._set_parents = {key_of(value.metadata): parent_of(value) for value in facts.sets}
        self._sets_of: dict[str, list[ListenerSet]] = {}
        for value in facts.sets:
            if ("ListenerSet", key_of(value.metadata)) not in facts.withheld:
                self._sets_of.setdefault(parent_of(value), []).append(value)

    def run(self) -> ApiTranslation:
        """The whole translation."""
        facts = self._facts
        classes = {value.metadata.name: class_status(value) for value in facts.classes if self._is_ours(value)}
        accepted = {name for name, status in classes.items() if status.conditions[0].status == "True"}
        for gateway in facts.gateways:
            if gateway.spec.gateway_class_name in accepted:
                self._gateways[key_of(gateway.metadata)] = self._check(gateway)
        routes = self._routes()
        counts = {key: _counts(checked.attached) for key, checked in self._gateways.items()}
        statuses, ports = {}, {}
        for key, checked in self._gateways.items():
            ports[key] = self._serve(key, checked)
            statuses[key] = gateway_status(
                checked.gateway,
                checked.listeners,
                counts[key],
                frozenset(facts.ports.get(key, {})),
                facts.addresses.get(key, ()),
                checked.problems,
            )
        used = {key: sorted(checked.used) for key, checked in self._gateways.items()}
        return ApiTranslation(
            entry=self._builder.entry(),
            classes=classes,
            gateways=statuses,
            sets=dict(self._sets(statuses, counts)),
            routes=routes,
            policies=self._policies.ancestors(used, facts.controller),
            ports=ports,
        )

    def _is_ours(self, value: GatewayClass) -> bool:
        return value.spec.controller_name == self._facts.controller

    def _check(self, gateway: Gateway) -> _CheckedGateway:
        facts = self._facts
        key = key_of(gateway.metadata)
        sets = attached_sets(gateway, self._sets_of.get(key, ()), facts.namespaces)
        clients = ClientChecks(gateway, facts.grants, facts.authority)
        secrets = {name: text for (kind, name), text in facts.refused.items() if kind == "Secret"}
        listeners = ListenerChecker(gateway, facts.grants, facts.certificate, clients, secrets).check(sets)
        self._builder.add_authorities(clients.authorities)
        certificate, problem = self._client_certificate(gateway)
        text = facts.refused.get(("Gateway", key), "")
        by_set: dict[str, list[CheckedListener]] = {"": [], **{key_of(value.metadata): [] for value in sets}}
        for entry in listeners:
            by_set[entry.set_key].append(entry)
        return _CheckedGateway(
            gateway=gateway,
            listeners=listeners,
            by_set=by_set,
            problems=GatewayProblems(
                client_certificate=problem,
                engine=_refused_by_engine(text),
                insecure=clients.insecure,
            ),
            compiler=RouteCompiler(
                BackendFacts(
                    grants=facts.grants,
                    upstreams=facts.upstreams,
                    policies=self._policies,
                    client_certificate=certificate,
                ),
                self._memo,
            ),
            attached=[],
            used=set(),
        )

    def _client_certificate(self, gateway: Gateway) -> tuple[str, ReferenceProblem | None]:
        """The name of the certificate that a Gateway shows to backends, and what is wrong with it."""
        tls = gateway.spec.tls
        if tls is None or tls.backend is None or tls.backend.client_certificate_ref is None:
            return "", None
        origin = ("Gateway", gateway.metadata.namespace)
        field = "spec.tls.backend.clientCertificateRef"
        reference = tls.backend.client_certificate_ref
        result = checked_certificate(reference, field, origin, self._facts.grants, self._facts.certificate)
        if isinstance(result, Certificate):
            return self._builder.add_certificate(result), NO_PROBLEM
        reason = {"InvalidCertificateRef": "InvalidClientCertificateRef"}.get(result.reason, result.reason)
        return "", ReferenceProblem(reason, result.message)

    def _routes(self) -> dict[RouteKey, tuple[RouteParentStatus, ...]]:
        """The status of each route at each of our Gateways; adds what they attach to."""
        attempts: dict[str, list[tuple[RouteKey, RouteAttachment, ParentReference]]] = {
            key: [] for key in self._gateways
        }
        keys = {route_key(route): route for route in self._facts.routes}
        own: dict[RouteKey, dict[ParentReference, RouteParentStatus]] = {}
        for name, route in keys.items():
            labels = self._facts.namespaces.get(route.metadata.namespace, {})
            for parent in route.spec.parent_refs:
                key, listeners = self._parent(parent, route.metadata.namespace)
                if key in self._gateways:
                    attempts[key].append((name, attach(listeners, parent, route, labels), parent))
        for key, entries in attempts.items():
            pairs = [(keys[name], attachment) for name, attachment, _ in entries]
            for (_, attachment), (name, _, parent) in zip(without_rivals(pairs), entries, strict=True):
                status = self._attach(self._gateways[key], (name, keys[name]), attachment, parent)
                own.setdefault(name, {})[parent] = status
        return {
            name: tuple(own[name][parent] for parent in route.spec.parent_refs if parent in own[name])
            for name, route in keys.items()
            if name in own
        }

    def _parent(self, parent: ParentReference, namespace: str) -> tuple[str, Iterable[CheckedListener]]:
        """The key of the Gateway of a parent reference, empty for other kinds, and the listeners that it means."""
        if parent.group != GROUP:
            return "", ()
        name = f"{parent.namespace or namespace}/{parent.name}"
        if parent.kind == "Gateway" and name in self._gateways:
            return name, self._gateways[name].by_set[""]
        if parent.kind == "ListenerSet":
            gateway = self._set_parents.get(name, "")
            if gateway in self._gateways:
                return gateway, self._gateways[gateway].by_set.get(name, ())
        return "", ()

    def _attach(
        self,
        checked: _CheckedGateway,
        named: tuple[RouteKey, ApiRoute],
        attachment: RouteAttachment,
        parent: ParentReference,
    ) -> RouteParentStatus:
        """Adds a route to what is attached to a Gateway, if it can be served."""
        key, route = named
        compiled = checked.compiler.compiled(route, _ROUTED_SCHEME)
        refused = compiled.refused
        if not refused.reason and key not in self._facts.withheld:
            checked.attached.append((route, attachment))
            if isinstance(compiled, CompiledRoute) and attachment.hosts:
                checked.used |= compiled.ports
        text = self._facts.refused.get(key, "")
        if text:
            refused = ReferenceProblem("UnsupportedValue", f"the engine refused it: {text}")
        conditions = route_conditions(attachment, refused, compiled.references, route.metadata.generation)
        return RouteParentStatus(parent_ref=parent, controller_name=self._facts.controller, conditions=conditions)

    def _serve(self, key: str, checked: _CheckedGateway) -> tuple[ServedPort, ...]:
        """Adds the listeners of a Gateway; returns the ports that it needs."""
        if refusal(checked.gateway, checked.listeners) is not None:
            return ()
        known = self._facts.ports.get(key, {}) if ("Gateway", key) not in self._facts.withheld else {}
        groups: dict[ServedPort, list[CheckedListener]] = {}
        for entry in checked.listeners:
            if entry.served:
                transport = "UDP" if entry.family == "UDP" else "TCP"
                groups.setdefault((entry.listener.port, transport), []).append(entry)
        for (port, _), group in sorted(groups.items()):
            if port in known:
                self._builder.serve(key, known[port], tuple(group), checked.attached, checked.compiler)
        return tuple(sorted(groups))

    def _sets(
        self, statuses: Mapping[str, GatewayStatus], counts: Mapping[str, Mapping[str, int]]
    ) -> Iterable[tuple[str, ListenerSetStatus]]:
        for value in self._facts.sets:
            parent = parent_of(value)
            checked = self._gateways.get(parent)
            if checked is None:
                continue
            key = key_of(value.metadata)
            text = self._facts.refused.get(("ListenerSet", key), "")
            problem = _refused_by_engine(text)
            if key not in checked.by_set:
                yield key, refused_set(value, problem)
                continue
            ports = frozenset(self._facts.ports.get(parent, {}))
            view = ParentView(statuses[parent], counts[parent], ports)
            yield key, set_status(value, checked.by_set[key], view, problem)


def _refused_by_engine(text: str) -> ReferenceProblem:
    """The problem of a Gateway or ListenerSet about which engines said something."""
    return ReferenceProblem("Invalid", f"the engine refused it: {text}") if text else NO_PROBLEM


def _counts(attached: Attached) -> dict[str, int]:
    """How many routes are attached to each listener."""
    routes: dict[str, set[int]] = {}
    for route, attachment in attached:
        for listener in attachment.hosts:
            routes.setdefault(listener, set()).add(id(route))  # a route may have several parents
    return {listener: len(keys) for listener, keys in routes.items()}
