"""Virtual hosts of the listeners of one port: the most specific listener of a host alone serves it.

Inside a listener, the rules of routes with a narrower host name come before those with a wider one, then the order of
matches decides. Cost: the hosts, each with the wildcards that cover it.
"""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.gateway.api.attachment import ANY_HOST, breadth, covers, patterns_over
from podwire.gateway.api.rules import RankedRoute
from podwire.gateway.routes import EntryRoute, FixedAnswer, RequestMatch, VirtualHost


class HostRoutes(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Routes that are attached to a listener for a host."""

    host: str
    routes: tuple[RankedRoute, ...]


def own_host(hostname: str) -> str:
    """The hosts of a listener as one name."""
    return hostname.lower() or ANY_HOST


def virtual_hosts(listeners: Mapping[str, Iterable[HostRoutes]]) -> tuple[VirtualHost, ...]:
    """The virtual hosts of listeners by their own host; a host without routes is there too, so that it answers 404."""
    result: dict[str, VirtualHost] = {}
    for own, attached in listeners.items():
        entries: dict[str, list[HostRoutes]] = {}
        for entry in attached:
            entries.setdefault(entry.host, []).append(entry)
        rivals = listeners if own.startswith("*") else ()
        narrower = [other for other in rivals if other != own and covers(own, other)]
        for host in dict.fromkeys((own, *entries)):
            if not any(covers(other, host) for other in narrower):
                result[host] = VirtualHost(hosts=(host,), routes=_routes(host, entries))
    return tuple(result[host] for host in sorted(result, key=lambda name: (breadth(name), name)))


def misdirected(hosts: Iterable[VirtualHost], rivals: Iterable[str], source: str) -> tuple[VirtualHost, ...]:
    """Virtual hosts of which those of other listeners answer 421 (Misdirected Request)."""
    elsewhere = set(rivals)
    answer = EntryRoute(source=source, match=RequestMatch(), action=FixedAnswer(status=421))
    return tuple(
        VirtualHost(hosts=host.hosts, routes=(answer,)) if elsewhere.intersection(host.hosts) else host
        for host in hosts
    )


def _routes(host: str, entries: Mapping[str, Iterable[HostRoutes]]) -> tuple[EntryRoute, ...]:
    """The routes of a host in order, from the entries of all names that cover it."""
    ranked = [
        (breadth(entry.host), route.rank, route.route)
        for pattern in patterns_over(host)
        for entry in entries.get(pattern, ())
        for route in entry.routes
    ]
    ranked.sort(key=lambda item: item[:2])
    return tuple({route.source: route for _, _, route in reversed(ranked)}.values())[::-1]
