"""Checksums of packets that tests write by hand."""

import struct
from functools import cache


def checksum(data: bytes) -> int:
    """The checksum of IP, UDP and TCP (RFC 1071) over an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def crc32c(data: bytes) -> int:
    """The checksum of SCTP (RFC 4960, appendix B); connection tracking checks it."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _table()[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    def entry(value: int) -> int:
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        return value

    return tuple(map(entry, range(256)))
