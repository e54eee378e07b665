"""What changed between releases of CoreDNS beyond the tables of plugins and options: defaults, behaviour. Pure.

Sources: the release notes of CoreDNS 1.1.3 to 1.14.7, and the Corefile in kubeadm's manifest.
"""

from collections.abc import Mapping

import msgspec


class NewDefault(msgspec.Struct, frozen=True):
    """A line that the stock Corefile has since a release; ``plugin`` empty: the line is a plugin."""

    release: str
    plugin: str
    line: str
    beside: tuple[str, ...] = ()
    """A plugin is added only to server blocks that have one of these."""


class Note(msgspec.Struct, frozen=True):
    """A plugin that behaves in another way since a release; ``option``: only with this option."""

    release: str
    plugin: str
    text: str
    remedy: str = ""


NEW_DEFAULTS: tuple[NewDefault, ...] = (
    NewDefault("1.2.1", "", "loop", ("forward", "proxy")),
    NewDefault("1.5.0", "", "ready", ("kubernetes",)),
    NewDefault("1.6.5", "health", "lameduck 5s"),
    NewDefault("1.7.0", "forward", "max_concurrent 1000"),
)
"""Oldest first. Only ``ready`` is needed: the readiness probe asks it."""

NEEDED = frozenset(("ready",))
"""The defaults that a migration adds by itself; the rest are added on request."""

IGNORED: Mapping[tuple[str, str], str] = {
    ("kubernetes", "upstream"): "1.4.0",
    ("kubernetes", "resyncperiod"): "1.6.0",
    ("file", "upstream"): "1.5.2",
    ("auto", "upstream"): "1.5.2",
    ("etcd", "upstream"): "1.5.2",
    ("template", "upstream"): "1.5.2",
    ("route53", "upstream"): "1.5.2",
    ("clouddns", "upstream"): "1.6.3",
}
"""By plugin and option the release since which the option is accepted and has no effect."""

PROXY_OPTIONS: Mapping[str, str] = {
    "fail_timeout": "forward tests an upstream by health_check instead",
    "max_fails": "the option of forward counts another kind of failure",
    "health_check": "the option of forward is an interval, not an HTTP path",
    "spray": "forward asks a random upstream when all of them fail",
}
"""The options of ``proxy`` that ``forward`` does not have, and why."""

BEHAVIOUR: tuple[Note, ...] = (
    Note("1.5.0", "health", "health reports only the process; `ready` reports whether the plugins are ready",
         "let the readiness probe ask port 8181, path /ready"),
    Note("1.7.0", "prometheus", "most metrics have new names", "change queries and alerts of coredns_*_count_total"),
    Note("1.9.0", "kubernetes", "queries with wildcards, such as *.namespace.svc, are no longer answered"),
    Note("1.11.0", "kubernetes", "EndpointSlices discovery.k8s.io/v1 are needed",
         "the role of CoreDNS needs list and watch of endpointslices"),
    Note("1.11.0", "bufsize", "the size without an argument is 1232 bytes"),
    Note("1.12.2", "secondary", "the option transfer is mandatory"),
    Note("1.12.4", "header", "the syntax without query or response is refused", "write response set NAME"),
    Note("1.13.0", "forward", "an answer SERVFAIL or REFUSED no longer leads to the next upstream",
         "add `failover SERVFAIL REFUSED` where several upstreams stand behind each other"),
    Note("1.14.0", "geoip", "unknown coordinates are empty instead of 0"),
)  # fmt: skip
"""Oldest first."""
