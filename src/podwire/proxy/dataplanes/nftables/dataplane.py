"""The ``nftables`` data plane: keeps both families' tables equal to the resolved Services.

1. ``load`` reads the kernel, keeps the slots in the table, and commits only what differs: a restart with nothing
   changed writes nothing.
2. ``update`` commits only the elements of the changed Services, without reading.
3. A refused transaction is followed by a full load. When that fails too, the error is raised and the next call loads
   again.
4. ``restore`` writes what the kernel's notifications name, without reading: chains, deleted elements as the kernel
   encoded them, a whole table that was deleted. ``heal`` reads the table and writes what still differs.
5. ``close`` leaves everything in force; ``remove`` removes the tables.
6. On a kernel without NAT for IPv6, IPv4 Services are programmed all the same; ``missing`` names the family.
"""

from collections.abc import Iterator, Mapping

from podwire.errors import KernelError
from podwire.kernel import nft_families
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft_families import FamilyTables
from podwire.kernel.nft_monitor import Touched
from podwire.proxy.dataplane import INVALID_DROPPED, Counts
from podwire.proxy.dataplanes.nftables.contents import Contents
from podwire.proxy.dataplanes.nftables.encoded import MOST
from podwire.proxy.dataplanes.nftables.layout import INVALID, TABLE, NftablesLayout
from podwire.proxy.dataplanes.nftables.steps import steps
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ports_of_family
from podwire.state.nft import Table
from podwire.state.nft_diff import Transaction
from podwire.state.nft_rules import Counter

_MANY = 1 << 31


class NftablesDataPlane:
    """Services through nftables in one network namespace (None: that of this process)."""

    name = "nftables"
    instant = True

    def __init__(self, facts: NodeFacts, netns: NetnsPath = None) -> None:
        self._tables = FamilyTables(TABLE, netns)
        self._facts = facts
        self._contents: dict[str, Contents] = {}
        self._lost = True
        self._refused = self._refused_removals = 0

    def close(self) -> None:
        """Closes the sockets to the kernel; the rules stay in force."""
        self._tables.close()

    def fileno(self) -> int:
        """A descriptor that is readable after a change of rules; call :meth:`disturbed` then."""
        return self._tables.fileno()

    def disturbed(self) -> bool:
        """Whether another program may have changed a table of podwire since the last call."""
        return self._tables.disturbed()

    def remove(self) -> None:
        """Removes the tables.

        Raises: KernelError.
        """
        self._tables.remove()
        self._lost = True

    def load(self, services: ServiceMap, facts: NodeFacts | None = None) -> tuple[Transaction, ...]:
        """Makes the kernel hold exactly these Services; returns what had to be committed for each family.

        Raises: KernelError; the tables are as they were.
        """
        self._facts = facts or self._facts
        self._lost = True
        with self._tables.notifications_off():
            committed = tuple(self._load_families(services))
        self._lost = False
        return committed

    def _load_families(self, services: ServiceMap) -> Iterator[Transaction]:
        loaded: dict[str, Contents] = {}

        def want(family: str, have: Table | None) -> Table:
            loaded[family] = Contents(NftablesLayout(family, self._facts), have)
            return loaded[family].load(ports_of_family(services, family))

        for family, transaction in self._tables.load(want, self._commit):
            self._contents[family] = loaded[family]
            yield transaction

    def update(self, services: ServiceMap, changed: ServiceMap) -> tuple[Transaction, ...]:
        """Applies changed Services (an empty tuple removes one); returns what was committed for each family.

        Raises: KernelError when a full load was tried as well and failed.
        """
        if self._lost:
            return self.load(services)
        try:
            return tuple(self._update_family(family, changed) for family in self._contents)
        except KernelError:
            self._refused += 1
            return self.load(services)

    def _update_family(self, family: str, changed: ServiceMap) -> Transaction:
        transaction = self._contents[family].change(ports_of_family(changed, family))
        self._commit(transaction)
        return transaction

    def _commit(self, transaction: Transaction) -> None:
        for number, step in enumerate(steps(transaction)):
            try:
                self._tables.commit(step)
            except KernelError:
                self._refused_removals += number > 0
                raise

    def heal(self, services: ServiceMap) -> tuple[Transaction, ...]:
        """Reads the kernel and writes what differs; returns what had to be committed.

        Raises: KernelError.
        """
        if self._lost:
            return self.load(services)
        with self._tables.notifications_off():
            restored = tuple(self._restore_touched(self._tables.take_touched()))
            return restored + self._tables.heal(
                ((family, contents.table()) for family, contents in self._contents.items()), self._commit
            )

    def restore(self) -> tuple[Transaction, ...]:
        """Writes what notifications named, without reading; returns what was committed.

        Deleted elements are written as the kernel named them, unless another program added elements to the same set or
        notifications were missed. Then, and for a deleted table, all elements are written; with many Services that is
        left to :meth:`heal`.
        """
        if self._lost:
            return ()
        with self._tables.notifications_off():
            return tuple(self._restore_touched(self._tables.take_touched(), most=MOST))

    def _restore_touched(self, touched: Mapping[str, Touched], most: int = _MANY) -> Iterator[Transaction]:
        """Yields what was committed; what the kernel refuses is left to the comparison with the whole table.

        ``most`` is the number of Services up to which all elements of a set or of the table are written.
        """
        for family, parts in touched.items():
            contents = self._contents.get(family)
            if contents is None or (parts.deleted and len(contents) > most):
                continue
            if parts.deleted:
                transaction = contents.replaced()
            else:
                removed = parts.restorable()
                sets = parts.sets if len(contents) <= most else removed.keys()
                transaction = contents.rewritten(parts.chains, sets, removed)
            try:
                self._tables.commit(transaction)
            except KernelError:
                continue
            if transaction:
                yield transaction

    def counts(self) -> Counts:
        """Packet counts of rules, and the numbers of refused changes.

        Raises: KernelError.
        """
        held = (self._tables.nft.rules(f, TABLE, INVALID, contents.declared) for f, contents in self._contents.items())
        counters = (
            statement
            for rules in held
            for rule in rules
            for statement in rule.statements
            if isinstance(statement, Counter)
        )
        packets = {INVALID_DROPPED: sum(counter.packets for counter in counters)}
        return Counts(packets, refused_updates=self._refused, refused_removals=self._refused_removals)

    @property
    def missing(self) -> frozenset[str]:
        """Families that this kernel cannot program."""
        return self._tables.missing

    def conflicts(self) -> tuple[str, ...]:
        """Services that wait for a frontend that another Service owns."""
        return tuple(sorted({key for contents in self._contents.values() for key in contents.conflicts()}))

    def desired(self) -> tuple[Table, ...]:
        """The tables that the kernel should hold; later changes do not change this value (2 us for each element)."""
        return tuple(contents.table().canonical() for contents in tuple(self._contents.values()))

    def held(self) -> tuple[Table, ...]:
        """The tables that the kernel holds.

        Raises: KernelError.
        """
        return self._tables.held()


def clear(netns: NetnsPath = None) -> bool:
    """Removes what an earlier data plane of this mode left; returns whether anything was removed.

    Raises: KernelError.
    """
    return nft_families.clear(TABLE, netns)
