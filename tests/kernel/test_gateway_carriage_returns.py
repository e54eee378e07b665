"""A carriage return without a line feed in each element of a request, at a real Envoy: the request is refused.

The backend keeps all bytes. In none of the cases does a bare carriage return reach it outside of a body, and no case
makes two requests of one (RFC 9112, section 2.2).
"""

import re
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.kernel.gateway_raw_backend import Site, head_of, raw_site, requests_of

HELD, STREAMED = "held.example", "streamed.example"
"""Hosts with a limit for bodies, which makes the engine hold them, and without."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with raw_site({HELD: 1000, STREAMED: 0}, request_timeout=2) as opened:
        yield opened


class Exchange(NamedTuple):
    """The status that a client got, and what the backend got meanwhile: whole requests, and the bytes of others."""

    status: int
    requests: list[bytes]
    others: list[bytes]


def _exchange(site: Site, data: bytes) -> Exchange:
    """Sends bytes, then reads until the engine closes the connection."""
    before = [len(stream) for stream in site.backend.received]
    with socket.create_connection(("127.0.0.1", site.port), timeout=30) as connection:
        connection.sendall(data)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    before += [0] * (len(site.backend.received) - len(before))
    streams = [bytes(stream[start:]) for stream, start in zip(site.backend.received, before, strict=True)]
    whole = [requests_of(stream) for stream in streams]
    others = [stream[sum(map(len, requests)) :] for stream, requests in zip(streams, whole, strict=True)]
    assert answer.count(b"HTTP/1.1 ") == 1, answer
    return Exchange(int(answer.split()[1]), [request for requests in whole for request in requests], others)


def _post(host: str, framing: bytes, body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s\r\n\r\n%s" % (host.encode(), framing, body)


def _get(line: bytes = b"GET / HTTP/1.1", header: bytes = b"X-A: b") -> bytes:
    return b"%s\r\nHost: %s\r\nConnection: close\r\n%s\r\n\r\n" % (line, HELD.encode(), header)


_CHUNKED = b"Transfer-Encoding: chunked"
_REFUSED, _SERVED = 400, 200
"""Statuses."""
_HEADS = [
    ("after the method", _get(b"GET\r / HTTP/1.1"), _REFUSED),
    ("in the path", _get(b"GET /a\rb HTTP/1.1"), _REFUSED),
    ("in the query", _get(b"GET /a?b\rc HTTP/1.1"), _REFUSED),
    ("in the version", _get(b"GET / HTTP/1.1\rX-Forged: c"), _REFUSED),
    ("in the name of a header", _get(header=b"X-\rA: b"), _REFUSED),
    ("before the colon", _get(header=b"X-A\r: b"), _REFUSED),
    ("in a value", _get(header=b"X-A: b\rc"), _REFUSED),
    ("before a forged header", _get(header=b"X-A: b\rX-Forged: c"), _REFUSED),
    ("before a forged request", _get(header=b"X-A: b\r\rGET /forged HTTP/1.1\rX-Forged: c\r\r"), _REFUSED),
    ("in a folded line", _get(header=b"X-A: b\r\n \rX-Forged: c"), _REFUSED),
    ("in the host", _get(header=b"X-A: b").replace(b".example", b"\r.example"), _REFUSED),
    ("in a length", _post(HELD, b"Content-Length: 3\r4", b"abc"), _REFUSED),
    ("in a transfer coding", _post(HELD, b"Transfer-Encoding: chunk\red", b"3\r\nabc\r\n0\r\n\r\n"), _REFUSED),
    ("before the request", b"\r" + _get(), _REFUSED),
    ("at the end of the request", _get(header=b"X-A: b\r\r"), _REFUSED),
    ("before an empty line", _get(header=b"X-A: b\r\n\rX-Forged: c"), _REFUSED),
    ("at the end of all lines", _get().replace(b"\r\n", b"\r"), _REFUSED),
]
_BODIES = [
    ("in the size of a chunk", b"3\r1\r\nabc\r\n0\r\n\r\n", _REFUSED),
    ("in the extension of a chunk", b"3;a=b\rc\r\nabc\r\n0\r\n\r\n", _REFUSED),
    ("in the extension of the last chunk", b"3\r\nabc\r\n0;a\rb\r\n\r\n", _REFUSED),
    ("after the data of a chunk", b"3\r\nabc\r0\r\n\r\n", _REFUSED),
    ("in a trailer", b"3\r\nabc\r\n0\r\nX-A: b\rX-Forged: c\r\n\r\n", _REFUSED),
    ("in the name of a trailer", b"3\r\nabc\r\n0\r\nX-\rA: b\r\n\r\n", _REFUSED),
    ("after the last chunk", b"3\r\nabc\r\n0\r\n\r\r\n", _REFUSED),
]


def _check(exchange: Exchange, status: int) -> None:
    assert exchange.status == status
    assert len(exchange.requests) == (1 if status == _SERVED else 0)
    for data in (*map(head_of, exchange.requests), *exchange.others):
        assert not re.search(rb"\r(?!\n)|(?<!\r)\n|(?i:\nx-forged)", data), data


@pytest.mark.parametrize(("data", "status"), [case[1:] for case in _HEADS], ids=[case[0] for case in _HEADS])
def test_a_carriage_return_in_a_head_is_refused(site: Site, data: bytes, status: int) -> None:
    _check(_exchange(site, data), status)


@pytest.mark.parametrize("host", [HELD, STREAMED])
@pytest.mark.parametrize(("body", "status"), [case[1:] for case in _BODIES], ids=[case[0] for case in _BODIES])
def test_a_carriage_return_between_chunks_is_refused(site: Site, host: str, body: bytes, status: int) -> None:
    _check(_exchange(site, _post(host, _CHUNKED, body)), status)


def test_an_encoded_carriage_return_stays_encoded(site: Site) -> None:
    exchange = _exchange(site, _get(b"GET /a%0d%0aX-Forged:%20b?c=%0d%0A HTTP/1.1"))
    _check(exchange, _SERVED)
    assert exchange.requests[0].startswith(b"GET /a%0d%0aX-Forged:%20b?c=%0d%0A HTTP/1.1\r\n")


@pytest.mark.parametrize("host", [HELD, STREAMED])
def test_a_body_with_carriage_returns_is_one_request(site: Site, host: str) -> None:
    body = b"a\rb\r\n\r\nGET /forged HTTP/1.1\r\nHost: x\r\n\r\n"
    exchange = _exchange(site, _post(host, b"Content-Length: %d" % len(body), body))
    _check(exchange, _SERVED)
    assert exchange.requests[0].endswith(b"\r\n\r\n" + body)


_HEADERS, _SETTINGS = 1, 4
"""Types of frames."""


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2 (RFC 9113, section 4.1)."""
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def _field(name: bytes, value: bytes) -> bytes:
    """A header field as a literal without indexing (RFC 7541, section 6.2.2)."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


@pytest.mark.parametrize(
    ("field", "served"),
    [
        ((b"x-a", b"b"), True),
        ((b"x-a", b"b\rx-forged: c"), False),
        ((b"x-\ra", b"b"), False),
        ((b":path", b"/a\rb"), False),
    ],
    ids=["none", "in a value", "in a name", "in the path"],
)
def test_http2_refuses_carriage_returns(site: Site, field: tuple[bytes, bytes], served: bool) -> None:
    fields = {b":method": b"GET", b":scheme": b"http", b":authority": HELD.encode(), b":path": b"/"} | dict([field])
    block = b"".join(_field(*item) for item in fields.items())
    before = sum(map(len, site.backend.received))
    with (
        socket.create_connection(("127.0.0.1", site.port), timeout=30) as connection,
        connection.makefile("rb") as reader,
    ):
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, 5, 1, block)
        )
        kinds = set()
        while _HEADERS not in kinds and (head := reader.read(9)):
            reader.read(int.from_bytes(head[:3]))
            kinds.add(head[3])
    assert (_HEADERS in kinds) == served
    assert (sum(map(len, site.backend.received)) > before) == served
