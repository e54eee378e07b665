"""Tunnels of the backend udp and their text."""

import pytest

from podwire.errors import ConfigError
from podwire.state.drift import render
from podwire.state.kinds import KINDS
from podwire.state.share import Share
from podwire.state.share import parse as parse_shares
from podwire.state.share import render as render_shares
from podwire.state.udptunnel import UdpPeer, UdpTunnel, difference, endpoint_address, parse, parse_difference

TEXT = """\
udp podwire-udp listen 192.0.2.11:8285
udp-peer podwire-udp 192.0.2.12:8285 networks 10.244.1.0/24,192.0.2.12/32,fd44:0:0:1::/64
udp-peer podwire-udp 192.0.2.13:9000
udp other listen [fd89::11]:8285
"""


def test_the_text_is_read_and_printed() -> None:
    tunnels = parse(TEXT.splitlines())
    assert "".join(f"{tunnel}\n" for tunnel in tunnels) == TEXT
    first, second = tunnels
    networks = ("fd44:0:0:1::/64", "192.0.2.12", "10.244.1.0/24")
    assert first.peers == (UdpPeer("192.0.2.12:8285", networks), UdpPeer("192.0.2.13:9000"))
    assert second == UdpTunnel("other", "[fd89::11]:8285")
    assert endpoint_address(second.listen) == ("fd89::11", 8285)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("udp t", "needs the word 'listen'"),
        ("udp t listen 192.0.2.1", "'192.0.2.1' is not ADDRESS:PORT"),
        ("udp t listen fd89::1:8285", "is not ADDRESS:PORT"),
        ("udp t listen 192.0.2.1:0", "is not ADDRESS:PORT"),
        ("udp t listen here:1", "'here' does not appear to be an IPv4 or IPv6 address"),
        ("udp t port 1", "unknown keyword 'port' of udp"),
        ("udp-peer t 192.0.2.1:1", "is below no line `udp DEVICE`"),
        ("", "is below no line `udp DEVICE`"),
        ("udp t listen 192.0.2.1:1\nudp-peer t", "expected a word after 'udp-peer'"),
        ("udp t listen 192.0.2.1:1\nudp-peer t 192.0.2.2:1 networks 10.0.0.1/8", "has host bits set"),
        ("udp t listen 192.0.2.1:1\nudp-peer t 192.0.2.2:1\nudp-peer t 192.0.2.2:1", "the endpoint 192.0.2.2:1"),
        (
            "udp t listen 192.0.2.1:1\nudp-peer t 192.0.2.2:1 networks 10.0.0.0/8\n"
            "udp-peer t 192.0.2.3:1 networks 10.0.0.0/8",
            "two peers have the network 10.0.0.0/8",
        ),
    ],
)
def test_a_wrong_text_is_refused_by_its_word(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(text.split("\n"))


def test_a_share_with_tunnels_reads_back() -> None:
    share = Share(part="routing", desired=parse(TEXT.splitlines()))
    assert parse_shares(render_shares([share])) == [share]
    assert ("routing: udp other", "udp other listen [fd89::11]:8285") in share.located()
    assert share.mark(KINDS["udp"]) == ("podwire-udp", "other")
    assert Share(part="routing").mark(KINDS["udp"]) is None
    with pytest.raises(ConfigError, match=r"part routing.*below no line"):
        parse_shares(["part routing", "udp-peer t 192.0.2.1:1", "end"])


def test_differences_are_lines_of_tunnels_and_peers() -> None:
    desired = parse(TEXT.splitlines())[:1]
    share = Share(part="routing", desired=desired)
    present = UdpTunnel("podwire-udp", "192.0.2.11:8285", desired[0].peers[:1])
    assert list(render(share.compare(KINDS["udp"], [present]))) == [
        "@@ routing: udp podwire-udp @@",
        "+udp-peer podwire-udp 192.0.2.13:9000",
    ]
    assert list(share.compare(KINDS["udp"], desired)) == []
    assert len(list(share.compare(KINDS["udp"], []))) == 3


def tunnel(*peers: tuple[str, str]) -> UdpTunnel:
    return UdpTunnel("t", "192.0.2.1:1", tuple(UdpPeer(endpoint, (network,)) for endpoint, network in peers))


OLD = tunnel(("192.0.2.2:1", "10.2.0.0/16"), ("192.0.2.3:1", "10.3.0.0/16"))
NEW = tunnel(("192.0.2.2:1", "10.2.0.0/16"), ("192.0.2.3:1", "10.4.0.0/16"), ("192.0.2.4:1", "10.3.0.0/16"))


def test_a_difference_makes_the_new_tunnel_of_the_old_one() -> None:
    lines = difference(str(OLD), str(NEW))
    assert lines == (
        "-udp-peer t 192.0.2.3:1 networks 10.3.0.0/16",
        "+udp-peer t 192.0.2.3:1 networks 10.4.0.0/16",
        "+udp-peer t 192.0.2.4:1 networks 10.3.0.0/16",
    )
    assert parse_difference("t", lines).of(OLD) == NEW
    assert difference(str(NEW), str(NEW)) == ()
    assert difference(str(OLD), str(UdpTunnel("t", "192.0.2.1:2", OLD.peers))) is None


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (("udp-peer t 192.0.2.9:1",), "is not a changed line `udp-peer t`"),
        (("+udp-peer other 192.0.2.9:1",), "is not a changed line `udp-peer t`"),
        (("+udp t listen 192.0.2.1:1",), "is not a changed line"),
        (("-udp-peer t 192.0.2.9:1",), "t has no peer 192.0.2.9:1 with these networks"),
        (("-udp-peer t 192.0.2.3:1 networks 10.9.0.0/16",), "t has no peer 192.0.2.3:1 with these networks"),
        (("+udp-peer t 192.0.2.3:1",), "two peers have the endpoint 192.0.2.3:1"),
        (("+udp-peer t 192.0.2.9:1 networks 10.2.0.0/16",), "two peers have the network 10.2.0.0/16"),
    ],
)
def test_a_wrong_difference_is_refused_with_its_reason(lines: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_difference("t", lines).of(OLD)
