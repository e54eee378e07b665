"""The SPDY codec, against a client written here from the same specification."""

import struct
import zlib

import pytest

from podwire.embedded.kubelet.spdy import DICTIONARY, Data, Opened, Reset, SpdySession
from podwire.errors import ProtocolError


class Client:
    """The client's frames."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def open(self, stream: int, headers: dict[str, str]) -> bytes:
        block = struct.pack("!I", len(headers))
        for text in (text for pair in headers.items() for text in pair):
            block += struct.pack("!I", len(text)) + text.encode()
        packed = self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        body = struct.pack("!IIH", stream, 0, 0) + packed
        return struct.pack("!HHI", 0x8003, 1, len(body)) + body


def test_dictionary_has_the_protocols_checksum() -> None:
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


@pytest.mark.parametrize("step", [1, 13, 1000])
def test_streams_open_with_headers_and_carry_data(step: int) -> None:
    client, session = Client(), SpdySession()
    data = client.open(1, {"streamtype": "error", "port": "80", "requestid": "0"})
    data += client.open(3, {"streamtype": "data", "port": "80", "requestid": "0"})
    data += struct.pack("!IBBH", 3, 0, 0, 5) + b"hello" + struct.pack("!II", 3, 1 << 24)
    events = [e for start in range(0, len(data), step) for e in session.feed(data[start : start + step])]
    assert events == [
        Opened(1, {"streamtype": "error", "port": "80", "requestid": "0"}, fin=False),
        Opened(3, {"streamtype": "data", "port": "80", "requestid": "0"}, fin=False),
        Data(3, b"hello", fin=False),
        Data(3, b"", fin=True),
    ]


def test_pings_are_answered_and_resets_reported() -> None:
    session = SpdySession()
    ping = struct.pack("!HHII", 0x8003, 6, 4, 7)
    assert session.feed(ping + struct.pack("!HHIII", 0x8003, 3, 8, 5, 1)) == [Reset(5)]
    assert session.reply == ping


def test_answers() -> None:
    session = SpdySession()
    accepted = session.accept(1)
    assert accepted[:4] == struct.pack("!HH", 0x8003, 2)
    assert zlib.decompressobj(zdict=DICTIONARY).decompress(accepted[12:]) == b"\0\0\0\0"
    assert session.send(3, b"ab") == b"\0\0\0\3\0\0\0\2ab"
    assert session.send(3, b"", fin=True) == b"\0\0\0\3\1\0\0\0"
    assert session.refuse(9) == struct.pack("!HHIII", 0x8003, 3, 8, 9, 3)


def test_headers_that_do_not_decode() -> None:
    body = struct.pack("!IIH", 1, 0, 0) + b"garbage"
    with pytest.raises(ProtocolError):
        SpdySession().feed(struct.pack("!HHI", 0x8003, 1, len(body)) + body)
