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

    Raises: ValueError for texts that are none.
    """
    return ip_address(address) in network(text)
