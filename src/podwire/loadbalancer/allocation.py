"""Which addresses a Service gets (pure).

The order is that of MetalLB: the addresses that the Service has, while they are still valid; the requested addresses;
the requested pool; the pools that select the Service, by priority and name; the other pools with ``autoAssign``. In a
pool, the lowest address that is free decides, one for each family.

Services share an address when they have the same sharing key, no common port of one protocol, and send packets to the
same pods: both with ``externalTrafficPolicy: Cluster``, or both with the same selector.

Cost: one step for each Service, wherever the free address is: each range keeps the number below which no address is
free. Measured by ``bench/loadbalancer.py``.
"""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.errors import LoadBalancerError
from podwire.loadbalancer.pools import BalancerPool, BalancerPools
from podwire.loadbalancer.ranges import Address, PoolRange, addresses_from, is_buggy
from podwire.loadbalancer.request import AddressRequest

_NAMES = {4: "IPv4", 6: "IPv6"}


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """The addresses of a Service, in the order of its families, and their pool."""

    pool: str
    addresses: tuple[Address, ...]


class Allocator:
    """The pools, and the holders of each address."""

    def __init__(self) -> None:
        self.pools = BalancerPools()
        self._namespaces: Mapping[str, Mapping[str, str]] = {}
        self._requests: dict[str, AddressRequest] = {}
        self._held: dict[str, tuple[Address, ...]] = {}
        self._holders: dict[Address, tuple[str, ...]] = {}
        self._shared: dict[str, set[Address]] = {}
        """Addresses in use by sharing key."""
        self._free_from: dict[PoolRange, int] = {}
        """The number below which no address of a range is free."""

    def configure(self, pools: BalancerPools, namespaces: Mapping[str, Mapping[str, str]]) -> None:
        """Sets the pools, and the labels of namespaces by name."""
        if pools != self.pools:
            self.pools = pools
            self._free_from = {}
        self._namespaces = namespaces

    def addresses_of(self, key: str) -> tuple[Address, ...]:
        """The addresses that a Service holds."""
        return self._held.get(key, ())

    def holders(self, address: Address) -> tuple[str, ...]:
        """The Services that hold an address."""
        return self._holders.get(address, ())

    def in_use(self) -> Mapping[Address, tuple[str, ...]]:
        """The holders of each address that is in use."""
        return self._holders

    def hold(self, key: str, addresses: Iterable[Address], request: AddressRequest | None = None) -> None:
        """Records that a Service holds these addresses alone; without a request it shares none of them."""
        self.release(key)
        held = tuple(addresses)
        if not held:
            return
        self._held[key] = held
        if request is not None:
            self._requests[key] = request
        for address in held:
            self._holders[address] = (*self._holders.get(address, ()), key)
            if request is not None and request.sharing:
                self._shared.setdefault(request.sharing, set()).add(address)

    def release(self, key: str) -> tuple[Address, ...]:
        """Forgets what a Service holds; the addresses that nobody holds any more."""
        request, freed = self._requests.pop(key, None), []
        for address in self._held.pop(key, ()):
            remaining = tuple(other for other in self._holders[address] if other != key)
            if remaining:
                self._holders[address] = remaining
            else:
                del self._holders[address]
                freed.append(address)
                self._reopen(address)
            if request is not None and request.sharing and not self._is_shared(address, request.sharing):
                self._shared[request.sharing].discard(address)
        return tuple(freed)

    def _is_shared(self, address: Address, sharing: str) -> bool:
        holders = (self._requests.get(key) for key in self._holders.get(address, ()))
        return any(request is not None and request.sharing == sharing for request in holders)

    def _reopen(self, address: Address) -> None:
        for entry, number in self._free_from.items():
            if address in entry and int(address) < number:
                self._free_from[entry] = int(address)

    def allocate(self, request: AddressRequest, current: tuple[Address, ...] = ()) -> Allocation:
        """The addresses for a Service that has ``current``; the caller records them with :meth:`hold`.

        Raises: LoadBalancerError with the reason, in MetalLB's words where it has them.
        """
        if unchanged := self._keep(request, current):
            return unchanged
        if request.addresses:
            return self._requested(request)
        if request.pool:
            return self._from_pool(request, self._named(request))
        pinned, general = [], []
        for pool in self.pools.by_name.values():
            if pool.auto_assign and pool.pinned and self._serves(pool, request):
                pinned.append(pool)
            elif pool.auto_assign and not pool.pinned:
                general.append(pool)
        candidates = sorted(pinned, key=_priority) + sorted(general, key=_priority)
        for pool in candidates:
            if all(self._has_family(pool, version) for version in request.families):
                try:
                    return self._from_pool(request, pool)
                except LoadBalancerError:
                    continue
        raise LoadBalancerError("no available IPs")

    def _keep(self, request: AddressRequest, current: tuple[Address, ...]) -> Allocation | None:
        """What the Service has, if it may keep that; with the optional family added, if that is free now."""
        pool = self.pools.of(current[0]) if current else None
        if pool is None or not all(address in pool for address in current):
            return None
        if request.addresses and set(request.addresses) != set(current):
            return None
        if (request.pool and request.pool != pool.name) or not self._serves(pool, request):
            return None
        versions = [address.version for address in current]
        allowed = {*request.families, *request.optional}
        if len(set(versions)) < len(versions) or not set(versions) <= allowed:
            return None
        if not set(request.families) <= set(versions):
            return None
        if any(self.conflict(request, address) for address in current):
            return None
        missing = [version for version in request.optional if version not in versions]
        added = [address for version in missing if (address := self._first(pool, request, version)) is not None]
        return _ordered(pool, request, (*current, *added))

    def _requested(self, request: AddressRequest) -> Allocation:
        pools = [self.pools.of(address) for address in request.addresses]
        for address, pool in zip(request.addresses, pools, strict=True):
            if pool is None:
                raise LoadBalancerError(f'"{address}" is not allowed in config')
            if request.pool and pool.name != request.pool:
                raise LoadBalancerError(f'"{address}" is in the pool "{pool.name}", not in "{request.pool}"')
            if not self._serves(pool, request):
                raise LoadBalancerError(f"pool {pool.name} not compatible for ip assignment")
            if conflict := self.conflict(request, address):
                raise LoadBalancerError(conflict)
        first = pools[0]
        if first is None or any(pool != first for pool in pools):
            raise LoadBalancerError("the requested addresses are in different pools; expected one pool")
        return _ordered(first, request, request.addresses)

    def _named(self, request: AddressRequest) -> BalancerPool:
        pool = self.pools.by_name.get(request.pool)
        if pool is None:
            raise LoadBalancerError(f'unknown pool "{request.pool}"')
        if not self._serves(pool, request):
            raise LoadBalancerError(f"pool {pool.name} not compatible for ip assignment")
        return pool

    def _from_pool(self, request: AddressRequest, pool: BalancerPool) -> Allocation:
        addresses = []
        for version in request.families:
            address = self._first(pool, request, version)
            if address is None:
                raise LoadBalancerError(f'no available IPs in pool "{pool.name}" for {_NAMES[version]} IPFamily')
            addresses.append(address)
        for version in request.optional:
            address = self._first(pool, request, version)
            if address is not None:
                addresses.append(address)
        return _ordered(pool, request, addresses)

    def _serves(self, pool: BalancerPool, request: AddressRequest) -> bool:
        return pool.serves(request.namespace, self._namespaces.get(request.namespace, {}), request.labels)

    @staticmethod
    def _has_family(pool: BalancerPool, version: int) -> bool:
        return any(entry.version == version for entry in pool.ranges)

    def conflict(self, request: AddressRequest, address: Address) -> str:
        """Why a Service may not have an address that further Services hold; empty: it may."""
        for key in self._holders.get(address, ()):
            if key == request.key:
                continue
            other = self._requests.get(key)
            if other is None or not request.sharing or other.sharing != request.sharing:
                return f'can\'t change sharing key for "{request.key}", address also in use by {key}'
            if other.backend != request.backend:
                return f'"{request.key}" cannot share {address} with {key}: they send packets to different pods'
            if common := sorted(other.ports & request.ports):
                protocol, port = common[0]
                return f'port {protocol}/{port} of {address} is in use by "{key}"'
        return ""

    def _first(self, pool: BalancerPool, request: AddressRequest, version: int) -> Address | None:
        """The lowest address of the pool's first range that has one; addresses that may be shared count as free."""
        sharable = self._sharable(pool, request, version)
        for entry in pool.ranges:
            if entry.version != version:
                continue
            free = self._free(entry, avoid_buggy=pool.avoid_buggy)
            shared = next((address for address in sharable if address in entry), None)
            if shared is not None and (free is None or int(shared) < int(free)):
                return shared
            if free is not None:
                return free
        return None

    def _sharable(self, pool: BalancerPool, request: AddressRequest, version: int) -> list[Address]:
        if not request.sharing:
            return []
        in_use = (address for address in self._shared.get(request.sharing, ()) if address.version == version)
        return sorted((a for a in in_use if a in pool and not self.conflict(request, a)), key=int)

    def _free(self, entry: PoolRange, *, avoid_buggy: bool) -> Address | None:
        start = self._free_from.get(entry, entry.first)
        for address in addresses_from(entry, start):
            if address not in self._holders and not (avoid_buggy and is_buggy(address)):
                self._free_from[entry] = int(address)
                return address
        self._free_from[entry] = entry.last + 1
        return None


def _priority(pool: BalancerPool) -> tuple[bool, int, str]:
    """Lower numbers first; 0 is last."""
    return (pool.priority == 0, pool.priority, pool.name)


def _ordered(pool: BalancerPool, request: AddressRequest, addresses: Iterable[Address]) -> Allocation:
    order = [*request.families, *request.optional]
    return Allocation(pool.name, tuple(sorted(addresses, key=lambda address: order.index(address.version))))
