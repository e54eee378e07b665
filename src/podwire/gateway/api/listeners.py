"""Listeners of Gateways: which are valid, which certificates they have, and which conflict with each other.

HTTP and HTTPS are served. Listeners of a Gateway that share a port must have the same protocol and different host
names; those that do not are all refused, since none is more right than another.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from podwire.gateway.api.references import ReferenceProblem, ReferenceTarget, is_granted, not_granted
from podwire.gateway.routes import Certificate
from podwire.model.gatewayapi import (
    GROUP,
    CertificateReference,
    Gateway,
    GatewayListener,
    ReferenceGrant,
    RouteGroupKind,
)

HTTP_ROUTE = RouteGroupKind(group=GROUP, kind="HTTPRoute")
PROTOCOLS = ("HTTP", "HTTPS")
_NO_PROBLEM = ReferenceProblem("", "")


class CheckedListener(msgspec.Struct, frozen=True, kw_only=True):
    """A listener and what is wrong with it; problems without a reason are none.

    ``refused`` keeps all routes away; ``conflict`` does too. ``references`` are those to certificates and kinds; with
    ``certificates`` an HTTPS listener is served all the same.
    """

    listener: GatewayListener
    kinds: tuple[RouteGroupKind, ...]
    refused: ReferenceProblem = _NO_PROBLEM
    conflict: ReferenceProblem = _NO_PROBLEM
    references: ReferenceProblem = _NO_PROBLEM
    certificates: tuple[Certificate, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether routes may attach."""
        return not self.refused.reason and not self.conflict.reason

    @property
    def served(self) -> bool:
        """Whether engines listen for it."""
        return self.accepted and bool(self.kinds) and (self.listener.protocol == "HTTP" or bool(self.certificates))


def check_listeners(
    gateway: Gateway, grants: Iterable[ReferenceGrant], certificate: Callable[[str], Certificate | str]
) -> tuple[CheckedListener, ...]:
    """All listeners of a Gateway in their order; ``certificate`` gives that of a Secret, or why there is none."""
    listeners = gateway.spec.listeners
    grants = tuple(grants)
    protocols: dict[int, set[str]] = {}
    for listener in listeners:
        if listener.protocol in PROTOCOLS:
            protocols.setdefault(listener.port, set()).add(listener.protocol)
    hosts = Counter((listener.port, listener.protocol, listener.hostname.lower()) for listener in listeners)
    checked = []
    for index, listener in enumerate(listeners):
        path = f"spec.listeners[{index}]"
        kinds, problem = _kinds(listener, path)
        certificates: tuple[Certificate, ...] = ()
        if listener.protocol == "HTTPS":
            certificates, wrong = _certificates(gateway, path, listener, grants, certificate)
            problem = problem if problem.reason else wrong
        conflict = _NO_PROBLEM
        if len(protocols.get(listener.port, ())) > 1:
            conflict = ReferenceProblem("ProtocolConflict", f"{path}.protocol: port {listener.port} has another one")
        elif listener.protocol in PROTOCOLS and hosts[listener.port, listener.protocol, listener.hostname.lower()] > 1:
            conflict = ReferenceProblem("HostnameConflict", f"{path}.hostname: another listener has the same")
        checked.append(
            CheckedListener(
                listener=listener,
                kinds=kinds,
                refused=_refused(listener, path),
                conflict=conflict,
                references=problem,
                certificates=certificates,
            )
        )
    return tuple(checked)


def _refused(listener: GatewayListener, path: str) -> ReferenceProblem:
    if listener.protocol not in PROTOCOLS:
        text = f"{path}.protocol: expected HTTP or HTTPS, got {listener.protocol!r}"
        return ReferenceProblem("UnsupportedProtocol", text)
    if listener.protocol == "HTTPS" and listener.tls is not None:
        if listener.tls.mode != "Terminate":
            return ReferenceProblem(
                "UnsupportedValue", f"{path}.tls.mode: expected Terminate, got {listener.tls.mode!r}"
            )
        if listener.tls.options:
            return ReferenceProblem("UnsupportedValue", f"{path}.tls.options: no option is supported")
    return _NO_PROBLEM


def _kinds(listener: GatewayListener, path: str) -> tuple[tuple[RouteGroupKind, ...], ReferenceProblem]:
    served = (HTTP_ROUTE,) if listener.protocol in PROTOCOLS else ()
    asked = listener.allowed_routes.kinds
    if not asked:
        return served, _NO_PROBLEM
    for index, entry in enumerate(asked):
        if entry not in served:
            text = f"{path}.allowedRoutes.kinds[{index}]: {entry.kind} is not supported by protocol {listener.protocol}"
            return tuple(kind for kind in served if kind in asked), ReferenceProblem("InvalidRouteKinds", text)
    return served, _NO_PROBLEM


def _certificates(
    gateway: Gateway,
    path: str,
    listener: GatewayListener,
    grants: tuple[ReferenceGrant, ...],
    certificate: Callable[[str], Certificate | str],
) -> tuple[tuple[Certificate, ...], ReferenceProblem]:
    references = listener.tls.certificate_refs if listener.tls is not None else ()
    if not references:
        return (), ReferenceProblem("InvalidCertificateRef", f"{path}.tls.certificateRefs: expected a Secret")
    usable: list[Certificate] = []
    problem = _NO_PROBLEM
    for index, reference in enumerate(references):
        field = f"{path}.tls.certificateRefs[{index}]"
        result = _certificate(gateway, field, reference, grants, certificate)
        if isinstance(result, Certificate):
            usable.append(result)
        elif not problem.reason:
            problem = result
    return tuple(usable), problem


def _certificate(
    gateway: Gateway,
    field: str,
    reference: CertificateReference,
    grants: tuple[ReferenceGrant, ...],
    certificate: Callable[[str], Certificate | str],
) -> Certificate | ReferenceProblem:
    if (reference.group, reference.kind) != ("", "Secret"):
        text = f"{field}: expected a Secret of the core group, got {reference.kind} of {reference.group!r}"
        return ReferenceProblem("InvalidCertificateRef", text)
    namespace = reference.namespace or gateway.metadata.namespace
    target = ReferenceTarget(kind="Secret", namespace=namespace, name=reference.name)
    if not is_granted(grants, "Gateway", gateway.metadata.namespace, target):
        return not_granted(field, target)
    result = certificate(f"{namespace}/{reference.name}")
    return ReferenceProblem("InvalidCertificateRef", f"{field}: {result}") if isinstance(result, str) else result
