"""Listeners of Gateways: which are valid, which certificates they have, and which conflict with each other.

A Gateway has its own listeners and those of its ListenerSets. Listeners that share a port must be of one family (HTTP;
HTTPS and TLS; TCP) and have different host names; UDP has ports of its own. Of the Gateway's own listeners, those that
do not fit together are all refused, since none is more right than another; a listener of a ListenerSet is refused when
it does not fit those before it.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from podwire.gateway.api.authorities import ClientChecks
from podwire.gateway.api.references import (
    NO_PROBLEM,
    ReferenceProblem,
    ReferenceTarget,
    is_granted,
    not_granted,
)
from podwire.gateway.routes import Certificate, ClientValidation
from podwire.model.gatewayapi import (
    GROUP,
    CertificateReference,
    Gateway,
    GatewayListener,
    ListenerSet,
    ReferenceGrant,
    RouteGroupKind,
)
from podwire.model.meta import ObjectMeta, key_of

_HTTP = (RouteGroupKind(group=GROUP, kind="HTTPRoute"), RouteGroupKind(group=GROUP, kind="GRPCRoute"))
KINDS = {
    "HTTP": _HTTP,
    "HTTPS": _HTTP,
    "TLS": (RouteGroupKind(group=GROUP, kind="TLSRoute"),),
    "TCP": (RouteGroupKind(group=GROUP, kind="TCPRoute"),),
    "UDP": (RouteGroupKind(group=GROUP, kind="UDPRoute"),),
}
"""The kinds of routes that listeners of each protocol take."""
FAMILIES = {"HTTP": "HTTP", "HTTPS": "TLS", "TLS": "TLS", "TCP": "TCP", "UDP": "UDP"}
"""Protocols of the same family can share a port."""
CertificateOf = Callable[[str], Certificate | str]


class CheckedListener(msgspec.Struct, frozen=True, kw_only=True):
    """A listener and what is wrong with it; problems without a reason are none.

    ``set_key`` is the ListenerSet that it belongs to, empty for the Gateway itself, ``namespace`` that of its object.
    ``refused`` keeps all routes away; ``conflict`` does too. ``references`` are those to certificates and kinds; with
    ``certificates`` a listener that ends TLS is served all the same.
    """

    listener: GatewayListener
    namespace: str
    set_key: str = ""
    kinds: tuple[RouteGroupKind, ...] = ()
    refused: ReferenceProblem = NO_PROBLEM
    conflict: ReferenceProblem = NO_PROBLEM
    references: ReferenceProblem = NO_PROBLEM
    certificates: tuple[Certificate, ...] = ()
    clients: ClientValidation | None = None
    engine: ReferenceProblem = NO_PROBLEM
    """What engines refuse; an earlier state of it is served."""

    @property
    def id(self) -> str:
        """The name of the listener among those of the Gateway and of its ListenerSets."""
        return f"{self.set_key} {self.listener.name}".strip()

    @property
    def family(self) -> str:
        """Listeners of one family can share a port."""
        return FAMILIES.get(self.listener.protocol, "")

    @property
    def accepted(self) -> bool:
        """Whether routes may attach."""
        return not self.refused.reason and not self.conflict.reason

    @property
    def served(self) -> bool:
        """Whether engines listen for it."""
        return self.accepted and bool(self.kinds) and (not ends_tls(self.listener) or bool(self.certificates))


def ends_tls(listener: GatewayListener) -> bool:
    """Whether a listener decrypts what it gets."""
    mode = listener.tls.mode if listener.tls is not None else "Terminate"
    return listener.protocol == "HTTPS" or (listener.protocol == "TLS" and mode == "Terminate")


class ListenerChecker:
    """Checks the listeners of a Gateway and of its ListenerSets; ``certificate`` gives that of a Secret."""

    def __init__(
        self,
        gateway: Gateway,
        grants: Iterable[ReferenceGrant],
        certificate: CertificateOf,
        clients: ClientChecks,
        refused: Mapping[str, str] | None = None,
    ) -> None:
        """``refused`` has what engines said about Secrets that they refuse."""
        self._gateway = gateway
        self._grants = tuple(grants)
        self._certificate_of = certificate
        self._clients = clients
        self._refused = refused or {}

    def check(self, sets: Iterable[ListenerSet] = ()) -> tuple[CheckedListener, ...]:
        """All listeners in the order of their precedence."""
        listeners = self._gateway.spec.listeners
        checked = []
        for index, listener in enumerate(listeners):
            rivals = [*listeners[:index], *listeners[index + 1 :]]
            field = f"spec.listeners[{index}]"
            checked.append(self._checked(listener, field, "Gateway", self._gateway.metadata, rivals))
        for entry in sets:
            for index, listener in enumerate(entry.spec.listeners):
                rivals = [known.listener for known in checked if not (known.set_key and known.conflict.reason)]
                field = f"spec.listeners[{index}]"
                checked.append(self._checked(listener, field, "ListenerSet", entry.metadata, rivals))
        return tuple(checked)

    def _checked(
        self, listener: GatewayListener, field: str, kind: str, owner: ObjectMeta, rivals: list[GatewayListener]
    ) -> CheckedListener:
        kinds, problem = _kinds(listener, field)
        refused = _refused(listener, field)
        certificates: tuple[Certificate, ...] = ()
        clients = None
        if ends_tls(listener):
            certificates, wrong = self._certificates(listener, field, kind, owner.namespace)
            problem = problem if problem.reason else wrong
        if listener.protocol == "HTTPS":
            clients, untrusted = self._clients.of_port(listener.port)
            if untrusted.reason:
                problem = problem if problem.reason else untrusted
                text = "the certificates of clients cannot be checked"
                refused = refused if refused.reason else ReferenceProblem("NoValidCACertificate", text)
        return CheckedListener(
            listener=listener,
            namespace=owner.namespace,
            set_key=key_of(owner) if kind == "ListenerSet" else "",
            kinds=kinds,
            refused=refused,
            conflict=_conflict(listener, field, rivals),
            references=problem,
            certificates=certificates,
            clients=clients,
            engine=self._engine(certificates, field),
        )

    def _engine(self, certificates: Iterable[Certificate], field: str) -> ReferenceProblem:
        for certificate in certificates:
            text = self._refused.get(certificate.name, "")
            if text:
                where = f"{field}.tls.certificateRefs: the engine refused Secret {certificate.name}"
                return ReferenceProblem("Invalid", f"{where} and keeps its last certificate: {text}")
        return NO_PROBLEM

    def _certificates(
        self, listener: GatewayListener, field: str, kind: str, namespace: str
    ) -> tuple[tuple[Certificate, ...], ReferenceProblem]:
        references = listener.tls.certificate_refs if listener.tls is not None else ()
        if not references:
            return (), ReferenceProblem("InvalidCertificateRef", f"{field}.tls.certificateRefs: expected a Secret")
        usable: list[Certificate] = []
        problem = NO_PROBLEM
        for index, reference in enumerate(references):
            path = f"{field}.tls.certificateRefs[{index}]"
            result = checked_certificate(reference, path, (kind, namespace), self._grants, self._certificate_of)
            if isinstance(result, Certificate):
                usable.append(result)
            elif not problem.reason:
                problem = result
        return tuple(usable), problem


def _conflict(listener: GatewayListener, field: str, rivals: Iterable[GatewayListener]) -> ReferenceProblem:
    family = FAMILIES.get(listener.protocol)
    shared = [
        other
        for other in rivals
        if family is not None
        and other.protocol in FAMILIES
        and other.port == listener.port
        and (other.protocol == "UDP") == (listener.protocol == "UDP")
    ]
    if any(FAMILIES[other.protocol] != family for other in shared):
        return ReferenceProblem("ProtocolConflict", f"{field}.protocol: port {listener.port} has another one")
    if shared and family in ("TCP", "UDP"):
        return ReferenceProblem("ProtocolConflict", f"{field}.port: another listener has it")
    if any(other.hostname.lower() == listener.hostname.lower() for other in shared):
        return ReferenceProblem("HostnameConflict", f"{field}.hostname: another listener has the same")
    return NO_PROBLEM


def _refused(listener: GatewayListener, field: str) -> ReferenceProblem:
    if listener.protocol not in FAMILIES:
        text = f"{field}.protocol: expected one of {', '.join(FAMILIES)}, got {listener.protocol!r}"
        return ReferenceProblem("UnsupportedProtocol", text)
    if listener.tls is not None:
        modes = {"HTTPS": ("Terminate",), "TLS": ("Terminate", "Passthrough")}.get(listener.protocol, ())
        if listener.tls.mode not in modes and modes:
            text = f"{field}.tls.mode: expected {' or '.join(modes)}, got {listener.tls.mode!r}"
            return ReferenceProblem("UnsupportedValue", text)
        if listener.tls.options:
            return ReferenceProblem("UnsupportedValue", f"{field}.tls.options: no option is supported")
    return NO_PROBLEM


def _kinds(listener: GatewayListener, field: str) -> tuple[tuple[RouteGroupKind, ...], ReferenceProblem]:
    served = KINDS.get(listener.protocol, ())
    asked = listener.allowed_routes.kinds
    if not asked:
        return served, NO_PROBLEM
    problem = NO_PROBLEM
    for index, entry in enumerate(asked):
        if entry not in served and not problem.reason:
            where = f"{field}.allowedRoutes.kinds[{index}]"
            text = f"{where}: {entry.kind} is not supported by protocol {listener.protocol}"
            problem = ReferenceProblem("InvalidRouteKinds", text)
    return tuple(kind for kind in served if kind in asked), problem


def checked_certificate(
    reference: CertificateReference,
    field: str,
    origin: tuple[str, str],
    grants: Iterable[ReferenceGrant],
    certificate: CertificateOf,
) -> Certificate | ReferenceProblem:
    """The certificate of a reference of an object of a kind in a namespace (``origin``), or what is wrong with it."""
    if (reference.group, reference.kind) != ("", "Secret"):
        text = f"{field}: expected a Secret of the core group, got {reference.kind} of {reference.group!r}"
        return ReferenceProblem("InvalidCertificateRef", text)
    kind, own = origin
    namespace = reference.namespace or own
    target = ReferenceTarget(kind="Secret", namespace=namespace, name=reference.name)
    if not is_granted(grants, kind, own, target):
        return not_granted(field, target)
    result = certificate(f"{namespace}/{reference.name}")
    return ReferenceProblem("InvalidCertificateRef", f"{field}: {result}") if isinstance(result, str) else result
