"""Copies of packets as the kernel sends them: what is read from them, and that no bytes are too strange."""

import socket
import struct

from hypothesis import given
from hypothesis import strategies as st

from podwire.kernel.attributes import NLMSGHDR, attribute
from podwire.kernel.nflog import Logged, decode, packets

_TCP = struct.pack("!HHIIBBHHH", 40000, 5432, 7, 0, 0x50, 2, 64240, 0, 0)


def ipv4(body: bytes, protocol: int, *, offset: int = 0, options: bytes = b"") -> bytes:
    arguments = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH", 0x40 | arguments, 0, arguments * 4 + len(body), 1, offset, 64, protocol, 0)
    return head + socket.inet_aton("10.0.0.1") + socket.inet_aton("10.0.0.2") + options + body


def ipv6(body: bytes, protocol: int) -> bytes:
    ends = socket.inet_pton(socket.AF_INET6, "fd00::1") + socket.inet_pton(socket.AF_INET6, "fd00::2")
    return struct.pack("!IHBB", 6 << 28, len(body), protocol, 64) + ends + body


def payload(packet: bytes, *more: bytes) -> bytes:
    return b"\2\0\0\7" + b"".join((attribute(9, packet), attribute(10, b"rule-1\0"), *more))


def ends(packet: bytes) -> tuple[str, str, str, int, int]:
    result = decode(payload(packet))
    assert result is not None
    return result.source, result.destination, result.protocol, result.source_port, result.destination_port


def test_every_attribute_of_a_log_message_is_decoded() -> None:
    stamp = struct.pack("!QQ", 1_700_000_000, 250_000)
    more = (
        attribute(1, b"\x08\0\2\0"),
        attribute(3, stamp),
        attribute(4, struct.pack("!I", 12)),
        attribute(5, struct.pack("!I", 13)),
        attribute(12, struct.pack("!I", 99)),
    )
    assert decode(payload(ipv4(_TCP, 6), *more)) == Logged(
        prefix="rule-1",
        source="10.0.0.1",
        destination="10.0.0.2",
        protocol="TCP",
        source_port=40000,
        destination_port=5432,
        hook="forward",
        input=12,
        output=13,
        at=1_700_000_000.25,
        number=99,
    )


def test_ends_of_packets() -> None:
    assert ends(ipv4(_TCP, 6, options=bytes(8))) == ("10.0.0.1", "10.0.0.2", "TCP", 40000, 5432)
    assert ends(ipv4(_TCP, 6, offset=100)) == ("10.0.0.1", "10.0.0.2", "TCP", 0, 0)
    assert ends(ipv4(b"\x08\0\0\0", 1)) == ("10.0.0.1", "10.0.0.2", "ICMP", 0, 0)
    assert ends(ipv4(b"", 47)) == ("10.0.0.1", "10.0.0.2", "47", 0, 0)
    assert ends(ipv6(_TCP, 17)) == ("fd00::1", "fd00::2", "UDP", 40000, 5432)
    assert ends(ipv6(b"\x80\0\0\0", 58)) == ("fd00::1", "fd00::2", "ICMPv6", 0, 0)


def test_extension_headers_of_ipv6() -> None:
    options, first = b"\x2c\0" + bytes(6), b"\x84\0\0\1\0\0\0\1"
    assert ends(ipv6(options + first + _TCP, 0)) == ("fd00::1", "fd00::2", "SCTP", 40000, 5432)
    later = b"\x06\0\0\x10\0\0\0\1"
    assert ends(ipv6(later + _TCP, 44)) == ("fd00::1", "fd00::2", "TCP", 0, 0)


def test_packets_of_other_families_are_skipped() -> None:
    assert decode(payload(b"")) is None
    assert decode(payload(b"\x45\0")) is None
    assert decode(b"\2\0\0\7" + b"\xff\xff\x09\0") is None


def test_datagram_holds_several_packets_and_may_be_truncated() -> None:
    body = payload(ipv4(_TCP, 6))
    message = NLMSGHDR.pack(NLMSGHDR.size + len(body), 4 << 8, 0, 0, 0) + body
    other = NLMSGHDR.pack(NLMSGHDR.size, 3, 0, 0, 0)
    assert list(packets(message + other + message + NLMSGHDR.pack(400, 4 << 8, 0, 0, 0))) == [body, body]


@given(st.binary(max_size=200))
def test_no_bytes_are_too_strange(data: bytes) -> None:
    for packet in packets(data):
        decode(packet)
    decode(data)
    decode(payload(data))


@given(st.integers(0, 255), st.binary(max_size=120))
def test_no_headers_of_ipv6_are_too_strange(protocol: int, body: bytes) -> None:
    assert decode(payload(ipv6(body, protocol))) is not None
