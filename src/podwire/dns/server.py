"""The DNS server: puts zone, watch, sockets, forwarding, probes and metrics together.

The server starts to answer when Services, EndpointSlices and Namespaces are listed, or after two seconds. As long as
the lists are missing, an unknown name is SERVFAIL and not NXDOMAIN, and ``/ready`` names the missing lists. While the
API cannot be reached, the server answers from memory. When the answering process dies, requests wait in its sockets for
the next process (:func:`serve`), which starts at once from the snapshot of the last one.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from operator import itemgetter

from podwire.dns.apicalls import ApiCalls
from podwire.dns.config import DnsConfig
from podwire.dns.follow import LoadConfig, follow_config
from podwire.dns.healthchecks import HealthPageChecks
from podwire.dns.metrics import QueryCounters, Series, render
from podwire.dns.notices import ZoneNotices
from podwire.dns.plugins.chain import PluginChain
from podwire.dns.plugins.plugin import PluginScope
from podwire.dns.plugins.secondary import Secondary
from podwire.dns.plugins.staticzone import StaticZone
from podwire.dns.querylog import QueryLog
from podwire.dns.relay import ForeignRelay
from podwire.dns.replies import ReplyCache
from podwire.dns.scrape import cache_series, plugin_series
from podwire.dns.snapshot import Snapshot
from podwire.dns.sockets import Bound, bind, check_right, served_addresses, take_queries, usable
from podwire.dns.streams import serving_context
from podwire.dns.tcp import TcpLimits, TcpListener
from podwire.dns.udp import UdpListener
from podwire.dns.watch import ZoneWatch
from podwire.dns.zone import Zone, zone_options
from podwire.http.answer import Handler
from podwire.http.message import METRICS_TEXT, PROBE_LIMITS, Request, Response, text_response
from podwire.http.routes import dispatch
from podwire.http.server import HttpServer
from podwire.kube.client import Client
from podwire.kube.config import load
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.runtime.foreground import run_until_signal
from podwire.runtime.keeper import keep_worker
from podwire.runtime.supervise import Supervisor
from podwire.runtime.tasks import TaskSet

_LISTS_WAIT_S = 2.0
_LISTS_CHECK_S = 0.05
_LEAVING_S = 0.5
"""For how long the server of a node answers at least when no new query is led to it: the queries under way."""


class DnsServer:
    """Zone, listeners and forwarding; ``open`` starts them on the running loop, ``close`` ends them."""

    def __init__(self, config: DnsConfig, clock: Clock, *, tcp: TcpLimits | None = None) -> None:
        self.config = config
        self._tcp_limits = tcp or TcpLimits()
        self.log = Log("dns")
        self.zone = Zone(zone_options(config, served_addresses(config.listen)))
        self._clock = clock
        self.counters = QueryCounters(f"dns://:{config.port}")
        self.relay = ForeignRelay(config, clock, self.counters)
        self.copies: dict[bytes, StaticZone] = {}
        """The zones that are copied from other servers."""
        self.relay.chain = self._make_chain() if config.blocks else None
        self._notices = ZoneNotices(self.relay.chain) if self.relay.chain is not None else None
        self.age_s: Callable[[], float] = lambda: 0.0
        """For how long the zone was not compared with the API."""
        self.measured: tuple[Callable[[], Iterable[Series]], ...] = ()
        """Series of what surrounds the server."""
        self._udp: list[UdpListener] = []
        self._tcp: list[TcpListener] = []

    async def open(self, sockets: Sequence[Bound] | None = None) -> None:
        """Serves on bound sockets and closes them at the end; None binds every configured address.

        Raises: OSError when an address cannot be bound; ConfigError for the files of TLS.
        """
        config = self.config
        context = serving_context(config.serving_tls, "podwire dns") if config.tls_port else None
        for bound in bind(config.listen, config.port, tls_port=config.tls_port) if sockets is None else sockets:
            log = QueryLog(config.query_log_format, config.query_log_classes) if config.query_log else None
            replies = ReplyCache(self.zone, self.counters, "udp", udp_size=config.udp_size, log=log)
            tcp_replies = ReplyCache(self.zone, self.counters, "tcp", log=log)
            for cache in (replies, tcp_replies):
                cache.chain, cache.server = self.relay.chain, bound.udp.getsockname()[:2]
            udp = UdpListener(replies, self.relay, config.udp_size)
            udp.open(bound.udp)
            self._udp.append(udp)
            await self._listen(tcp_replies, bound.tcp)
            if bound.tls is not None:
                await self._listen(tcp_replies, bound.tls, context)
        self.relay.start()
        if self._notices is not None:
            self._notices.start()

    async def _listen(self, replies: ReplyCache, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        tcp = TcpListener(replies, self.relay.forward, self._clock, self._tcp_limits)
        self._tcp.append(tcp)
        await tcp.open(bound, tls)

    @property
    def port(self) -> int:
        """The port bound on the first address."""
        return self._udp[0].port

    def report(self) -> None:
        """Logs what is served."""
        servers = ",".join(f"{a}:{p}" for a, p in self.relay.routes.default.servers) or "none"
        self.log.info("serving", domain=self.config.domain, port=self.port, upstreams=servers)

    async def close(self) -> None:
        """Ends threads, sockets and waiting requests."""
        if self._notices is not None:
            await self._notices.close()
        for udp in self._udp:
            await udp.close()
        for tcp in self._tcp:
            await tcp.close()
        await self.relay.close()

    def _make_chain(self) -> PluginChain:
        scope = PluginScope(
            zones=(),
            cluster=self.zone,
            domain=self.config.domain,
            pods=self.config.pods,
            files=self.config.files,
            transferred=self.copies,
            host_name=socket.gethostname(),
            version=_version(),
        )
        return PluginChain(self.config, scope, self.relay.look_up)

    def follow_copies(self, supervisor: Supervisor) -> None:
        """Starts to copy the zones of other servers, if there are any."""
        plugins = self.relay.chain.plugin("secondary") if self.relay.chain is not None else ()
        for plugin in plugins:
            if isinstance(plugin, Secondary):
                # dnspython is imported only where a zone is copied.
                from podwire.dns.secondaries import secondary_zones

                zones = secondary_zones(plugin.sources, self.copies, self._copied)
                notices = {zone.origin: zone.notice for zone in zones}
                plugin.on_notice = partial(_pass_on, asyncio.get_running_loop(), notices)
                for zone in zones:
                    supervisor.start("copy a zone", partial(zone.follow, self._clock))

    def _copied(self, zone: bytes) -> None:
        self.forget()
        if self._notices is not None and zone in self.copies:
            self._notices.changed(zone)

    def forget(self) -> None:
        """Drops the cached replies; to be called after a change of the zone."""
        for replies in self._replies():
            replies.forget()

    def _replies(self) -> list[ReplyCache]:
        return list(dict.fromkeys([udp.replies for udp in self._udp] + [tcp.replies for tcp in self._tcp]))

    def tcp_connections(self) -> int:
        """The number of open TCP connections."""
        return sum(tcp.connections() for tcp in self._tcp)

    def metrics(self) -> bytes:
        """All counters as text."""
        series: list[Series] = [
            *self.counters.series(),
            ("coredns_build_info", (("version", _version()), ("goversion", ""), ("revision", "")), 1),
            ("coredns_panics_total", (), sum(udp.failures for udp in self._udp)),
            ("coredns_hosts_entries", (), len(self.zone.host_names)),
            *cache_series(self.counters.server, self.relay.caches),
            *plugin_series(self.counters.server, self.config),
            *self.relay.routes.series(),
            *self.relay.series(),
            *(series for measured in self.measured for series in measured()),
            ("podwire_dns_services", (), self.zone.index.service_count()),
            ("podwire_dns_kept_replies", (), sum(len(replies.by_request) for replies in self._replies())),
            ("podwire_dns_tcp_connections", (), self.tcp_connections()),
            ("podwire_dns_tcp_connections_cut_total", (), sum(tcp.cut_for_room for tcp in self._tcp)),
            ("podwire_dns_snapshot_age_seconds", (), self.age_s()),
            ("podwire_dns_synced", (), int(self.zone.index.synced)),
        ]
        return render(series)


def _pass_on(loop: asyncio.AbstractEventLoop, notices: Mapping[bytes, Callable[[], None]], zone: bytes) -> None:
    loop.call_soon_threadsafe(notices[zone])


def _version() -> str:
    try:
        return version("podwire")
    except PackageNotFoundError:
        return "unknown"


def serve(
    config: DnsConfig, clock: Clock, *, serving: Callable[[], None] = lambda: None, load: LoadConfig | None = None
) -> None:
    """Serves as the whole of a process, in a worker that is replaced when it dies; no request is refused in between.

    ``serving`` is called once the sockets take requests. ``load`` reads the configuration again, if it may change.

    Raises: ConfigError when no API server is configured, or without the right that ``node_local`` needs; OSError when a
    port is taken.
    """
    if config.node_local:
        check_right()
    if config.tls_port:
        serving_context(config.serving_tls, "podwire dns")
    sockets = bind(config.listen, config.port, tls_port=config.tls_port, early=config.node_local)
    snapshot = Snapshot()
    serving()
    keep_worker()
    settings = snapshot.saved_config() or config
    run_until_signal(lambda: run(settings, clock, sockets, snapshot, load))


async def run(
    config: DnsConfig,
    clock: Clock,
    sockets: Sequence[Bound] | None = None,
    snapshot: Snapshot | None = None,
    load_config: LoadConfig | None = None,
) -> None:
    """Serves on bound sockets until cancelled; then is not ready for ``lameduckSeconds`` and stops.

    Raises: ConfigError when no API server is configured; OSError when a port of the pages is taken.
    """
    server = DnsServer(config, clock)
    client = Client(load(config.kubeconfig or None, os.environ), clock, manager="podwire-dns")
    watch = ZoneWatch(server.zone, client, server.forget, pods=config.pods == "verified", snapshot=snapshot)
    checks, calls = HealthPageChecks(clock, server.counters.total), ApiCalls(client.config.url.netloc)
    client.connections.observe = calls.observe
    server.age_s = watch.age_s
    server.measured = (watch.programming.series, calls.series, *((checks.series,) if config.health_port else ()))
    leaving = False

    def ready(_: Request) -> Response:
        missing = ("leaving",) if leaving else watch.unsynced()
        return text_response(503, " ".join(missing)) if missing else text_response(200, "OK")

    tasks = TaskSet(lambda name, error: server.log.error("request failed", task=name, failure=error))
    https = [
        (port, HttpServer(dispatch({path: handler}), tasks, clock, PROBE_LIMITS))
        for port, path, handler in _pages(server, ready)
    ]
    addresses, led = usable(config.page_addresses), tuple(sockets or ()) if config.node_local else ()
    try:
        for address in addresses:
            for port, http in filter(itemgetter(0), https):
                await http.listen(address, port)
        async with Supervisor(clock, lambda name, error: server.log.error(name, failure=error)) as supervisor:
            watch.start(supervisor)
            if config.health_port and addresses:
                supervisor.start("ask for the health", partial(checks.run, addresses[0], config.health_port))
            await watch.synced(_LISTS_WAIT_S)
            await server.open(sockets)
            server.follow_copies(supervisor)
            if load_config is not None and snapshot is not None and config.reload_seconds:
                supervisor.start(
                    "follow the configuration",
                    partial(follow_config, load_config, config, snapshot, server.relay.routes.pending, clock),
                )
            if led:
                supervisor.start("take queries", partial(_take_when_listed, watch, led, clock))
            server.report()
    except asyncio.CancelledError:
        leaving = True
        take_queries(led, enabled=False)
        await clock.sleep(max(config.lameduck_seconds, _LEAVING_S if led else 0.0))
        raise
    finally:
        for _, http in https:
            await http.close()
        await tasks.close()
        await server.close()
        await client.close()


def _pages(server: DnsServer, ready: Handler) -> tuple[tuple[int, str, Handler], ...]:
    """Port, path and handler of health, readiness and metrics."""
    config = server.config
    return (
        (config.health_port, "/health", lambda _: text_response(200, "OK")),
        (config.ready_port, "/ready", ready),
        (config.metrics_port, "/metrics", lambda _: Response(200, server.metrics(), METRICS_TEXT)),
    )


async def _take_when_listed(watch: ZoneWatch, sockets: Sequence[Bound], clock: Clock) -> None:
    """Lets the kernel lead queries of the node's pods to the sockets, once every name is known."""
    while watch.unsynced():
        await clock.sleep(_LISTS_CHECK_S)
    take_queries(sockets, enabled=True)
