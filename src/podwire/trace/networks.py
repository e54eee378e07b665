"""Whether an address is in a network, both as texts: rules ask for the same pairs for many packets. Pure."""

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network


@lru_cache(maxsize=4096)
def network(text: str) -> IPv4Network | IPv6Network:
    """The network of a text.

    Raises: ValueError for a text that is none, also for one with host bits.
    """
    return ip_network(text)


@lru_cache(maxsize=4096)
def within(address: str, text: str) -> bool:
    """Whether the network of a text contains an address; false for an address of the other family.

    A text with a mask (``0.0.0.5/0.0.0.63``), which iptables prints where the mask is no prefix, contains the addresses
    that have these bits.

    Raises: ValueError for texts that are none.
    """
    parsed = ip_address(address)
    value, _, mask = text.partition("/")
    if "." in mask or ":" in mask:
        bits = ip_address(value)
        return parsed.version == bits.version and int(parsed) & int(ip_address(mask)) == int(bits)
    return parsed in network(text)
