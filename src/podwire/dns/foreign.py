"""A small cache of replies for names outside the cluster.

An entry is a whole reply; its key is the whole request without the ID, so flags, EDNS size and case count, and the
transport, since a reply over TCP may be larger. Guarantees: 1. an entry lives for the smallest TTL in it, at most
``ceiling_s``; 2. a negative reply lives for the lesser of its SOA's TTL and minimum (RFC 2308 section 5), and is not
cached without SOA; 3. failures and truncated replies are not cached; 4. TTLs count down; 5. at ``capacity`` the oldest
entry is removed; 6. a reply with several addresses of one name can begin with any of them; 7. an expired entry is kept
for ``stale_s`` and can be had as such, with TTLs of 0 (RFC 8767).
"""

import struct
from itertools import takewhile

import msgspec

from podwire.dns import wire
from podwire.dns.respond import Reply
from podwire.errors import ProtocolError

_CACHED_RCODES = (wire.NOERROR, wire.NXDOMAIN)


class _Entry(msgspec.Struct, frozen=True, gc=False):
    tail: bytes
    ttls: tuple[tuple[int, int], ...]
    stored_s: float
    life_s: float
    qtype: int
    block: tuple[int, int, int]


class ForeignCache:
    """Replies by request; the caller passes times, in seconds of a monotonic clock.

    Several threads may read, one writes. ``hits`` and ``misses`` are for metrics: two threads that count at the same
    moment may count once.
    """

    def __init__(self, capacity: int = 4096, ceiling_s: float = 300.0, stale_s: float = 0.0) -> None:
        self._stale_s = stale_s
        self._capacity = capacity
        self._ceiling_s = ceiling_s
        self._entries: dict[tuple[bool, bytes], _Entry] = {}
        self.hits = 0
        self.misses = 0
        self.stale_hits = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, request: bytes, *, tcp: bool, now_s: float) -> Reply | None:
        """The reply to ``request`` with its ID and with TTLs that have counted down, or None."""
        key = (tcp, request[2:])
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        age = now_s - entry.stored_s
        if age >= entry.life_s:
            if age >= entry.life_s + self._stale_s:
                self._entries.pop(key, None)
            self.misses += 1
            return None
        self.hits += 1
        return _reply(request, entry, int(age))

    def stale(self, request: bytes, *, tcp: bool, now_s: float) -> Reply | None:
        """The expired reply to ``request`` with TTLs of 0, or None when it is too old."""
        entry = self._entries.get((tcp, request[2:])) if self._stale_s else None
        if entry is None or now_s - entry.stored_s >= entry.life_s + self._stale_s:
            return None
        self.stale_hits += 1
        return _reply(request, entry, 1 << 31)

    def put(self, request: bytes, reply: bytes, *, tcp: bool, now_s: float) -> None:
        """Caches ``reply`` unless the guarantees above forbid that."""
        if reply[2] & wire.TC >> 8 or reply[3] & 0xF not in _CACHED_RCODES:
            return
        try:
            spans = wire.find_records(reply)
            qtype = int.from_bytes(wire.read_question(reply)[-4:-2], "big")
        except ProtocolError:
            return
        answers, authorities = int.from_bytes(reply[6:8], "big"), int.from_bytes(reply[8:10], "big")
        life_s = min(self._ceiling_s, _lifetime_s(reply, spans[:answers], spans[answers : answers + authorities]))
        if life_s <= 0:
            return
        if len(self._entries) >= self._capacity:
            self._entries.pop(next(iter(self._entries)), None)
        ttls = tuple((span.ttl_offset, span.record.ttl) for span in spans)
        block = _address_block(spans[:answers], qtype)
        self._entries[tcp, request[2:]] = _Entry(reply[2:], ttls, now_s, life_s, qtype, block)


def _reply(request: bytes, entry: _Entry, age: int) -> Reply:
    """The reply of an entry under the ID of the request, with TTLs that are less by ``age`` seconds."""
    reply = bytearray(request[:2] + entry.tail)
    if age:
        for offset, ttl in entry.ttls:
            struct.pack_into("!I", reply, offset, max(0, ttl - age))
    data, (start, end, step) = bytes(reply), entry.block
    ring = data[start:end] if step else b""
    return Reply(data, entry.qtype, data[3] & 0xF, ring=ring, start=start, end=end, step=step)


def _address_block(answer: tuple[wire.RecordSpan, ...], qtype: int) -> tuple[int, int, int]:
    """Start, end and record size of the address records at the end of an answer; (0, 0, 0) for fewer than two.

    Only records of equal size change places: their owners are then the same pointer, or the same bytes.
    """
    if qtype not in (wire.A, wire.AAAA) or not answer:
        return 0, 0, 0
    last = answer[-1]
    size = last.end - last.start
    spans = list(
        takewhile(
            lambda span: (span.record.type, span.record.name, span.end - span.start) == (qtype, last.record.name, size),
            reversed(answer),
        )
    )
    return (spans[-1].start, last.end, size) if len(spans) > 1 else (0, 0, 0)


def _lifetime_s(reply: bytes, answer: tuple[wire.RecordSpan, ...], authority: tuple[wire.RecordSpan, ...]) -> float:
    """For how many seconds a reply may be cached; 0 means not at all."""
    if answer and reply[3] & 0xF == wire.NOERROR:
        return float(min(span.record.ttl for span in answer))
    for span in authority:
        record = span.record
        if record.type == wire.SOA and len(record.tail) == 20:
            return float(min(record.ttl, int.from_bytes(record.tail[16:], "big")))
    return 0.0
