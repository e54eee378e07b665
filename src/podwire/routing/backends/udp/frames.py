"""The form of packets between nodes, and how large frames become datagrams and are joined again (pure).

A frame is what one read of a TUN device returns: a ``virtio_net_hdr`` (linux/virtio_net.h, 10 bytes), then a packet of
IP. The packet of a large frame is longer than the MTU: the headers of TCP or UDP, and the payload of up to 45 segments,
each of which gets a copy of the headers. The kernel leaves cutting and checksums to the reader.

Each segment travels in one datagram, so the loss of a datagram loses one segment and no more::

    0       2       4      5             6            8
    | offset | frame | kind | csum offset | csum start | headers as in the frame | payload of the segment |

``offset`` is the place of the payload in the payload of the frame; ``frame`` counts the large frames of a sender.
``kind`` is :data:`FORM` with the ``gso_type``, and :data:`NEEDS_CSUM` where the kernel shall complete the checksum at
``csum start`` + ``csum offset``. The headers are those of the large frame, lengths included, so a receiver that gets
all datagrams of a frame together (UDP_GRO) only removes what repeats. Of an incomplete frame it joins the neighbours,
and gives them lengths, sequence number, flags and checksums of their own.

Cost: 8 bytes a packet; the work in Python is per frame, and one element of a vector per segment.
"""

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

VNET = struct.Struct("=BBHHHH")
"""``virtio_net_hdr``: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset."""
HEADER = struct.Struct("!HHBBH")
HEADER_BYTES = HEADER.size
_COMMON = struct.Struct("!HBBH")
FORM = 0x40
"""Bits of ``kind`` by which this form of packets is known."""
_FORM_MASK = 0xE0
NEEDS_CSUM = 0x10
_GSO_MASK = 0x0F
_VNET_NEEDS_CSUM = 1
GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4 = 1, 4, 5
_DATAGRAMS_MAX = 64
"""UDP_MAX_SEGMENTS of Linux before 6.10."""
_BYTES_MAX = 65_000
"""Less than the largest UDP payload, 65,507 bytes."""
_TCP_FLAGS_LAST = 0x01 | 0x08
"""FIN and PSH, which the last segment alone has."""

Parts = list[bytes | bytearray | memoryview]
"""Bytes to be written one after the other (an iovec)."""


class Datagrams(NamedTuple):
    """Datagrams of one size (the last may be smaller) as one vector; ``size`` is 0 for a single datagram."""

    parts: Parts
    size: int


@lru_cache(64)
def _offsets(step: int) -> tuple[bytes, ...]:
    """The first field of each datagram of a frame whose segments have ``step`` bytes of payload."""
    return tuple(struct.pack("!H", offset) for offset in range(0, 0x10000, step))


def headers_length(packet: memoryview, gso_type: int, csum_start: int, csum_offset: int) -> int:
    """The number of bytes of the headers of IP and of TCP or UDP.

    Raises: ValueError when the packet is too short to have them, or the checksum is not in the second.
    """
    version = packet[0] >> 4
    udp = gso_type == GSO_UDP_L4
    if csum_start < (20 if version == 4 else 40) or csum_start + (8 if udp else 13) > len(packet):
        raise ValueError("a packet that ends before the header of TCP or UDP")
    transport = 8 if udp else (packet[csum_start + 12] >> 4) * 4
    if not csum_offset + 2 <= transport < len(packet) - csum_start:
        raise ValueError("a packet without payload, or with its checksum elsewhere")
    return csum_start + transport


