"""Canonical text of IP addresses, prefixes and hardware addresses, as state values hold them.

State holds text because that is what a person reads and what compares at once; the forms here are the ones
that the kernel's own bytes turn into, so that ``read`` and ``want`` are equal exactly when they mean the same.
A cache makes the repeated conversion of the same few thousand strings cost a dictionary look-up (0.1 us
against 2-4 us in ``ipaddress``).
"""

import ipaddress
import re
from functools import lru_cache

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_CACHED = 1 << 16


@lru_cache(_CACHED)
def ip_text(text: str) -> str:
    """The canonical form of an address without prefix length.

    Raises: ValueError when it is none.
    """
    return str(ipaddress.ip_address(text))


@lru_cache(_CACHED)
def interface_text(text: str) -> str:
    """The canonical form of an address with its prefix length; a bare address gets a full-length one.

    Raises: ValueError when it is none.
    """
    return str(ipaddress.ip_interface(text))


@lru_cache(_CACHED)
def network_text(text: str) -> str:
    """The canonical form of a prefix; a bare address is a full-length one, host bits are refused.

    Raises: ValueError when it is none.
    """
    return str(ipaddress.ip_network(text))


@lru_cache(_CACHED)
def mac_text(text: str) -> str:
    """The canonical (lower case, colons) form of a hardware address; empty stays empty.

    Raises: ValueError when it is none.
    """
    lowered = text.lower().replace("-", ":")
    if lowered and not _MAC.fullmatch(lowered):
        raise ValueError(f"{text!r} is not a hardware address such as 02:00:00:00:00:01")
    return lowered


@lru_cache(_CACHED)
def pack_ip(text: str) -> bytes:
    """The address in network byte order, 4 or 16 bytes."""
    return ipaddress.ip_address(text).packed


@lru_cache(_CACHED)
def unpack_ip(data: bytes) -> str:
    """The canonical text of 4 or 16 bytes."""
    if len(data) == 4:
        return "{}.{}.{}.{}".format(*data)
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
