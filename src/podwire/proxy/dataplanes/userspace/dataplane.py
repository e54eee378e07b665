"""The ``userspace`` data plane: keeps the relay's pools and both families' tables equal to the resolved Services.

1. The relay listens before a rule leads to it, and pools are retired after the last rule is removed, so no connection
   reaches a closed port.
2. ``load`` compares with the state of relay and kernel: a restart with nothing changed writes nothing to either.
3. An update that only changes endpoints is one message to the relay and no transaction.
4. The relay is a process of its own (:mod:`.process`), which outlives the agent. When the relay has ended, ``heal``
   starts another relay and writes rules that lead to it.
5. ``remove`` removes the rules; the relay ends when its last connection has ended.
6. On a kernel without NAT for IPv6, IPv4 Services are served all the same.
"""

import contextlib
import select
import threading
from collections.abc import Iterator, Mapping

from podwire.dataplane.plane import Written
from podwire.errors import KernelError
from podwire.kernel import nft_families
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft_families import FAMILIES, FamilyTables
from podwire.proxy.dataplanes.userspace.client import RelayClient
from podwire.proxy.dataplanes.userspace.contents import Contents, pools
from podwire.proxy.dataplanes.userspace.layout import TABLE, UserspaceLayout
from podwire.proxy.dataplanes.userspace.messages import Arranged, RelayPool, Retire, State
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ports_of_family
from podwire.state.nft import Table
from podwire.state.nft_diff import Transaction


