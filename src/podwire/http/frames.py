"""Cuts a stream of WebSocket frames at the end of each frame, for a server that passes frames on.

Bytes that are written at once become one TLS record. A client that waits for its socket, then reads one frame (the
official Python client before version 37 does), does not notice the further frames of a record, which TLS has already
taken from the socket. With one write a frame, each record ends where a frame ends. Source: RFC 6455, section 5.2.
"""

_HEAD = 2
_SHORT, _LONG = 126, 127
_EXTRA = {_SHORT: 2, _LONG: 8}
"""Bytes of the extended length by the length in the head."""
_MASKED, _LENGTH = 0x80, 0x7F
_MASK = 4


class FrameCutter:
    """Remembers where in a frame the stream is."""

    def __init__(self) -> None:
        self._head = b""
        self._missing = 0
        """Bytes of the frame that are still to come; 0 while the head is incomplete."""

    def cut(self, data: bytes) -> list[bytes]:
        """The same bytes; every piece but the last one ends where a frame ends."""
        pieces = []
        start = position = 0
        while position < len(data):
            if not self._missing:
                position = self._read_head(data, position)
            taken = min(self._missing, len(data) - position)
            position += taken
            self._missing -= taken
            if not self._missing and not self._head:
                pieces.append(data[start:position])
                start = position
        if start < position:
            pieces.append(data[start:])
        return pieces

    def _read_head(self, data: bytes, position: int) -> int:
        """Reads a head, which may have begun in earlier data; returns the position behind what was read."""
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
            piece = data[position : position + size - len(self._head)]
            if not piece:
                return position
            self._head += piece
            position += len(piece)
