"""SCTP packets, and the messages of ICMP about others."""

import socket
import struct

import pytest

from podwire.local.conformance import packets
from podwire.local.conformance.packets import PacketFlow, crc32c, read_refusal, read_segment, segment


def test_the_checksum_is_that_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"\0" * 32) == 0x8A9136AA


def test_packets_survive_a_round_trip() -> None:
    data = segment(20001, 80, tag=7)
    result = read_segment(data)
    assert result == packets.SctpPacket(source=20001, target=80, verification=0, kind=packets.INIT, tag=7)
    answer = read_segment(segment(80, 20001, verification=7, kind=packets.INIT_ACK, tag=9))
    assert answer is not None
    assert (answer.verification, answer.kind, answer.tag) == (7, packets.INIT_ACK, 9)


def test_chunks_fill_their_packet() -> None:
    for kind in (packets.INIT, packets.INIT_ACK):
        data = segment(1, 2, kind=kind, tag=3)
        assert struct.unpack_from("!H", data, 14)[0] == len(data) - 12
        assert len(data) % 4 == 0


def test_packets_with_wrong_checksum_or_truncation_are_ignored() -> None:
    data = segment(20001, 80, tag=7)
    assert read_segment(data[:-1] + b"\1") is None
    assert read_segment(data[:19]) is None


def _about(family: int, protocol: int, ports: bytes) -> bytes:
    if family == 4:
        pair = socket.inet_aton("10.0.0.1") + socket.inet_aton("10.0.0.2")
        return struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, protocol, 0) + pair + ports
    pair = b"".join(socket.inet_pton(socket.AF_INET6, text) for text in ("fd00::1", "fd00::2"))
    return struct.pack("!IHBB", 6 << 28, 20, protocol, 64) + pair + ports


@pytest.mark.parametrize(("family", "kind", "pair"), [(4, 3, ("10.0.0.1", "10.0.0.2")), (6, 1, ("fd00::1", "fd00::2"))])
@pytest.mark.parametrize(("number", "name"), [(6, "TCP"), (17, "UDP"), (132, "SCTP")])
def test_a_refusal_names_the_flow(family: int, kind: int, pair: tuple[str, str], number: int, name: str) -> None:
    data = bytes([kind, 1]) + b"\0" * 6 + _about(family, number, struct.pack("!HH", 30000, 80))
    assert read_refusal(data, family) == PacketFlow(name, pair[0], 30000, pair[1], 80)
    for cut in range(len(data)):
        assert read_refusal(data[:cut], family) is None


def test_only_unreachable_messages_are_refusals() -> None:
    inner = _about(4, 6, struct.pack("!HH", 30000, 80))
    assert read_refusal(b"\0" * 8 + inner, 4) is None
    assert read_refusal(bytes([3, 1]) + b"\0" * 6 + _about(4, 47, b"\0" * 8), 4) is None


def test_raw_sockets_give_the_header_in_ipv4_alone() -> None:
    assert packets.without_header(b"\x46" + b"\0" * 23 + b"rest", 4) == b"rest"
    assert packets.without_header(b"rest", 6) == b"rest"
    assert packets.without_header(b"", 4) == b""
