"""The codec against dnspython, and against bytes that nobody should send."""

import struct

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rdata
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.dns import wire
from podwire.dns.names import decode_name, encode_name, split_labels
from podwire.dns.wire import DnsMessage, Edns, ResourceRecord
from podwire.errors import ProtocolError

_labels = st.lists(st.binary(min_size=1, max_size=20), min_size=0, max_size=6)
_names = _labels.map(lambda labels: b"".join(bytes([len(x)]) + x for x in labels) + b"\0")
_ttls = st.integers(0, 2**31 - 1)


def _record(kind: int) -> st.SearchStrategy[ResourceRecord]:
    head, names, tail = {
        wire.A: (0, 0, 4),
        wire.AAAA: (0, 0, 16),
        wire.CNAME: (0, 1, 0),
        wire.PTR: (0, 1, 0),
        wire.SRV: (6, 1, 0),
        wire.MX: (2, 1, 0),
        wire.SOA: (0, 2, 20),
    }[kind]
    return st.builds(
        ResourceRecord,
        _names,
        st.just(kind),
        _ttls,
        st.binary(min_size=head, max_size=head),
        st.tuples(*[_names] * names),
        st.binary(min_size=tail, max_size=tail),
    )


_records = st.one_of([_record(k) for k in (wire.A, wire.AAAA, wire.CNAME, wire.PTR, wire.SRV, wire.MX, wire.SOA)])
_sections = st.lists(_records, max_size=4).map(tuple)
_edns = st.none() | st.builds(
    Edns, st.integers(512, 65535), st.just(0), st.booleans(), st.just(b"\x00\x0a\x00\x081234567\x00")
)
_messages = st.builds(
    DnsMessage,
    st.integers(0, 65535),
    st.just(wire.QR | wire.AA | wire.RD),
    _names,
    st.sampled_from([wire.A, wire.SRV, wire.TXT]),
    st.just(wire.IN),
    _sections,
    _sections,
    _sections,
    _edns,
)


@given(_messages)
def test_encoded_messages_parse_back(message: DnsMessage) -> None:
    assert wire.parse_message(wire.encode(message)) == message


@given(_messages)
def test_dnspython_reads_the_same_records(message: DnsMessage) -> None:
    oracle = dns.message.from_wire(wire.encode(message), one_rr_per_rrset=True)
    assert oracle.id == message.id
    assert oracle.edns == (0 if message.edns else -1)
    for section, records in (
        (oracle.answer, message.answer),
        (oracle.authority, message.authority),
        (oracle.additional, message.additional),
    ):
        assert [(r.name.to_wire(), r.rdtype, r.ttl) for r in section] == [(r.name, r.type, r.ttl) for r in records]
        for rrset, record in zip(section, records, strict=True):
            assert rrset[0].to_wire() == record.head + b"".join(record.names) + record.tail


@given(st.binary(max_size=300))
def test_a_parser_of_noise_returns_or_refuses(data: bytes) -> None:
    for parse in (wire.parse_query, wire.parse_message):
        try:
            parse(data)
        except ProtocolError:
            continue


@given(_messages, st.data())
def test_a_parser_of_damaged_messages_returns_or_refuses(message: DnsMessage, data: st.DataObject) -> None:
    damaged = bytearray(wire.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    for parse in (wire.parse_query, wire.parse_message):
        try:
            parse(cut)
        except ProtocolError:
            continue


@given(_messages, st.integers(512, 700))
def test_cut_answers_keep_the_limit_and_set_tc(message: DnsMessage, limit: int) -> None:
    data = wire.encode(message, limit)
    assert len(data) <= limit
    read = wire.parse_message(data)
    assert bool(read.flags & wire.TC) == (len(read.answer) < len(message.answer))
    assert read.edns == message.edns
    if read.flags & wire.TC:
        assert read.authority == read.additional == ()


def test_a_query_of_dnspython_is_understood() -> None:
    query = dns.message.make_query("Web.default.svc.cluster.local.", "AAAA", use_edns=0, payload=1400, want_dnssec=True)
    read = wire.parse_query(query.to_wire())
    assert (read.id, read.qtype, read.qclass) == (query.id, wire.AAAA, wire.IN)
    assert decode_name(read.name) == "Web.default.svc.cluster.local."
    assert read.edns == Edns(size=1400, dnssec_ok=True)


def test_names_are_compressed_but_srv_targets_are_not() -> None:
    name = encode_name("web.default.svc.cluster.local")
    alias = DnsMessage(1, wire.QR, name, wire.CNAME, answer=(ResourceRecord(name, wire.CNAME, 5, names=(name,)),))
    service = DnsMessage(1, wire.QR, name, wire.SRV, answer=(ResourceRecord(name, wire.SRV, 5, bytes(6), (name,)),))
    assert len(wire.encode(alias)) == 12 + len(name) + 4 + 2 + 10 + 2
    assert len(wire.encode(service)) == 12 + len(name) + 4 + 2 + 10 + 6 + len(name)


@pytest.mark.parametrize(
    ("tail", "problem"),
    [
        (b"\xc0\x0c\x00\x01\x00\x01", "forward"),
        (b"\xc0\xff\x00\x01\x00\x01", "forward"),
        (b"\x40aaa\x00\x00\x01\x00\x01", "label type"),
        (b"\x05ab", "cut"),
        (b"\x01a", "cut"),
        ((b"\x3f" + b"a" * 63) * 4 + b"\x00\x00\x01\x00\x01", "255"),
        (b"\x01a\x00\x00", "cut"),
    ],
    ids=["own-pointer", "beyond", "reserved-label", "cut-label", "no-root", "long", "cut-question"],
)
def test_a_broken_question_is_refused(tail: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem) as refused:
        wire.parse_query(struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + tail)
    assert refused.value.side == "remote"


@pytest.mark.parametrize("questions", [0, 2])
def test_messages_without_exactly_one_question_are_refused(questions: int) -> None:
    with pytest.raises(ProtocolError, match="questions"):
        wire.parse_query(struct.pack("!6H", 7, 0, questions, 0, 0, 0) + b"\x00\x00\x01\x00\x01" * 2)


def test_two_opt_records_are_refused() -> None:
    opt = b"\x00" + struct.pack("!HHIH", wire.OPT, 1232, 0, 0)
    with pytest.raises(ProtocolError, match="two OPT"):
        wire.parse_query(struct.pack("!6H", 7, 0, 1, 0, 0, 2) + b"\x00\x00\x01\x00\x01" + opt + opt)


def test_offsets_of_ttls_are_found() -> None:
    name = encode_name("a.example")
    message = DnsMessage(
        1,
        wire.QR,
        name,
        wire.A,
        answer=(
            ResourceRecord(name, wire.CNAME, 77, names=(encode_name("b.example"),)),
            ResourceRecord(name, wire.A, 9, tail=bytes(4)),
        ),
        edns=Edns(),
    )
    data = bytearray(wire.encode(message))
    result = tuple((span.ttl_offset, span.record.ttl) for span in wire.find_records(bytes(data)))
    assert [ttl for _, ttl in result] == [77, 9]
    for offset, ttl in result:
        struct.pack_into("!I", data, offset, ttl - 5)
    assert [record.ttl for record in wire.parse_message(bytes(data)).answer] == [72, 4]


@given(_labels)
def test_names_split_into_their_labels(labels: list[bytes]) -> None:
    name = b"".join(bytes([len(x)]) + x for x in labels) + b"\0"
    assert split_labels(name) == labels
    assert dns.name.from_text(decode_name(name)).to_wire() == name
