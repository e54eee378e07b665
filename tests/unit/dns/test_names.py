"""Names and the addresses that they encode."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.dns import names
from podwire.errors import ProtocolError


@pytest.mark.parametrize("text", ["a..b", "." + "a", "x" * 64, ".".join(["abcdefgh"] * 30)])
def test_impossible_names_are_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        names.encode_name(text)


def test_the_root_name_is_one_byte() -> None:
    assert names.encode_name(".") == names.encode_name("") == b"\0"
    assert names.decode_name(b"\0") == "."


@given(st.ip_addresses())
def test_a_dashed_address_means_the_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    label = names.dashed_host(str(address))
    assert len(label) <= names.MAX_LABEL and not label.endswith("-")
    assert names.parse_dashed(label) == address.packed


@given(st.ip_addresses())
def test_a_reverse_name_means_the_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    labels = [label.encode() for label in address.reverse_pointer.split(".")]
    assert names.parse_reverse(labels) == address.packed


@pytest.mark.parametrize(
    "pointer",
    [
        "1.2.3.in-addr.arpa",
        "1.2.3.4.5.in-addr.arpa",
        "1.2.3.256.in-addr.arpa",
        "a.2.3.4.in-addr.arpa",
        "1.ip6.arpa",
        ".".join("z" * 32) + ".ip6.arpa",
        ".".join(["10"] * 32) + ".ip6.arpa",
        "01.1.96.10.in-addr.arpa",
        "1.1.96.010.in-addr.arpa",
        "+1.1.96.10.in-addr.arpa",
        ".".join(["1"] * 31) + ". .ip6.arpa",
    ],
)
def test_a_partial_reverse_name_means_no_address(pointer: str) -> None:
    assert names.parse_reverse([label.encode() for label in pointer.split(".")]) == b""


@pytest.mark.parametrize(
    "label",
    [
        "web",
        "10-1-2",
        "10-1-2-3-4",
        "300-1-1-1",
        "",
        "10.1.2.3",
        "fd00::1",
        "fe80--1%eth0",
        "01-1-1-1",
        "--ffff-10.1.2.3",
    ],
)
def test_other_labels_mean_no_address(label: str) -> None:
    assert names.parse_dashed(label) == b""


@pytest.mark.parametrize("text", ["fe80::1%eth0", "10.1.2.3%eth0", "10.1.2.3/32", "web", ""])
def test_text_with_scope_is_no_address(text: str) -> None:
    assert names.address_bytes(text) == b""
