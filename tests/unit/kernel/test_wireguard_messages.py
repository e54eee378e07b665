"""Messages of the kernel's WireGuard: read back from its own form, and the smallest change written."""

import struct

import pytest
from msgspec.structs import replace

from podwire.kernel.attributes import attribute, nested, parse, spans, text, u16, u32
from podwire.kernel.wireguard_codec import base64_key
from podwire.kernel.wireguard_messages import DeviceReading, decode, encode_get, encode_set
from podwire.state.wireguard import WireGuard, WireGuardPeer, key_bytes

A, B, C = (base64_key(bytes([number]) * 32) for number in (1, 2, 3))
PEER_B = WireGuardPeer(B, "192.0.2.12:51820", 25, ("10.244.1.0/24", "fd44:0:0:1::/64"))
PEER_C = WireGuardPeer(C, "[fd89::13]:51821", 0, ("10.244.2.0/24",))
DEVICE = WireGuard("podwire-wg", 51820, A, peers=(PEER_B, PEER_C))
HEADER = b"\x00\x01\x00\x00"
SET = "01010000" + "0f000200" + b"podwire-wg\0\0".hex()
"""SET_DEVICE, and the name of the device."""


def allowed(family: int, address: bytes, length: int) -> bytes:
    """An allowed network as the kernel writes it (get_allowedips in drivers/net/wireguard/netlink.c)."""
    return nested(0, attribute(3, bytes([length])), u16(1, family), attribute(2, address))


def peer(key: str, *fields: bytes) -> bytes:
    return nested(0, attribute(1, key_bytes(key)), *fields)


NEVER, ONCE = struct.pack("=qq", 0, 0), struct.pack("=qq", 1700000000, 7)
FIRST = peer(
    B,
    attribute(2, bytes(32)),
    attribute(6, ONCE),
    u16(5, 25),
    attribute(8, bytes(8)),
    attribute(7, bytes(8)),
    u32(10, 1),
    attribute(4, struct.pack("=H", 2) + bytes.fromhex("ca6c c000020c") + bytes(8)),
    nested(9, allowed(2, bytes([10, 244, 1, 0]), 24)),
)
REST = peer(B, nested(9, allowed(10, bytes.fromhex("fd44000000000001") + bytes(8), 64)))
SECOND = peer(
    C,
    attribute(6, NEVER),
    u16(5, 0),
    attribute(4, struct.pack("=H", 10) + bytes.fromhex("ca6d 00000000 fd89") + bytes(13) + b"\x13" + bytes(4)),
    nested(9, allowed(2, bytes([10, 244, 2, 0]), 24)),
)
OWN = (u16(6, 51820), u32(7, 0), u32(1, 4), text(2, "podwire-wg"), attribute(3, b"\7" * 32), attribute(4, b"\1" * 32))


def test_a_device_is_read_with_peers_of_several_messages() -> None:
    dump = [HEADER + b"".join(OWN) + nested(8, FIRST), HEADER + text(2, "podwire-wg") + nested(8, REST, SECOND)]
    assert decode(dump) == DeviceReading(b"\7" * 32, 51820, (PEER_B, PEER_C), frozenset([B]))
    assert decode([HEADER + u16(6, 0) + attribute(3, bytes(32))]) == DeviceReading(b"", 0, (), frozenset())


def test_the_request_names_the_device() -> None:
    assert encode_get("podwire-wg").hex() == "00010000" + "0f000200" + b"podwire-wg\0\0".hex()


def test_key_and_port_are_set_before_peers() -> None:
    device, peers = encode_set(WireGuard("podwire-wg", 1), DEVICE, b"\7" * 32)
    assert device.hex() == SET + "24000300" + "07" * 32 + "06000600" + struct.pack("=H", 51820).hex() + "0000"
    assert peers.hex().startswith(SET)
    head = 4 + 16
    reading = decode([HEADER + peers[head:]])
    assert reading.peers == (PEER_B, PEER_C), "what is written is what is read"


@pytest.mark.parametrize(
    ("peers", "expected"),
    [
        ((PEER_B, PEER_C), []),
        ((PEER_B,), ["0303 flags=1"]),
        ((replace(PEER_B, keepalive_s=0), PEER_C), ["0202 keepalive=0 allowed=2"]),
        ((replace(PEER_B, endpoint="192.0.2.99:1"), PEER_C), ["0202 endpoint=00010000c0000263 allowed=2"]),
        ((replace(PEER_B, allowed_ips=("10.244.9.0/24",)), PEER_C), ["0202 flags=2 allowed=1"]),
    ],
)
def test_the_difference_alone_is_written(peers: tuple[WireGuardPeer, ...], expected: list[str]) -> None:
    bodies = encode_set(DEVICE, replace(DEVICE, peers=peers), b"")
    assert [line for body in bodies for line in shown(body)] == expected


def shown(body: bytes) -> list[str]:
    """The peers of a message: the first bytes of the key, flags, endpoint, keepalive and the number of networks."""
    lines = []
    for element in elements(parse(body, 4)[8]):
        fields = parse(element)
        words = [fields[1][:2].hex()]
        words += [f"flags={int.from_bytes(fields[3], 'little')}"] if 3 in fields else []
        words += [f"endpoint={fields[4][2:4].hex()}0000{fields[4][4:8].hex()}"] if 4 in fields else []
        words += [f"keepalive={int.from_bytes(fields[5], 'little')}"] if 5 in fields else []
        words += [f"allowed={len(elements(fields[9]))}"] if 9 in fields else []
        lines.append(" ".join(words))
    return lines


def elements(data: bytes) -> list[bytes]:
    return [data[at : at + size] for _, at, size in spans(data)]


def test_many_peers_take_several_messages() -> None:
    many = tuple(
        WireGuardPeer(base64_key(number.to_bytes(32, "big")), f"10.0.{number >> 8}.{number & 255}:51820", 25,
                      (f"10.{100 + (number >> 8)}.{number & 255}.0/24",))
        for number in range(1, 1001)
    )  # fmt: skip
    first, *further = encode_set(WireGuard("podwire-wg", 1), replace(DEVICE, peers=many), b"\7" * 32)
    assert len(first) < 100 and len(further) > 2 and all(len(body) < 0x10000 for body in further)
    decoded = [entry for body in further for entry in decode([HEADER + body[20:]]).peers]
    assert tuple(sorted(decoded)) == tuple(sorted(many))
