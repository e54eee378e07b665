"""What happens to a request at one way in: the choices, the route, its backends with their shares. Pure."""

import msgspec

from podwire.gateway.matching import RouteDecision
from podwire.gateway.routes import (
    EntryRoute,
    FixedAnswer,
    Forward,
    GatewayEntry,
    HttpRedirect,
    RequestMatch,
    RouteLimits,
)
from podwire.model.wording import count


class UrlBackend(msgspec.Struct, frozen=True):
    """A backend of the route, its share of the requests in percent, and its endpoints."""

    key: str
    share: float
    endpoints: tuple[str, ...] = ()
    problem: str = ""


class Entrance(msgspec.Struct, frozen=True, kw_only=True):
    """A way in with its addresses, and what it does with a request.

    ``outcome`` is one sentence, ``steps`` are the choices that lead to it. ``routed`` says whether a route was found.
    """

    name: str
    addresses: tuple[str, ...] = ()
    routed: bool
    outcome: str
    steps: tuple[str, ...]
    backends: tuple[UrlBackend, ...] = ()
    problems: tuple[str, ...] = ()


def entrance(
    name: str, addresses: tuple[str, ...], decision: RouteDecision, entry: GatewayEntry, *, problems: tuple[str, ...]
) -> Entrance:
    """The way in with its decision in words."""
    outcome, backends = _outcome(decision, entry)
    stream = decision.server.stream if decision.server is not None else None
    return Entrance(
        name=name,
        addresses=addresses,
        routed=decision.route is not None or (stream is not None and bool(stream.backends)),
        outcome=outcome,
        steps=tuple(_steps(decision)),
        backends=backends,
        problems=problems,
    )


def _steps(decision: RouteDecision) -> list[str]:
    steps = []
    listener = decision.listener
    if listener is not None:
        port = listener.client_port or listener.port
        steps.append(f"listener {listener.name}: {listener.protocol} on port {port}")
    if decision.server is not None and decision.server.certificates:
        names = ", ".join(decision.server.names) or "all other names"
        steps.append(f"certificate {', '.join(decision.server.certificates)}, for {names}")
    if decision.host is not None:
        steps.append(
            f"host {', '.join(decision.host.hosts)}: {count(len(decision.host.routes), 'route')}, in this order"
        )
        for route in decision.host.routes:
            chosen = route is decision.route
            steps.append(f"  {'takes' if chosen else 'passes by'} {_match_text(route.match)}: {route.source}")
            if chosen:
                break
    if decision.route is not None:
        steps += [f"  checks {text}" for text in _limit_texts(decision.route.limits)]
        steps += _error_texts(decision.route)
    return steps


def _match_text(match: RequestMatch) -> str:
    kinds = {"exact": "path", "prefix": "paths below", "regex": "paths like"}
    text = f"{kinds[match.path.kind]} {match.path.path}"
    text += f", method {match.method}" if match.method else ""
    for header in match.headers:
        text += f", header {header.name}" + (f" = {header.value}" if header.value else "")
    for parameter in match.query:
        text += f", query parameter {parameter.name}" + (f" = {parameter.value}" if parameter.value else "")
    return text


def _limit_texts(limits: RouteLimits) -> list[str]:
    texts = [f"the client's address: not in {', '.join(limits.deny)}"] if limits.deny else []
    texts += [f"the client's address: in {', '.join(limits.allow)}"] if limits.allow else []
    texts += [f"the name of the connection: {', '.join(limits.server_names)}"] if limits.server_names else []
    texts += ["another server"] if limits.external_auth is not None else []
    texts += ["user and password"] if limits.basic_auth is not None else []
    texts += [f"the body: at most {limits.body_bytes} bytes"] if limits.body_bytes else []
    if limits.rate is not None:
        texts.append(f"the rate: {limits.rate.requests} requests in {limits.rate.interval:g} s")
    return texts


def _error_texts(route: EntryRoute) -> list[str]:
    if route.errors is None:
        return []
    return [f"  errors {', '.join(map(str, route.errors.statuses))} are answered by {route.errors.backend}"]


def _outcome(decision: RouteDecision, entry: GatewayEntry) -> tuple[str, tuple[UrlBackend, ...]]:
    stream = decision.server.stream if decision.server is not None else None
    if stream is not None:
        return f"passed on without being read, by {stream.source}", _backends(Forward(backends=stream.backends), entry)
    if decision.route is None:
        return _no_route(decision), ()
    action = decision.route.action
    if isinstance(action, FixedAnswer):
        return f"answered with {action.status}", ()
    if isinstance(action, HttpRedirect):
        target = action.location or f"{action.scheme or 'the same scheme'}, {action.host or 'the same host'}"
        return f"redirected with {action.status} to {target}", ()
    backends = _backends(action, entry)
    if not any(backend.endpoints for backend in backends):
        statuses = {share.missing_status if share.key not in entry.backends else 503 for share in action.backends}
        status = min(statuses, default=500)
        return f"answered with {status}: no backend has an endpoint", backends
    return "forwarded to a pod", backends


def _no_route(decision: RouteDecision) -> str:
    if decision.table is None:
        return "refused: no listener has this server name"
    reason = "no route has this host" if decision.host is None else "no route of this host matches the request"
    return f"answered with {decision.status or 404}: {reason}"


def _backends(action: Forward, entry: GatewayEntry) -> tuple[UrlBackend, ...]:
    total = sum(share.weight for share in action.backends) or 1
    result = []
    for share in action.backends:
        backend = entry.backends.get(share.key)
        endpoints = tuple(f"{known.address}:{known.port}" for known in backend.endpoints) if backend is not None else ()
        problem = "" if endpoints else "no endpoint is ready"
        problem = problem if backend is not None else "does not exist"
        name = share.key.partition("#")[0]
        result.append(UrlBackend(name, round(100 * share.weight / total, 1), endpoints, problem))
    return tuple(result)
