"""The chains of plugins: one for each server block, chosen by the longest zone and by views. Pure.

How it works: a request passes the plugins of its server block in the order of the registry. The chain runs until a
plugin needs an upstream server; a cached reply is used at once, otherwise the rest of the steps is handed over
(:class:`ChainQuery`) and continues with the reply on the event loop. Without plugins there is no chain, and requests
take the direct way through :mod:`podwire.dns.respond`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.config import DnsConfig, PluginBlock
from podwire.dns.names import encode_name, match_zone
from podwire.dns.plugins.acl import DROPPED
from podwire.dns.plugins.auto import ZoneFolder
from podwire.dns.plugins.file import ZoneFiles
from podwire.dns.plugins.plugin import (
    CountingPlugin,
    Handler,
    Plugin,
    PluginReply,
    PluginRequest,
    PluginScope,
    Steps,
    UpstreamAsk,
    refusal,
)
from podwire.dns.plugins.registry import LINKED, PLUGINS
from podwire.dns.plugins.secondary import Secondary
from podwire.dns.plugins.transfer import Transfer, encode_stream
from podwire.dns.plugins.view import BlockView
from podwire.dns.respond import Reply, UpstreamQuery, finish, header_reply, split_addresses, udp_limit
from podwire.dns.wire import Edns, Query
from podwire.errors import ProtocolError

_TRANSFERS = (wire.AXFR, wire.IXFR)


class DnsClient(msgspec.Struct, frozen=True, gc=False):
    """Where a request comes from, and the address that it was sent to."""

    address: str = ""
    port: int = 0
    tcp: bool = False
    server: str = ""
    server_port: int = 53


class ChainQuery(UpstreamQuery, frozen=True, gc=False):
    """A request whose steps wait for ``ask``; ``limit`` is the largest size of its reply, in bytes."""

    steps: Steps | None = None
    ask: UpstreamAsk | None = None
    limit: int = 0
    view: str = ""


class ReplyStream(msgspec.Struct, frozen=True):
    """The messages of a zone transfer."""

    messages: tuple[bytes, ...]


ChainOutcome = Reply | ChainQuery | ReplyStream | None
"""None: nothing is sent."""

LookUp = Callable[[UpstreamAsk, str, bool], bytes | None]
"""The cached reply to a question in a view, or None; the last argument says whether TCP is used."""


class ServerChain(msgspec.Struct, frozen=True):
    """The plugins of one server block: ``handler`` runs all of them."""

    handler: Handler
    views: tuple[BlockView, ...]
    per_client: bool
    plugins: Mapping[str, Plugin]

    @property
    def view(self) -> str:
        """The name of the first view; empty without one."""
        return self.views[0].name if self.views else ""


class PluginChain:
    """The chains of a configuration.

    Raises: ConfigErrors when a directive is wrong, with its line.
    """

    def __init__(self, config: DnsConfig, scope: PluginScope, look_up: LookUp) -> None:
        self._udp_size = config.udp_size
        self._look_up = look_up
        self._chains: dict[bytes, list[ServerChain]] = {}
        for block in config.blocks:
            zones = tuple(encode_name(zone) for zone in block.zones)
            chain = make_chain(block, msgspec.structs.replace(scope, zones=zones))
            for zone in zones:
                self._chains.setdefault(zone, []).append(chain)
        # A condition may look at the client, so its server blocks and those behind them keep nothing.
        self._keeping = {
            zone: not any(chain.per_client or chain.views for chain in chains) for zone, chains in self._chains.items()
        }

    def plugin(self, name: str) -> tuple[Plugin, ...]:
        """The plugins of a name, of all server blocks."""
        chains = (chain for chains in self._chains.values() for chain in chains)
        return tuple(dict.fromkeys(chain.plugins[name] for chain in chains if name in chain.plugins))

    def counted(self) -> Iterator[tuple[str, CountingPlugin]]:
        """The plugins that have counters, with the names of their views."""
        # A server block with several zones has one chain.
        for chain in {id(chain): chain for chains in self._chains.values() for chain in chains}.values():
            for plugin in chain.plugins.values():
                if isinstance(plugin, CountingPlugin):
                    yield chain.view, plugin

    def file_zones(self) -> Iterator[bytes]:
        """The zones of files."""
        for name in ("file", "auto"):
            for plugin in self.plugin(name):
                if isinstance(plugin, ZoneFiles | ZoneFolder):
                    yield from plugin.origins

    def notice_targets(self, zone: bytes) -> tuple[tuple[str, int], ...]:
        """The name servers that are notified when a zone changes, by the server block that has it."""
        block = match_zone(zone, self._chains)
        transfers = [chain.plugins.get("transfer") for chain in self._chains[block]] if block is not None else []
        servers = (plugin.servers(zone) for plugin in transfers if isinstance(plugin, Transfer))
        return tuple(dict.fromkeys(server for own in servers for server in own))

    def _take_notice(self, data: bytes, client: DnsClient) -> Reply:
        """The reply to a notice that a zone has changed."""
        try:
            query = wire.parse_query(data)
        except ProtocolError:
            return Reply(header_reply(data, wire.FORMERR), rcode=wire.FORMERR)
        accepted = [p.take_notice(query, client.address) for p in self.plugin("secondary") if isinstance(p, Secondary)]
        limit = 65535 if client.tcp else udp_limit(query, self._udp_size)
        return finish(query, ZoneAnswer(rcode=wire.NOERROR if any(accepted) else wire.REFUSED), limit)

    def choose(self, request: PluginRequest) -> ServerChain | None:
        """The chain for a request, or None when no server block has its zone."""
        zone = match_zone(request.query.name, self._chains)
        while zone is not None:
            for chain in self._chains[zone]:
                if all(view.matches(request) for view in chain.views):
                    return chain
            # As in CoreDNS, a zone whose views all refuse leaves the request to the zone above it.
            zone = match_zone(zone[1 + zone[0] :], self._chains) if zone[0] else None
        return None

    def respond(self, data: bytes, client: DnsClient) -> tuple[ChainOutcome, bool]:
        """The outcome for a request, and whether a reply may be kept by the bytes of the request."""
        if len(data) < wire.HEADER_BYTES or data[2] & 0x80:
            return None, False
        if data[2] & 0x78 == wire.NOTIFY >> 8 and self.plugin("secondary"):
            return self._take_notice(data, client), False
        if data[2] & 0x78:
            return Reply(header_reply(data, wire.NOTIMP), rcode=wire.NOTIMP), False
        try:
            query = wire.parse_query(data)
            if query.qtype == wire.IXFR:
                query = msgspec.structs.replace(query, serial=_serial(data))
        except ProtocolError:
            return Reply(header_reply(data, wire.FORMERR), rcode=wire.FORMERR), False
        limit = 65535 if client.tcp else udp_limit(query, self._udp_size)
        if query.edns is not None and query.edns.version > 0:
            return finish(query, ZoneAnswer(rcode=wire.BADVERS), limit), False
        request = PluginRequest(
            query, client.address, client.port, client.tcp, len(data), client.server, client.server_port
        )
        chain = self.choose(request)
        if chain is None or (query.qtype in _TRANSFERS and "transfer" not in chain.plugins):
            return finish(query, ZoneAnswer(rcode=wire.REFUSED), limit), False
        steps = chain.handler(request)
        outcome = self.go_on(ChainQuery(query, query.name, None, steps, None, limit, chain.view), None)
        if chain.view and isinstance(outcome, Reply):
            outcome = msgspec.structs.replace(outcome, view=chain.view)
        zone = match_zone(query.name, self._keeping)
        return outcome, zone is not None and self._keeping[zone]

    def go_on(self, waiting: ChainQuery, raw: bytes | None) -> ChainOutcome:
        """Continues with the reply to ``waiting.ask`` (at the start: None), up to the next question or the end."""
        steps, tcp = waiting.steps, waiting.limit == 65535
        if steps is None:
            return finish(waiting.query, ZoneAnswer(rcode=wire.SERVFAIL), waiting.limit)
        try:
            ask = _advance(steps, raw)
            while isinstance(ask, UpstreamAsk):
                cached = self._look_up(ask, waiting.view, tcp)
                if cached is None:
                    return ChainQuery(waiting.query, ask.query.name, None, steps, ask, waiting.limit, waiting.view)
                ask = _advance(steps, cached)
            return encode(waiting.query, ask, waiting.limit)
        except ProtocolError:
            # An upstream server sent what is no message, or a name became too long.
            return encode(waiting.query, refusal(waiting.query, wire.SERVFAIL, "forward"), waiting.limit)


def _advance(steps: Steps, raw: bytes | None) -> UpstreamAsk | PluginReply:
    """The next question for upstream, or the reply at the end."""
    try:
        return steps.send(raw)
    except StopIteration as end:
        reply: PluginReply = end.value
        return reply


def make_chain(block: PluginBlock, scope: PluginScope) -> ServerChain:
    """The chain of a server block.

    Raises: ConfigError with the line of a directive that is wrong.
    """
    plugins: dict[str, Plugin] = {}
    for name in PLUGINS:
        directives = tuple(directive for directive in block.directives if directive.name == name)
        linked = {"kubernetes": block.cluster, "forward": block.forwards}.get(name, False)
        if directives or (name in LINKED and linked):
            plugins[name] = PLUGINS.load(name).read(directives, scope)
    handler: Handler = _end
    for plugin in reversed(plugins.values()):
        handler = partial(_link, plugin, handler)
    views = tuple(BlockView.read(directive) for directive in block.directives if directive.name == "view")
    return ServerChain(handler, views, any(plugin.per_client for plugin in plugins.values()), plugins)


def _link(plugin: Plugin, following: Handler, request: PluginRequest) -> Steps:
    return plugin.handle(request, following)


def _end(request: PluginRequest) -> Steps:
    """The end of every chain: no plugin answers the request."""
    yield from ()
    return refusal(request.query, wire.SERVFAIL, "")


def request_bytes(ask: UpstreamAsk) -> bytes:
    """The request to an upstream server, with ID 0."""
    query = ask.query
    edns = query.edns
    if ask.options is not None:
        edns = msgspec.structs.replace(edns or Edns(size=1232), options=ask.options)
    flags = query.flags & (wire.RD | wire.CD | wire.AD)
    return wire.encode(wire.DnsMessage(0, flags, query.name, query.qtype, query.qclass, edns=edns))


def cache_key(ask: UpstreamAsk, view: str) -> bytes:
    """The key of the reply in the cache of foreign names; views have upstream servers of their own."""
    return request_bytes(ask) + view.encode()


def encode(query: Query, reply: PluginReply, limit: int) -> Reply | ReplyStream | None:
    """The message of a reply to ``query`` in at most ``limit`` bytes."""
    if reply.answer.rcode == DROPPED:
        return None
    if reply.stream:
        return ReplyStream(tuple(encode_stream(query, reply.stream)))
    if reply.raw:
        untouched = reply.query == query and not (reply.options or reply.set_flags or reply.clear_flags)
        if untouched and len(reply.raw) <= limit:
            data = query.id.to_bytes(2, "big") + reply.raw[2:]
            dnssec_ok = query.edns is not None and query.edns.dnssec_ok
            return Reply(data, query.qtype, data[3] & 0xF, dnssec_ok=dnssec_ok, plugin=reply.plugin)
        reply = reply.expanded()
    if reply.query.name != query.name:
        reply = reply.expanded()
    answer = reply.answer
    if answer.ring is None and len(answer.records) > 1:
        records, ring = split_addresses(answer.records, query.qtype)
        answer = msgspec.structs.replace(answer, records=records, ring=ring)
    if reply.upstream:
        answer = msgspec.structs.replace(answer, foreign=True)
    encoded = finish(query, answer, limit, options=reply.options)
    patched = bytearray(encoded.data)
    flags = int.from_bytes(patched[2:4], "big") | reply.set_flags | (wire.TC if reply.truncated else 0)
    patched[2:4] = (flags & ~reply.clear_flags & 0xFFFF).to_bytes(2, "big")
    return msgspec.structs.replace(encoded, data=bytes(patched), plugin=reply.plugin, template=reply.template)


def _serial(data: bytes) -> int | None:
    soas = [record for record in wire.parse_message(data).authority if record.type == wire.SOA]
    return int.from_bytes(soas[0].tail[:4], "big") if soas else None
