"""The series of a scrape of the DNS server about its caches and plugins. Pure."""

from collections.abc import Iterable, Iterator

from podwire.dns.config import DnsConfig
from podwire.dns.foreign import ForeignCaches
from podwire.dns.metrics import Series

_KINDS = ("success", "denial")


def cache_series(server: str, caches: ForeignCaches) -> Iterator[Series]:
    """The series of the caches of names outside the cluster."""
    for zone, cache in caches.by_zone():
        labels = (("server", server), ("zones", zone), ("view", ""))
        for kind, entries, hits, evictions in zip(_KINDS, cache.sizes, cache.hits, cache.evictions, strict=True):
            own = (("server", server), ("type", kind), ("zones", zone), ("view", ""))
            yield "coredns_cache_entries", own, entries
            yield "coredns_cache_hits_total", own, hits
            yield "coredns_cache_evictions_total", own, evictions
        yield "coredns_cache_requests_total", labels, sum(cache.hits) + cache.misses
        yield "coredns_cache_misses_total", labels, cache.misses
        yield "coredns_cache_prefetch_total", labels, cache.prefetches
        yield "coredns_cache_served_stale_total", labels, cache.stale_hits
        yield "coredns_cache_drops_total", labels, cache.drops


def plugin_series(server: str, config: DnsConfig) -> Iterator[Series]:
    """Which plugins are on, by zone."""
    for zone, name in dict.fromkeys(_enabled(config)):
        labels = (("server", server), ("zone", zone), ("view", ""), ("name", name))
        yield "coredns_plugin_enabled", labels, 1


def _enabled(config: DnsConfig) -> Iterable[tuple[str, str]]:
    always = ("errors", "loadbalance", "loop", "kubernetes", "forward")
    optional = {
        "cache": config.cache_seconds > 0,
        "health": config.health_port > 0,
        "hosts": bool(config.hosts),
        "log": config.query_log,
        "prometheus": config.metrics_port > 0,
        "ready": config.ready_port > 0,
        "reload": config.reload_seconds > 0,
    }
    yield from ((".", name) for name in (*always, *(name for name, on in optional.items() if on)))
    yield from ((f"{zone}.", "forward") for zone in config.stub_domains)
    for block in config.blocks:
        for zone in block.zones:
            yield from ((f"{zone}.", directive.name) for directive in block.directives)
