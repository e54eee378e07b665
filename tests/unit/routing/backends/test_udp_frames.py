"""Large frames become datagrams and are joined again, whole or in part; and which peer an address belongs to."""

import ipaddress
import random
import struct

import pytest

from podwire.routing.backends.udp.frames import GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VNET, datagrams, frames
from podwire.routing.backends.udp.peers import PeerTable
from podwire.state.udptunnel import UdpPeer

SEQUENCE = 0xFFFFFF00


def ones_sum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def ip_header(gso_type: int, length: int) -> bytes:
    """The header of IPv4 (with options) or IPv6 for so many bytes after it."""
    protocol = 17 if gso_type == GSO_UDP_L4 else 6
    if gso_type == GSO_TCPV6:
        addresses = ipaddress.ip_address("fd44::1").packed + ipaddress.ip_address("fd44:0:0:1::1").packed
        return struct.pack("!IHBB", 6 << 28, length, protocol, 64) + addresses
    head = struct.pack("!BBHHHBBH4s4s", 0x46, 0, length + 24, 7, 0x4000, 64, protocol, 0, b"\x0a\1\1\1", b"\x0a\2\2\2")
    head += b"\1\1\1\1"
    return head[:10] + struct.pack("!H", ~ones_sum(head) & 0xFFFF) + head[12:]


def pseudo_sum(packet: bytes, start: int) -> int:
    """The checksum field that the kernel completes."""
    v6 = packet[0] >> 4 == 6
    addresses, protocol = (packet[8:40], packet[6]) if v6 else (packet[12:20], packet[9])
    return ones_sum(addresses + struct.pack("!II", len(packet) - start, protocol))


def large_frame(gso_type: int, payload: bytes, step: int) -> bytearray:
    """A frame as a TUN device returns it."""
    udp = gso_type == GSO_UDP_L4
    transport_bytes = 8 if udp else 32
    head = ip_header(gso_type, transport_bytes + len(payload))
    if udp:
        transport = struct.pack("!HHHH", 1000, 2000, 8 + len(payload), 0)
    else:
        transport = struct.pack("!HHIIBBHHH", 1000, 2000, SEQUENCE, 5, 8 << 4, 0x19, 500, 0, 0) + bytes(12)
    offset = 6 if udp else 16
    packet = bytearray(head + transport + payload)
    struct.pack_into("!H", packet, len(head) + offset, pseudo_sum(bytes(packet), len(head)))
    vnet = VNET.pack(1, gso_type, len(head) + transport_bytes, step, len(head), offset)
    return bytearray(vnet + packet)


def wire(frame: bytearray, number: int = 1) -> list[bytes]:
    """The datagrams of a frame."""
    sent = []
    for parts, size in datagrams(bytearray(frame), len(frame), number):
        data = b"".join(parts)
        sent += [data[at : at + size] for at in range(0, len(data), size)] if size else [data]
    return sent


def joined(received: list[bytes]) -> list[bytes]:
    """The frames of datagrams of one size that arrive together."""
    return [b"".join(parts) for parts in frames(memoryview(b"".join(received)), len(received[0]))]


KINDS = pytest.mark.parametrize("gso_type", [GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4])


