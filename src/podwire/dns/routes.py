"""Which upstream servers are asked for which names: stub domains by the longest match, all other names by default."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from podwire.dns import wire
from podwire.dns.config import DnsConfig, ForwardConfig
from podwire.dns.forward import Forwarder, ForwardOptions, parse_upstream, read_resolv_conf
from podwire.dns.links import Address
from podwire.dns.metrics import Series
from podwire.dns.names import encode_name, match_zone
from podwire.dns.streams import make_context
from podwire.runtime.clock import Clock

_TRUNCATED = 0x02
_RCODE = 0x0F
_PENDING = 2000
_TLS_PORT = 853


class Upstream(NamedTuple):
    """An upstream server; ``server_name`` is set for TLS, and is the name in its certificate."""

    address: Address
    server_name: str | None = None


class ForwardRoute:
    """The upstream servers of one zone."""

    def __init__(self, upstreams: tuple[Upstream, ...], forward: ForwardConfig, clock: Clock) -> None:
        self.servers = tuple(upstream.address for upstream in upstreams)
        self._force_tcp = forward.force_tcp
        self._prefer_udp = forward.prefer_udp
        self._excepted = frozenset(encode_name(zone) for zone in forward.except_zones)
        self._next_codes = _response_codes(forward.next_codes)
        self._next_without_data = forward.next_without_data
        following = forward.next_forward
        self._next = (
            ForwardRoute(resolve_upstreams(following.upstreams, "forward"), following, clock) if following else None
        )
        encrypted = {
            upstream.address: upstream.server_name or forward.tls_server_name
            for upstream in upstreams
            if upstream.server_name is not None
        }
        options = ForwardOptions(
            max_pending=forward.max_concurrent or _PENDING,
            policy=forward.policy,
            max_fails=forward.max_fails,
            probe_every_s=forward.health_check_seconds,
            probe_name=forward.health_check_domain,
            probe_flags=wire.RD if forward.health_check_recursion else 0,
            expire_s=forward.expire_seconds,
            failover=_response_codes(forward.failover),
            fail_fast=forward.fail_fast,
            encrypted=encrypted,
            context=make_context(forward.tls, "forward") if encrypted else None,
        )
        self.forwarder = Forwarder(self.servers, clock, options)

    def excepts(self, name: bytes) -> bool:
        """Whether a name is not to be asked for."""
        return bool(self._excepted) and match_zone(name, self._excepted) is not None

    @property
    def plain_udp(self) -> bool:
        """Whether a request that came over UDP is asked for over UDP, whatever its name is."""
        return not (self._force_tcp or self._excepted or self._next)

    @property
    def chain(self) -> "tuple[ForwardRoute, ...]":
        """This route and those that are asked after it."""
        return (self, *(self._next.chain if self._next is not None else ()))

    async def ask(self, request: bytes, *, tcp: bool) -> bytes | None:
        """As :meth:`Forwarder.ask`, over the transport that the configuration prefers, then of the next route.

        Raises: Overloaded, Looping.
        """
        reply = None
        if not (self._excepted and self.excepts(wire.parse_query(request).name)):
            reply = await self._ask_own(request, tcp=tcp)
            if reply is None or not self._passes_on(reply):
                return reply
        return reply if self._next is None else await self._next.ask(request, tcp=tcp)

    def _passes_on(self, reply: bytes) -> bool:
        """Whether a reply does not count when there is another route."""
        rcode = reply[3] & _RCODE
        if self._next_without_data and rcode == wire.NOERROR and reply[6:8] == b"\x00\x00":
            return True
        return rcode in self._next_codes

    async def _ask_own(self, request: bytes, *, tcp: bool) -> bytes | None:
        over_tcp = self._force_tcp or (tcp and not self._prefer_udp)
        reply = await self.forwarder.ask(request, tcp=over_tcp)
        if reply is not None and tcp and not over_tcp and reply[2] & _TRUNCATED:
            return await self.forwarder.ask(request, tcp=True)
        return reply


class ForwardRoutes:
    """The routes of a configuration, by zone and, for views, by their name.

    Raises: ConfigError for an upstream that is no address and no file, and for files of TLS.
    """

    def __init__(self, config: DnsConfig, clock: Clock) -> None:
        default = resolve_upstreams(config.upstreams or config.forward.upstreams, "upstreams")
        read = tuple(Upstream(address) for address in read_resolv_conf(config.resolv_conf))
        self.default = ForwardRoute(default or read, config.forward, clock)
        self._stubs = _stub_routes(config.stub_domains, clock)
        self._views = {view: _stub_routes(forwards, clock) for view, forwards in config.view_forwards.items()}
        in_views = tuple(route for routes in self._views.values() for route in routes.values())
        first = (self.default, *self._stubs.values(), *in_views)
        self._routes = tuple(route for own in first for route in own.chain)

    def choose(self, name: bytes, view: str = "") -> ForwardRoute:
        """The route for a name in wire form."""
        if view in self._views and (zone := match_zone(name, self._views[view])) is not None:
            return self._views[view][zone]
        if self._stubs and (zone := match_zone(name, self._stubs)) is not None:
            return self._stubs[zone]
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
        yield "coredns_forward_healthcheck_broken_total", (), sum(f.all_bad for f in forwarders)
        for forwarder in forwarders:
            yield from forwarder.series()
        yield "podwire_dns_forward_requests_total", (), sum(f.sent for f in forwarders)
        yield "podwire_dns_forward_failures_total", (), sum(f.failed for f in forwarders)
        yield "podwire_dns_forward_looping_servers", (), sum(len(f.loops.looping) for f in forwarders)


def _response_codes(names: Iterable[str]) -> frozenset[int]:
    known = {name: number for number, name in wire.RCODE_NAMES.items()}
    return frozenset(known[name] for name in names if name in known)


def _stub_routes(forwards: Mapping[str, ForwardConfig], clock: Clock) -> dict[bytes, ForwardRoute]:
    return {
        encode_name(zone.lower()): ForwardRoute(resolve_upstreams(forward.upstreams, zone), forward, clock)
        for zone, forward in forwards.items()
    }


def resolve_upstreams(texts: Iterable[str], source: str) -> tuple[Upstream, ...]:
    """The servers of addresses, of ``tls://`` addresses, and of files with the name servers of a resolver.

    Raises: ConfigError for a text that is neither.
    """
    servers: list[Upstream] = []
    for text in texts:
        if text.startswith("/"):
            servers += (Upstream(address) for address in read_resolv_conf(text))
        elif text.startswith("tls://"):
            servers.append(_encrypted(text.removeprefix("tls://"), source))
        else:
            servers.append(Upstream(parse_upstream(text, source)))
    return tuple(dict.fromkeys(servers))


def _encrypted(text: str, source: str) -> Upstream:
    """The server of ``address%server-name:port``; name and port may be missing."""
    address, percent, rest = text.partition("%")
    name, colon, port = rest.partition(":")
    if percent:
        address = f"[{address}]" if ":" in address and not address.startswith("[") else address
        address += f":{port}" if colon else ""
    host, number = parse_upstream(address, source)
    explicit = address.rpartition(":")[2].isdigit() and (address.count(":") == 1 or "]:" in address)
    return Upstream((host, number if explicit else _TLS_PORT), name)
