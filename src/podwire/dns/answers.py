"""The forms of an answer about a name in a zone: records, addresses, no data, a missing name. Pure.

A negative answer has the SOA record of the zone, encoded so that all its names are pointers into the question; it is
made once for each position of the zone in a question and each serial number.
"""

import msgspec

from podwire.dns import wire
from podwire.dns.index import RecordIndex
from podwire.dns.names import join_labels
from podwire.dns.records import Addresses
from podwire.dns.wire import AddressRing, ResourceRecord
from podwire.errors import ProtocolError

_SOA_TTL_S = 300
_MAX_SOAS = 512


class ZoneAnswer(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a look-up.

    ``foreign``: the name is outside of the zones, upstream must be asked. ``follow`` is a foreign alias target whose
    records belong behind ``records``. ``ring`` has the address records that follow ``records``. ``zone`` is the zone
    that answered, for metrics. ``soa`` is the encoded SOA record of a negative answer, whose names are pointers into
    the question.
    """

    rcode: int = wire.NOERROR
    records: tuple[ResourceRecord, ...] = ()
    authority: tuple[ResourceRecord, ...] = ()
    additional: tuple[ResourceRecord, ...] = ()
    foreign: bool = False
    follow: bytes = b""
    zone: str = ""
    ring: AddressRing | None = None
    soa: bytes = b""

    @property
    def empty(self) -> bool:
        """Whether no record answers the question."""
        return not self.records and self.ring is None


class ZoneQuestion(msgspec.Struct, frozen=True, gc=False):
    """A question inside one of our zones: ``relative`` is lower case, ``skipped`` the number of bytes before the zone.

    ``aliases`` are the names that led here, in lower case.
    """

    name: bytes
    qtype: int
    relative: tuple[str, ...]
    skipped: int
    zone: str
    aliases: tuple[bytes, ...] = ()

    @property
    def suffix(self) -> bytes:
        """The name of the zone as the sender wrote it."""
        return self.name[self.skipped :]


FOREIGN = ZoneAnswer(foreign=True)


class AnswerForms:
    """The forms of answers of the zone ``domain``; missing names of zones in ``fallthrough`` are foreign."""

    def __init__(self, index: RecordIndex, domain: str, ttl_s: int, fallthrough: frozenset[str]) -> None:
        self._index = index
        self._domain = domain
        self.ttl_s = ttl_s
        self._fallthrough = fallthrough
        self._soas: dict[tuple[int, int], bytes] = {}

    def records(self, question: ZoneQuestion, records: tuple[ResourceRecord, ...]) -> ZoneAnswer:
        """An answer with records, or without data."""
        if records:
            return ZoneAnswer(records=records, zone=question.zone)
        return ZoneAnswer(zone=question.zone, soa=self.encoded_soa(question))

    def addresses(self, question: ZoneQuestion, addresses: Addresses) -> ZoneAnswer:
        """An answer with the addresses of the family of the question, or without data."""
        qtype = question.qtype
        chosen = addresses.v4 if qtype == wire.A else addresses.v6 if qtype == wire.AAAA else ()
        if not chosen:
            return self.records(question, ())
        return ZoneAnswer(ring=wire.make_ring(chosen, qtype, self.ttl_s), zone=question.zone)

    def missing(self, question: ZoneQuestion) -> ZoneAnswer:
        """The answer for a name that does not exist in the zone."""
        if question.zone in self._fallthrough and self._index.synced:
            return FOREIGN
        rcode = wire.NXDOMAIN if self._index.synced else wire.SERVFAIL
        return ZoneAnswer(rcode=rcode, zone=question.zone, soa=self.encoded_soa(question))

    def absent_soa(self, name: bytes, skipped: int) -> bytes:
        """The encoded SOA record for a missing name of the zone, which begins after ``skipped`` bytes of the name."""
        soa = self._soas.get((skipped, self._index.serial))
        return soa or self.encoded_soa(ZoneQuestion(name, wire.A, (), skipped, self._domain))

    def encoded_soa(self, question: ZoneQuestion) -> bytes:
        """The SOA record of a negative answer: all names are pointers to the zone in the question."""
        key = (question.skipped, self._index.serial)
        soa = self._soas.get(key)
        if soa is None:
            pointer = (0xC000 | wire.HEADER_BYTES + question.skipped).to_bytes(2, "big")
            record = self.soa(question)
            names = b"".join((b"\x02ns\x03dns", pointer, b"\x0ahostmaster", pointer, record.tail))
            if len(self._soas) > _MAX_SOAS:
                self._soas = {}
            soa = self._soas[key] = pointer + wire.encode_fixed(wire.SOA, record.ttl, names)
        return soa

    def soa(self, question: ZoneQuestion) -> ResourceRecord:
        """The SOA record of the zone in the question."""
        numbers = (self._index.serial & 0xFFFFFFFF, 7200, 1800, 86400, self.ttl_s)
        try:
            names = (join_labels(("ns", "dns"), question.suffix), join_labels(("hostmaster",), question.suffix))
        except ProtocolError:
            names = (question.suffix, question.suffix)
        return ResourceRecord(
            question.suffix,
            wire.SOA,
            min(self.ttl_s, _SOA_TTL_S),
            names=names,
            tail=b"".join(n.to_bytes(4, "big") for n in numbers),
        )

    def address_record(self, name: bytes, packed: bytes) -> ResourceRecord:
        """The record of an address."""
        return ResourceRecord(name, wire.A if len(packed) == 4 else wire.AAAA, self.ttl_s, tail=packed)

    def all_addresses(self, name: bytes, addresses: Addresses) -> tuple[ResourceRecord, ...]:
        """The records of the addresses of both families."""
        return tuple(self.address_record(name, packed) for packed in addresses.v4 + addresses.v6)
