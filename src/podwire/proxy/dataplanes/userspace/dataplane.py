"""The ``userspace`` data plane: keeps the relay's pools and both families' tables equal to the resolved Services.

1. The relay listens before a rule leads to it, and is told to leave off after the last rule is gone, so no connection
meets a closed port. 2. ``load`` compares with what relay and kernel hold: a restart with nothing changed writes
nothing, to neither. 3. An update that only changes endpoints is one message to the relay, no transaction. 4. The relay
is a process of its own (:mod:`.process`), which outlives the agent; when it is gone, ``heal`` starts another and leads
the rules there. 5. ``remove`` takes the rules away; the relay serves its connections to their end and ends then.
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
        self._link = RelayClient(netns)
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
        """Lets go of the kernel and of the relay; traffic goes on."""
        self._poll.close()
        self._tables.close()
        self._link.close()

    def fileno(self) -> int:
        """A descriptor that is readable when somebody changed rules, or the relay is gone."""
        return self._poll.fileno()

    def disturbed(self) -> bool:
        """Whether another program may have changed a table of ours since the last call, or the relay is gone."""
        changed = self._tables.disturbed()
        with self._lock:
            if self._followed >= 0 and self._link.lost():
                self._unfollow()
                self._lost = True
                return True
        return changed

    def remove(self) -> None:
        """Takes the tables away, then has the relay end with its last connection.

        Raises: KernelError.
        """
        self._tables.remove()
        self._follow(False)
        self._link.drain()
        self._lost = True

    def load(self, services: ServiceMap, facts: NodeFacts | None = None) -> Written:
        """Makes relay and kernel hold exactly these Services; returns what had to change.

        Raises: KernelError; the tables are as they were, or complete but for pools that cannot listen.
        """
        self._facts = facts or self._facts
        self._lost = True
        self._follow(False)
        self._link.open()
        wanted = self._wanted(services)
        self._pool_keys = {service: tuple(found) for service, found in wanted.items() if found}
        arranged = self._arrange(_flat(wanted), everything=True)
        committed = tuple(self._load_families(services))
        retired = self._link.retire(Retire(tuple(self._pools), others=True))
        self._follow(True)
        self._lost = False
        _check(arranged)
        return (*committed, *arranged.changed, *retired.keys)

    def _follow(self, wanted: bool) -> None:
        """Listens to the end of the relay, or does not."""
        with self._lock:
            self._unfollow()
            self._followed = self._link.fileno() if wanted else -1
            if self._followed >= 0:
                self._poll.register(self._followed, select.EPOLLRDHUP)

    def _unfollow(self) -> None:
        """A link that was opened anew has left epoll by itself."""
        if self._followed >= 0:
            with contextlib.suppress(OSError):
                self._poll.unregister(self._followed)
        self._followed = -1

    def _wanted(self, services: ServiceMap) -> dict[str, dict[str, RelayPool]]:
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

    def _arrange(self, wanted: Mapping[str, RelayPool], *, everything: bool) -> Arranged:
        """Has the relay make the pools that differ, or all of them; their ports are known then."""
        changed = tuple(pool for key, pool in wanted.items() if everything or self._pools.get(key) != pool)
        if not changed and not everything:
            return Arranged({}, ())
        arranged = self._link.arrange(changed)
        if everything:
            self._pools.clear()
            self._ports.clear()
        self._ports |= arranged.ports
        self._pools |= {pool.key: pool for pool in changed if pool.key in arranged.ports}
        return arranged

    def _load_families(self, services: ServiceMap) -> Iterator[Transaction]:
        made: dict[str, Contents] = {}

        def want(family: str, _have: Table | None) -> Table:
            made[family] = Contents(UserspaceLayout(family, self._facts), self._ports)
            made[family].change(ports_of_family(services, family))
            return made[family].table()

        for family, transaction in self._tables.load(want, self._tables.commit):
            self._contents[family] = made[family]
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
        by_service = self._wanted(changed)
        wanted = _flat(by_service)
        gone = self._replace_keys(by_service, wanted)
        for key in gone:
            self._ports.pop(key, None)
            self._pools.pop(key, None)
        arranged = self._arrange(wanted, everything=False)
        committed = []
        for family, contents in self._contents.items():
            transaction = contents.change(ports_of_family(changed, family))
            self._tables.commit(transaction)
            committed.append(transaction)
        if gone:
            self._link.retire(Retire(gone))
        self._follow(True)
        _check(arranged)
        return (*committed, *arranged.changed, *gone)

    def _replace_keys(
        self, by_service: Mapping[str, Mapping[str, RelayPool]], wanted: Mapping[str, RelayPool]
    ) -> tuple[str, ...]:
        """Takes over the keys of the pools of changed Services; returns the keys of pools that nothing needs now."""
        before = [key for service in by_service for key in self._pool_keys.pop(service, ())]
        self._pool_keys |= {service: tuple(found) for service, found in by_service.items() if found}
        return tuple(key for key in before if key not in wanted)

    def heal(self, services: ServiceMap) -> Written:
        """Reads kernel and relay and writes what differs; returns what had to change.

        Raises: KernelError.
        """
        if self._lost:
            return self.load(services)
        wanted = ((family, each.table()) for family, each in self._contents.items())
        return self._tables.heal(wanted, self._tables.commit)

    def conflicts(self) -> tuple[str, ...]:
        """Services of which a frontend is held by another Service."""
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
        """How the relay is, None when there is none.

        Raises: KernelError.
        """
        return self._link.state()


def clear(netns: NetnsPath = None) -> bool:
    """Removes what an earlier data plane of this mode left; returns whether there was anything.

    Raises: KernelError.
    """
    left = nft_families.clear(TABLE, netns)
    return RelayClient(netns).drain() or left


def _flat(by_service: Mapping[str, Mapping[str, RelayPool]]) -> dict[str, RelayPool]:
    """The pools of all these Services."""
    return {key: pool for found in by_service.values() for key, pool in found.items()}


def _check(arranged: Arranged) -> None:
    """Raises: KernelError for pools that have no port."""
    if arranged.problems:
        key, problem = next(iter(arranged.problems.items()))
        raise KernelError("relay", key, 0, f"{problem}; {len(arranged.problems)} in all")
