"""Releases of CoreDNS, their plugins and their options, as tables. Pure.

The tables have facts of the releases 1.1.3 to 1.14.7: the plugins of each release's ``plugin.cfg`` and the options that
the setup functions of the plugins accept. A plugin that no table has may come from a custom build. Only the plugins in
``WHOLE`` have all of their options here; options of others are never called unknown.
"""

from collections.abc import Mapping

from podwire.upgrade.plan.versions import Version, parse_version

Numbers = tuple[int, int, int]

RELEASES: tuple[str, ...] = (
    "1.1.3", "1.1.4", "1.2.0", "1.2.1", "1.2.2", "1.2.3", "1.2.4", "1.2.5", "1.2.6", "1.3.0", "1.3.1", "1.4.0", "1.5.0",
    "1.5.1", "1.5.2", "1.6.0", "1.6.1", "1.6.2", "1.6.3", "1.6.4", "1.6.5", "1.6.6", "1.6.7", "1.6.8", "1.6.9", "1.7.0",
    "1.7.1", "1.8.0", "1.8.3", "1.8.4", "1.8.5", "1.8.6", "1.8.7", "1.9.0", "1.9.1", "1.9.2", "1.9.3", "1.9.4",
    "1.10.0", "1.10.1", "1.11.0", "1.11.1", "1.11.3", "1.11.4", "1.12.0", "1.12.1", "1.12.2", "1.12.3", "1.12.4",
    "1.13.0", "1.13.1", "1.13.2", "1.14.0", "1.14.1", "1.14.2", "1.14.3", "1.14.4", "1.14.5", "1.14.6", "1.14.7",
)  # fmt: skip
"""The released versions, oldest first. There are no images of 1.8.1, 1.8.2 and 1.11.2."""

FIRST = "1.1.3"
_ALWAYS = (FIRST, "")

PLUGINS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            "auto", "autopath", "bind", "cache", "chaos", "debug", "dnssec", "dnstap", "erratic", "errors", "etcd",
            "file", "forward", "health", "hosts", "import", "kubernetes", "loadbalance", "log", "nsid", "on", "pprof",
            "prometheus", "reload", "rewrite", "root", "route53", "secondary", "template", "tls", "trace", "whoami",
        ),
        _ALWAYS,
    ),
    "reverse": (FIRST, "1.2.0"), "federation": (FIRST, "1.7.0"), "proxy": (FIRST, "1.5.0"),
    "metadata": ("1.2.0", ""), "loop": ("1.2.1", ""), "k8s_external": ("1.3.0", ""), "cancel": ("1.5.0", ""),
    "grpc": ("1.5.0", ""), "ready": ("1.5.0", ""), "any": ("1.5.1", ""), "azure": ("1.6.2", ""),
    "clouddns": ("1.6.3", ""), "sign": ("1.6.3", ""), "acl": ("1.6.4", ""), "transfer": ("1.6.5", ""),
    "bufsize": ("1.6.6", ""), "dns64": ("1.7.0", ""), "local": ("1.8.1", ""), "minimal": ("1.8.4", ""),
    "geoip": ("1.8.5", ""), "header": ("1.8.5", ""), "tsig": ("1.9.4", ""), "view": ("1.10.0", ""),
    "timeouts": ("1.10.1", ""), "multisocket": ("1.12.0", ""), "quic": ("1.12.2", ""), "nomad": ("1.13.0", ""),
    "grpc_server": ("1.14.0", ""), "https": ("1.14.0", ""), "https3": ("1.14.0", ""), "proxyproto": ("1.14.3", ""),
    "shed": ("1.14.7", ""),
}  # fmt: skip
"""By plugin the first release that has it and the first release that no longer has it (empty: all newer ones do)."""

OPTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "kubernetes": {
        **dict.fromkeys(
            (
                "endpoint", "endpoint_pod_names", "fallthrough", "ignore", "labels", "namespaces", "noendpoints",
                "pods", "tls", "ttl",
            ),
            _ALWAYS,
        ),
        "resyncperiod": (FIRST, "1.7.0"), "upstream": (FIRST, "1.7.0"), "transfer": (FIRST, "1.8.0"),
        "kubeconfig": ("1.2.3", ""), "namespace_labels": ("1.5.0", ""), "multicluster": ("1.12.2", ""),
        "startup_timeout": ("1.12.3", ""), "apiserver_qps": ("1.14.0", ""), "apiserver_burst": ("1.14.0", ""),
        "apiserver_max_inflight": ("1.14.0", ""), "zonal": ("1.14.7", ""),
    },
    "forward": {
        **dict.fromkeys(
            ("except", "expire", "force_tcp", "health_check", "max_fails", "policy", "tls", "tls_servername"), _ALWAYS
        ),
        "prefer_udp": ("1.2.0", ""), "max_concurrent": ("1.6.8", ""), "next": ("1.11.4", ""),
        "failfast_all_unhealthy_upstreams": ("1.12.1", ""), "failover": ("1.13.0", ""),
        "max_connect_attempts": ("1.13.2", ""), "max_idle_conns": ("1.14.1", ""), "max_age": ("1.14.3", ""),
        "next_on_nodata": ("1.14.4", ""), "resolver": ("1.14.4", ""), "doh_method": ("1.14.5", ""),
        "read_timeout": ("1.14.5", ""), "source_address": ("1.14.6", ""),
    },
    "cache": {
        **dict.fromkeys(("success", "denial", "prefetch"), _ALWAYS),
        "serve_stale": ("1.6.6", ""), "disable": ("1.9.4", ""), "servfail": ("1.9.4", ""), "keepttl": ("1.10.1", ""),
        "serve_stale_policy": ("1.14.7", ""),
    },
    "health": {"lameduck": _ALWAYS},
    "errors": {"consolidate": ("1.2.6", ""), "stacktrace": ("1.9.3", "")},
    "k8s_external": {
        "apex": ("1.3.0", ""), "ttl": ("1.3.0", ""), "headless": ("1.9.4", ""), "fallthrough": ("1.11.0", ""),
    },
    "transfer": {"to": ("1.6.5", ""), "source": ("1.14.5", "")},
    "file": {
        "transfer": (FIRST, "1.8.0"), "no_reload": (FIRST, "1.5.0"), "reload": ("1.2.3", ""),
        "fallthrough": ("1.12.2", ""), "reload_by_mtime": ("1.14.4", ""),
    },
    "auto": {"transfer": (FIRST, "1.8.0"), "no_reload": (FIRST, "1.5.0"), "reload": ("1.2.3", "")},
    "secondary": {"upstream": (FIRST, "1.8.0"), "fallthrough": ("1.14.4", ""), "catalog": ("1.14.5", "")},
    "loadbalance": {"reload": ("1.10.1", ""), "prefer": ("1.12.4", "")},
    "hosts": {"ttl": ("1.4.0", ""), "no_reverse": ("1.4.0", ""), "reload": ("1.4.0", "")},
    "ready": {"monitor": ("1.12.2", "")},
    "prometheus": {"runtime_metrics": ("1.14.3", ""), "tls": ("1.14.3", "")},
    "template": {"ederror": ("1.10.1", "")},
    "bind": {"except": ("1.8.4", "")},
    "grpc": {"fallthrough": ("1.12.3", "")},
}  # fmt: skip
"""By plugin and option the first release that accepts it and the first release that refuses it (empty: none does)."""

WHOLE = frozenset(("kubernetes", "forward", "cache", "health", "errors", "k8s_external"))
"""The plugins of which the table has every option: another option makes CoreDNS end at its start."""


def numbers(text: str) -> Numbers:
    """What releases are compared by."""
    version = parse_version(text)
    assert version is not None, text
    return version.release


def nearest_release(version: Version) -> str:
    """The newest release that is not newer than ``version``; the first release for an older version."""
    older = [text for text in RELEASES if numbers(text) <= version.release]
    return older[-1] if older else RELEASES[0]


def has_plugin(plugin: str, release: str) -> bool:
    """Whether a release has a plugin; True for plugins that are in no table."""
    return plugin not in PLUGINS or _within(PLUGINS[plugin], release)


def accepts_option(plugin: str, option: str, release: str) -> bool:
    """Whether a release accepts an option of a plugin; True where the table does not know."""
    options = OPTIONS.get(plugin, {})
    return _within(options[option], release) if option in options else plugin not in WHOLE


def _within(span: tuple[str, str], release: str) -> bool:
    since, until = span
    return numbers(since) <= numbers(release) and (not until or numbers(release) < numbers(until))
