"""The status of IPAddressPools: how many addresses are in use and free.

It is written when it changes, once a second at most.
"""

from collections import Counter

from podwire.errors import ApiError, ApiUnreachable, ProtocolError
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resources import IPADDRESSPOOLS
from podwire.loadbalancer.allocation import Allocator
from podwire.loadbalancer.pools import BalancerPool
from podwire.loadbalancer.ranges import usable_size
from podwire.model.metallb import IpAddressPool, IpAddressPoolStatus

_INTERVAL_S = 1.0
_LARGEST = (1 << 63) - 1
"""The field of the object is an int64; a network of IPv6 may have more addresses."""


class PoolStatuses:
    """Writes the status of each pool."""

    def __init__(self, client: Client, pools: Informer[IpAddressPool]) -> None:
        self._client = client
        self._pools = pools

    async def run(self, allocator: Allocator) -> None:
        """Writes what differs, until cancelled."""
        while True:
            await self._client.clock.sleep(_INTERVAL_S)
            for name, status in pool_statuses(allocator).items():
                item = next((item for item in self._pools.objects.values() if item.metadata.name == name), None)
                if item is None or item.status == status:
                    continue
                body = {
                    "status": {
                        "assignedIPv4": status.assigned_ipv4,
                        "assignedIPv6": status.assigned_ipv6,
                        "availableIPv4": status.available_ipv4,
                        "availableIPv6": status.available_ipv6,
                    }
                }
                try:
                    await self._client.patch(IPADDRESSPOOLS, name, body, item.metadata.namespace, subresource="status")
                except (ApiError, ApiUnreachable, ProtocolError):
                    break


def pool_statuses(allocator: Allocator) -> dict[str, IpAddressPoolStatus]:
    """The status of each pool."""
    used: Counter[tuple[str, int]] = Counter()
    for address in allocator.in_use():
        pool = allocator.pools.of(address)
        if pool is not None:
            used[pool.name, address.version] += 1
    return {name: _status(pool, used) for name, pool in allocator.pools.by_name.items()}


def _status(pool: BalancerPool, used: "Counter[tuple[str, int]]") -> IpAddressPoolStatus:
    available = {}
    for version in (4, 6):
        size = usable_size(pool.ranges, version, avoid_buggy=pool.avoid_buggy)
        available[version] = min(max(size - used[pool.name, version], 0), _LARGEST)
    return IpAddressPoolStatus(
        assigned_ipv4=used[pool.name, 4],
        assigned_ipv6=used[pool.name, 6],
        available_ipv4=available[4],
        available_ipv6=available[6],
    )
