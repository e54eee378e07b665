"""What Gateways do with a request, from the objects of Gateway API alone: pure.

Each Gateway with a listener for the port of the URL is asked by itself, since each has addresses of its own.
"""

from collections.abc import Iterable

import msgspec

from podwire.gateway.api.attachment import route_key
from podwire.gateway.api.listenersets import parent_of
from podwire.gateway.api.translate import ApiTranslation, GatewayApiFacts, translate_api
from podwire.gateway.matching import HttpRequest, RouteDecision, decide
from podwire.gateway.routes import EntryListener
from podwire.model.gatewayroutes import ApiRoute, hostnames_of
from podwire.model.meta import Condition, key_of
from podwire.why.gateway.entrance import Entrance, entrance


def gateway_entrances(facts: GatewayApiFacts, request: HttpRequest, protocol: str) -> tuple[Entrance, ...]:
    """What each of our Gateways with a listener of the protocol on the port of the request does with it."""
    gateways = sorted(key_of(gateway.metadata) for gateway in facts.gateways)
    ports: dict[str, dict[int, int]] = {key: {} for key in gateways}
    listeners = [(key_of(gateway.metadata), gateway.spec.listeners) for gateway in facts.gateways]
    listeners += [(parent_of(value), value.spec.listeners) for value in facts.sets]
    for key, own_listeners in listeners:
        ports.setdefault(key, {}).update({listener.port: listener.port for listener in own_listeners})
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
    routes = {route_key(route): route for route in facts.routes}
    if decision.route is not None:
        kind, name = decision.route.source.split()[:2]
        keys = [(kind, name)]
    else:
        keys = [key for key, route in sorted(routes.items()) if _names(route, request.host)]
    for kind, name in keys:
        for parent in translation.routes.get((kind, name), ()):
            owner = parent.parent_ref.namespace or name.partition("/")[0]
            if f"{owner}/{parent.parent_ref.name}" == gateway:
                yield from _failed(f"{kind} {name}", parent.conditions)


def _names(route: ApiRoute, host: str) -> bool:
    """Whether a route names the host, also by a wildcard."""
    name = host.partition(":")[0].lower()
    return any(
        name == known.lower() or (known.startswith("*.") and name.endswith(known[1:].lower()))
        for known in hostnames_of(route)
    )


def _failed(subject: str, conditions: Iterable[Condition]) -> Iterable[str]:
    return (
        f"{subject}: {entry.type} is {entry.status}, {entry.reason}: {entry.message}"
        for entry in conditions
        if entry.status == "False"
    )
