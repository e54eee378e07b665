"""The WebSocket codec."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import ProtocolError
from podwire.http.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    TEXT,
    Decoder,
    Message,
    accept_key,
    choose_protocol,
    encode,
    encode_close,
)


def masked(frame: bytes, mask: bytes = b"\x01\x02\x03\x04") -> bytes:
    """The frame as a client sends it."""
    size = frame[1]
    start = 2 if size < 126 else 4 if size == 126 else 10
    body = bytes(b ^ mask[i % 4] for i, b in enumerate(frame[start:]))
    return frame[:1] + bytes((size | 0x80,)) + frame[2:start] + mask + body


def test_accept_key_of_the_rfc() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_choice_of_protocol() -> None:
    known = ("v5.channel.k8s.io", "v4.channel.k8s.io")
    assert choose_protocol("v4.channel.k8s.io, v5.channel.k8s.io", known) == "v5.channel.k8s.io"
    assert choose_protocol("v1", known) == ""


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_sizes_survive(size: int) -> None:
    payload = os.urandom(size)
    assert Decoder().feed(masked(encode(BINARY, payload))) == [Message(BINARY, payload)]


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 50))
def test_any_cutting_gives_the_same_messages(payloads: list[bytes], step: int) -> None:
    data = b"".join(masked(encode(BINARY, payload)) for payload in payloads)
    decoder = Decoder()
    found = [m for start in range(0, len(data), step) for m in decoder.feed(data[start : start + step])]
    assert found == [Message(BINARY, payload) for payload in payloads]


def test_fragments_are_joined_and_control_frames_may_come_between() -> None:
    def part(opcode: int, payload: bytes, *, final: bool) -> bytes:
        frame = encode(opcode, payload)
        return masked(bytes((frame[0] & (0xFF if final else 0x7F),)) + frame[1:])

    data = part(TEXT, b"ab", final=False) + part(PING, b"!", final=True) + part(CONTINUATION, b"c", final=True)
    assert Decoder().feed(data) == [Message(PING, b"!"), Message(TEXT, b"abc")]


@pytest.mark.parametrize(
    "data",
    [encode(BINARY, b"not masked"), masked(encode(CONTINUATION, b"x")), b"\x82\xff" + b"\xff" * 12],
)
def test_broken_frames_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Decoder().feed(data)


def test_close() -> None:
    assert encode_close(1000, "bye") == encode(CLOSE, b"\x03\xe8bye")
