"""Messages of numbered flows."""

from ipaddress import IPv4Address

from podwire.dns import wire
from podwire.dns.names import encode_name
from podwire.flows.count import FlowTarget
from podwire.flows.messages import STREAM_EXCHANGES, answers_query, encode_query, split_requests

TARGET = FlowTarget(kind="dns", address="10.96.0.10", port=53, name="a.example")


def answer(number: int, *, rcode: int = wire.NOERROR, addresses: int = 1) -> bytes:
    name = encode_name("a.example")
    record = wire.ResourceRecord(name, wire.A, 5, head=IPv4Address("10.0.0.1").packed)
    flags = wire.QR | rcode
    return wire.encode(wire.DnsMessage(number & 0xFFFF, flags, name, wire.A, answer=(record,) * addresses))


def test_a_query_is_one_that_the_server_parses() -> None:
    query = wire.parse_query(encode_query(65537, TARGET))
    assert (query.id, query.name, query.qtype) == (1, encode_name("a.example"), wire.A)


def test_only_an_answer_with_records_answers_a_query() -> None:
    assert answers_query(65537, answer(65537))
    assert not answers_query(2, answer(3))
    assert not answers_query(2, answer(2, rcode=wire.NXDOMAIN, addresses=0))
    assert not answers_query(2, answer(2, addresses=0))
    assert not answers_query(2, b"\x00\x02")


def test_answers_of_streams_are_complete_with_their_last_byte() -> None:
    body = answer(7)
    data = len(body).to_bytes(2, "big") + body
    complete = STREAM_EXCHANGES["dns-tcp"].complete
    assert [complete(7, data[:end]) for end in (0, 1, len(data) - 1, len(data))] == [None, None, None, True]
    assert complete(8, data) is False
    assert STREAM_EXCHANGES["new"].complete(1, bytes(7)) is None
    assert STREAM_EXCHANGES["new"].complete(1, bytes(8)) is False


def test_a_request_of_http_gets_its_number_back() -> None:
    target = FlowTarget(kind="http", address="10.0.0.1", port=80, name="shop.example")
    exchange = STREAM_EXCHANGES["http"]
    request = exchange.request(12, target)
    assert b"Host: shop.example\r\n" in request
    (response,), rest = split_requests(request + b"GET /13 HT")
    assert (response.endswith(b"\r\n\r\n12"), rest) == (True, b"GET /13 HT")
    assert exchange.complete(12, response) is True
    assert exchange.complete(12, b"HTTP/1.1 503 no\r\n\r\n") is False
    assert exchange.complete(12, b"HTTP/1.1 200 OK\r\n") is None
