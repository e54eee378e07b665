"""Replies that are cached until the zone changes, by the whole request without its ID.

A repeated request costs a dictionary look-up. A change of the zone replaces the dictionary; a reply computed from the
old zone is then put into the old dictionary and not used again. Bounds: ``CAPACITY`` replies and ``BYTES`` of them; at
a bound the dictionary is emptied. A reply for a foreign name is ready in the same way for one second, until its TTLs
change; after that it comes from the cache of foreign names again, without reading the request.
"""

from collections.abc import Callable
from typing import Any

from podwire.dns import wire
from podwire.dns.foreign import FreshReply
from podwire.dns.metrics import SAMPLED, Buckets, QueryCounters, QueryLabels
from podwire.dns.plainnames import PlainNames
from podwire.dns.plugins.chain import DnsClient, PluginChain, ReplyStream
from podwire.dns.querylog import LoggedQuery, QueryLog
from podwire.dns.respond import Reply, UpstreamQuery, respond
from podwire.dns.zone import Zone

Send = Callable[[bytes], None]
"""Sends the reply to a request that needed an upstream answer."""

OnAsk = Callable[[UpstreamQuery, bytes, bool, Send], None]
"""Called on the loop with the request, its bytes, whether it came over TCP, and the function that sends the reply."""

Outcome = Reply | UpstreamQuery | ReplyStream | None
"""What happens to a request."""

CAPACITY = 20_000
BYTES = 16 << 20
FOREIGN_CAPACITY = 4096
"""The most replies for foreign names that are ready; a datagram has at most 64 KiB, most have 100 bytes."""


class CachedReply:
    """A reply without its ID, ready to send; ``cell`` counts it."""

    __slots__ = ("_head", "_reply", "_tail", "cell", "step", "tail")

    @property
    def zone(self) -> str:
        """The zone that answered, for metrics."""
        return self._reply.zone

    def __init__(self, reply: Reply, cell: list[int]) -> None:
        self.cell = cell
        self.step = reply.step
        self.tail = reply.data[2:]
        self._reply = reply
        self._head = reply.data[2 : reply.start]
        self._tail = reply.data[reply.end :]

    def rotated(self, fraction: float) -> bytes:
        """The reply with the address first that stands at ``fraction`` of all."""
        return self._head + self._reply.window(fraction) + self._tail


class PlainCachedReply(CachedReply):
    """A reply with at most one record, made from its bytes without a :class:`Reply`."""

    __slots__ = ("_zone",)

    def __init__(self, tail: bytes, cell: list[int], zone: str) -> None:  # It sets all that a reader needs.
        self.cell = cell
        self.step = 0
        self.tail = tail
        self._zone = zone

    @property
    def zone(self) -> str:
        """The zone that answered, for metrics."""
        return self._zone


class ForeignReply:
    """A reply for a foreign name that is ready to send before ``until_s``; ``hits`` counts it in the foreign cache."""

    __slots__ = ("entry", "hits", "kind", "until_s", "upstream_query")

    def __init__(self, upstream_query: UpstreamQuery, entry: CachedReply, share: FreshReply) -> None:
        self.upstream_query = upstream_query
        self.entry = entry
        self.until_s = share.until_s
        self.hits = share.hits
        self.kind = share.kind


