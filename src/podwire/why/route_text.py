"""The ways between nodes of an answer of ``podwire why`` as text (pure)."""

from collections.abc import Iterator

from podwire.why.answer import Answer, NodeRoute, TunnelHeader

_LABEL = 10


def outcome(answer: Answer) -> Iterator[str]:
    """The line ``outcome``, where a route between nodes is interrupted and nothing else drops the connection."""
    lost = [route for route in answer.routes if route.lost]
    if not lost:
        return
    first, *further_routes = lost
    word = "DROPPED" if answer.outcome == "dropped" else "DROPPED for some endpoints,"
    yield f"{'outcome':<{_LABEL}}{word} {_reason(first)}"
    yield from (f"{'':<{_LABEL}}and {_reason(route)}" for route in further_routes)


def _reason(route: NodeRoute) -> str:
    direction = "" if route.direction == "request" else "replies, "
    return f"{direction}between {route.node} and {route.peer}: {'; '.join(route.missing)}"


def routes(answer: Answer) -> Iterator[str]:
    """The lines of all routes, an empty line before each."""
    for route in answer.routes:
        yield ""
        yield from lines(route)


def lines(route: NodeRoute) -> Iterator[str]:
    """The lines of one route: nodes and backend, route and MTU, tunnel, missing entries, differences from the plan."""
    label = "route" if route.direction == "request" else "back"
    by = f" by {route.backend}" if route.backend else ", not routed by podwire"
    by += f", network {route.network}" if route.network else ""
    planned = "" if route.state == "held" else ", as it should be"
    yield f"{label:<{_LABEL}}{route.node} to {route.peer}{by}{planned}"
    if route.route:
        mtu = f", MTU {route.mtu}" if route.mtu else ""
        yield f"{'':<{_LABEL}}{route.route}{mtu}"
    if route.tunnel is not None:
        yield f"{'':<{_LABEL}}{_tunnel(route.tunnel)}"
    yield from (f"{'missing':<{_LABEL}}{problem}" for problem in route.missing)
    if route.drift:
        yield "differs from the plan (+ is missing, - is extra)"
        yield from (f"  {line.sign} {line.text}" for line in route.drift)


def _tunnel(tunnel: TunnelHeader) -> str:
    parts = [tunnel.protocol + (" (encrypted)" if tunnel.encrypted else "")]
    if tunnel.id:
        parts.append(f"VNI {tunnel.id}")
    port = f" port {tunnel.port}/UDP" if tunnel.port else ""
    parts.append(f"from {tunnel.source} to {tunnel.destination}{port}")
    if tunnel.device:
        parts.append(f"by {tunnel.device}" + (f" via {tunnel.gateway}" if tunnel.gateway else ""))
    return ", ".join(parts)
