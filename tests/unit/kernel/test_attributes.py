"""Netlink attributes and messages as bytes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import ProtocolError
from podwire.kernel import attributes
from podwire.kernel.attributes import NLMSGHDR


@given(st.dictionaries(st.integers(0, 0x3FFF), st.binary(max_size=40), max_size=6))
def test_attributes_round_trip(found: dict[int, bytes]) -> None:
    data = b"".join(attributes.attribute(kind, payload) for kind, payload in found.items())
    assert len(data) % 4 == 0
    assert attributes.parse(data) == found
    assert attributes.parse(b"head" + data, 4) == found


def test_bytes_of_an_attribute() -> None:
    assert attributes.text(3, "lo") == b"\x07\x00\x03\x00lo\x00\x00"
    assert attributes.u32(4, 1) == b"\x08\x00\x04\x00\x01\x00\x00\x00"
    assert attributes.be16(15, 8472) == b"\x06\x00\x0f\x00\x21\x18\x00\x00"
    assert attributes.nested(18, attributes.u8(1, 2)) == b"\x0c\x00\x12\x80\x05\x00\x01\x00\x02\x00\x00\x00"


def test_numbers_of_any_width() -> None:
    result = attributes.parse(attributes.u8(1, 7) + attributes.u32(2, 70000))
    assert [attributes.number(result, kind, 9) for kind in (1, 2, 3)] == [7, 70000, 9]
    assert attributes.string(result, 5) == ""


@given(st.binary(max_size=60))
def test_no_bytes_hang_or_crash_the_parser(data: bytes) -> None:
    for reading in (attributes.parse, lambda data: list(attributes.messages(data))):
        with contextlib.suppress(ProtocolError):
            assert len(reading(data)) <= len(data)


@pytest.mark.parametrize("data", [b"\x03\x00\x01\x00", b"\x09\x00\x01\x00aaaa"])
def test_lengths_that_point_outside(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="netlink attribute"):
        attributes.parse(data)


def test_messages_of_a_datagram() -> None:
    item = NLMSGHDR.pack(19, 2, 3, 4, 5) + b"abc\0"
    two = NLMSGHDR.pack(16, 6, 7, 8, 9)
    assert list(attributes.messages(item + two)) == [(2, 3, 4, b"abc"), (6, 7, 8, b"")]
    with pytest.raises(ProtocolError, match="message of 99 bytes"):
        list(attributes.messages(NLMSGHDR.pack(99, 0, 0, 0, 0)))
