"""Where a stream of WebSocket frames is cut."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.http.frames import FrameSplitter


def frame(size: int, *, masked: bool = False) -> bytes:
    """A binary frame of that many bytes of payload."""
    bit = 0x80 if masked else 0
    if size < 126:
        head = bytes((0x82, bit | size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x82, bit | 126, size)
    else:
        head = struct.pack("!BBQ", 0x82, bit | 127, size)
    return head + (b"mask" if masked else b"") + b"\x82" * size


@pytest.mark.parametrize("masked", [False, True])
def test_each_frame_is_written_alone(masked: bool) -> None:
    frames = [frame(size, masked=masked) for size in (0, 1, 125, 126, 65535, 65536, 0, 3)]
    assert FrameSplitter().split(b"".join(frames)) == frames


@given(st.lists(st.sampled_from([0, 1, 5, 125, 126, 300]), max_size=8), st.integers(1, 400))
def test_each_write_ends_with_a_frame_however_data_arrives(sizes: list[int], step: int) -> None:
    frames = [frame(size) for size in sizes]
    data = b"".join(frames)
    ends = {sum(map(len, frames[: number + 1])) for number in range(len(frames))}
    splitter, sent = FrameSplitter(), 0
    for start in range(0, len(data), step):
        chunk = data[start : start + step]
        chunks = splitter.split(chunk)
        assert b"".join(chunks) == chunk
        for piece in chunks:
            inside = {end for end in ends if sent < end < sent + len(piece)}
            assert not inside
            sent += len(piece)
    assert sent == len(data)


def test_empty_data_is_split_into_nothing() -> None:
    assert FrameSplitter().split(b"") == []
