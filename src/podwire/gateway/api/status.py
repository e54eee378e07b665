"""The status of classes, Gateways and routes as values, with the generation that each condition is about."""

from collections.abc import Iterable

from podwire.gateway.api.attachment import RouteAttachment
from podwire.gateway.api.listeners import CheckedListener
from podwire.gateway.api.references import ReferenceProblem
from podwire.model.gatewayapi import (
    Gateway,
    GatewayClass,
    GatewayClassStatus,
    GatewayStatus,
    GatewayStatusAddress,
    ListenerStatus,
    SupportedFeature,
)
from podwire.model.meta import Condition

_MESSAGE_LENGTH = 1000
FEATURES = (
    "Gateway",
    "GatewayHTTPListenerIsolation",
    "GatewayPort8080",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
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
    "HTTPRouteSchemeRedirect",
    "ReferenceGrant",
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


def refusal(gateway: Gateway, listeners: Iterable[CheckedListener]) -> ReferenceProblem | None:
    """Why a Gateway is not served at all."""
    if gateway.spec.infrastructure.parameters_ref is not None:
        text = "spec.infrastructure.parametersRef: no kind of parameters is supported"
        return ReferenceProblem("InvalidParameters", text)
    if gateway.spec.addresses:
        return ReferenceProblem("UnsupportedAddress", "spec.addresses: addresses cannot be asked for")
    if gateway.spec.tls is not None:
        return ReferenceProblem("Invalid", "spec.tls: is not supported")
    if not any(entry.accepted for entry in listeners):
        return ReferenceProblem("ListenersNotValid", "spec.listeners: no listener can be served")
    return None


def gateway_status(
    gateway: Gateway,
    listeners: tuple[CheckedListener, ...],
    attached: dict[str, int],
    open_ports: frozenset[int],
    addresses: tuple[GatewayStatusAddress, ...],
) -> GatewayStatus:
    """The status of a Gateway; ``open_ports`` are those on which its Service takes connections."""
    generation = gateway.metadata.generation
    problem = refusal(gateway, listeners)
    if problem is None and not all(entry.accepted for entry in listeners):
        accepted = Condition(
            type="Accepted",
            status="True",
            reason="ListenersNotValid",
            message="some listeners cannot be served",
            observed_generation=generation,
        )
    else:
        accepted = condition("Accepted", problem, generation)
    pending = problem
    if pending is None and not addresses:
        pending = ReferenceProblem("AddressNotAssigned", "the Service of the Gateway has no address yet")
    return GatewayStatus(
        addresses=addresses if problem is None else (),
        conditions=(accepted, condition("Programmed", pending, generation)),
        listeners=tuple(_listener(entry, problem, attached, open_ports, generation) for entry in listeners),
    )


def _listener(
    entry: CheckedListener,
    problem: ReferenceProblem | None,
    attached: dict[str, int],
    open_ports: frozenset[int],
    generation: int,
) -> ListenerStatus:
    refused = entry.refused if entry.refused.reason else entry.conflict
    programmed = None
    if problem is not None or not entry.served:
        programmed = ReferenceProblem("Invalid", "the listener is not served")
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
        attached_routes=attached.get(entry.listener.name, 0),
        conditions=(
            condition("Accepted", refused, generation),
            condition("Programmed", programmed, generation),
            condition("ResolvedRefs", entry.references, generation),
            conflicted,
        ),
    )


def route_conditions(
    attachment: RouteAttachment, unsupported: str, references: ReferenceProblem, generation: int
) -> tuple[Condition, ...]:
    """The conditions of a route at one parent."""
    problem = ReferenceProblem(attachment.reason, attachment.message) if not attachment.hosts else None
    if unsupported:
        problem = ReferenceProblem("UnsupportedValue", unsupported)
    return condition("Accepted", problem, generation), condition("ResolvedRefs", references, generation)
