"""Which listeners of a Gateway a route attaches to, and the hosts that it serves there.

A route must name the listener (or none), the listener must allow the route's kind and namespace, and their host names
must have something in common. A wildcard stands for one or more labels.
"""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.gateway.api.listeners import HTTP_ROUTE, CheckedListener
from podwire.model.gatewayapi import Gateway, ParentReference, RouteNamespaces

ANY_HOST = "*"


class RouteAttachment(msgspec.Struct, frozen=True, kw_only=True):
    """The listeners that a route attaches to with its hosts there; without any, the reason of the condition."""

    hosts: Mapping[str, tuple[str, ...]] = {}
    reason: str = "Accepted"
    message: str = ""


def attach(
    gateway: Gateway,
    listeners: Iterable[CheckedListener],
    parent: ParentReference,
    namespace: str,
    labels: Mapping[str, str],
    hostnames: tuple[str, ...],
) -> RouteAttachment:
    """The attachment of a route of a namespace with these labels by one of its parent references."""
    named = [
        entry
        for entry in listeners
        if parent.section_name in (None, "", entry.listener.name) and parent.port in (None, entry.listener.port)
    ]
    if not named:
        return RouteAttachment(reason="NoMatchingParent", message="the Gateway has no listener of this name and port")
    allowed = [
        entry
        for entry in named
        if entry.accepted
        and HTTP_ROUTE in entry.kinds
        and _allows(entry.listener.allowed_routes.namespaces, gateway.metadata.namespace, namespace, labels)
    ]
    if not allowed:
        return RouteAttachment(
            reason="NotAllowedByListeners", message="no listener allows HTTPRoutes of this namespace"
        )
    hosts = {entry.listener.name: common_hosts(entry.listener.hostname, hostnames) for entry in allowed}
    hosts = {name: common for name, common in hosts.items() if common}
    if not hosts:
        return RouteAttachment(reason="NoMatchingListenerHostname", message="no listener has a host name of this route")
    return RouteAttachment(hosts=hosts)


def _allows(rule: RouteNamespaces, own: str, namespace: str, labels: Mapping[str, str]) -> bool:
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