class UserspaceDataPlane:
    """Services through a relay in one network namespace (None: that of this process)."""

    name = "userspace"
    instant = False

    def __init__(self, facts: NodeFacts, netns: NetnsPath = None) -> None:
        self._tables = FamilyTables(TABLE, netns)
        self._client = RelayClient(netns)
        self._poll = select.epoll()
        self._poll.register(self._tables.fileno(), select.EPOLLIN)
        self._followed = -1
        self._lock = threading.Lock()
        self._facts = facts
        self._contents: dict[str, Contents] = {}
        self._ports: dict[str, int] = {}
        self._pools: dict[str, RelayPool] = {}
        self._pool_keys: dict[str, tuple[str, ...]] = {}
        """The keys of the pools of each Service."""
        self._lost = True

    def close(self) -> None:
        """Closes the sockets to the kernel and to the relay; traffic continues."""
        self._poll.close()
        self._tables.close()
        self._client.close()

    def fileno(self) -> int:
        """A descriptor that is readable after a change of rules, or when the relay has ended."""
        return self._poll.fileno()

    def disturbed(self) -> bool:
        """Whether another program may have changed a table of podwire since the last call, or the relay has ended."""
        changed = self._tables.disturbed()
        with self._lock:
            if self._followed >= 0 and self._client.lost():
                self._unfollow()
                self._lost = True
                return True
        return changed

    def remove(self) -> None:
        """Removes the tables, then asks the relay to end with its last connection.

        Raises: KernelError.
        """
        self._tables.remove()
        self._follow(False)
        self._client.drain()
        self._lost = True

    def load(self, services: ServiceMap, facts: NodeFacts | None = None) -> Written:
        """Makes relay and kernel hold exactly these Services; returns what had to change.

        Raises: KernelError; the tables are unchanged, or complete except for pools that cannot listen.
        """
        self._facts = facts or self._facts
        self._lost = True
        self._follow(False)
        self._client.open()
        desired_pools = self._pools_of(services)
        self._pool_keys = {service: tuple(by_key) for service, by_key in desired_pools.items() if by_key}
        arranged = self._arrange(_flat(desired_pools), everything=True)
        committed = tuple(self._load_families(services))
        retired = self._client.retire(Retire(tuple(self._pools), all_others=True))
        self._follow(True)
        self._lost = False
        _check(arranged)
        return (*committed, *arranged.changed, *retired.keys)

    def _follow(self, enabled: bool) -> None:
        """Watches (``enabled``) or stops watching the connection to the relay for its end."""
        with self._lock:
            self._unfollow()
            self._followed = self._client.fileno() if enabled else -1
            if self._followed >= 0:
                self._poll.register(self._followed, select.EPOLLRDHUP)

    def _unfollow(self) -> None:
        """Stops watching; the kernel has removed a closed connection from epoll already."""
        if self._followed >= 0:
            with contextlib.suppress(OSError):
                self._poll.unregister(self._followed)
        self._followed = -1

    def _pools_of(self, services: ServiceMap) -> dict[str, dict[str, RelayPool]]:
        """The pools that each Service needs, by their keys."""
        layouts = {family: UserspaceLayout(family, self._facts) for family in FAMILIES}
        return {
            service: {
                pool.key: pool
                for family, layout in layouts.items()
                for pool in pools((port for port in ports if port.family == family), layout)
            }
            for service, ports in services.items()
        }

    def _arrange(self, desired_pools: Mapping[str, RelayPool], *, everything: bool) -> Arranged:
        """Sends the pools that changed, or all pools, to the relay, and stores their ports."""
        changed = tuple(pool for key, pool in desired_pools.items() if everything or self._pools.get(key) != pool)
        if not changed and not everything:
            return Arranged({}, ())
        arranged = self._client.arrange(changed)
        if everything:
            self._pools.clear()
            self._ports.clear()
        self._ports |= arranged.ports
        self._pools |= {pool.key: pool for pool in changed if pool.key in arranged.ports}
        return arranged

    def _load_families(self, services: ServiceMap) -> Iterator[Transaction]:
        new_contents: dict[str, Contents] = {}

        def want(family: str, _have: Table | None) -> Table:
            new_contents[family] = Contents(UserspaceLayout(family, self._facts), self._ports)
            new_contents[family].change(ports_of_family(services, family))
            return new_contents[family].table()

        for family, transaction in self._tables.load(want, self._tables.commit):
            self._contents[family] = new_contents[family]
            yield transaction

    def update(self, services: ServiceMap, changed: ServiceMap) -> Written:
        """Applies changed Services (an empty tuple removes one); returns what had to change.

        Raises: KernelError when a full load was tried as well and failed.
        """
        if self._lost:
            return self.load(services)
        try:
            return self._update(changed)
        except KernelError:
            return self.load(services)

    def _update(self, changed: ServiceMap) -> Written:
        by_service = self._pools_of(changed)
        desired_pools = _flat(by_service)
        unused = self._replace_keys(by_service, desired_pools)
        for key in unused:
            self._ports.pop(key, None)
            self._pools.pop(key, None)
        arranged = self._arrange(desired_pools, everything=False)
        committed = []
        for family, contents in self._contents.items():
            transaction = contents.change(ports_of_family(changed, family))
            self._tables.commit(transaction)
            committed.append(transaction)
        if unused:
            self._client.retire(Retire(unused))
        self._follow(True)
        _check(arranged)
        return (*committed, *arranged.changed, *unused)

    def _replace_keys(
        self, by_service: Mapping[str, Mapping[str, RelayPool]], desired_pools: Mapping[str, RelayPool]
    ) -> tuple[str, ...]:
        """Stores the pool keys of changed Services; returns the keys of pools that no Service needs any more."""
        before = [key for service in by_service for key in self._pool_keys.pop(service, ())]
        self._pool_keys |= {service: tuple(by_key) for service, by_key in by_service.items() if by_key}
        return tuple(key for key in before if key not in desired_pools)

    def heal(self, services: ServiceMap) -> Written:
        """Reads kernel and relay and writes what differs; returns what had to change.

        Raises: KernelError.
        """
        if self._lost:
            return self.load(services)
        tables = ((family, contents.table()) for family, contents in self._contents.items())
        return self._tables.heal(tables, self._tables.commit)

    def conflicts(self) -> tuple[str, ...]:
        """Services that wait for a frontend that another Service owns."""
        return tuple(sorted({key for contents in self._contents.values() for key in contents.conflicts()}))

    def desired(self) -> tuple[Table, ...]:
        """The tables that the kernel should hold."""
        return tuple(contents.table().canonical() for contents in tuple(self._contents.values()))

    def held(self) -> tuple[Table, ...]:
        """The tables that the kernel holds.

        Raises: KernelError.
        """
        return self._tables.held()

    def relay(self) -> State | None:
        """The state of the relay, None when no relay runs.

        Raises: KernelError.
        """
        return self._client.state()


def clear(netns: NetnsPath = None) -> bool:
    """Removes what an earlier data plane of this mode left; returns whether anything was removed.

    Raises: KernelError.
    """
    removed = nft_families.clear(TABLE, netns)
    return RelayClient(netns).drain() or removed


def _flat(by_service: Mapping[str, Mapping[str, RelayPool]]) -> dict[str, RelayPool]:
    """The pools of all these Services."""
    return {key: pool for by_key in by_service.values() for key, pool in by_key.items()}


def _check(arranged: Arranged) -> None:
    """Checks that all pools listen.

    Raises: KernelError.
    """
    if arranged.problems:
        key, problem = next(iter(arranged.problems.items()))
        raise KernelError("relay", key, 0, f"{problem}; {len(arranged.problems)} in all")
