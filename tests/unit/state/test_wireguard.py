"""WireGuard devices and their text."""

import pytest

from podwire.errors import ConfigError
from podwire.state.drift import render
from podwire.state.kinds import KINDS
from podwire.state.share import Share
from podwire.state.share import parse as parse_shares
from podwire.state.share import render as render_shares
from podwire.state.wireguard import WireGuard, WireGuardMark, WireGuardPeer, parse

A, B, C = ("A" * 42 + "A=", "B" * 42 + "A=", "C" * 42 + "A=")
TEXT = f"""\
wireguard podwire-wg port 51820 key {A} private-key-file /var/lib/podwire/0.key control /run/podwire-wg.sock
wireguard-peer podwire-wg {B} endpoint 192.0.2.12:51820 keepalive 25 allowed-ips 10.244.1.0/24,fd44:0:0:1::/64
wireguard-peer podwire-wg {C}
wireguard podwire-wg2 port 51821
"""


def test_the_text_is_read_and_printed() -> None:
    devices = parse(TEXT.splitlines())
    assert "".join(f"{device}\n" for device in devices) == TEXT
    first, second = devices
    assert (first.port, first.public_key, first.control) == (51820, A, "/run/podwire-wg.sock")
    assert first.peers == (
        WireGuardPeer(B, "192.0.2.12:51820", 25, ("fd44:0:0:1::/64", "10.244.1.0/24")),
        WireGuardPeer(C),
    )
    assert second == WireGuard("podwire-wg2", 51821)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("wireguard wg0", "needs the word 'port'"),
        ("wireguard wg0 port many", "port takes a number, not 'many'"),
        ("wireguard wg0 port 1 key short", "'short' is not a WireGuard key in base64"),
        ("wireguard wg0 port 1 key QUFB", "is not a WireGuard key: 3 bytes, expected 32"),
        ("wireguard wg0 port 1 secret x", "unknown keyword 'secret' of wireguard"),
        (f"wireguard-peer wg9 {A}", "is below no line `wireguard DEVICE`"),
        ("wireguard-peer", "is below no line `wireguard DEVICE`"),
    ],
)
def test_a_wrong_line_is_refused_by_its_word(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse([line])


def test_a_share_with_devices_reads_back() -> None:
    share = Share(part="routing", desired=parse(TEXT.splitlines()))
    assert parse_shares(render_shares([share])) == [share]
    assert ("routing: wireguard podwire-wg2", "wireguard podwire-wg2 port 51821") in share.located()
    with pytest.raises(ConfigError, match=r"part routing.*below no line"):
        parse_shares(["part routing", f"wireguard-peer wg9 {A}", "end"])


def test_the_mark_names_sockets_and_files_of_keys() -> None:
    kind = KINDS["wireguard"]
    share = Share(part="routing", desired=parse(TEXT.splitlines()))
    assert share.mark(kind) == (
        WireGuardMark("podwire-wg", "/run/podwire-wg.sock", "/var/lib/podwire/0.key"),
        WireGuardMark("podwire-wg2", "", ""),
    )
    assert Share(part="routing").mark(kind) is None


def test_differences_are_lines_of_devices_and_peers() -> None:
    desired = parse(TEXT.splitlines())[:1]
    share = Share(part="routing", desired=desired)
    present = WireGuard("podwire-wg", 51820, A, "/var/lib/podwire/0.key", "/run/podwire-wg.sock", desired[0].peers[:1])
    assert list(render(share.compare(KINDS["wireguard"], [present]))) == [
        "@@ routing: wireguard podwire-wg @@",
        f"+wireguard-peer podwire-wg {C}",
    ]
    assert list(share.compare(KINDS["wireguard"], desired)) == []
    assert len(list(share.compare(KINDS["wireguard"], []))) == 3