@KINDS
@pytest.mark.parametrize("size", [1401, 2800, 9999, 60000])
def test_a_frame_whose_datagrams_stay_together_comes_out_unchanged(gso_type: int, size: int) -> None:
    frame = large_frame(gso_type, random.Random(size).randbytes(size), 1400)
    sent = wire(frame)
    assert len(sent) == -(-size // 1400)
    assert max(map(len, sent)) <= 8 + 40 + 32 + 1400
    whole, remaining = [], sent
    for parts, item in datagrams(bytearray(frame), len(frame), 1):
        count = -(-len(b"".join(parts)) // item)
        whole.append(remaining[:count])
        remaining = remaining[count:]
    received = [out for entry in whole for out in joined(entry)]
    if len(whole) == 1:
        assert received == [bytes(frame)]
    assert b"".join(payload(out) for out in received) == payload(bytes(frame))


def headers_bytes(packet: bytes) -> int:
    start = 40 if packet[0] >> 4 == 6 else (packet[0] & 15) * 4
    udp = packet[6 if start == 40 else 9] == 17
    return start + (8 if udp else (packet[start + 12] >> 4) * 4)


def payload(frame: bytes) -> bytes:
    packet = frame[VNET.size :]
    return packet[headers_bytes(packet) :]


@KINDS
def test_each_part_of_a_frame_has_headers_of_its_own(gso_type: int) -> None:
    data = random.Random(1).randbytes(7 * 1000 + 10)
    sent = wire(large_frame(gso_type, data, 1000))
    for received, first, last in (
        (sent[:3], 0, False),
        (sent[2:5], 2000, False),
        (sent[4:], 4000, True),
        (sent[-1:], 7000, True),
        (sent[3:4], 3000, False),
    ):
        (frame,) = joined(received)
        flags, kind, _, step, start, offset = VNET.unpack_from(frame)
        packet = frame[VNET.size :]
        assert (flags, kind, step) == ((1, gso_type, 1000) if len(received) > 1 else (1, 0, 0))
        own = sum(len(item) - 8 - headers_bytes(item[8:]) for item in received)
        assert payload(frame) == data[first : first + own]
        if gso_type == GSO_TCPV6:
            assert struct.unpack_from("!H", packet, 4)[0] == len(packet) - 40
        else:
            assert struct.unpack_from("!H", packet, 2)[0] == len(packet)
            assert ones_sum(packet[:start]) == 0xFFFF, "the checksum of IPv4"
        if gso_type == GSO_UDP_L4:
            assert struct.unpack_from("!H", packet, start + 4)[0] == len(packet) - start
        else:
            assert struct.unpack_from("!I", packet, start + 4)[0] == (SEQUENCE + first) & 0xFFFFFFFF
            assert packet[start + 13] == (0x19 if last else 0x10), "PSH and FIN come last"
        assert struct.unpack_from("!H", packet, start + offset)[0] == pseudo_sum(packet, start)


def test_datagrams_that_do_not_follow_each_other_are_not_joined() -> None:
    item, other = (wire(large_frame(GSO_TCPV4, bytes([fill]) * 5000, 1000), fill) for fill in (1, 2))
    for received in ([item[0], item[2]], [item[0], other[1]], [item[1], item[1]], [item[1], item[0]]):
        assert [len(payload(frame)) for frame in joined(received)] == [1000, 1000]
    mixed = joined([*item[:2], *other[2:4], item[4]])
    assert [payload(frame) for frame in mixed] == [b"\1" * 2000, b"\2" * 2000, b"\1" * 1000]


@pytest.mark.parametrize("flags", [0, 1])
def test_a_small_packet_is_carried_as_it_is(flags: int) -> None:
    packet = ip_header(GSO_TCPV4, 30) + bytes(30)
    frame = bytearray(VNET.pack(flags, 0, 0, 0, 24 * flags, 16 * flags) + packet)
    (sent,) = wire(frame)
    assert len(sent) == 8 + len(packet)
    assert joined([sent, sent]) == [bytes(frame)] * 2


@pytest.mark.parametrize("bytes_received", [b"", b"\0" * 8, b"\0" * 60, b"\0\0\0\0\x85\x10\0\x18" + bytes(60)])
def test_datagrams_of_another_form_are_refused(bytes_received: bytes) -> None:
    if not bytes_received:
        assert list(frames(memoryview(b""), 1)) == []
        return
    with pytest.raises(ValueError, match="datagram"):
        list(frames(memoryview(bytes_received), len(bytes_received)))


def test_damaged_datagrams_raise_nothing_but_value_errors() -> None:
    chance, refused = random.Random(5), 0
    sent = b"".join(wire(large_frame(GSO_TCPV4, bytes(5000), 1000)))
    for _ in range(3000):
        damaged = bytearray(sent[: chance.randrange(1, len(sent))])
        for _ in range(chance.randrange(6)):
            damaged[chance.randrange(min(80, len(damaged)))] = chance.randrange(256)
        try:
            list(frames(memoryview(bytes(damaged)), chance.choice((1068, 40, 9, 1400, len(damaged)))))
        except ValueError:
            refused += 1
    assert 500 < refused < 3000


@pytest.mark.parametrize(
    "vnet", [VNET.pack(0, 1, 64, 1000, 24, 16), VNET.pack(1, 1, 64, 0, 24, 16), VNET.pack(1, 1, 64, 1000, 4000, 16)]
)
def test_a_frame_of_another_form_is_refused(vnet: bytes) -> None:
    frame = large_frame(GSO_TCPV4, bytes(3000), 1000)
    frame[: VNET.size] = vnet
    with pytest.raises(ValueError, match=r"frame|payload|packet"):
        list(datagrams(frame, len(frame), 1))


def test_an_address_belongs_to_the_peer_with_its_longest_network() -> None:
    peers = PeerTable(
        (
            UdpPeer("192.0.2.1:1", ("10.0.0.0/8", "fd00::/16", "192.0.2.1")),
            UdpPeer("[fd89::2]:2", ("10.1.0.0/16", "fd00:0:0:1::/64")),
        )
    )
    first, second = ("192.0.2.1", 1), ("fd89::2", 2)
    for _ in range(2):
        for text, owner in {
            "10.2.0.1": first,
            "10.1.0.1": second,
            "192.0.2.1": first,
            "192.0.2.2": None,
            "fd00::1": first,
            "fd00:0:0:1::7": second,
            "fd01::": None,
        }.items():
            assert peers.owner(ipaddress.ip_address(text).packed) == owner, text


def test_a_changed_table_answers_as_a_new_one() -> None:
    first = (UdpPeer("192.0.2.1:1", ("10.0.0.0/8",)), UdpPeer("192.0.2.2:2", ("10.1.0.0/16", "fd00::/16")))
    second = (first[0], UdpPeer("192.0.2.2:2", ("10.1.2.0/24",)), UdpPeer("192.0.2.3:3", ("10.1.0.0/16",)))
    table, addresses = PeerTable(first), [ipaddress.ip_address(x).packed for x in ("10.1.2.3", "10.1.9.9", "fd00::1")]
    assert [table.owner(address) for address in addresses] == [("192.0.2.2", 2)] * 3
    table.change(gone=first[1:], new=second[1:])
    fresh = PeerTable(second)
    assert [table.owner(address) for address in addresses] == [fresh.owner(address) for address in addresses]
    assert [table.owner(address) for address in addresses] == [("192.0.2.2", 2), ("192.0.2.3", 3), None]
    assert table.endpoints == fresh.endpoints
