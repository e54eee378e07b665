"""Canonical text of IP addresses, prefixes and hardware addresses, as state values hold them.

State holds text because people read it and because it compares fast. The forms here are those into which the kernel's
bytes are converted, so two texts are equal exactly when they mean the same. A cache reduces repeated conversions of the
same few thousand strings to a dictionary look-up (0.1 us instead of 2-4 us in ``ipaddress``).
"""

import contextlib
import ipaddress
import re
from functools import lru_cache

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_IPV4 = re.compile(r"(?:0|[1-9][0-9]{0,2})(?:\.(?:0|[1-9][0-9]{0,2})){3}")
_CACHED = 1 << 16


@lru_cache(_CACHED)
def ip_text(text: str) -> str:
    """The canonical form of an address without prefix length.

    Raises: ValueError when the text is not an address.
    """
    return str(ipaddress.ip_address(text))


@lru_cache(_CACHED)
def interface_text(text: str) -> str:
    """The canonical form of an address with its prefix length; without one it gets the full length.

    Raises: ValueError when the text is not an address.
    """
    return str(ipaddress.ip_interface(text))


@lru_cache(_CACHED)
def network_text(text: str) -> str:
    """The canonical form of a prefix; a bare address gets the full length, host bits are refused.

    Raises: ValueError when the text is not a prefix.
    """
    return str(ipaddress.ip_network(text))


@lru_cache(_CACHED)
def mac_text(text: str) -> str:
    """The canonical (lower case, colons) form of a hardware address; empty stays empty.

    Raises: ValueError when the text is not a hardware address.
    """
    lowered = text.lower().replace("-", ":")
    if lowered and not _MAC.fullmatch(lowered):
        raise ValueError(f"{text!r} is not a hardware address such as 02:00:00:00:00:01")
    return lowered


@lru_cache(_CACHED)
def pack_ip(text: str) -> bytes:
    """The address in network byte order, 4 or 16 bytes."""
    if _IPV4.fullmatch(text):
        with contextlib.suppress(ValueError):  # a number above 255
            return bytes(map(int, text.split(".")))
    return ipaddress.ip_address(text).packed


@lru_cache(_CACHED)
def unpack_ip(data: bytes) -> str:
    """The canonical text of 4 or 16 bytes."""
    if len(data) == 4:
        a, b, c, d = data
        return f"{a}.{b}.{c}.{d}"
    return str(ipaddress.IPv6Address(data))


def pack_mac(text: str) -> bytes:
    """The six bytes of a hardware address."""
    return bytes.fromhex(text.replace(":", ""))


def unpack_mac(data: bytes) -> str:
    """The text of a hardware address of any length."""
    return data.hex(":")


def is_v6(text: str) -> bool:
    """Whether an address or prefix is IPv6."""
    return ":" in text
