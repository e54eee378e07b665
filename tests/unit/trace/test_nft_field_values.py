"""What rules see of a packet."""

import msgspec
import pytest

from podwire.errors import ProtocolError
from podwire.trace.nft_field_values import FlowContext, text_of
from podwire.trace.packet import LocalAddresses, Packet

CAME = Packet(source="10.0.0.1", destination="10.96.0.1", protocol="udp", destination_port=53, input="eth0", mark=5)
NOW = msgspec.structs.replace(CAME, destination="192.0.2.1", destination_port=5353)
WAYS = FlowContext(original=CAME, translated=True, machine=LocalAddresses(addresses=frozenset(("192.0.2.1",))))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("ip saddr", "10.0.0.1"),
        ("ip daddr", "192.0.2.1"),
        ("udp sport", "40000"),
        ("th dport", "5353"),
        ("ip protocol", "udp"),
        ("meta l4proto", "udp"),
        ("meta nfproto", "ipv4"),
        ("meta mark", "5"),
        ("iifname", "eth0"),
        ("oifname", ""),
        ("ct state", "new"),
        ("ct status", "32"),
        ("ct direction", "original"),
        ("ct original ip saddr", "10.0.0.1"),
        ("ct original ip daddr", "10.96.0.1"),
        ("ct original proto-src", "40000"),
        ("ct original proto-dst", "53"),
        ("fib saddr type", "unicast"),
        ("fib daddr type", "local"),
    ],
)
def test_fields(field: str, text: str) -> None:
    assert text_of(field, NOW, WAYS) == text


@pytest.mark.parametrize("field", ["ip ttl", "ct zone", "fib daddr oif", "meta cpu"])
def test_fields_that_are_not_known(field: str) -> None:
    with pytest.raises(ProtocolError):
        text_of(field, NOW, WAYS)
