"""Ranges of addresses as numbers (pure).

A pool has ranges in the two forms of MetalLB: a network (``192.0.2.0/24``) or a first and a last address
(``192.0.2.10-192.0.2.20``). A range is two numbers, because a network of IPv6 has more addresses than a list can hold.
"""

from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import msgspec

from podwire.errors import ConfigError

Address = IPv4Address | IPv6Address
_CACHED = 1 << 16


class PoolRange(msgspec.Struct, frozen=True, gc=False):
    """All addresses from ``first`` to ``last``, both included."""

    version: int
    first: int
    last: int

    def __contains__(self, address: Address) -> bool:
        return address.version == self.version and self.first <= int(address) <= self.last

    def overlaps(self, other: "PoolRange") -> bool:
        """Whether both ranges have an address in common."""
        return self.version == other.version and self.first <= other.last and other.first <= self.last

    def address(self, number: int) -> Address:
        """The address of a number."""
        return IPv4Address(number) if self.version == 4 else IPv6Address(number)

    @property
    def size(self) -> int:
        """How many addresses it has."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.address(self.first)}-{self.address(self.last)}"


def parse_range(source: str, path: str, text: str) -> PoolRange:
    """A range of a pool.

    Raises: ConfigError.
    """
    try:
        if "%" in text:
            raise ValueError(f"{text!r} has a zone")
        if "-" in text:
            first, last = (ip_address(end.strip()) for end in text.split("-", 1))
            if first.version != last.version:
                raise ValueError(f"{text!r} has ends of two families")
            if int(first) > int(last):
                raise ValueError(f"{text!r} ends before it begins")
            return PoolRange(first.version, int(first), int(last))
        if "/" not in text:
            raise ValueError(f"{text!r} is one address; write {text}/{128 if ':' in text else 32}")
        network = ip_network(text.strip(), strict=False)
    except ValueError as problem:
        raise ConfigError(source, path, f"{problem}; expected address/length or first-last") from problem
    return PoolRange(network.version, int(network[0]), int(network[-1]))


def is_buggy(address: Address) -> bool:
    """Whether some devices take an address for that of a network or a broadcast: ``.0`` and ``.255`` of IPv4."""
    return address.version == 4 and int(address) & 0xFF in (0, 255)


def usable_size(ranges: "tuple[PoolRange, ...]", version: int, *, avoid_buggy: bool) -> int:
    """How many addresses of a family can be handed out."""
    total = 0
    for entry in ranges:
        if entry.version == version:
            total += entry.size
            if avoid_buggy and version == 4:
                total -= sum(_matching(entry, last) for last in (0, 255))
    return total


def _matching(entry: PoolRange, last_octet: int) -> int:
    """How many addresses of an IPv4 range end with an octet."""
    return (entry.last - last_octet) // 256 - (entry.first - 1 - last_octet) // 256


@lru_cache(_CACHED)
def parse_address(text: str) -> Address | None:
    """The address of a text; None when it is not an address."""
    try:
        return ip_address(text.strip()) if "%" not in text else None
    except ValueError:
        return None


def addresses_from(entry: PoolRange, number: int) -> Iterator[Address]:
    """The addresses of a range from a number on, in order."""
    while number <= entry.last:
        yield entry.address(number)
        number += 1
