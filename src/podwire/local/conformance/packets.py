"""Encodes and reads packets for which the kernel may have no sockets: SCTP and ICMP errors (pure).

An INIT and its INIT ACK (RFC 4960, 3.3.2 and 3.3.3) are the first two packets of an association; rules and connection
tracking treat them as those of a real association. The Initiate Tag of the INIT is the number of the attempt; the
answer returns this number as its Verification Tag.
"""

import struct
from ipaddress import ip_address
from typing import NamedTuple

import msgspec

SCTP = 132
INIT, INIT_ACK, ABORT = 1, 2, 6
_UNREACHABLE = {4: 3, 6: 1}
_PROTOCOLS = {6: "TCP", 17: "UDP", SCTP: "SCTP"}
_POLYNOMIAL = 0x82F63B78
_WINDOW = 65535


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_CRC = _table()


def crc32c(data: bytes) -> int:
    """The checksum of SCTP (RFC 3309)."""
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum = checksum >> 8 ^ _CRC[(checksum ^ byte) & 255]
    return checksum ^ 0xFFFFFFFF


class SctpPacket(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an SCTP packet and of its first chunk that checks need."""

    source: int
    target: int
    verification: int
    kind: int
    tag: int
    """The Initiate Tag of an INIT or INIT ACK."""


def segment(source: int, target: int, *, verification: int = 0, kind: int = INIT, tag: int) -> bytes:
    """An SCTP packet with an INIT or INIT ACK."""
    cookie = struct.pack("!HHI", 7, 8, tag) if kind == INIT_ACK else b""
    chunk = struct.pack("!BBHIIHHI", kind, 0, 20 + len(cookie), tag, _WINDOW, 1, 1, tag) + cookie
    head = struct.pack("!HHI", source, target, verification)
    return head + struct.pack("<I", crc32c(head + b"\0\0\0\0" + chunk)) + chunk


def read_segment(data: bytes) -> SctpPacket | None:
    """The SCTP packet in ``data`` (behind the IP header); None when it is too short or its checksum is wrong."""
    if len(data) < 20:
        return None
    source, target, verification, sum_le, kind = struct.unpack_from("!HHI4sB", data)
    if struct.unpack("<I", sum_le)[0] != crc32c(data[:8] + b"\0\0\0\0" + data[12:]):
        return None
    tag = struct.unpack_from("!I", data, 16)[0]
    return SctpPacket(source=source, target=target, verification=verification, kind=kind, tag=tag)


class PacketFlow(NamedTuple):
    """The protocol and both ends of a connection; addresses as the kernel prints them."""

    protocol: str
    source: str
    source_port: int
    target: str
    target_port: int


def without_header(data: bytes, family: int) -> bytes:
    """The data behind the IP header of a packet from a raw socket; only IPv4 raw sockets return the header."""
    return data[(data[0] & 15) * 4 :] if family == 4 and data else data


def read_refusal(data: bytes, family: int) -> PacketFlow | None:
    """The flow that an ICMP "destination unreachable" message is about; None for other messages.

    ``data`` begins behind the IP header.
    """
    inner = data[8:]
    if len(data) < 8 or data[0] != _UNREACHABLE[family]:
        return None
    if family == 4:
        if len(inner) < 20:
            return None
        length, protocol = (inner[0] & 15) * 4, inner[9]
        pair = inner[12:16], inner[16:20]
    else:
        if len(inner) < 40:
            return None
        length, protocol = 40, inner[6]
        pair = inner[8:24], inner[24:40]
    if protocol not in _PROTOCOLS or len(inner) < length + 4:
        return None
    ports = struct.unpack_from("!HH", inner, length)
    source, target = (str(ip_address(packed)) for packed in pair)
    return PacketFlow(_PROTOCOLS[protocol], source, ports[0], target, ports[1])
