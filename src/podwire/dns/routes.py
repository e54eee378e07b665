"""Which upstream servers are asked for which names: stub domains by the longest match, all other names by default."""

from collections.abc import Iterable

from podwire.dns.config import DnsConfig, ForwardConfig
from podwire.dns.exchange import Address
from podwire.dns.forward import Forwarder, ForwardOptions, parse_upstream, read_resolv_conf
from podwire.dns.metrics import Series
from podwire.dns.names import encode_name
from podwire.runtime.clock import Clock

_TRUNCATED = 0x02
_PENDING = 2000


class ForwardRoute:
    """The upstream servers of one zone."""

    def __init__(self, servers: tuple[Address, ...], forward: ForwardConfig, clock: Clock) -> None:
        self.servers = servers
        self._force_tcp = forward.force_tcp
        self._prefer_udp = forward.prefer_udp
        options = ForwardOptions(
            max_pending=forward.max_concurrent or _PENDING,
            policy=forward.policy,
            max_fails=forward.max_fails,
            probe_every_s=forward.health_check_seconds,
        )
        self.forwarder = Forwarder(servers, clock, options)

    async def ask(self, request: bytes, *, tcp: bool) -> bytes | None:
        """As :meth:`Forwarder.ask`, over the transport that the configuration prefers.

        Raises: Overloaded, Looping.
        """
        over_tcp = self._force_tcp or (tcp and not self._prefer_udp)
        reply = await self.forwarder.ask(request, tcp=over_tcp)
        if reply is not None and tcp and not over_tcp and reply[2] & _TRUNCATED:
            return await self.forwarder.ask(request, tcp=True)
        return reply


class ForwardRoutes:
    """The routes of a configuration.

    Raises: ConfigError for an upstream that is no address and no file.
    """

    def __init__(self, config: DnsConfig, clock: Clock) -> None:
        default = resolve_upstreams(config.upstreams or config.forward.upstreams, "upstreams")
        self.default = ForwardRoute(default or read_resolv_conf(config.resolv_conf), config.forward, clock)
        self._stubs = {
            encode_name(zone.lower()): ForwardRoute(resolve_upstreams(forward.upstreams, zone), forward, clock)
            for zone, forward in config.stub_domains.items()
        }
        self._routes = (self.default, *self._stubs.values())

    def choose(self, name: bytes) -> ForwardRoute:
        """The route for a name in wire form."""
        if self._stubs:
            lower, offset = name.lower(), 0
            while lower[offset]:
                if (route := self._stubs.get(lower[offset:])) is not None:
                    return route
                offset += 1 + lower[offset]
        return self.default

    def start(self) -> None:
        """Looks for loops; to be called when the server answers."""
        for route in self._routes:
            route.forwarder.loops.start()

    def caught(self, name: bytes) -> bool:
        """Whether a request that arrived is a probe of this server, which is then in a loop."""
        return any(route.forwarder.loops.caught(name) for route in self._routes)

    def pending(self) -> int:
        """The number of requests that wait for upstream servers."""
        return sum(route.forwarder.pending for route in self._routes)

    async def close(self) -> None:
        """Ends the probes."""
        for route in self._routes:
            await route.forwarder.close()

    def series(self) -> Iterable[Series]:
        """Counters, summed over the routes."""
        forwarders = [route.forwarder for route in self._routes]
        yield "coredns_forward_max_concurrent_rejects_total", (), sum(f.rejected for f in forwarders)
        yield "coredns_proxy_healthcheck_failures_total", (), sum(f.health.failed_probes for f in forwarders)
        yield "podwire_dns_forward_requests_total", (), sum(f.sent for f in forwarders)
        yield "podwire_dns_forward_failures_total", (), sum(f.failed for f in forwarders)
        yield "podwire_dns_forward_looping_servers", (), sum(len(f.loops.looping) for f in forwarders)


def resolve_upstreams(texts: Iterable[str], source: str) -> tuple[Address, ...]:
    """The servers of addresses, and of files with the name servers of a resolver.

    Raises: ConfigError for a text that is neither.
    """
    servers: list[Address] = []
    for text in texts:
        servers += read_resolv_conf(text) if text.startswith("/") else (parse_upstream(text, source),)
    return tuple(dict.fromkeys(servers))
