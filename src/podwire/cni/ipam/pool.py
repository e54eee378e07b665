"""Chooses the next address of a pod CIDR (pure).

Addresses are assigned in order, starting after the last assigned address and wrapping at the end, so an address stays
unused for as long as the range allows. An address that was released less than :data:`COOLDOWN_S` ago is skipped (slow
proxies and clients still send to its last pod), unless no other address is free: then the address that was released
first is taken and the result says so, because an exhausted range must be visible in a metric. The network's first two
addresses and IPv4's broadcast are never assigned, unless the network is a list of addresses that a cloud assigned.
Cost: a dictionary entry per held or cooling address; one step per allocation, plus one step per held address that is
skipped. Sources: the cooldown of amazon-vpc-cni-k8s (30 s, persisted since its issue 1127), the wrap-around of
containernetworking's host-local.
"""

from collections.abc import Container, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from podwire.cni.spec import TRY_LATER
from podwire.errors import CniError

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

COOLDOWN_S = 30.0


class Pool:
    """The addresses of one pod CIDR; times are wall-clock seconds, so that they outlive the process."""

    def __init__(self, network: Network, cooldown_s: float = COOLDOWN_S, *, whole: bool = False) -> None:
        """With ``whole`` every address is assigned, the first two and the last one, too."""
        self.network = network
        self._cooldown_s = cooldown_s
        self._base = int(network.network_address)
        size = network.num_addresses
        self._first = 0 if whole else min(2, size - 1)
        self._last = max(size - 2, self._first) if network.version == 4 and size > 2 and not whole else size - 1
        self._held: set[int] = set()
        self._released: dict[int, float] = {}
        self._cursor = self._first - 1

    @property
    def size(self) -> int:
        """The number of addresses that can be assigned."""
        return self._last - self._first + 1

    @property
    def held(self) -> int:
        """The number of addresses in use."""
        return len(self._held)

    @property
    def free(self) -> int:
        """The number of addresses not in use; includes addresses in their cooldown."""
        return self.size - self.held

    def cooling(self, now: float) -> int:
        """The number of addresses in their cooldown at the time ``now``."""
        return sum(1 for at in self._released.values() if now - at < self._cooldown_s)

    def has_cooled(self, now: float) -> bool:
        """Whether an address is free and not in its cooldown at the time ``now``."""
        return self.free > len(self._released) or self.free > self.cooling(now)

    def contains(self, address: Address) -> bool:
        """Whether this pool may assign an address."""
        return address in self.network and self._first <= int(address) - self._base <= self._last

    def restore(self, held: set[Address], released: dict[Address, float], last: Address | None) -> None:
        """Takes over the persisted state; addresses of other networks are ignored."""
        self._held = {int(a) - self._base for a in held if a in self.network}
        self._released = {int(a) - self._base: at for a, at in released.items() if a in self.network}
        self._cursor = int(last) - self._base if last is not None and last in self.network else self._first - 1

    def allocate(self, now: float) -> tuple[Address, bool]:
        """The next address, and whether its cooldown had not ended.

        Raises: CniError 11 when every address is in use; nothing is changed then.
        """
        offset = self._next_cooled(now)
        early = offset is None
        if offset is None:
            offset = min(self._released, key=lambda o: (self._released[o], o), default=None)
        if offset is None:
            raise CniError(TRY_LATER, f"no free address in {self.network}", f"all {self.size} are in use")
        self._take(offset)
        return self.network[offset], early

    def claim(self, address: Address) -> None:
        """Takes a particular address.

        Raises: CniError 11 when the address is in use or outside this pool.
        """
        if not self.contains(address):
            raise CniError(TRY_LATER, f"{address} is not an address that {self.network} can hand out")
        offset = int(address) - self._base
        if offset in self._held:
            raise CniError(TRY_LATER, f"{address} is in use")
        cursor = self._cursor
        self._take(offset)
        self._cursor = cursor

    def release(self, address: Address, now: float) -> None:
        """Frees an address; without effect when it is not held."""
        offset = int(address) - self._base
        if offset in self._held:
            self._held.discard(offset)
            self._released[offset] = now

    def occupy(self, addresses: Iterable[Address]) -> None:
        """Marks addresses of the network as held; without effect for those that are."""
        for address in addresses:
            offset = int(address) - self._base
            self._held.add(offset)
            self._released.pop(offset, None)

    def last_free(self, count: int, now: float) -> tuple[Address, ...]:
        """Up to ``count`` addresses that are free and not in their cooldown, from the end of the network."""
        free: list[Address] = []
        for offset in range(self._last, self._first - 1, -1):
            if len(free) == count:
                break
            if offset not in self._held and self._is_cooled(offset, now):
                free.append(self.network[offset])
        return tuple(free)

    def _take(self, offset: int) -> None:
        self._held.add(offset)
        self._released.pop(offset, None)
        self._cursor = offset

    def _is_cooled(self, offset: int, now: float) -> bool:
        at = self._released.get(offset)
        return at is None or now - at >= self._cooldown_s

    def _next_cooled(self, now: float) -> int | None:
        if self.free <= 0:
            return None
        offset = self._cursor
        for _ in range(min(self.size, self.held + len(self._released) + 1)):
            offset = offset + 1 if offset < self._last else self._first
            if offset not in self._held and self._is_cooled(offset, now):
                return offset
        return None


def exhausted(pools: Sequence[Pool], closed: Container[Network]) -> tuple[str, ...]:
    """The networks of each family without a free address; those in ``closed`` give no addresses."""
    result: list[str] = []
    for family in sorted({pool.network.version for pool in pools}):
        of_family = [pool for pool in pools if pool.network.version == family]
        if not any(pool.free > 0 and pool.network not in closed for pool in of_family):
            result.extend(str(pool.network) for pool in of_family)
    return tuple(result)


def version_of(text: str) -> int:
    """The IP version of an address as text; to parse it and back takes longer than all else in the plan of a pod."""
    return 6 if ":" in text else 4


def host_network(text: str) -> str:
    """The network of an address alone."""
    return f"{text}/128" if ":" in text else f"{text}/32"
