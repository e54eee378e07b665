"""Fields of protocol buffers, encoded.

Source: protobuf encoding guide.
"""


def varint(value: int) -> bytes:
    """A number that is not negative, in as few bytes as it needs."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(number: int, *parts: bytes) -> bytes:
    """A field that holds a message, given as its encoded fields, or bytes."""
    body = b"".join(parts)
    return varint(number << 3 | 2) + varint(len(body)) + body


def text(number: int, value: str) -> bytes:
    """A field that holds a text."""
    return message(number, value.encode())


def integer(number: int, value: int) -> bytes:
    """A field that holds a number, a flag or a choice."""
    return varint(number << 3) + varint(int(value))
