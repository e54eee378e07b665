"""The text protocol of WireGuard processes."""

import pytest
from msgspec.structs import replace

from podwire.kernel.wireguard_codec import Reading, error_number, parse, request
from podwire.state.wireguard import WireGuard, WireGuardPeer

A, B, C = ("A" * 43 + "=", "Q0ND" * 10 + "Q0M=", "QkJC" * 10 + "QkI=")
HEX = {A: "00" * 32, B: "43" * 32, C: "42" * 32}
ANSWER = f"""\
private_key={"a8" * 31}68
listen_port=51820
public_key={HEX[B]}
preshared_key={"0" * 64}
protocol_version=1
endpoint=192.0.2.12:51820
last_handshake_time_sec=0
last_handshake_time_nsec=0
tx_bytes=0
rx_bytes=0
persistent_keepalive_interval=25
allowed_ip=10.244.1.0/24
allowed_ip=fd44:0:0:1::/64
public_key={HEX[C]}
errno=0

"""
PEER_B = WireGuardPeer(B, "192.0.2.12:51820", 25, ("10.244.1.0/24", "fd44:0:0:1::/64"))
PEER_C = WireGuardPeer(C, "[fd89::13]:51820", 0, ("10.244.2.0/24",))
DEVICE = WireGuard("podwire-wg", 51820, A, peers=(PEER_B, PEER_C))


def test_an_answer_gives_key_port_and_peers() -> None:
    private = bytes([0xA8] * 31 + [0x68])
    assert parse(ANSWER) == Reading(private, 51820, (PEER_B, WireGuardPeer(C)))
    assert parse("listen_port=33971\nerrno=0\n\n") == Reading(b"", 33971, ())
    with pytest.raises(ValueError, match="not a line of a WireGuard process: 'hello'"):
        parse("hello\n")


def test_an_answer_is_complete_with_its_error_number() -> None:
    assert error_number(ANSWER) == 0
    assert error_number("errno=-22\n\n") == -22
    assert [error_number(text) for text in ("", "errno=0\n", "\n\n", "listen_port=1\n\n")] == [None] * 4


def test_a_new_device_gets_its_key_port_and_peers() -> None:
    assert request(WireGuard("podwire-wg", 1), DEVICE, b"\1" * 32) == (
        f"set=1\nprivate_key={'01' * 32}\nlisten_port=51820\n"
        f"public_key={HEX[B]}\nendpoint=192.0.2.12:51820\nallowed_ip=10.244.1.0/24\nallowed_ip=fd44:0:0:1::/64\n"
        f"persistent_keepalive_interval=25\n"
        f"public_key={HEX[C]}\nendpoint=[fd89::13]:51820\nallowed_ip=10.244.2.0/24\n\n"
    )


def test_nothing_is_sent_to_a_device_without_differences() -> None:
    assert request(DEVICE, DEVICE, b"") == ""


def test_only_differences_are_sent_and_removals_come_last() -> None:
    moved = replace(DEVICE, peers=(replace(PEER_C, allowed_ips=("10.244.1.0/24",)),))
    assert request(DEVICE, moved, b"") == (
        f"set=1\npublic_key={HEX[C]}\nreplace_allowed_ips=true\nallowed_ip=10.244.1.0/24\n"
        f"public_key={HEX[B]}\nremove=true\n\n"
    )
    bare = replace(DEVICE, peers=(WireGuardPeer(A), PEER_B, PEER_C))
    assert request(DEVICE, bare, b"") == f"set=1\npublic_key={HEX[A]}\n\n"
