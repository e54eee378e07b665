"""Records in the text form of zone files, read by dnspython, as podwire's own records. Pure.

dnspython is imported with the first record: servers that have no template and no zone file do without it. Its classes
are translated by their wire form, so every record type that it knows works. Source: RFC 1035 section 5.
"""

from collections.abc import Iterator

from podwire.dns import wire
from podwire.dns.names import encode_name
from podwire.dns.wire import ResourceRecord
from podwire.errors import ProtocolError

_DEFAULT_TTL_S = 3600
_CLASSES = ("IN", "CH", "HS", "ANY")


def read_record(text: str) -> ResourceRecord:
    """The record of a line ``name [TTL] [class] type data``; a name without final dot counts as absolute.

    Raises: ProtocolError when the line is no record.
    """
    import dns.exception
    import dns.name
    import dns.rdata
    import dns.rdataclass
    import dns.rdatatype
    import dns.tokenizer
    import dns.ttl

    try:
        tokens = dns.tokenizer.Tokenizer(text)
        name = tokens.get_name(origin=dns.name.root)
        ttl, rclass = _DEFAULT_TTL_S, dns.rdataclass.IN
        while True:
            word = tokens.get_string()
            if word[:1].isdigit():
                ttl = dns.ttl.from_text(word)
            elif word.upper() in _CLASSES:
                rclass = dns.rdataclass.from_text(word)
            else:
                break
        rtype = dns.rdatatype.from_text(word)
        rdata = dns.rdata.from_text(rclass, rtype, tokens, origin=dns.name.root, relativize=False)
    except (dns.exception.DNSException, ValueError, KeyError) as failure:
        raise ProtocolError("local", f"no record: {text!r}: {failure}") from failure
    return next(_translated(name, rclass, ttl, (rdata,)))


def _translated(name: object, rclass: int, ttl: int, rdatas: object) -> Iterator[ResourceRecord]:
    """The records of a set of dnspython."""
    owner = name.to_wire()  # type: ignore[attr-defined]
    for rdata in rdatas:  # type: ignore[attr-defined]
        data = rdata.to_wire()
        head = int(rdata.rdtype).to_bytes(2, "big") + rclass.to_bytes(2, "big") + ttl.to_bytes(4, "big")
        yield wire.parse_record(owner + head + len(data).to_bytes(2, "big") + data)


def read_zone(text: str, origin: str) -> tuple[ResourceRecord, ...]:
    """All records of a zone file, in its order, with ``$ORIGIN``, ``$TTL`` and ``$GENERATE``; ``$INCLUDE`` is refused.

    Raises: ProtocolError with the line of the file; also when the zone has no SOA record.
    """
    import dns.exception
    import dns.zone

    try:
        zone = dns.zone.from_text(text, origin=origin, relativize=False, allow_include=False, check_origin=False)
    except (dns.exception.DNSException, ValueError, KeyError) as failure:
        raise ProtocolError("local", f"zone {origin}: {failure or type(failure).__name__}") from failure
    return zone_records(zone)


def zone_records(zone: object) -> tuple[ResourceRecord, ...]:
    """All records of a zone of dnspython, the SOA record first."""
    records: list[ResourceRecord] = []
    for name, rdataset in zone.iterate_rdatasets():  # type: ignore[attr-defined]
        records += _translated(name, rdataset.rdclass, rdataset.ttl, rdataset)
    origin = encode_name(zone.origin.to_text())  # type: ignore[attr-defined]
    records.sort(key=lambda record: (record.type != wire.SOA, record.name.lower() != origin.lower()))
    return tuple(records)
