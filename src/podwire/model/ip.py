"""IP addresses and networks from their texts; canonical IPv4 takes 1 us instead of the 3-7 us of ``ipaddress``.

Of the module ``socket`` only the conversion of texts is used, which has no effect on anything.
"""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import AF_INET, inet_ntoa, inet_pton

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IPV4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}")
"""An IPv4 address in canonical form."""
IPV4_NETWORK = re.compile(rf"({_OCTET}(?:\.{_OCTET}){{3}})/(3[0-2]|[12]?[0-9])")
"""An IPv4 network, host bits included: address and prefix length."""


_LENGTHS = {str(number): number for number in range(33)}


def ipv4_bytes(text: str) -> bytes:
    """The four bytes of an address in the form :data:`IPV4`.

    Raises: ValueError for another text.
    """
    try:
        return inet_pton(AF_INET, text)
    except OSError as failure:
        raise ValueError(f"{text!r} is not an IPv4 address such as 192.0.2.1") from failure


def ipv4_text(data: bytes) -> str:
    """The address of four bytes in the form :data:`IPV4`."""
    return inet_ntoa(data)


def split_ipv4_network(text: str) -> tuple[bytes, int]:
    """The bytes and the prefix length of a network in the form :data:`IPV4_NETWORK`.

    Raises: ValueError, KeyError for another text.
    """
    address, _, length = text.partition("/")
    return ipv4_bytes(address), _LENGTHS[length]


def parse_address(text: str) -> IPv4Address | IPv6Address:
    """The address.

    Raises: ValueError.
    """
    try:
        return IPv4Address(ipv4_bytes(text))
    except ValueError:
        return ip_address(text)


def parse_network(text: str) -> IPv4Network | IPv6Network:
    """The network, host bits cleared.

    Raises: ValueError.
    """
    try:
        packed, length = split_ipv4_network(text)
    except (ValueError, KeyError):
        return ip_network(text, strict=False)
    return IPv4Network((int.from_bytes(packed, "big") >> (32 - length) << (32 - length), length))