class ReplyCache:
    """The replies of one listener over ``protocol`` (udp or tcp); ``udp_size`` 0 means TCP.

    ``by_request`` is for readers that look up ``request[2:]`` themselves, which saves a call for each request.
    """

    def __init__(
        self, zone: Zone, counters: QueryCounters, protocol: str, *, udp_size: int = 0, log: QueryLog | None = None
    ) -> None:
        self._log = log
        self._zone = zone
        self._counters = counters
        self._protocol = protocol
        self._udp_size = udp_size
        self._bytes = 0
        self.by_request: dict[bytes, CachedReply] = {}
        self.foreign: dict[bytes, ForeignReply] = {}
        """The replies for foreign names, under the same keys."""
        self._plain = PlainNames(zone, udp_size)
        self._durations: dict[tuple[str, str], Buckets] = {}
        # A listener has one family, so that is no part of the key.
        self._cells: dict[tuple[str, int, int, tuple[str, str, tuple[str, ...]], bool, int, int], list[int]] = {}
        self._plain_cells: dict[tuple[int, bool, int, str, int, int], list[int]] = {}
        self.chain: PluginChain | None = None
        """The plugins that handle requests, if there are any."""
        self.server = ("", 53)
        """The address of the server."""

    def forget(self) -> None:
        """Drops the replies; to be called after a change of the zone."""
        self.by_request = {}
        self.foreign = {}
        self._bytes = 0

    def respond(self, data: bytes, family: str, peer: tuple[Any, ...] = ("", 0)) -> Outcome:
        """The reply to a request that is not cached, counted and put into the cache; else as ``respond.respond``."""
        replies, keep = self.by_request, True
        outcome: Outcome
        if len(data) < wire.HEADER_BYTES:
            return None
        if self.chain is None:
            outcome = respond(self._zone, data, udp_ceiling=self._udp_size)
        else:
            outcome, keep = self.chain.respond(data, DnsClient(peer[0], peer[1], not self._udp_size, *self.server))
        if not isinstance(outcome, Reply):
            return outcome
        cell = self._cell(outcome, family, len(data))
        cell[0] += 1
        if keep and outcome.rcode in (wire.NOERROR, wire.NXDOMAIN) and self._log is None:
            self._keep(replies, data, CachedReply(outcome, cell))
        return outcome

    def plain(self, data: bytes, family: str) -> CachedReply | None:
        """The reply to a plain question, put into the cache; None: ask :meth:`respond`."""
        replies = self.by_request
        outcome = self._plain.reply(data) if self.chain is None and self._log is None else None
        if outcome is None:
            return None
        tail, qtype, dnssec_ok, rcode, zone = outcome
        key = (qtype, dnssec_ok, rcode, zone, len(data), len(tail))
        cell = self._plain_cells.get(key)
        if cell is None:
            reply = Reply(data[:2] + tail, qtype, rcode, zone, dnssec_ok)
            cell = self._plain_cells[key] = self._cell(reply, family, len(data))
        entry = PlainCachedReply(tail, cell, zone)
        self._keep(replies, data, entry)
        return entry

    def _keep(self, replies: dict[bytes, CachedReply], data: bytes, entry: CachedReply) -> None:
        self._bytes += len(entry.tail) + len(data)
        if len(replies) >= CAPACITY or self._bytes > BYTES:
            replies.clear()
            self._bytes = 0
        replies[data[2:]] = entry

    def report(self, request: bytes, reply: bytes, peer: tuple[Any, ...], seconds: float) -> None:
        """Writes the line of the query log, if it is on."""
        if self._log is not None:
            self._log.report(LoggedQuery(request, reply, peer, self.server, self._protocol, seconds))

    def count(self, reply: Reply, family: str, request_bytes: int) -> list[int]:
        """Counts a reply that does not come from the zone; the cell that counts such replies."""
        cell = self._cell(reply, family, request_bytes)
        cell[0] += 1
        return cell

    def keep_foreign(self, replies: dict[bytes, ForeignReply], data: bytes, ready: ForeignReply) -> None:
        """Keeps the reply to a request for a foreign name in ``replies``: :attr:`foreign` before the zone was asked."""
        if self._log is None:
            if len(replies) >= FOREIGN_CAPACITY:
                replies.clear()
            replies[data[2:]] = ready

    def took(self, reply: Reply, seconds: float, family: str) -> None:
        """Counts how long a computed reply took."""
        self._durations_of(reply.zone, reply.view, family).observe(seconds)

    def sampled(self, zone: str, seconds: float, family: str) -> None:
        """Counts how long a kept reply took, for itself and those that are not measured."""
        self._durations_of(zone, "", family).observe(seconds, SAMPLED)

    def _durations_of(self, zone: str, view: str, family: str) -> Buckets:
        buckets = self._durations.get((zone, view))
        if buckets is None:
            label = zone if zone == "." else f"{zone}."
            buckets = self._durations[zone, view] = self._counters.durations(label, view, self._protocol + family)
        return buckets

    def _cell(self, reply: Reply, family: str, request_bytes: int) -> list[int]:
        made_by = (reply.plugin, reply.view, reply.template)
        key = (reply.zone, reply.qtype, reply.rcode, made_by, reply.dnssec_ok, request_bytes, len(reply.data))
        cell = self._cells.get(key)
        if cell is None:
            labels = labels_of(reply, self._protocol, family)
            cell = self._counters.cell(labels, self._protocol + family, request_bytes, len(reply.data))
            if len(self._cells) < CAPACITY:
                self._cells[key] = cell
        return cell


def labels_of(reply: Reply, protocol: str, family: str) -> QueryLabels:
    """The metric labels of a reply."""
    return QueryLabels(
        reply.zone if reply.zone == "." else f"{reply.zone}.",
        protocol,
        family,
        wire.TYPE_NAMES.get(reply.qtype, "other"),
        wire.RCODE_NAMES.get(reply.rcode, str(reply.rcode)),
        reply.plugin,
        reply.dnssec_ok,
        reply.view,
        reply.template,
    )
