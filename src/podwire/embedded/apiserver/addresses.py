"""Addresses of Services: the ranges of each IP family, the allocated addresses, and the choice of the next address.

Each family has the range of the configuration first, then the ranges of further ServiceCIDRs. A range is used when all
ranges before it are full. Sources as in :mod:`podwire.embedded.apiserver.allocate`.
"""

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network


def static_band(size: int, divisor: int, most: int) -> int:
    """The number of values at the start of a range that are reserved for static use."""
    return 0 if size < 16 else min(max(16, size // divisor), most)


def turn(first: int, middle: int, last: int, start: int) -> Iterator[int]:
    """The values ``middle..last``, from ``start`` on and wrapping round, then ``first..middle-1``."""
    start = start if middle <= start <= last else middle
    yield from range(start, last + 1)
    yield from range(middle, start)
    yield from range(first, middle)


class AddressRange:
    """The Service addresses of one range."""

    def __init__(self, cidr: str) -> None:
        self.network: Network = ip_network(cidr)
        self.family = f"IPv{self.network.version}"
        self._owners: dict[str, str] = {}
        self._first, self._last = 1, self.network.num_addresses - (2 if self.network.version == 4 else 1)
        self._middle = self._first + static_band(self._last, 16, 256)
        self._next = self._middle

    def take(self, ip: str, owner: str) -> None:
        """Record an address of a stored Service."""
        self._owners[ip] = owner
        self._next = int(ip_address(ip)) - int(self.network.network_address) + 1

    def drop(self, ip: str, owner: str) -> None:
        """Forget an address."""
        if self._owners.get(ip) == owner:
            del self._owners[ip]

    def problem(self, ip: str, owner: str) -> str:
        """Why this address cannot be given to ``owner``; empty where it can."""
        address = ip_address(ip)
        offset = int(address) - int(self.network.network_address)
        if address.version != self.network.version or not self._first <= offset <= self._last:
            return f"the provided IP ({ip}) is not in the valid range. The range of valid IPs is {self.network}"
        current_owner = self._owners.get(str(address))
        return "provided IP is already allocated" if current_owner is not None and current_owner != owner else ""

    def choose(self) -> str | None:
        """The next free address, None where there is none."""
        origin = self.network.network_address
        for offset in turn(self._first, self._middle, self._last, self._next):
            ip = str(origin + offset)
            if ip not in self._owners:
                return ip
        return None


class AddressPool:
    """The Service addresses of one family, in one or more ranges."""

    def __init__(self, cidrs: Sequence[str]) -> None:
        self._ranges = [AddressRange(cidr) for cidr in dict.fromkeys(cidrs)]

    def take(self, ip: str, owner: str) -> None:
        """Record an address of a stored Service."""
        for pool in self._holding(ip):
            pool.take(ip, owner)

    def drop(self, ip: str, owner: str) -> None:
        """Forget an address."""
        for pool in self._holding(ip):
            pool.drop(ip, owner)

    def _holding(self, ip: str) -> list[AddressRange]:
        address = ip_address(ip)
        return [pool for pool in self._ranges if address in pool.network]

    def problem(self, ip: str, owner: str) -> str:
        """Why this address cannot be given to ``owner``; empty where it can."""
        problems = [pool.problem(ip, owner) for pool in self._holding(ip)]
        if problems:
            return next((problem for problem in problems if problem), "")
        networks = ", ".join(str(pool.network) for pool in self._ranges)
        return f"the provided IP ({ip}) is not in the valid range. The range of valid IPs is {networks}"

    def choose(self) -> str | None:
        """The next free address, None where there is none."""
        for pool in self._ranges:
            ip = pool.choose()
            if ip is not None and not any(other.problem(ip, "") for other in self._holding(ip)):
                return ip
        return None
