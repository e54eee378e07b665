"""What Gateways do with a request, from the objects of Gateway API alone: pure.

Each Gateway with a listener for the port of the URL is asked by itself, since each has addresses of its own.
"""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.gateway.api.translate import ApiTranslation, GatewayApiFacts, translate_api
from podwire.gateway.matching import HttpRequest, RouteDecision, decide
from podwire.gateway.routes import EntryListener
from podwire.model.gatewayapi import HttpRoute
from podwire.model.meta import Condition, key_of
from podwire.why.gateway.entrance import Entrance, entrance


def gateway_entrances(facts: GatewayApiFacts, request: HttpRequest, protocol: str) -> tuple[Entrance, ...]:
    """What each of our Gateways with a listener of the protocol on the port of the request does with it."""
    gateways = sorted(key_of(gateway.metadata) for gateway in facts.gateways)
    ports = {
        key_of(gateway.metadata): {listener.port: listener.port for listener in gateway.spec.listeners}
        for gateway in facts.gateways
    }
    translation = translate_api(msgspec.structs.replace(facts, ports=ports))
    result = []
    for key in gateways:
        listener = _listener(translation, key, request.port, protocol)
        if listener is None:
            continue
        own = msgspec.structs.replace(translation.entry, listeners=(listener,))
        decision = decide(own, request)
        result.append(
            entrance(
                f"Gateway {key}",
                tuple(address.value for address in facts.addresses.get(key, ())),
                decision,
                own,
                problems=tuple(_problems(facts, translation, key, decision, request)),
            )
        )
    return tuple(result)


def _listener(translation: ApiTranslation, gateway: str, port: int, protocol: str) -> EntryListener | None:
    return next(
        (
            listener
            for listener in translation.entry.listeners
            if listener.name.startswith(f"gateway {gateway}:")
            and listener.client_port == port
            and listener.protocol == protocol
        ),
        None,
    )


def _problems(
    facts: GatewayApiFacts, translation: ApiTranslation, gateway: str, decision: RouteDecision, request: HttpRequest
) -> Iterable[str]:
    """What the conditions of the Gateway and of the route say, or those of routes that have the host."""
    if not facts.addresses.get(gateway):
        yield f"Gateway {gateway} has no address yet"
    routes: Mapping[str, HttpRoute] = {key_of(route.metadata): route for route in facts.routes}
    if decision.route is not None:
        keys = [decision.route.source.split()[1]]
    else:
        keys = [key for key, route in sorted(routes.items()) if _names(route, request.host)]
    for key in keys:
        for parent in translation.routes.get(key, ()):
            owner = parent.parent_ref.namespace or key.partition("/")[0]
            if f"{owner}/{parent.parent_ref.name}" == gateway:
                yield from _failed(f"HTTPRoute {key}", parent.conditions)


def _names(route: HttpRoute, host: str) -> bool:
    """Whether a route names the host, also by a wildcard."""
    name = host.partition(":")[0].lower()
    return any(
        name == known.lower() or (known.startswith("*.") and name.endswith(known[1:].lower()))
        for known in route.spec.hostnames
    )


def _failed(subject: str, conditions: Iterable[Condition]) -> Iterable[str]:
    return (
        f"{subject}: {entry.type} is {entry.status}, {entry.reason}: {entry.message}"
        for entry in conditions
        if entry.status == "False"
    )
