"""A small cache of replies for names outside the cluster.

An entry is a whole reply; its key is the whole request without the ID, so flags, EDNS size and case count, and the
transport, since a reply over TCP may be larger. Guarantees: 1. an entry lives for the smallest TTL in it, within the
limits of the configuration; 2. a negative reply lives for the lesser of its SOA's TTL and minimum (RFC 2308 section 5),
and is not cached without SOA; 3. failures are cached if the configuration says so, truncated replies never; 4. TTLs
count down; 5. when the cache is full, the oldest entry is removed; 6. a reply with several addresses of one name can
begin with any of them; 7. an expired entry is kept for a while and can be had as such, with TTLs of 0 (RFC 8767); 8. a
name that is asked for often is asked for again before its reply expires.
"""

import struct
from itertools import takewhile
from typing import NamedTuple

import msgspec

from podwire.dns import wire
from podwire.dns.config import CacheConfig, DnsConfig
from podwire.dns.names import decode_name, encode_name, match_zone
from podwire.dns.respond import Reply
from podwire.errors import ProtocolError

_SUCCESS, _DENIAL = 0, 1


class _Entry(msgspec.Struct, gc=False):
    """A reply; ``uses`` counts the requests without a long pause before ``used_s``, -1 once it is asked for again."""

    tail: bytes
    ttls: tuple[tuple[int, int], ...]
    stored_s: float
    life_s: float
    qtype: int
    block: tuple[int, int, int]
    kind: int
    uses: int = 0
    used_s: float = 0.0


class FreshReply(NamedTuple):
    """Until when the bytes of a reply stay the same, and the counter of its uses: ``hits[kind]``."""

    until_s: float
    hits: list[int]
    kind: int


