"""Computes the reply to a request, or the decision to ask upstream.

This module uses no socket and no clock: the server and the tests call the same functions. A reply with several address
records of one name can begin with any of them without being built again, see :class:`Reply`.
"""

import msgspec

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.wire import DnsMessage, Edns, Query
from podwire.dns.zone import Zone
from podwire.errors import ProtocolError

_COPIED_FLAGS = wire.OPCODE_MASK | wire.RD | wire.CD
_TRANSFERS = (wire.AXFR, wire.IXFR)


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A whole reply with the labels of its metrics.

    ``data[start:end]`` shows address records of ``step`` bytes each, a window of ``ring``, which has all of them; a
    step of 0 means that there is at most one. ``plugin`` answered, where plugins handle requests,
    in a ``view`` and by the template of a zone, if there are such.
    """

    data: bytes
    qtype: int = 0
    rcode: int = 0
    zone: str = "."
    dnssec_ok: bool = False
    ring: bytes = b""
    start: int = 0
    end: int = 0
    step: int = 0
    plugin: str = ""
    view: str = ""
    template: tuple[str, ...] = ()

    def rotated(self, fraction: float) -> bytes:
        """The reply whose addresses begin at ``fraction`` (0 to 1) of all; equal shares for uniform fractions.

        The window shows any address equally often, so a truncated reply hides none for good.
        """
        return self.data[: self.start] + self.window(fraction) + self.data[self.end :] if self.step else self.data

    def window(self, fraction: float) -> bytes:
        """The address records that begin at ``fraction`` of all."""
        ring = self.ring
        first = int(fraction * (len(ring) // self.step)) * self.step
        last = first + self.end - self.start
        return ring[first:last] if last <= len(ring) else ring[first:] + ring[: last - len(ring)]


class UpstreamQuery(msgspec.Struct, frozen=True, gc=False):
    """A request for ``name`` that upstream must answer; ``answer`` has the alias records so far."""

    query: Query
    name: bytes
    answer: ZoneAnswer | None = None


def udp_limit(query: Query, ceiling: int) -> int:
    """The largest UDP reply to ``query``, in bytes."""
    size = query.edns.size if query.edns is not None else 0
    return min(max(size, wire.MIN_UDP_BYTES), ceiling)


def respond(zone: Zone, data: bytes, *, udp_ceiling: int = 0) -> Reply | UpstreamQuery | None:
    """The reply to a request, or an upstream query; ``udp_ceiling`` 0 means TCP.

    None: nothing is sent, because the message is a reply or too short.
    """
    if len(data) < wire.HEADER_BYTES or data[2] & 0x80:
        return None
    if data[2] & 0x78:
        return Reply(header_reply(data, wire.NOTIMP), rcode=wire.NOTIMP)
    try:
        query = wire.parse_query(data)
    except ProtocolError:
        return Reply(header_reply(data, wire.FORMERR), rcode=wire.FORMERR)
    limit = udp_limit(query, udp_ceiling) if udp_ceiling else 65535
    if query.edns is not None and query.edns.version > 0:
        return finish(query, ZoneAnswer(rcode=wire.BADVERS), limit)
    if query.qtype in _TRANSFERS or query.qclass not in (wire.IN, wire.CLASS_ANY):
        return finish(query, ZoneAnswer(rcode=wire.REFUSED), limit)
    try:
        answer = zone.look_up(query.name, query.qtype)
    except ProtocolError:
        # A target would exceed 255 bytes.
        return finish(query, ZoneAnswer(rcode=wire.SERVFAIL), limit)
    if answer.foreign:
        return UpstreamQuery(query, query.name)
    if answer.follow:
        return UpstreamQuery(query, answer.follow, answer)
    return finish(query, answer, limit)


def header_reply(data: bytes, rcode: int) -> bytes:
    """A reply of the header alone, for a request that cannot be read."""
    flags = wire.QR | (int.from_bytes(data[2:4], "big") & (wire.OPCODE_MASK | wire.RD)) | rcode
    return data[:2] + flags.to_bytes(2, "big") + bytes(8)


def finish(query: Query, answer: ZoneAnswer, limit: int, options: bytes = b"") -> Reply:
    """The reply to ``query`` with ``answer`` in at most ``limit`` bytes; ``options`` are EDNS options."""
    flags = wire.QR | (query.flags & _COPIED_FLAGS) | (answer.rcode & 0xF)
    if answer.foreign or answer.follow:
        flags |= wire.RA
    if not answer.foreign and answer.rcode not in (wire.REFUSED, wire.BADVERS):
        flags |= wire.AA
    edns = Edns(size=limit, dnssec_ok=query.edns.dnssec_ok, options=options) if query.edns is not None else None
    if answer.records or answer.additional or answer.authority or (answer.ring is not None and answer.ring.owner):
        encoded = wire.encode_window(
            DnsMessage(
                query.id,
                flags,
                query.name,
                query.qtype,
                query.qclass,
                answer.records,
                answer.authority,
                answer.additional,
                edns,
                answer.rcode >> 4,
                answer.ring,
            ),
            limit,
        )
    else:
        encoded = wire.encode_plain(wire.PlainAnswer(query, flags, answer.rcode, answer.ring, answer.soa, edns), limit)
    return Reply(
        encoded.data,
        query.qtype,
        answer.rcode,
        answer.zone or ".",
        query.edns is not None and query.edns.dnssec_ok,
        encoded.ring,
        encoded.start,
        encoded.end,
        encoded.step if len(encoded.ring) > encoded.step and encoded.end > encoded.start else 0,
    )


def merged(ask: UpstreamQuery, upstream_reply: DnsMessage) -> ZoneAnswer:
    """The records of an alias, then the records of its target from upstream."""
    alias = ask.answer or ZoneAnswer()
    records, ring = split_addresses(upstream_reply.answer, ask.query.qtype)
    return ZoneAnswer(
        rcode=upstream_reply.rcode,
        records=alias.records + records,
        ring=ring,
        authority=() if upstream_reply.answer else upstream_reply.authority,
        follow=alias.follow,
        zone=alias.zone,
    )


def merge(ask: UpstreamQuery, upstream_reply: DnsMessage, limit: int) -> Reply:
    """The reply with the records of an alias, then the records of its target from upstream."""
    reply = finish(ask.query, merged(ask, upstream_reply), limit)
    if not upstream_reply.flags & wire.TC:
        return reply
    data = bytearray(reply.data)
    data[2] |= wire.TC >> 8
    return msgspec.structs.replace(reply, data=bytes(data))


def split_addresses(
    records: tuple[wire.ResourceRecord, ...], qtype: int
) -> tuple[tuple[wire.ResourceRecord, ...], wire.AddressRing | None]:
    """The records before the address records at the end, and those as a ring if they belong to one name."""
    addresses = tuple(r for r in records if r.type == qtype and qtype in (wire.A, wire.AAAA))
    owners = {(r.name, r.rclass, len(r.tail)) for r in addresses}
    count = len(records) - len(addresses)
    if len(owners) != 1 or any(r.type == qtype for r in records[:count]):
        return records, None
    ring = wire.make_ring((r.tail for r in addresses), qtype, min(r.ttl for r in addresses))
    return records[:count], msgspec.structs.replace(ring, owner=addresses[0].name)


def failure(query: Query, limit: int, rcode: int = wire.SERVFAIL) -> Reply:
    """The reply when upstream did not answer: recursion is available (RA), and the server is no authority (no AA)."""
    return finish(query, ZoneAnswer(rcode=rcode, foreign=True), limit)
