"""Every metric of kube-proxy: its name, type and labels, and that it counts what it should."""

import asyncio
import datetime
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cases.service_table import ADDRESSES, NODE
from tests.fakes.collection import Collection
from tests.kernel.service_namespaces import World, by_name, inside, path, until

from podwire.kernel import netns
from podwire.model import service as api
from podwire.model.node import Node
from podwire.model.service import TRIGGER_TIME_ANNOTATION
from podwire.observe.health import Health
from podwire.proxy.flows import flow_cleaner
from podwire.proxy.health import Pulse
from podwire.proxy.metrics import ProxyMetrics
from podwire.proxy.modes import ServiceModes
from podwire.proxy.report import ProxyReport
from podwire.proxy.runner import ServiceProxy, Sources
from podwire.proxy.switch import Switch
from podwire.runtime.clock import SystemClock

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

FAMILY = {"ip_family"}
EVERYWHERE: dict[str, tuple[str, set[str]]] = {
    "sync_proxy_rules_duration_seconds": ("histogram", FAMILY),
    "sync_full_proxy_rules_duration_seconds": ("histogram", FAMILY),
    "sync_partial_proxy_rules_duration_seconds": ("histogram", FAMILY),
    "network_programming_duration_seconds": ("histogram", FAMILY),
    "sync_proxy_rules_last_timestamp_seconds": ("gauge", FAMILY),
    "sync_proxy_rules_last_queued_timestamp_seconds": ("gauge", FAMILY),
    "sync_proxy_rules_service_changes_total": ("counter", FAMILY),
    "sync_proxy_rules_service_changes_pending": ("gauge", FAMILY),
    "sync_proxy_rules_endpoint_changes_total": ("counter", FAMILY),
    "sync_proxy_rules_endpoint_changes_pending": ("gauge", FAMILY),
    "sync_proxy_rules_no_local_endpoints_total": ("gauge", FAMILY | {"traffic_policy"}),
    "proxy_healthz_total": ("counter", {"code"}),
    "proxy_livez_total": ("counter", {"code"}),
    "conntrack_reconciler_sync_duration_seconds": ("histogram", FAMILY),
    "conntrack_reconciler_deleted_entries_total": ("counter", FAMILY),
    "iptables_ct_state_invalid_dropped_packets_total": ("counter", set()),
}
METRICS = {
    "nftables": EVERYWHERE
    | {
        "sync_proxy_rules_nftables_sync_failures_total": ("counter", FAMILY),
        "sync_proxy_rules_nftables_cleanup_failures_total": ("counter", FAMILY),
    },
    "iptables": EVERYWHERE
    | {
        "sync_proxy_rules_iptables_total": ("gauge", FAMILY | {"table"}),
        "sync_proxy_rules_iptables_last": ("gauge", FAMILY | {"table"}),
        "sync_proxy_rules_iptables_restore_failures_total": ("counter", FAMILY),
        "sync_proxy_rules_iptables_partial_restore_failures_total": ("counter", FAMILY),
        "iptables_localhost_nodeports_accepted_packets_total": ("counter", set()),
    },
}
FOUR = {"ip_family": "IPv4"}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        yield created


class LateSwitch(Switch):
    """Restores nothing at once: a change finds the kernel as another program left it."""

    def restore(self) -> tuple[()]:
        """Leaves all to the comparison with the kernel."""
        return ()


