"""DNS queries in Ethernet frames, and the checks of the frames that answer them."""

import struct
from typing import NamedTuple

MAC, GATEWAY = b"\x02\0\0\0\0\x01", b"\x02\0\0\0\0\x02"
SERVER = {4: bytes((10, 96, 0, 10)), 6: bytes.fromhex("fd960000000000000000000000000010")}
CLIENT = {4: bytes((10, 244, 1, 5)), 6: bytes.fromhex("fd440000000000000000000000000005")}


class Datagram(NamedTuple):
    """What a frame carries."""

    source: bytes
    target: bytes
    ports: tuple[int, int]
    payload: bytes


def fold(data: bytes) -> int:
    """The sum of the 16-bit words of ``data``, folded: 0xffff for data that has its own checksum."""
    words = struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2))
    total: int = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def pseudo(source: bytes, target: bytes, size: int) -> bytes:
    return source + target + struct.pack("!HH", 17, size)


def frame(payload: bytes, *, family: int = 4, port: int = 53, checksum: str = "whole", source: bytes = b"") -> bytes:
    """A query from the client to the server; ``checksum`` is whole, partial (for a device to complete) or none."""
    source, target = source or CLIENT[family], SERVER[family]
    size = 8 + len(payload)
    udp = struct.pack("!HHHH", 40000, port, size, 0) + payload
    head = pseudo(source, target, size)
    number = {"whole": (~fold(head + udp) & 0xFFFF) or 0xFFFF, "partial": fold(head), "none": 0}[checksum]
    udp = udp[:6] + number.to_bytes(2, "big") + udp[8:]
    if family == 4:
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + size, 7, 0, 64, 17, 0) + source + target
        ip = ip[:10] + (~fold(ip) & 0xFFFF).to_bytes(2, "big") + ip[12:]
        return GATEWAY + MAC + b"\x08\x00" + ip + udp
    return GATEWAY + MAC + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, size, 17, 64) + source + target + udp


def with_ambiguous_checksum(payload: bytes, family: int) -> bytes:
    """The query with the one ID for which a whole checksum is the same number as a partial one."""
    size, nameless = 8 + len(payload), bytes(2) + payload[2:]
    head = pseudo(CLIENT[family], SERVER[family], size)
    sums = fold(head) + fold(head + struct.pack("!HHHH", 40000, 53, size, 0) + nameless)
    return (-sums % 0xFFFF).to_bytes(2, "big") + payload[2:]


def is_ambiguous(data: bytes) -> bool:
    """Whether the checksum of a frame is right as it is, and right for a device to complete."""
    begin, addresses = (34, slice(26, 34)) if data[14] >> 4 == 4 else (54, slice(22, 54))
    udp = data[begin:]
    head = data[addresses] + struct.pack("!HH", 17, len(udp))
    return int.from_bytes(udp[6:8], "big") == fold(head) and fold(head + udp) == 0xFFFF


def read(data: bytes, *, partial: bool = False) -> Datagram:
    """The datagram of a frame, whose lengths and checksums must be right."""
    version = data[14] >> 4
    network = data[14:34] if version == 4 else data[14:54]
    if version == 4:
        assert fold(network) == 0xFFFF, "the checksum of the IP header is wrong"
        assert int.from_bytes(network[2:4], "big") == len(data) - 14
        source, target = network[12:16], network[16:20]
    else:
        assert int.from_bytes(network[4:6], "big") == len(data) - 54
        source, target = network[8:24], network[24:40]
    udp = data[14 + len(network) :]
    ports, size, number = struct.unpack("!HH", udp[:4]), *struct.unpack("!HH", udp[4:8])
    assert size == len(udp)
    head = pseudo(source, target, size)
    if partial:
        assert number == fold(head), "the checksum does not wait for the device"
    else:
        assert fold(head + udp) == 0xFFFF, "the checksum of the datagram is wrong"
    return Datagram(source, target, (ports[0], ports[1]), udp[8:])
