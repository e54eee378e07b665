"""Which listeners a route attaches to by a parent reference, and the hosts that it serves there.

A route must name the listener (or none), the listener must allow the route's kind and namespace, and their host names
must have something in common. A wildcard stands for one or more labels. Of an HTTPRoute and a GRPCRoute for the same
host of a listener, the older one alone attaches.
"""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.gateway.api.listeners import CheckedListener
from podwire.model.gatewayapi import GROUP, ParentReference, RouteGroupKind, RouteNamespaces
from podwire.model.gatewayroutes import ApiRoute, hostnames_of
from podwire.model.meta import key_of

ANY_HOST = "*"
RouteKey = tuple[str, str]
"""The kind of a route, and its namespace and name."""


class RouteAttachment(msgspec.Struct, frozen=True, kw_only=True):
    """The listeners that a route attaches to with its hosts there; without any, the reason of the condition."""

    hosts: Mapping[str, tuple[str, ...]] = {}
    reason: str = "Accepted"
    message: str = ""


def route_key(route: ApiRoute) -> RouteKey:
    """The key of a route among those of all kinds."""
    return route.kind, key_of(route.metadata)


def by_age(route: ApiRoute) -> tuple[str, RouteKey]:
    """Sorts routes: older ones first, then by namespace and name."""
    return route.metadata.creation_timestamp or "", (key_of(route.metadata), route.kind)


def attach(
    listeners: Iterable[CheckedListener], parent: ParentReference, route: ApiRoute, labels: Mapping[str, str]
) -> RouteAttachment:
    """The attachment of a route of a namespace with these labels to the listeners of one of its parents."""
    named = [
        entry
        for entry in listeners
        if parent.section_name in (None, "", entry.listener.name) and parent.port in (None, entry.listener.port)
    ]
    if not named:
        return RouteAttachment(
            reason="NoMatchingParent", message=f"the {parent.kind} has no listener of this name and port"
        )
    kind = RouteGroupKind(group=GROUP, kind=route.kind)
    namespace = route.metadata.namespace
    allowed = [
        entry
        for entry in named
        if entry.accepted
        and kind in entry.kinds
        and allows(entry.listener.allowed_routes.namespaces, entry.namespace, namespace, labels)
    ]
    if not allowed:
        return RouteAttachment(
            reason="NotAllowedByListeners", message=f"no listener allows {route.kind}s of this namespace"
        )
    hostnames = hostnames_of(route)
    hosts = {entry.id: common_hosts(entry.listener.hostname, hostnames) for entry in allowed}
    hosts = {name: common for name, common in hosts.items() if common}
    if not hosts:
        return RouteAttachment(reason="NoMatchingListenerHostname", message="no listener has a host name of this route")
    return RouteAttachment(hosts=hosts)


_RIVALS = {"HTTPRoute": "GRPCRoute", "GRPCRoute": "HTTPRoute"}
_HostsByAge = dict[str, dict[str, tuple[str, RouteKey]]]
"""By listener and host, the age of the oldest route."""


def without_rivals(attached: Iterable[tuple[ApiRoute, RouteAttachment]]) -> list[tuple[ApiRoute, RouteAttachment]]:
    """Attachments to the listeners of a Gateway, each without listeners where an older rival has one of its hosts.

    HTTPRoute and GRPCRoute are rivals: a request would match routes of both.
    """
    entries = list(attached)
    if not _RIVALS.keys() <= {route.kind for route, _ in entries}:
        return entries
    oldest: dict[str, _HostsByAge] = {kind: {} for kind in _RIVALS}
    for route, attachment in entries:
        for listener, hosts in attachment.hosts.items() if route.kind in oldest else ():
            ages = oldest[route.kind].setdefault(listener, {})
            for host in hosts:
                ages[host] = min(by_age(route), ages.get(host, by_age(route)))
    result = []
    for route, attachment in entries:
        rivals = oldest.get(_RIVALS.get(route.kind, ""), {})
        free = {
            listener: hosts
            for listener, hosts in attachment.hosts.items()
            if listener not in rivals or not _has_older(hosts, by_age(route), rivals[listener])
        }
        if attachment.hosts and not free:
            text = "an older route of another kind (HTTPRoute or GRPCRoute) has the same host name"
            result.append((route, RouteAttachment(reason="Conflicted", message=text)))
        else:
            result.append((route, msgspec.structs.replace(attachment, hosts=free)))
    return result


def _has_older(hosts: Iterable[str], age: tuple[str, RouteKey], rivals: Mapping[str, tuple[str, RouteKey]]) -> bool:
    """Whether a rival that is older has a host in common."""
    for host in hosts:
        if any(pattern in rivals and rivals[pattern] < age for pattern in patterns_over(host)):
            return True
        if host.startswith("*") and any(covers(host, other) and older < age for other, older in rivals.items()):
            return True
    return False


def allows(rule: RouteNamespaces, own: str, namespace: str, labels: Mapping[str, str]) -> bool:
    """Whether a rule of an object in a namespace allows another namespace with these labels."""
    if rule.origin == "Selector":
        return rule.selector is not None and rule.selector.matches(dict(labels))
    return rule.origin == "All" or (rule.origin == "Same" and own == namespace)


def common_hosts(listener: str, hostnames: tuple[str, ...]) -> tuple[str, ...]:
    """The hosts of a route that a listener serves: of two names that overlap, the narrower one."""
    own = listener.lower() or ANY_HOST
    if not hostnames:
        return (own,)
    common = []
    for hostname in hostnames:
        name = hostname.lower()
        if covers(own, name):
            common.append(name)
        elif covers(name, own):
            common.append(own)
    return tuple(dict.fromkeys(common))


def patterns_over(host: str) -> Iterable[str]:
    """All names that cover a host, the narrowest first: itself, then wildcards."""
    yield host
    if host == ANY_HOST:
        return
    labels = host.removeprefix("*.").split(".")
    for number in range(1, len(labels)):
        yield "*." + ".".join(labels[number:])
    yield ANY_HOST


def covers(pattern: str, name: str) -> bool:
    """Whether every host that ``name`` stands for is one of ``pattern``."""
    if ANY_HOST in (pattern, name):
        return pattern == ANY_HOST
    if not pattern.startswith("*."):
        return pattern == name
    suffix = pattern[1:]
    return name == pattern or (name.endswith(suffix) and len(name.removeprefix("*")) > len(suffix))


def breadth(host: str) -> tuple[bool, int]:
    """Sorts hosts: exact names first, then longer wildcards before shorter ones."""
    return host.startswith("*"), -len(host)
