"""Canonical addresses."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.state import address


@given(st.ip_addresses())
def test_bytes_and_text_agree(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert address.pack_ip(str(ip)) == ip.packed
    assert address.unpack_ip(ip.packed) == str(ip) == address.ip_text(ip.exploded)
    assert address.is_v6(str(ip)) == (ip.version == 6)


@given(st.binary(min_size=6, max_size=6))
def test_hardware_addresses_round_trip(data: bytes) -> None:
    text = address.unpack_mac(data)
    assert address.pack_mac(text) == data
    assert address.mac_text(text.upper().replace(":", "-")) == text


@pytest.mark.parametrize("text", ["10.0.0", "10.0.0.256", "10.0.0.01", "10.0.0.1 ", "10.0.0.999", "fd00::g", ""])
def test_text_that_is_no_address_is_not_packed(text: str) -> None:
    with pytest.raises(ValueError):
        address.pack_ip(text)


@pytest.mark.parametrize("text", ["10.0.0", "10.0.0.256", "fd00::g", "", "10.0.0.1/8"])
def test_no_address(text: str) -> None:
    with pytest.raises(ValueError):
        address.ip_text(text)


@pytest.mark.parametrize("text", ["02:00:00:00:00", "020000000001", "02:00:00:00:00:0g"])
def test_no_hardware_address(text: str) -> None:
    with pytest.raises(ValueError, match="hardware address"):
        address.mac_text(text)


def test_prefixes() -> None:
    assert address.network_text("fd00:0:0::/64") == "fd00::/64"
    assert address.network_text("10.1.2.3") == "10.1.2.3/32"
    assert address.interface_text("10.1.2.3") == "10.1.2.3/32"
    with pytest.raises(ValueError, match="host bits"):
        address.network_text("10.1.2.3/24")
