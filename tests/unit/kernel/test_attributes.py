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


def _datagram(payloads: list[bytes], *, kinds: dict[int, int] | None = None) -> bytes:
    """Messages of type 24 with these payloads; ``kinds`` has other types by position."""
    numbers = [(kinds or {}).get(at, 24) for at in range(len(payloads))]
    heads = [NLMSGHDR.pack(16 + len(p), kind, 2, 7, 0) for kind, p in zip(numbers, payloads, strict=True)]
    return b"".join(head + payload for head, payload in zip(heads, payloads, strict=True))


@given(st.lists(st.binary(min_size=12, max_size=12), min_size=8, max_size=20))
def test_many_alike_messages_are_those_that_are_read_alone(payloads: list[bytes]) -> None:
    datagram = _datagram(payloads)
    alike = attributes.messages_alike(datagram)

    assert alike is not None
    assert (alike.kind, alike.flags, alike.sequence) == (24, 2, 7)
    assert alike.run.payloads == payloads == [payload for *_, payload in attributes.messages(datagram)]


@pytest.mark.parametrize("place", [0, 4, 9])
def test_a_message_of_another_type_is_not_alike(place: int) -> None:
    assert attributes.messages_alike(_datagram([b"abcd"] * 10, kinds={place: 3})) is None


@given(st.lists(st.tuples(st.sampled_from(b"ab"), st.integers(0, 255)), min_size=1, max_size=9), st.integers(0, 9))
def test_runs_differ_in_a_range_or_elsewhere(content: list[tuple[int, int]], skipped: int) -> None:
    run = attributes.Run(b"".join(bytes(skipped) + bytes([*entry, 5]) for entry in content), skipped + 3, skipped)

    assert run.differ_only_in(range(skipped + 1, skipped + 2)) == (len({letter for letter, _ in content}) == 1)
    assert run.payloads == [bytes([*entry, 5]) for entry in content]


def test_payloads_of_one_length_in_a_row_are_a_run() -> None:
    runs = list(attributes.runs([b"ab", b"cd", b"", b"efg", b"hi"]))

    assert [run.payloads for run in runs] == [[b"ab", b"cd"], [b"efg"], [b"hi"]]
