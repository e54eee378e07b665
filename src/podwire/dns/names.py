"""Domain names in wire form, and the addresses that names encode.

A name is ``bytes``: labels with their length byte, the root last, never compressed (RFC 1035 section 3.1).
Lower-casing such a name with ``bytes.lower`` is safe: a length byte is at most 63 and letters start at 65.
"""

import ipaddress
import re
from collections.abc import Container
from functools import lru_cache

from podwire.errors import ProtocolError

MAX_NAME = 255
MAX_LABEL = 63
ROOT = b"\x00"
_DASHED = re.compile(r"[0-9a-f]*(-[0-9a-f]*)+")
_NIBBLES = re.compile(rb"[0-9a-f]{32}")
OCTETS = {b"%d" % number: number for number in range(256)}


def encode_name(text: str) -> bytes:
    """The wire form of a name in text, absolute with or without the final dot; escapes are not supported.

    Raises: ProtocolError when a label is empty or too long, or the name is too long.
    """
    stripped = text.removesuffix(".")
    if not stripped:
        return ROOT
    out = bytearray()
    for label in stripped.encode("utf-8").split(b"."):
        if not 0 < len(label) <= MAX_LABEL:
            raise ProtocolError("local", f"name {text!r}: a label of {len(label)} bytes")
        out.append(len(label))
        out += label
    out.append(0)
    if len(out) > MAX_NAME:
        raise ProtocolError("local", f"name {text!r}: {len(out)} bytes")
    return bytes(out)


def split_labels(name: bytes) -> list[bytes]:
    """The labels of a wire name from left to right, without the root."""
    labels = []
    offset = 0
    while length := name[offset]:
        labels.append(name[offset + 1 : offset + 1 + length])
        offset += 1 + length
    return labels


def match_zone(name: bytes, zones: Container[bytes]) -> bytes | None:
    """The longest of ``zones`` (lower case) that has the wire name; None when there is none."""
    lower, offset = name.lower(), 0
    while True:
        suffix = lower[offset:]
        if suffix in zones:
            return suffix
        if not lower[offset]:
            return None
        offset += 1 + lower[offset]


def decode_name(name: bytes) -> str:
    """The text of a wire name with the final dot; special bytes are escaped (RFC 4343 2.1)."""
    labels = split_labels(name)
    return "".join(_escape(label) + "." for label in labels) if labels else "."


def _escape(label: bytes) -> str:
    if label.isascii() and label.replace(b"-", b"").replace(b"_", b"").isalnum():
        return label.decode("ascii")
    characters = []
    for byte in label:
        if byte in b'."\\()@;$':
            characters.append("\\" + chr(byte))
        elif 0x21 <= byte <= 0x7E:
            characters.append(chr(byte))
        else:
            characters.append(f"\\{byte:03d}")
    return "".join(characters)


def join_labels(labels: tuple[str, ...], suffix: bytes) -> bytes:
    """The wire name of ASCII ``labels`` in front of the wire name ``suffix``.

    Raises: ProtocolError when a label or the whole is too long.
    """
    out = bytearray()
    for label in labels:
        raw = label.encode("utf-8")
        if not 0 < len(raw) <= MAX_LABEL:
            raise ProtocolError("local", f"label {label!r}: {len(raw)} bytes")
        out.append(len(raw))
        out += raw
    out += suffix
    if len(out) > MAX_NAME:
        raise ProtocolError("local", f"name under {decode_name(suffix)}: {len(out)} bytes")
    return bytes(out)


@lru_cache(1 << 15)
def address_bytes(text: str) -> bytes:
    """The 4 or 16 bytes of an address in text; empty when the text is no address, or one with a scope (``%eth0``)."""
    if "%" in text:
        return b""
    try:
        return ipaddress.ip_address(text).packed
    except ValueError:
        return b""


def dashed_host(address: str) -> str:
    """The host label of an address: dots and colons become dashes, and a final dash gets a ``0``."""
    label = address.replace(".", "-").replace(":", "-")
    return f"{label}0" if label.endswith("-") else label


def parse_dashed(label: str) -> bytes:
    """The address in a label such as ``10-1-2-3`` or ``fd00--1``; empty when the label has none.

    Dots and colons inside a label are other names, although their text looks like an address.
    """
    if not _DASHED.fullmatch(label):
        return b""
    if label.count("-") == 3 and "--" not in label:
        return address_bytes(label.replace("-", "."))
    return address_bytes(label.replace("-", ":"))


def parse_reverse(labels: list[bytes]) -> bytes:
    """The address in the lower-case labels of a full reverse name; empty when it is not one.

    An octet with leading zeros and a nibble of two digits are other names. Sources: RFC 1035 section 3.5
    (in-addr.arpa), RFC 3596 section 2.5 (ip6.arpa, nibbles).
    """
    if len(labels) == 6 and labels[-2:] == [b"in-addr", b"arpa"]:
        octets = [OCTETS.get(label) for label in labels[3::-1]]
        return bytes(octet for octet in octets if octet is not None) if None not in octets else b""
    if len(labels) == 34 and labels[-2:] == [b"ip6", b"arpa"]:
        nibbles = b"".join(labels[31::-1])
        return bytes.fromhex(nibbles.decode("ascii")) if _NIBBLES.fullmatch(nibbles) else b""
    return b""
