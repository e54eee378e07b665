"""Splits a stream of WebSocket frames at the end of each frame, for a server that forwards frames.

Bytes that are written at once become one TLS record. Some clients wait until their socket is readable and then read one
frame (the official Python client before version 37 does). Such a client misses further frames of the same record,
because TLS has already read them from the socket. With one write per frame, each record ends where a frame ends.
Source: RFC 6455, section 5.2.
"""

_HEAD = 2
_SHORT, _LONG = 126, 127
_EXTRA = {_SHORT: 2, _LONG: 8}
"""Bytes of the extended length by the length in the head."""
_MASKED, _LENGTH = 0x80, 0x7F
_MASK = 4


class FrameSplitter:
    """The position of the stream within a frame."""

    def __init__(self) -> None:
        self._head = b""
        self._missing = 0
        """Bytes of the frame that are still to come; 0 while the head is incomplete."""

    def split(self, data: bytes) -> list[bytes]:
        """The same bytes in parts; each part except the last one ends where a frame ends."""
        writes = []
        start = position = 0
        while position < len(data):
            if not self._missing:
                position = self._read_head(data, position)
            size = min(self._missing, len(data) - position)
            position += size
            self._missing -= size
            if not self._missing and not self._head:
                writes.append(data[start:position])
                start = position
        if start < position:
            writes.append(data[start:])
        return writes

    def _read_head(self, data: bytes, position: int) -> int:
        """Reads a head, which may have begun in earlier data; returns the position behind the read bytes."""
        while True:
            size = _HEAD
            if len(self._head) >= _HEAD:
                length, masked = self._head[1] & _LENGTH, self._head[1] & _MASKED
                extra = _EXTRA.get(length, 0)
                size += extra
                if len(self._head) == size:
                    payload = int.from_bytes(self._head[_HEAD:size], "big") if extra else length
                    self._missing = payload + (_MASK if masked else 0)
                    self._head = b""
                    return position
            head = data[position : position + size - len(self._head)]
            if not head:
                return position
            self._head += head
            position += len(head)