class ForeignCache:
    """Replies by request; the caller passes times, in seconds of a monotonic clock.

    Several threads may read, one writes. The counters are for metrics: two threads that count at the same moment may
    count once.
    """

    def __init__(self, config: CacheConfig | None = None) -> None:
        self.config = config or CacheConfig()
        self._stale_s = self.config.serve_stale_seconds
        self._prefetch = self.config.prefetch_amount
        self.prefetches_names = self._prefetch > 0
        """Whether replies are asked for again before they expire."""
        self._entries: dict[tuple[bool, bytes], _Entry] = {}
        self._denials: dict[tuple[bool, bytes], _Entry] = {}
        self.hits = [0, 0]
        """Successes and denials."""
        self.misses = 0
        self.stale_hits = 0
        self.prefetches = 0
        self.evictions = [0, 0]
        self.drops = 0

    def __len__(self) -> int:
        return len(self._entries) + len(self._denials)

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of successes and of denials."""
        return len(self._entries), len(self._denials)

    def get(self, request: bytes, *, tcp: bool, now_s: float) -> Reply | None:
        """The reply to ``request`` with its ID and with TTLs that have counted down, or None."""
        key = (tcp, request[2:])
        entry = self._entries.get(key) or self._denials.get(key)
        if entry is None:
            self.misses += 1
            return None
        age = now_s - entry.stored_s
        if age >= entry.life_s:
            if age >= entry.life_s + self._stale_s:
                self._of_kind(entry.kind).pop(key, None)
            self.misses += 1
            return None
        self.hits[entry.kind] += 1
        if self._prefetch and entry.uses >= 0:
            entry.uses = entry.uses + 1 if now_s - entry.used_s < self.config.prefetch_seconds else 1
            entry.used_s = now_s
        return _reply(request, entry, int(age))

    def fresh(self, request: bytes, *, tcp: bool, now_s: float) -> FreshReply | None:
        """For how long the reply that was just used can be sent again as it is; None: not at all.

        The uses of a reply that may be prefetched are counted in its entry, so it is not sent without the cache.
        """
        key = (tcp, request[2:])
        entry = self._entries.get(key) or self._denials.get(key)
        if entry is None or self._prefetch:
            return None
        until_s = entry.stored_s + min(int(now_s - entry.stored_s) + 1, entry.life_s)
        return FreshReply(until_s, self.hits, entry.kind) if now_s < until_s else None

    def due(self, request: bytes, *, tcp: bool, now_s: float) -> bool:
        """Whether a reply that was just used is to be asked for again before it expires; true once."""
        key = (tcp, request[2:])
        entry = self._entries.get(key) or self._denials.get(key)
        if entry is None or entry.uses < self._prefetch:
            return False
        rest_s = entry.life_s - (now_s - entry.stored_s)
        if rest_s > max(1.0, entry.life_s * self.config.prefetch_percent / 100):
            return False
        entry.uses = -1
        self.prefetches += 1
        return True

    def stale(self, request: bytes, *, tcp: bool, now_s: float) -> Reply | None:
        """The expired reply to ``request`` with TTLs of 0, or None when it is too old."""
        if not self._stale_s:
            return None
        key = (tcp, request[2:])
        entry = self._entries.get(key) or self._denials.get(key)
        if entry is None or now_s - entry.stored_s >= entry.life_s + self._stale_s:
            return None
        self.stale_hits += 1
        return _reply(request, entry, 1 << 31)

    def put(self, request: bytes, reply: bytes, *, tcp: bool, now_s: float) -> None:
        """Caches ``reply`` unless the guarantees above forbid that."""
        try:
            spans = wire.find_records(reply)
            qtype = int.from_bytes(wire.read_question(reply)[-4:-2], "big")
        except ProtocolError:
            self.drops += 1
            return
        answers, authorities = int.from_bytes(reply[6:8], "big"), int.from_bytes(reply[8:10], "big")
        answer = spans[:answers]
        life_s, kind = self._lifetime_s(reply, answer, spans[answers : answers + authorities])
        if life_s <= 0 or reply[2] & wire.TC >> 8:
            return
        entries, key = self._of_kind(kind), (tcp, request[2:])
        if len(entries) >= (self.config.denial_capacity if kind else self.config.success_capacity):
            entries.pop(next(iter(entries)), None)
            self.evictions[kind] += 1
        self._of_kind(1 - kind).pop(key, None)
        ttls = tuple((span.ttl_offset, span.record.ttl) for span in spans)
        # A new entry is the youngest one, also when it replaces an old one.
        entries.pop(key, None)
        entries[key] = _Entry(reply[2:], ttls, now_s, life_s, qtype, _address_block(answer, qtype), kind)

    def _of_kind(self, kind: int) -> dict[tuple[bool, bytes], _Entry]:
        return self._denials if kind else self._entries

    def _lifetime_s(
        self, reply: bytes, answer: tuple[wire.RecordSpan, ...], authority: tuple[wire.RecordSpan, ...]
    ) -> tuple[float, int]:
        """For how many seconds a reply may be cached (0: not at all), and whether it is a success or a denial."""
        config, rcode = self.config, reply[3] & 0xF
        if rcode == wire.SERVFAIL:
            return config.failure_seconds, _DENIAL
        if rcode not in (wire.NOERROR, wire.NXDOMAIN):
            return 0.0, _DENIAL
        own_s = _own_lifetime_s(reply, answer, authority)
        if answer and rcode == wire.NOERROR:
            return min(config.success_seconds, max(own_s, config.success_least_seconds)), _SUCCESS
        # A denial without SOA is not cached, whatever the least time is (RFC 2308 section 5).
        return (min(config.denial_seconds, max(own_s, config.denial_least_seconds)) if own_s else 0.0), _DENIAL


class ForeignCaches:
    """The caches of a configuration: one for all names, and one for each zone with options of its own."""

    def __init__(self, config: DnsConfig) -> None:
        default = CacheConfig(
            success_seconds=config.cache_seconds,
            denial_seconds=config.cache_seconds,
            serve_stale_seconds=config.serve_stale_seconds,
            serve_stale_verify=config.serve_stale_verify,
        )
        self.default = ForeignCache(config.caches.get(".", default))
        self._zones = {
            encode_name(zone.lower()): ForeignCache(cache) for zone, cache in config.caches.items() if zone != "."
        }

    def choose(self, name: bytes) -> ForeignCache:
        """The cache for a name in wire form."""
        if self._zones and (zone := match_zone(name, self._zones)) is not None:
            return self._zones[zone]
        return self.default

    def by_zone(self) -> tuple[tuple[str, ForeignCache], ...]:
        """All caches with the names of their zones."""
        return (".", self.default), *((decode_name(zone), cache) for zone, cache in self._zones.items())


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


def _own_lifetime_s(reply: bytes, answer: tuple[wire.RecordSpan, ...], authority: tuple[wire.RecordSpan, ...]) -> float:
    """For how many seconds a reply may be cached by its own records; 0 means not at all."""
    if answer and reply[3] & 0xF == wire.NOERROR:
        return float(min(span.record.ttl for span in answer))
    for span in authority:
        record = span.record
        if record.type == wire.SOA and len(record.tail) == 20:
            return float(min(record.ttl, int.from_bytes(record.tail[16:], "big")))
    return 0.0
