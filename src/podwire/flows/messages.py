"""The messages of numbered flows: numbers of 8 bytes, queries of DNS, requests of HTTP. Pure.

A stream of numbers divides into messages without further marks. A query of DNS carries the lower 16 bits of its number
as its id; a server must answer it with at least one record. A request of HTTP names the number in its path; every
answer with status 200 counts, so that any server behind an Ingress will do.
"""

import struct
from collections.abc import Callable

import msgspec

from podwire.dns import wire
from podwire.dns.names import encode_name
from podwire.errors import ProtocolError
from podwire.flows.count import FlowTarget

PORT = 7007
"""The port of the servers of flows, of TCP and UDP."""
HTTP_PORT = 7008
DENIED_PORT = 7009
"""Policies deny this port; a server listens there all the same."""
DNS_PORT = 53
SIZE = 8
"""Bytes of a number."""
_LENGTH = struct.Struct("!H")
_HTTP_END = b"\r\n\r\n"


class Exchange(msgspec.Struct, frozen=True):
    """How one message of a kind is written, and when its answer is complete.

    ``complete`` returns whether the bytes so far answer the number; None while bytes are missing.
    """

    request: Callable[[int, FlowTarget], bytes]
    complete: Callable[[int, bytes], bool | None]


def encode_number(number: int, _target: FlowTarget | None = None) -> bytes:
    """A number as a message."""
    return number.to_bytes(SIZE, "big")


def _number_complete(number: int, data: bytes) -> bool | None:
    return int.from_bytes(data[:SIZE], "big") == number if len(data) >= SIZE else None


def encode_query(number: int, target: FlowTarget) -> bytes:
    """A query for the addresses of the target's name (RFC 1035 section 4.1)."""
    header = struct.pack("!6H", number & 0xFFFF, wire.RD, 1, 0, 0, 0)
    kind = wire.AAAA if target.record == "AAAA" else wire.A
    return header + encode_name(target.name) + struct.pack("!HH", kind, wire.IN)


def answers_query(number: int, data: bytes) -> bool:
    """Whether a message of DNS answers the query of that number with a record."""
    try:
        message = wire.parse_message(data)
    except ProtocolError:
        return False
    right = message.id == number & 0xFFFF and bool(message.flags & wire.QR)
    return right and message.rcode == wire.NOERROR and bool(message.answer)


def _query_with_length(number: int, target: FlowTarget) -> bytes:
    query = encode_query(number, target)
    return _LENGTH.pack(len(query)) + query


def _stream_query_complete(number: int, data: bytes) -> bool | None:
    if len(data) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(data)
    body = data[_LENGTH.size :]
    return answers_query(number, body[:length]) if len(body) >= length else None


def _encode_request(number: int, target: FlowTarget) -> bytes:
    return f"GET /{number} HTTP/1.1\r\nHost: {target.name or 'podwire-flows'}\r\nConnection: close\r\n\r\n".encode()


def _response_complete(_number: int, data: bytes) -> bool | None:
    if _HTTP_END not in data:
        return None
    status = data.split(b" ", 2)
    return len(status) > 1 and status[1] == b"200"


STREAM_EXCHANGES = {
    "new": Exchange(encode_number, _number_complete),
    "denied": Exchange(encode_number, _number_complete),
    "dns-tcp": Exchange(_query_with_length, _stream_query_complete),
    "http": Exchange(_encode_request, _response_complete),
}
"""Kinds of flows with a TCP connection for each message."""


def split_requests(data: bytes) -> tuple[list[bytes], bytes]:
    """The answers to the complete requests of HTTP in a stream, and the bytes of an incomplete one."""
    *requests, rest = data.split(_HTTP_END)
    return [_response(request) for request in requests], rest


def _response(request: bytes) -> bytes:
    body = request.split(b" ", 2)[1].lstrip(b"/") if request.count(b" ") > 1 else b""
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
