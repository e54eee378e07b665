"""The ``nftables`` data plane: keeps both families' tables equal to the resolved Services.

1. ``load`` reads the kernel, takes over the slots it finds, and commits only what differs: a restart with nothing
   changed writes nothing. 2. ``update`` commits the elements of the changed Services alone, without reading. 3. A
   refused transaction is answered by a full load; when that fails too, the error is raised and the next call loads
   again. 4. ``heal`` is for the day when somebody else changed the table: it reads and writes what differs.
5. ``close`` leaves everything in force; ``remove`` takes it all away. 6. On a kernel without NAT for IPv6, IPv4
Services are programmed all the same; ``missing`` names the family.
"""

from collections.abc import Mapping
from pathlib import Path

from podwire.errors import KernelError, Unsupported
from podwire.kernel.nft import Nft
from podwire.kernel.nft_socket import NftMonitor
from podwire.proxy.dataplane import INVALID_DROPPED, Counts
from podwire.proxy.dataplanes.nftables.contents import Contents
from podwire.proxy.dataplanes.nftables.layout import INVALID, TABLE, Layout
from podwire.proxy.dataplanes.nftables.steps import steps
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ServicePort
from podwire.state.nft import Table
from podwire.state.nft_diff import Transaction, diff, removal
from podwire.state.nft_rules import Counter

FAMILIES = ("ip", "ip6")


class NftablesDataPlane:
    """Services through nftables in one network namespace (None: that of this process)."""

    name = "nftables"
    instant = True

    def __init__(self, facts: NodeFacts, netns: Path | str | None = None) -> None:
        self._nft = Nft(netns)
        self._monitor = NftMonitor(netns, (self._nft.port,))
        self._facts = facts
        self._services: dict[str, tuple[ServicePort, ...]] = {}
        self._contents: dict[str, Contents] = {}
        self._missing: set[str] = set()
        self._lost = True
        self._unheard = False
        self._refused = self._unremoved = 0

    def close(self) -> None:
        """Lets go of the kernel; traffic goes on."""
        self._nft.close()
        self._monitor.close()

    def fileno(self) -> int:
        """A descriptor that is readable when somebody changed rules; :meth:`disturbed` then tells whether ours."""
        return self._monitor.fileno()

    def disturbed(self) -> bool:
        """Whether somebody else may have changed a table of ours since the last call."""
        changed = self._monitor.changed()
        unheard, self._unheard = self._unheard, False
        if unheard:
            return True
        return ("", "") in changed or any((family, TABLE) in changed for family in FAMILIES)

    def remove(self) -> None:
        """Takes the tables away.

        Raises: KernelError.
        """
        for family in FAMILIES:
            self._nft.commit(removal(family, TABLE))
        self._lost = True

    def load(self, services: ServiceMap, facts: NodeFacts | None = None) -> tuple[Transaction, ...]:
        """Makes the kernel hold exactly these Services; returns what had to be committed for each family.

        Raises: KernelError; the tables are as they were.
        """
        self._facts = facts or self._facts
        self._services = {key: ports for key, ports in services.items() if ports}
        self._lost = True
        self._monitor.pause()
        try:
            committed, generation = self._load_families()
        finally:
            self._monitor.resume()
        self._unheard = self._nft.generation() != generation
        self._lost = False
        return committed

    def _load_families(self) -> tuple[tuple[Transaction, ...], int]:
        """What was committed, and the generation of the rules right after."""
        committed = []
        for family in FAMILIES:
            if family in self._missing:
                continue
            have = self._nft.read(family, TABLE)
            contents = Contents(Layout(family, self._facts), have)
            transaction = diff(have, contents.load(_family_map(self._services, family)))
            try:
                self._commit(transaction)
            except Unsupported:
                if have is not None or family == FAMILIES[0]:
                    raise
                self._missing.add(family)
                continue
            self._contents[family] = contents
            committed.append(transaction)
        return tuple(committed), self._nft.generation()

    def update(self, changed: ServiceMap) -> tuple[Transaction, ...]:
        """Takes over changed Services (an empty tuple: gone); returns what was committed for each family.

        Raises: KernelError when a full load was tried as well and failed.
        """
        for key, ports in changed.items():
            if ports:
                self._services[key] = ports
            else:
                self._services.pop(key, None)
        if self._lost:
            return self.load(self._services)
        try:
            return tuple(self._update_family(family, changed) for family in self._contents)
        except KernelError:
            self._refused += 1
            return self.load(self._services)

    def _update_family(self, family: str, changed: ServiceMap) -> Transaction:
        transaction = self._contents[family].change(_family_map(changed, family))
        self._commit(transaction)
        return transaction

    def _commit(self, transaction: Transaction) -> None:
        for number, step in enumerate(steps(transaction)):
            try:
                self._nft.commit(step)
            except KernelError:
                self._unremoved += number > 0
                raise

    def heal(self) -> tuple[Transaction, ...]:
        """Reads the kernel and writes what differs; returns what had to be committed.

        Raises: KernelError.
        """
        if self._lost:
            return self.load(self._services)
        committed = []
        for family in self._contents:
            transaction = diff(self._nft.read(family, TABLE), self._contents[family].table())
            self._commit(transaction)
            committed.append(transaction)
        return tuple(committed)

    def counts(self) -> Counts:
        """What the rules counted, and refusals.

        Raises: KernelError.
        """
        held = (self._nft.rules(f, TABLE, INVALID, contents.declared) for f, contents in self._contents.items())
        counters = (part for rules in held for rule in rules for part in rule.statements if isinstance(part, Counter))
        packets = {INVALID_DROPPED: sum(counter.packets for counter in counters)}
        return Counts(packets, refused_updates=self._refused, refused_removals=self._unremoved)

    @property
    def missing(self) -> frozenset[str]:
        """Families that this kernel cannot program."""
        return frozenset(self._missing)

    def conflicts(self) -> tuple[str, ...]:
        """Services of which a frontend is held by another Service."""
        return tuple(sorted({key for contents in self._contents.values() for key in contents.conflicts()}))

    def desired(self) -> tuple[Table, ...]:
        """The tables that the kernel should hold; later changes do not show in them (2 us for an element)."""
        return tuple(contents.table().canonical() for contents in tuple(self._contents.values()))

    def held(self) -> tuple[Table, ...]:
        """The tables that the kernel holds.

        Raises: KernelError.
        """
        return tuple(table for f in FAMILIES if (table := self._nft.read(f, TABLE)) is not None)


def clear(netns: Path | str | None = None) -> bool:
    """Takes away what an earlier data plane of this mode left; whether there was anything.

    Raises: KernelError.
    """
    with Nft(netns) as nft:
        left = [family for family, name in nft.tables() if name == TABLE and family in FAMILIES]
        for family in left:
            nft.commit(removal(family, TABLE))
    return bool(left)


def _family_map(services: ServiceMap, family: str) -> Mapping[str, tuple[ServicePort, ...]]:
    """The ports of one family; a tuple that is all of that family is taken as it is."""
    return {
        key: ports if all(p.family == family for p in ports) else _of(ports, family) for key, ports in services.items()
    }


def _of(ports: tuple[ServicePort, ...], family: str) -> tuple[ServicePort, ...]:
    return tuple(port for port in ports if port.family == family)
