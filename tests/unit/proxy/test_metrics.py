"""The metrics under kube-proxy's names, through the text that a scraper reads."""

import asyncio

from tests.fakes.clock import FakeClock

from podwire.model import service as api
from podwire.model.meta import ObjectMeta
from podwire.model.service import TRIGGER_TIME_ANNOTATION
from podwire.observe.health import Health
from podwire.proxy.metrics import ProxyMetrics
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort


def piece(trigger: str = "", family: str = "IPv4") -> api.EndpointSlice:
    annotations = {TRIGGER_TIME_ANNOTATION: trigger} if trigger else {}
    return api.EndpointSlice(metadata=ObjectMeta(name="web-1", annotations=annotations), address_type=family)


class Page:
    """Metrics as text."""

    def __init__(self, mode: str = "nftables") -> None:
        self.clock = FakeClock()
        self.metrics = ProxyMetrics(mode, self.clock)
        self.ports: list[ResolvedPort] = []
        self.answered: dict[tuple[str, int], int] = {}

    def __getitem__(self, name: str) -> float:
        health = Health()
        health.metrics["proxy"] = lambda: self.metrics.samples(self.ports, self.answered)
        lines = health.render().decode().splitlines()
        results = [line for line in lines if line.startswith(f"kubeproxy_{name} ")]
        assert len(results) == 1, (name, [line for line in lines if name.partition("{")[0] in line])
        return float(results[0].rpartition(" ")[2])


def test_changes_wait_until_they_are_programmed() -> None:
    page = Page()

    def changes(kind: str) -> list[float]:
        name = f"sync_proxy_rules_{kind}_changes"
        return [page[f'{name}_{subject}{{ip_family="IPv4"}}'] for subject in ("total", "pending")]

    for _ in range(3):
        page.metrics.service_changed()
    page.metrics.endpoints_changed(piece())
    page.metrics.endpoints_changed(piece(family="FQDN"))
    assert (changes("service"), changes("endpoint")) == ([3, 3], [1, 1])
    carried = page.metrics.take()
    page.metrics.endpoints_changed(piece())
    page.metrics.refused(carried)
    assert changes("endpoint") == [2, 2]
    assert page['sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"}'] == 1
    page.metrics.committed(page.metrics.take(), 0.002, full=False)
    assert (changes("service"), changes("endpoint")) == ([3, 0], [2, 0])


def test_durations_and_instants() -> None:
    page = Page()

    async def scenario() -> None:
        await page.clock.advance(5)
        page.metrics.service_changed()
        await page.clock.advance(1)
        page.metrics.committed(page.metrics.take(), 0.003, full=True)
        page.metrics.committed(page.metrics.take(), 0.001, full=False)

    asyncio.run(scenario())
    start = FakeClock().now().timestamp()
    family = '{ip_family="IPv4"}'
    assert page[f"sync_proxy_rules_last_queued_timestamp_seconds{family}"] == start + 5
    assert page[f"sync_proxy_rules_last_timestamp_seconds{family}"] == start + 6
    assert page[f"sync_proxy_rules_duration_seconds_count{family}"] == 2
    assert page[f"sync_full_proxy_rules_duration_seconds_sum{family}"] == 0.003
    assert page['sync_partial_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="0.001"}'] == 1


def test_programming_latency_starts_at_the_pod_change() -> None:
    page = Page()

    async def scenario() -> None:
        await page.clock.advance(10)
        for trigger in ("2026-01-01T00:00:08Z", "2025-12-31T00:00:00Z", "yesterday", ""):
            page.metrics.endpoints_changed(piece(trigger, "IPv6"))
        page.metrics.committed(page.metrics.take(), 0.003, full=False)

    asyncio.run(scenario())
    name = "network_programming_duration_seconds"
    assert page[f'{name}_count{{ip_family="IPv6"}}'] == 1
    assert page[f'{name}_sum{{ip_family="IPv6"}}'] == 2
    assert page[f'{name}_bucket{{ip_family="IPv6",le="1.0"}}'] == 0
    assert page[f'{name}_bucket{{ip_family="IPv6",le="2.0"}}'] == 1
    assert page[f'{name}_count{{ip_family="IPv4"}}'] == 0


def test_ports_without_local_endpoints_and_the_rest() -> None:
    page = Page("iptables")

    def port(family: str, **more: object) -> ResolvedPort:
        return ResolvedPort(service="a/b", port_name="", protocol="tcp", family=family, port=80, cluster_ip="",
                           has_endpoints=True, **more)  # type: ignore[arg-type]  # fmt: skip

    here = (ResolvedEndpoint("10.0.0.1", 80, True),)
    page.ports = [
        port("ip", internal_local=True), port("ip", external_local=True), port("ip6", external_local=True),
        port("ip", internal_local=True, local_endpoints=here), port("ip"),
    ]  # fmt: skip
    name = "sync_proxy_rules_no_local_endpoints_total"
    assert page[f'{name}{{ip_family="IPv4",traffic_policy="internal"}}'] == 1
    assert page[f'{name}{{ip_family="IPv4",traffic_policy="external"}}'] == 1
    assert page[f'{name}{{ip_family="IPv6",traffic_policy="external"}}'] == 1
    assert page['sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv4"}'] == 0
    page.metrics.flows_forgotten({"IPv4": 7, "IPv6": 2}, 0.01)
    page.answered = {("healthz", 200): 3, ("livez", 503): 1}
    assert page['conntrack_reconciler_deleted_entries_total{ip_family="IPv4"}'] == 7
    assert page['conntrack_reconciler_deleted_entries_total{ip_family="IPv6"}'] == 2
    assert page['conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv4"}'] == 1
    assert page['proxy_healthz_total{code="200"}'] == 3
    assert page['proxy_livez_total{code="503"}'] == 1
