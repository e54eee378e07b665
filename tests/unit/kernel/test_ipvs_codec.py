"""Messages of IPVS: what is sent, as bytes, and what the kernel answers."""

import struct

import pytest

from podwire.kernel import ipvs_codec as codec
from podwire.kernel.attributes import attribute, be16, nested, parse, text, u32
from podwire.state.ipvs import Destination, Key, VirtualServer
from podwire.state.ipvs import parse as parse_text

WEB = Key("tcp", "10.96.0.10", 80)


def test_a_virtual_server_as_bytes() -> None:
    server = VirtualServer(WEB, "rr", 0x20, 600)
    sent = codec.encode_server(codec.IPVS_CMD_NEW_SERVICE, server)
    assert sent == bytes((1, 1, 0, 0)) + nested(
        1,
        attribute(1, struct.pack("=H", 2)),
        attribute(2, struct.pack("=H", 6)),
        attribute(3, bytes((10, 96, 0, 10)) + bytes(12)),
        be16(4, 80),
        text(6, "rr"),
        attribute(7, struct.pack("=II", 0x21, 0x39)),
        u32(8, 600),
        attribute(9, b"\xff\xff\xff\xff"),
    )


def test_a_real_server_as_bytes() -> None:
    sent = codec.encode_destination(codec.IPVS_CMD_SET_DEST, WEB, Destination("10.180.0.1", 8080, 0))
    result = parse(sent, codec.GENLMSGHDR_SIZE)
    assert sent[0] == 6
    assert set(parse(result[1])) == {1, 2, 3, 4}
    assert parse(result[2]) == {
        11: struct.pack("=H", 2), 1: bytes((10, 180, 0, 1)) + bytes(12), 2: bytes((0x1F, 0x90)),
        3: struct.pack("=I", 0), 4: struct.pack("=I", 0), 5: bytes(4), 6: bytes(4),
    }  # fmt: skip


SERVERS = parse_text(
    """
-A -t 10.96.0.10:80 -s rr -b flag-3
-A -u [fd96::10]:53 -s sh -p 600 -M 64 -b sh-fallback,flag-3
-A --sctp-service 10.96.0.10:9 -s mh -p 5 -M 255.255.0.0
""".splitlines()
)


@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_a_virtual_server_is_read_as_it_was_written(server: VirtualServer) -> None:
    assert codec.decode_server(codec.encode_server(codec.IPVS_CMD_NEW_SERVICE, server)) == server


@pytest.mark.parametrize(
    ("key", "destination"),
    [
        (WEB, Destination("10.180.0.1", 8080, 7)),
        (Key("udp", "fd96::10", 53), Destination("fd18::1", 53, 0, "route")),
        (Key("tcp", "fd96::10", 53), Destination("10.180.0.1", 53, 1, "tunnel")),
    ],
)
def test_a_real_server_is_read_as_it_was_written(key: Key, destination: Destination) -> None:
    sent = codec.encode_destination(codec.IPVS_CMD_NEW_DEST, key, destination)
    assert codec.decode_destination(sent, key) == (destination, 0)


def test_connections_are_counted_active_or_not() -> None:
    body = nested(2, attribute(1, bytes((10, 180, 0, 1)) + bytes(12)), be16(2, 80), u32(4, 1), u32(7, 3), u32(8, 4))
    assert codec.decode_destination(bytes(4) + body, WEB) == (Destination("10.180.0.1", 80), 7)


def test_mark_services_and_other_protocols_are_left_out() -> None:
    marked = nested(1, attribute(1, struct.pack("=H", 2)), attribute(2, struct.pack("=H", 6)), u32(5, 77))
    other = nested(1, attribute(1, struct.pack("=H", 2)), attribute(2, struct.pack("=H", 50)))
    assert codec.decode_server(bytes(4) + marked) is None
    assert codec.decode_server(bytes(4) + other) is None


def test_a_virtual_server_is_named_by_four_fields() -> None:
    sent = codec.encode_key(codec.IPVS_CMD_DEL_SERVICE, WEB)
    assert sent[0] == 3
    assert set(parse(parse(sent, codec.GENLMSGHDR_SIZE)[1])) == {1, 2, 3, 4}
    assert codec.encode_plain(codec.IPVS_CMD_GET_SERVICE) == bytes((4, 1, 0, 0))


def test_timeouts() -> None:
    assert codec.decode_timeouts(codec.encode_timeouts(900, 120, 300)) == (900, 120, 300)
