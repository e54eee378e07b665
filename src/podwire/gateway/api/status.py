"""The status of classes, Gateways and routes as values, with the generation that each condition is about."""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.gateway.api.attachment import RouteAttachment
from podwire.gateway.api.listeners import CheckedListener
from podwire.gateway.api.references import NO_PROBLEM, ReferenceProblem
from podwire.gateway.api.services import service_name
from podwire.model.gatewayapi import (
    Gateway,
    GatewayClass,
    GatewayClassStatus,
    GatewayStatus,
    GatewayStatusAddress,
    ListenerStatus,
    SupportedFeature,
)
from podwire.model.meta import Condition, key_of

_MESSAGE_LENGTH = 1000
FEATURES = (
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
    "UDPRoute",
)
"""The features of Gateway API that are served, as its conformance suite names them."""


def condition(kind: str, problem: ReferenceProblem | None, generation: int, *, good: str = "") -> Condition:
    """A condition that is true with the reason ``good`` (its own name), or false for a problem."""
    if problem is None or not problem.reason:
        return Condition(type=kind, status="True", reason=good or kind, observed_generation=generation)
    message = problem.message[:_MESSAGE_LENGTH]
    return Condition(type=kind, status="False", reason=problem.reason, message=message, observed_generation=generation)


def class_status(value: GatewayClass) -> GatewayClassStatus:
    """The status of a class; parameters are refused."""
    problem = None
    if value.spec.parameters_ref is not None:
        problem = ReferenceProblem("InvalidParameters", "spec.parametersRef: no kind of parameters is supported")
    return GatewayClassStatus(
        conditions=(condition("Accepted", problem, value.metadata.generation),),
        supported_features=tuple(SupportedFeature(name=name) for name in FEATURES),
    )


class GatewayProblems(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a Gateway beside its listeners; problems without a reason are none.

    ``client_certificate`` is None where none is shown to backends; ``engine`` is what engines refuse; ``insecure``
    says that clients get in whose certificate is not valid.
    """

    client_certificate: ReferenceProblem | None = None
    engine: ReferenceProblem = NO_PROBLEM
    insecure: bool = False


def refusal(gateway: Gateway, listeners: Iterable[CheckedListener]) -> ReferenceProblem | None:
    """Why a Gateway is not served at all."""
    if gateway.spec.infrastructure.parameters_ref is not None:
        text = "spec.infrastructure.parametersRef: no kind of parameters is supported"
        return ReferenceProblem("InvalidParameters", text)
    for index, address in enumerate(gateway.spec.addresses):
        if address.type != "IPAddress":
            text = f"spec.addresses[{index}].type: expected IPAddress, got {address.type!r}"
            return ReferenceProblem("UnsupportedAddress", text)
    if not any(entry.accepted for entry in listeners):
        return ReferenceProblem("ListenersNotValid", "spec.listeners: no listener can be served")
    return None


def gateway_status(
    gateway: Gateway,
    listeners: tuple[CheckedListener, ...],
    attached: Mapping[str, int],
    open_ports: frozenset[int],
    addresses: tuple[GatewayStatusAddress, ...],
    problems: GatewayProblems,
) -> GatewayStatus:
    """The status of a Gateway; ``open_ports`` are those on which its Service takes connections."""
    generation = gateway.metadata.generation
    own = tuple(entry for entry in listeners if not entry.set_key)
    problem = refusal(gateway, listeners)
    if problem is None and not all(entry.accepted for entry in own):
        accepted = Condition(
            type="Accepted",
            status="True",
            reason="ListenersNotValid",
            message="some listeners cannot be served",
            observed_generation=generation,
        )
    else:
        accepted = condition("Accepted", problem, generation)
    pending = problem or _unprogrammed(gateway, addresses, problems)
    conditions = [accepted, condition("Programmed", pending, generation)]
    if problems.client_certificate is not None:
        conditions.append(condition("ResolvedRefs", problems.client_certificate, generation))
    if problems.insecure:
        conditions.append(
            Condition(
                type="InsecureFrontendValidationMode",
                status="True",
                reason="ConfigurationChanged",
                message="clients get in whose certificate is not valid",
                observed_generation=generation,
            )
        )
    sets = {entry.set_key for entry in listeners if entry.set_key and entry.served}
    return GatewayStatus(
        addresses=addresses if problem is None else (),
        conditions=tuple(conditions),
        listeners=tuple(listener_status(entry, problem, attached, open_ports, generation) for entry in own),
        attached_listener_sets=len(sets) if problem is None else 0,
    )


def _unprogrammed(
    gateway: Gateway, addresses: tuple[GatewayStatusAddress, ...], problems: GatewayProblems
) -> ReferenceProblem | None:
    if problems.engine.reason:
        return problems.engine
    assigned = {entry.value for entry in addresses}
    for index, address in enumerate(gateway.spec.addresses):
        if address.value and address.value not in assigned:
            text = f"spec.addresses[{index}].value: the load balancer does not give {address.value}"
            return ReferenceProblem("AddressNotUsable", text)
    if not addresses:
        name = service_name(key_of(gateway.metadata))
        text = f"the load balancer has given no address to Service {name}, whose Events say why"
        return ReferenceProblem("AddressNotAssigned", text)
    return None


def listener_status(
    entry: CheckedListener,
    problem: ReferenceProblem | None,
    attached: Mapping[str, int],
    open_ports: frozenset[int],
    generation: int,
) -> ListenerStatus:
    """The status of a listener of an object with a problem or without."""
    refused = entry.refused if entry.refused.reason else entry.conflict
    programmed = None
    if problem is not None or not entry.served:
        reason = entry.conflict.reason if entry.set_key and entry.conflict.reason else "Invalid"
        programmed = ReferenceProblem(reason, "the listener is not served")
    elif entry.engine.reason:
        programmed = entry.engine
    elif entry.listener.port not in open_ports:
        programmed = ReferenceProblem("Pending", "the Service of the Gateway does not have this port yet")
    conflicted = Condition(
        type="Conflicted",
        status="True" if entry.conflict.reason else "False",
        reason=entry.conflict.reason or "NoConflicts",
        message=entry.conflict.message,
        observed_generation=generation,
    )
    return ListenerStatus(
        name=entry.listener.name,
        supported_kinds=entry.kinds,
        attached_routes=attached.get(entry.id, 0),
        conditions=(
            condition("Accepted", refused, generation),
            condition("Programmed", programmed, generation),
            condition("ResolvedRefs", entry.references, generation),
            conflicted,
        ),
    )


def route_conditions(
    attachment: RouteAttachment, refused: ReferenceProblem, references: ReferenceProblem, generation: int
) -> tuple[Condition, ...]:
    """The conditions of a route at one parent."""
    problem = ReferenceProblem(attachment.reason, attachment.message) if not attachment.hosts else None
    if refused.reason:
        problem = refused
    return condition("Accepted", problem, generation), condition("ResolvedRefs", references, generation)
