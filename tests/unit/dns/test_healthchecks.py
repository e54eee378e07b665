"""The server's requests to its own page for health, and their series in a scrape of the whole server."""

import asyncio
from pathlib import Path

import yaml
from tests.fakes import hostile_objects as hostile
from tests.fakes.clock import FakeClock
from tests.fakes.listing_api import ListingApi, play
from tests.fakes.ports import free_port
from tests.unit.dns.test_scrape import rows

from podwire.dns import server as dns_server
from podwire.dns.config import DnsConfig
from podwire.dns.healthchecks import HealthPageChecks
from podwire.http.client import connect, encode_request
from podwire.kube.client import Client
from podwire.runtime.clock import SystemClock

_LABELS = {
    "coredns_health_request_duration_seconds_bucket": ["le"],
    "coredns_health_request_duration_seconds_sum": [],
    "coredns_health_request_duration_seconds_count": [],
    "coredns_health_request_failures_total": [],
    "coredns_kubernetes_dns_programming_duration_seconds_bucket": ["service_kind", "le"],
    "coredns_kubernetes_dns_programming_duration_seconds_sum": ["service_kind"],
    "coredns_kubernetes_dns_programming_duration_seconds_count": ["service_kind"],
    "coredns_kubernetes_rest_client_request_duration_seconds_bucket": ["verb", "host", "le"],
    "coredns_kubernetes_rest_client_request_duration_seconds_sum": ["verb", "host"],
    "coredns_kubernetes_rest_client_request_duration_seconds_count": ["verb", "host"],
    "coredns_kubernetes_rest_client_rate_limiter_duration_seconds_bucket": ["verb", "host", "le"],
    "coredns_kubernetes_rest_client_rate_limiter_duration_seconds_sum": ["verb", "host"],
    "coredns_kubernetes_rest_client_rate_limiter_duration_seconds_count": ["verb", "host"],
    "coredns_kubernetes_rest_client_requests_total": ["code", "method", "host"],
}


def totals(checks: HealthPageChecks) -> tuple[float, float]:
    """Requests and failures."""
    series = {name: value for name, labels, value in checks.series() if not labels}
    return series["coredns_health_request_duration_seconds_count"], series["coredns_health_request_failures_total"]


def test_refused_and_broken_requests_are_failures() -> None:
    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def body() -> None:
        checks = HealthPageChecks(SystemClock(), lambda: 0)
        await checks.check("127.0.0.1", free_port())
        assert totals(checks) == (1, 1)
        async with await asyncio.start_server(close, "127.0.0.1", 0) as breaking:
            await checks.check("127.0.0.1", breaking.sockets[0].getsockname()[1])
        assert totals(checks) == (2, 2)

    asyncio.run(body())


def test_requests_are_rarer_while_no_query_arrives() -> None:
    async def body() -> None:
        clock, queries, port = FakeClock(), [0], free_port()
        checks = HealthPageChecks(clock, lambda: queries[0])
        running = asyncio.create_task(checks.run("127.0.0.1", port))

        async def after(seconds: int, arriving: int) -> float:
            for _ in range(seconds):
                queries[0] += arriving
                await clock.advance(1)
                await asyncio.sleep(0.01)
            return totals(checks)[0]

        assert await after(1, arriving=0) == 1
        assert await after(20, arriving=0) == 3
        assert await after(5, arriving=1) == 8
        assert await after(9, arriving=0) == 8
        assert await after(1, arriving=0) == 9
        running.cancel()
        await asyncio.wait((running,))

    asyncio.run(body())


async def scrape(port: int) -> str:
    """The metrics page."""
    while True:
        try:
            connection = await connect("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        connection.send(encode_request("GET", "/metrics", (("host", "localhost"),)))
        await connection.head()
        text = (await connection.body()).decode()
        connection.abort()
        return text


def test_scrape_of_the_server_has_health_and_programming(tmp_path: Path) -> None:
    async def scenario(_: ListingApi, client: Client) -> None:
        kubeconfig = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": client.config.server}}],
            "users": [{"name": "u", "user": {}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
        config = DnsConfig(
            listen=("127.0.0.1",),
            port=free_port(),
            health_port=free_port(),
            ready_port=free_port(),
            metrics_port=free_port(),
            resolv_conf="/nonexistent",
            kubeconfig=str(tmp_path / "kubeconfig"),
        )
        serving = asyncio.create_task(dns_server.run(config, SystemClock()))
        asked = 0.0
        while not asked:
            await asyncio.sleep(0.05)
            listed = rows(await scrape(config.metrics_port))
            asked = sum(value for name, _, value in listed if name == "coredns_health_request_duration_seconds_count")
        own = {name: list(labels) for name, labels, _ in listed if name in _LABELS}
        assert own == _LABELS
        failures = [value for name, _, value in listed if name == "coredns_health_request_failures_total"]
        assert failures == [0]
        serving.cancel()
        await asyncio.wait((serving,))

    play({"services": [hostile.SERVICE], "namespaces": [hostile.NAMESPACE]}, scenario)