def datagrams(frame: bytearray, size: int, number: int) -> Iterator[Datagrams]:
    """The datagrams for a frame of ``size`` bytes, ``number`` among the large ones; the frame's first bytes are reused.

    Raises: ValueError for a frame of another form.
    """
    flags, gso_type, _, step, csum_start, csum_offset = VNET.unpack_from(frame)
    kind = FORM | (NEEDS_CSUM if flags & _VNET_NEEDS_CSUM else 0) | (gso_type & _GSO_MASK)
    view = memoryview(frame)[:size]
    if not gso_type:
        HEADER.pack_into(frame, VNET.size - HEADER_BYTES, 0, 0, kind, csum_offset, csum_start)
        yield Datagrams([view[VNET.size - HEADER_BYTES :]], 0)
        return
    length = headers_length(view[VNET.size :], gso_type, csum_start, csum_offset)
    if not step or not flags & _VNET_NEEDS_CSUM:
        raise ValueError("a large frame without a size of segments or a checksum to complete")
    common = VNET.size - _COMMON.size
    _COMMON.pack_into(frame, common, number & 0xFFFF, kind, csum_offset, csum_start)
    payload = VNET.size + length
    headers = view[common:payload]
    count = -(-(size - payload) // step)
    most = max(1, min(_DATAGRAMS_MAX, _BYTES_MAX // (HEADER_BYTES + length + step)))
    per_datagram = -(-count // -(-count // most))
    offsets = _offsets(step)
    for first in range(0, count, per_datagram):
        parts: Parts = []
        for index in range(first, min(first + per_datagram, count)):
            at = payload + index * step
            parts += (offsets[index], headers, view[at : at + step])
        yield Datagrams(parts, HEADER_BYTES + length + step if len(parts) > 3 else 0)


class _Head(NamedTuple):
    """The header of a datagram."""

    offset: int
    frame: int
    kind: int
    csum_offset: int
    csum_start: int


def frames(data: memoryview, step: int) -> Iterator[Parts]:
    """The frames to write for received bytes: datagrams of ``step`` bytes, of which the last may be smaller.

    Raises: ValueError at the first datagram of another form; those before it have been returned.
    """
    size = len(data)
    start = 0
    while start < size:
        head = _head(data, start)
        if not head.kind & _GSO_MASK:
            yield [_vnet(head, 0, 0, 0), data[start + HEADER_BYTES : start + step]]
            start += step
            continue
        packet = data[start + HEADER_BYTES : start + step]
        length = headers_length(packet, head.kind & _GSO_MASK, head.csum_start, head.csum_offset)
        segment = step - HEADER_BYTES - length
        end = _run_end(data, start, step, segment)
        yield _joined(data[start:end], head, length, step)
        start = end


def _head(data: memoryview, at: int) -> _Head:
    if len(data) - at <= HEADER_BYTES:
        raise ValueError("a datagram without a packet")
    head = _Head(*HEADER.unpack_from(data, at))
    if head.kind & _FORM_MASK != FORM:
        raise ValueError(f"a datagram of another form: {head.kind:#x}")
    return head


@lru_cache(64)
def _fields(step: int) -> struct.Struct:
    """The offset and the rest of the header of a datagram of ``step`` bytes."""
    return struct.Struct(f"!H{HEADER_BYTES - 2}s{step - HEADER_BYTES}x")


def _run_end(data: memoryview, start: int, step: int, segment: int) -> int:
    """The end of the datagrams from ``start`` on that belong to one frame and follow each other without a gap.

    All headers are compared at once, because most often all datagrams belong to one frame.
    """
    count = (len(data) - start) // step
    if not count:
        return len(data)
    end = start + count * step
    offsets, rests = zip(*_fields(step).iter_unpack(data[start:end]), strict=True)
    expected = range(offsets[0], offsets[0] + count * segment, segment)
    if rests.count(rests[0]) != count or offsets != tuple(expected):
        same = (
            offset == place and rest == rests[0] for offset, place, rest in zip(offsets, expected, rests, strict=True)
        )
        return start + next(index for index, follows in enumerate(same) if not follows) * step
    if len(data) - end > HEADER_BYTES:
        last = data[end] << 8 | data[end + 1]
        if last == expected.stop and data[end + 2 : end + HEADER_BYTES] == rests[0]:
            return len(data)
    return end


def _joined(data: memoryview, head: _Head, length: int, step: int) -> Parts:
    """The frame of a run of datagrams."""
    begin = HEADER_BYTES + length
    headers: bytes | memoryview = data[HEADER_BYTES:begin]
    payloads = [data[at + begin : at + step] for at in range(0, len(data), step)]
    payload = len(data) - len(payloads) * begin
    whole = _payload_length(headers, length)
    if head.offset or payload != whole:
        last = head.offset + payload == whole
        headers = _renewed(bytes(headers), head, payload, last=last)
    gso = (head.kind & _GSO_MASK, step - begin) if len(payloads) > 1 else (0, 0)
    return [_vnet(head, *gso, length), headers, *payloads]


def _vnet(head: _Head, gso_type: int, segment: int, length: int) -> bytes:
    needs_csum = head.kind & NEEDS_CSUM
    if not needs_csum:
        return VNET.pack(0, 0, 0, 0, 0, 0)
    return VNET.pack(_VNET_NEEDS_CSUM, gso_type, length, segment, head.csum_start, head.csum_offset)


def _payload_length(headers: Sequence[int], length: int) -> int:
    """The number of bytes after the headers, by the length field of IP."""
    if headers[0] >> 4 == 4:
        return (headers[2] << 8 | headers[3]) - length
    return (headers[4] << 8 | headers[5]) + 40 - length


def _renewed(old: bytes, head: _Head, payload: int, *, last: bool) -> bytes:
    """The headers for a part of a frame: lengths, sequence number, flags and checksums of its own."""
    headers = bytearray(old)
    at = head.csum_start
    if headers[0] >> 4 == 4:
        struct.pack_into("!H", headers, 2, len(headers) + payload)
        struct.pack_into("!H", headers, 10, 0)
        struct.pack_into("!H", headers, 10, ~_sum(headers[:at]) & 0xFFFF)
        addresses, protocol = headers[12:20], headers[9]
    else:
        struct.pack_into("!H", headers, 4, len(headers) + payload - 40)
        addresses, protocol = headers[8:40], 17 if head.kind & _GSO_MASK == GSO_UDP_L4 else 6
    if head.kind & _GSO_MASK == GSO_UDP_L4:
        struct.pack_into("!H", headers, at + 4, 8 + payload)
    else:
        (sequence,) = struct.unpack_from("!I", headers, at + 4)
        struct.pack_into("!I", headers, at + 4, (sequence + head.offset) & 0xFFFFFFFF)
        if not last:
            headers[at + 13] &= ~_TCP_FLAGS_LAST
    pseudo = bytes(addresses) + struct.pack("!II", len(headers) - at + payload, protocol)
    struct.pack_into("!H", headers, at + head.csum_offset, _sum(pseudo))
    return bytes(headers)


def _sum(data: bytes | bytearray) -> int:
    """The ones' complement sum of 16-bit words (RFC 1071), not complemented."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) + (total >> 16)