class Bench:
    """A whole proxy in the node's namespace, with its metrics page."""

    def __init__(self, mode: str, switch: type[Switch] = Switch) -> None:
        self.mode = mode
        clock = SystemClock()
        facts = msgspec.structs.replace(NODE, node_port_ranges=("0.0.0.0/0", "::/0"))
        self.services = Collection[api.Service]()
        self.slices = Collection[api.EndpointSlice]()
        self.nodes = Collection[Node]()
        self.plane = switch(ServiceModes(path("node")), mode, facts)
        self.pulse = Pulse(clock)
        self.metrics = ProxyMetrics(mode, clock)
        self.told: list[str] = []
        self.proxy = ServiceProxy(
            Sources(self.services, self.slices, self.nodes),
            self.plane,
            facts,
            clock,
            flow_cleaner(lambda: NODE.addresses, path("node")),
            ProxyReport(self.pulse, self.metrics, Checks(), clock, self.told.append),
        )
        for item in (self.services, self.slices, self.nodes):
            item.synced.set()

    def families(self) -> dict[str, Any]:
        health = Health()
        every = (port for ports in self.proxy.services.values() for port in ports)
        samples = list(self.metrics.samples(every, self.pulse.answered, self.plane.counts()))
        health.metrics["proxy"] = lambda: samples
        result = {f.name: f for f in text_string_to_metric_families(health.render().decode())}
        return {name.removeprefix("kubeproxy_"): family for name, family in result.items()}

    def value(self, name: str, **labels: str) -> float:
        for family in self.families().values():
            for sample in family.samples:
                if sample.name == f"kubeproxy_{name}" and labels.items() <= sample.labels.items():
                    return float(sample.value)
        raise AssertionError(f"no {name} with {labels}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.get_running_loop().create_task(self.proxy.run())
        try:
            await until(self.proxy.programmed.is_set)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.plane._plane.remove()
            self.plane.close()

    def put(self, name: str) -> Any:
        """Puts the objects of a case into the sources, with slices that changed now; returns the first slice."""
        case = by_name(name)
        now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
        annotations = {TRIGGER_TIME_ANNOTATION: now.strftime("%Y-%m-%dT%H:%M:%SZ")}
        for service in case.services:
            self.services.put(f"default/{service.metadata.name}", service)
        for piece in case.slices:
            meta = msgspec.structs.replace(piece.metadata, annotations=annotations)
            self.slices.put(f"default/{piece.metadata.name}", msgspec.structs.replace(piece, metadata=meta))
        return case.slices[0]


class Checks:
    """Ignores health check ports, which other tests cover."""

    def update(self, changed: object, *, moved: bool = False) -> None:
        """Does nothing."""


def provoked(mode: str, scenario: Any, switch: type[Switch] = Switch) -> None:
    async def run() -> None:
        bench = Bench(mode, switch)
        async with bench.running():
            await scenario(bench)

    asyncio.run(run())


@pytest.mark.parametrize("mode", METRICS)
def test_metrics_have_the_documented_names_types_and_labels(world: World, mode: str) -> None:
    async def scenario(bench: Bench) -> None:
        result = bench.families()
        reported = {
            f"{name}_total" if family.type == "counter" else name: (
                family.type,
                {label for sample in family.samples for label in sample.labels} - {"le"},
            )
            for name, family in result.items()
        }
        assert reported == METRICS[mode]

    provoked(mode, scenario)


@pytest.mark.parametrize("mode", METRICS)
def test_changes_and_commits_are_counted(world: World, mode: str) -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.value("sync_full_proxy_rules_duration_seconds_count", **FOUR) == 1
        bench.put("internalTrafficPolicy Local")
        assert bench.value("sync_proxy_rules_service_changes_pending", **FOUR) == 2
        assert bench.value("sync_proxy_rules_endpoint_changes_pending", ip_family="IPv6") == 2
        await until(bench.proxy.programmed.is_set)
        for kind in ("service", "endpoint"):
            assert bench.value(f"sync_proxy_rules_{kind}_changes_total", **FOUR) == 2
            assert bench.value(f"sync_proxy_rules_{kind}_changes_pending", **FOUR) == 0
        assert bench.value("sync_partial_proxy_rules_duration_seconds_count", **FOUR) >= 1
        assert bench.value("sync_proxy_rules_duration_seconds_count", **FOUR) >= 2
        assert bench.value("network_programming_duration_seconds_count", **FOUR) == 2
        queued = bench.value("sync_proxy_rules_last_queued_timestamp_seconds", **FOUR)
        assert 0 < queued <= bench.value("sync_proxy_rules_last_timestamp_seconds", **FOUR)
        policy = "sync_proxy_rules_no_local_endpoints_total"
        assert bench.value(policy, traffic_policy="internal", **FOUR) == 1
        assert bench.value(policy, traffic_policy="external", **FOUR) == 0

    provoked(mode, scenario)


@pytest.mark.parametrize("mode", METRICS)
def test_deleted_stale_flows_are_counted(world: World, mode: str) -> None:
    async def scenario(bench: Bench) -> None:
        piece = bench.put("ports and protocols are independent")
        await until(bench.proxy.programmed.is_set)
        before = bench.value("conntrack_reconciler_sync_duration_seconds_count", **FOUR)
        with netns.inside(path("far")), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(20)
            client.connect(("10.96.0.10", 53))
            client.send(b"x")
            assert client.recv(100).split()[0] == b"two"
        other = msgspec.structs.replace(piece.endpoints[0], addresses=(ADDRESSES["one"][0],))
        bench.slices.put("default/web-0", msgspec.structs.replace(piece, endpoints=(other,)))
        await until(lambda: bench.value("conntrack_reconciler_deleted_entries_total", **FOUR) == 1)
        assert bench.value("conntrack_reconciler_deleted_entries_total", ip_family="IPv6") == 0
        assert bench.value("conntrack_reconciler_sync_duration_seconds_count", **FOUR) == before + 1

    provoked(mode, scenario)


@pytest.mark.parametrize("mode", METRICS)
def test_requests_of_health_pages_are_counted(world: World, mode: str) -> None:
    async def scenario(bench: Bench) -> None:
        bench.pulse.livez()
        bench.pulse.healthz(None)
        bench.pulse.healthz(Node())
        assert bench.value("proxy_livez_total", code="200") == 1
        assert bench.value("proxy_healthz_total", code="503") == 1
        assert bench.value("proxy_healthz_total", code="200") == 1

    provoked(mode, scenario)


def test_refused_updates_of_nftables_are_counted(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        bench.put("NodePort with policy Cluster")
        await until(bench.proxy.programmed.is_set)
        inside("node", "nft", "flush", "map", "ip", "podwire-proxy", "node-ports")
        bench.services.put("default/web", None)
        await until(bench.proxy.programmed.is_set)
        assert bench.value("sync_proxy_rules_nftables_sync_failures_total", **FOUR) == 1
        assert bench.value("sync_proxy_rules_nftables_cleanup_failures_total", **FOUR) == 0
        bench.put("NodePort with policy Cluster")
        await until(bench.proxy.programmed.is_set)
        inside("node", "nft", "flush", "map", "ip", "podwire-proxy", "node-port-endpoints")
        bench.services.put("default/web", None)
        await until(bench.proxy.programmed.is_set)
        assert bench.value("sync_proxy_rules_nftables_cleanup_failures_total", **FOUR) == 1
        assert bench.told == []

    provoked("nftables", scenario, LateSwitch)


class WithoutRepairs(Switch):
    """Leaves to the comparison of all rules what other programs changed, as if they were noticed later."""

    def repair(self) -> tuple[str, ...]:
        return ()


def test_rules_and_refused_updates_of_iptables_are_counted(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        nat = {"table": "nat"} | FOUR
        before = bench.value("sync_proxy_rules_iptables_total", **nat)
        bench.put("NodePort with policy Cluster")
        await until(bench.proxy.programmed.is_set)
        saved = inside("node", "iptables-save", "-t", "nat").count("\n-A ")
        assert bench.value("sync_proxy_rules_iptables_total", **nat) == saved > before
        assert 0 < bench.value("sync_proxy_rules_iptables_last", **nat) <= saved
        inside("node", "iptables", "-t", "nat", "-F", "KUBE-NODEPORTS")
        bench.services.put("default/web", None)
        await until(bench.proxy.programmed.is_set)
        assert bench.value("sync_proxy_rules_iptables_partial_restore_failures_total", **FOUR) == 1
        assert bench.value("sync_proxy_rules_iptables_restore_failures_total", **FOUR) == 0
        assert bench.value("sync_proxy_rules_iptables_total", **nat) == before

    provoked("iptables", scenario, WithoutRepairs)


def test_connections_to_node_ports_on_loopback_are_counted(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        bench.put("NodePort with policy Cluster")
        await until(bench.proxy.programmed.is_set)
        before = bench.value("iptables_localhost_nodeports_accepted_packets_total")
        assert (await asyncio.to_thread(world.connect, "node", "127.0.0.1", 30080))[0] in ("two", "far")
        assert bench.value("iptables_localhost_nodeports_accepted_packets_total") == before + 1

    provoked("iptables", scenario)
