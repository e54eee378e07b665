"""The proxy's metrics under kube-proxy's names, so that dashboards and alerts need no change.

Names, buckets and meanings are those of pkg/proxy/metrics. One commit programs both families, so metrics of commits
have the same value for both values of ``ip_family``. ``network_programming_duration_seconds`` is the time from the
change of a pod's readiness (an annotation that the EndpointSlice controller writes, in whole seconds) until the kernel
has the rules; changes from before the start of the agent are not counted.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from podwire.model.service import TRIGGER_TIME_ANNOTATION, EndpointSlice
from podwire.observe.distribution import Distribution, Histogram, doubling_bounds
from podwire.observe.health import Metric, Sample
from podwire.proxy.dataplane import INVALID_DROPPED, LOCALHOST_ACCEPTED, Counts
from podwire.proxy.servicemap import ResolvedPort
from podwire.runtime.clock import Clock, parse_rfc3339

FAMILIES = ("IPv4", "IPv6")

_NO_COUNTS = Counts()
_SYNC_BOUNDS = doubling_bounds(0.001, 15)
_PROGRAMMING_BOUNDS = tuple(chain((0.25, 0.5), range(1, 60), range(60, 120, 5), range(120, 330, 30)))
_KINDS = {"ip": "IPv4", "ip6": "IPv6"}
_PACKETS = {
    INVALID_DROPPED: ("ct_state_invalid_dropped_packets", "Invalid packets that were dropped."),
    LOCALHOST_ACCEPTED: ("localhost_nodeports_accepted_packets", "Connections to node ports on loopback."),
}


class ProxyMetrics:
    """The metrics of the proxy; ``mode`` is the data plane."""

    def __init__(self, mode: str, clock: Clock) -> None:
        self.mode = mode
        self._clock = clock
        self._started = clock.now()
        self._durations = {kind: Distribution(_SYNC_BOUNDS) for kind in ("", "full_", "partial_")}
        self._programming = {family: Distribution(_PROGRAMMING_BOUNDS) for family in FAMILIES}
        self._conntrack = {family: Distribution(_SYNC_BOUNDS) for family in FAMILIES}
        self._forgotten = dict.fromkeys(FAMILIES, 0)
        self._queued: datetime.datetime | None = None
        self._committed: datetime.datetime | None = None
        self._changes = {(kind, family): 0 for kind in ("service", "endpoint") for family in FAMILIES}
        self._pending = dict.fromkeys(self._changes, 0)
        self._triggers: list[tuple[str, datetime.datetime]] = []
        self._failures = 0

    def service_changed(self) -> None:
        """A Service changed."""
        self._queued = self._clock.now()
        for family in FAMILIES:
            self._count("service", family)

    def endpoints_changed(self, endpoint_slice: EndpointSlice) -> None:
        """An EndpointSlice was added, changed or removed."""
        self._queued = self._clock.now()
        family = endpoint_slice.address_type
        if family not in FAMILIES:
            return
        self._count("endpoint", family)
        trigger = _instant(endpoint_slice.metadata.annotations.get(TRIGGER_TIME_ANNOTATION, ""))
        if trigger is not None and trigger > self._started:
            self._triggers.append((family, trigger))

    def _count(self, kind: str, family: str) -> None:
        self._changes[kind, family] += 1
        self._pending[kind, family] += 1

    def take(self) -> "Pending":
        """Removes and returns the pending changes, for the next commit."""
        pending = Pending(dict(self._pending), self._triggers)
        self._pending = dict.fromkeys(self._pending, 0)
        self._triggers = []
        return pending

    def committed(self, pending: "Pending", duration_s: float, *, full: bool) -> None:
        """A commit took effect."""
        now = self._committed = self._clock.now()
        self._durations[""].observe(duration_s)
        self._durations["full_" if full else "partial_"].observe(duration_s)
        for family, trigger in pending.triggers:
            self._programming[family].observe(max(0.0, (now - trigger).total_seconds()))

    def refused(self, pending: "Pending") -> None:
        """A commit failed; its changes are pending again."""
        self._failures += 1
        for key, count in pending.changes.items():
            self._pending[key] += count
        self._triggers = pending.triggers + self._triggers

    def flows_forgotten(self, counts: Mapping[str, int], duration_s: float) -> None:
        """Stale flows of both families were searched and deleted."""
        for family in FAMILIES:
            self._forgotten[family] += counts.get(family, 0)
            self._conntrack[family].observe(duration_s)

    def samples(
        self, ports: Iterable[ResolvedPort], answered: dict[tuple[str, int], int], counts: Counts = _NO_COUNTS
    ) -> Iterator[Metric]:
        """All metrics; ``ports`` are those programmed, ``answered`` as in :class:`podwire.proxy.health.Pulse`."""
        yield from self._of_commits()
        yield from self._of_changes()
        yield from self._of_refusals(counts)
        yield from _of_counts(counts)
        yield from _no_local_endpoints(ports)
        for family in FAMILIES:
            labels = {"ip_family": family}
            name = "kubeproxy_conntrack_reconciler"
            text = "Time of one search for stale flows."
            yield self._conntrack[family].histogram(f"{name}_sync_duration_seconds", text, labels)
            text = "Stale flows that were deleted."
            yield Sample(f"{name}_deleted_entries_total", text, self._forgotten[family], labels, "counter")
        for page in ("healthz", "livez"):
            for (name, code), count in sorted({(page, 200): 0, (page, 503): 0, **answered}.items()):
                if name == page:
                    text = f"Answers of /{page} by HTTP status."
                    yield Sample(f"kubeproxy_proxy_{page}_total", text, count, {"code": str(code)}, "counter")

    def _of_commits(self) -> Iterator[Metric]:
        prefix = "kubeproxy_sync_"
        for family in FAMILIES:
            labels = {"ip_family": family}
            for kind, durations in self._durations.items():
                text = f"Time of one {kind.strip('_') or 'any'} commit of rules."
                yield durations.histogram(f"{prefix}{kind}proxy_rules_duration_seconds", text, labels)
            yield self._programmed(family)
            for name, text, instant in (
                ("last_timestamp_seconds", "When rules were last committed.", self._committed),
                ("last_queued_timestamp_seconds", "When the last change was received.", self._queued),
            ):
                value = instant.timestamp() if instant is not None else 0.0
                yield Sample(f"{prefix}proxy_rules_{name}", text, value, labels)

    def _of_refusals(self, counts: Counts) -> Iterator[Sample]:
        """The counters of kube-proxy: in iptables separate for updates and loads, in nftables separate for removals."""
        counters: dict[str, tuple[str, int]] = {}
        if self.mode == "nftables":
            everything = self._failures + counts.refused_updates
            counters["nftables_sync_failures_total"] = ("Commits that the kernel refused.", everything)
            text = "Removals after a commit that the kernel refused."
            counters["nftables_cleanup_failures_total"] = (text, counts.refused_removals)
        elif self.mode in ("iptables", "ipvs"):
            counters["iptables_restore_failures_total"] = ("Commits that the kernel refused.", self._failures)
            text = "Updates that the kernel refused and that a full load followed."
            counters["iptables_partial_restore_failures_total"] = (text, counts.refused_updates)
        for name, (text, count) in counters.items():
            for family in FAMILIES:
                yield Sample(f"kubeproxy_sync_proxy_rules_{name}", text, count, {"ip_family": family}, "counter")

    def _programmed(self, family: str) -> Histogram:
        return self._programming[family].histogram(
            "kubeproxy_network_programming_duration_seconds",
            "Time from the change of a pod or Service until rules are in force.",
            {"ip_family": family},
        )

    def _of_changes(self) -> Iterator[Sample]:
        for (kind, family), count in self._changes.items():
            name, labels = f"kubeproxy_sync_proxy_rules_{kind}_changes", {"ip_family": family}
            yield Sample(f"{name}_total", f"Changes of {kind}s that were received.", count, labels, "counter")
            waiting = self._pending[kind, family]
            yield Sample(f"{name}_pending", f"Changes of {kind}s that are not programmed yet.", waiting, labels)


class Pending:
    """The changes of one commit."""

    def __init__(self, changes: dict[tuple[str, str], int], triggers: list[tuple[str, datetime.datetime]]) -> None:
        self.changes = changes
        self.triggers = triggers


def _of_counts(counts: Counts) -> Iterator[Sample]:
    for (family, table), numbers in counts.rules.items():
        labels = {"ip_family": _KINDS[family], "table": table}
        texts = {"total": "Rules of iptables.", "last": "Rules of iptables that the last change wrote."}
        for (name, text), number in zip(texts.items(), numbers, strict=True):
            yield Sample(f"kubeproxy_sync_proxy_rules_iptables_{name}", text, number, labels)
    for key, count in counts.packets.items():
        name, text = _PACKETS[key]
        yield Sample(f"kubeproxy_iptables_{name}_total", text, count, kind="counter")


def _no_local_endpoints(ports: Iterable[ResolvedPort]) -> Iterator[Sample]:
    """The number of ports with a Local traffic policy and endpoints, but none on this node."""
    counts = {(policy, family): 0 for policy in ("internal", "external") for family in FAMILIES}
    for port in ports:
        if port.has_endpoints and not port.local_endpoints:
            family = "IPv6" if port.family == "ip6" else "IPv4"
            counts["internal", family] += port.internal_local
            counts["external", family] += port.external_local
    for (policy, family), count in counts.items():
        yield Sample(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "Ports of Services with a Local traffic policy and no endpoint on this node.",
            count,
            {"ip_family": family, "traffic_policy": policy},
        )


def _instant(text: str) -> datetime.datetime | None:
    try:
        return parse_rfc3339(text) if text else None
    except ValueError:
        return None
