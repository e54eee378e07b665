"""A table of one name in both IP families: the table of an nftables data plane in one network namespace.

1. Only changes by other programs are reported. 2. During a large change notifications are off (:meth:`notifications_off
<FamilyTables.notifications_off>`), because the kernel sends each listener a message per element (25 us); the number of
transactions shows whether other programs wrote meanwhile. 3. On a kernel that cannot program IPv6, IPv4 is programmed
nevertheless; ``missing`` names the family.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from podwire.errors import Unsupported
from podwire.kernel.nft import Nft
from podwire.kernel.nft_monitor import NftMonitor, Touched
from podwire.state.nft import Table
from podwire.state.nft_diff import FlushChain, Transaction, diff, removal

FAMILIES = ("ip", "ip6")

Commit = Callable[[Transaction], object]


class FamilyTables:
    """The tables of this name in a network namespace (None: that of this thread)."""

    def __init__(self, name: str, netns: Path | str | None = None) -> None:
        self.name = name
        self.nft = Nft(netns)
        self._monitor = NftMonitor(netns, (self.nft.port,), keep=name)
        self._missing: set[str] = set()
        self._committed = 0
        self._missed = self._heard = False
        self._lock = threading.Lock()
        """Held while the record of touched objects changes, because another thread may restore these objects."""
        self._touched: dict[str, Touched] = {}

    def close(self) -> None:
        """Closes the sockets; the tables stay."""
        self.nft.close()
        self._monitor.close()

    def fileno(self) -> int:
        """Readable when :meth:`disturbed` should be called."""
        return self._monitor.fileno()

    def disturbed(self) -> bool:
        """Whether another program may have changed one of the tables since the last call."""
        missed, self._missed = self._missed, False
        heard, self._heard = self._heard, False
        return self._listen(missed=missed) or missed or heard

    def _listen(self, *, missed: bool = False) -> bool:
        """Reads notifications; returns whether they name one of the tables, or whether some were missed."""
        with self._lock:
            changed = self._monitor.read()
            own = {family: changed[family, self.name] for family in FAMILIES if (family, self.name) in changed}
            for family, touched in own.items():
                self._touched.setdefault(family, Touched()).add(touched)
            if missed or ("", "") in changed:
                for family in FAMILIES:
                    self._touched.setdefault(family, Touched()).missed = True
            return ("", "") in changed or bool(own)

    def take_touched(self) -> Mapping[str, Touched]:
        """The known changes of other programs since the last call, by family.

        The next call of :meth:`disturbed` reports the changes that it has not reported yet.
        """
        self._heard = self._listen() or self._heard
        with self._lock:
            touched, self._touched = self._touched, {}
        return touched

    @property
    def missing(self) -> frozenset[str]:
        """Families that this kernel cannot program."""
        return frozenset(self._missing)

    def commit(self, transaction: Transaction) -> None:
        """Commits a transaction without reading the kernel.

        Raises: KernelError.
        """
        if transaction:
            self.nft.commit(transaction)
            self._committed += 1

    @contextmanager
    def notifications_off(self) -> Iterator[None]:
        """Switches notifications off for the body; :meth:`disturbed` then reports whether other programs wrote too.

        Raises: KernelError.
        """
        self._monitor.pause()
        other_changes = self.nft.generation() - self._committed
        try:
            yield
        finally:
            self._monitor.resume()
            self._missed = self._missed or self.nft.generation() - self._committed != other_changes

    def load(self, desired: Callable[[str, Table | None], Table], commit: Commit) -> Iterator[tuple[str, Transaction]]:
        """Makes the kernel hold the result of ``desired`` for a family and its present table; yields each transaction.

        Raises: KernelError.
        """
        self.take_touched()
        for family in FAMILIES:
            if family in self._missing:
                continue
            have = self.nft.read(family, self.name)
            transaction = diff(have, desired(family, have))
            try:
                commit(transaction)
            except Unsupported:
                if have is not None or family == FAMILIES[0]:
                    raise
                self._missing.add(family)
                continue
            yield family, transaction

    def heal(self, desired: Iterable[tuple[str, Table]], commit: Commit) -> tuple[Transaction, ...]:
        """Makes the kernel hold these tables, each with its family; returns the transaction of each.

        Raises: KernelError.
        """
        self.take_touched()
        done = []
        for family, table in desired:
            done.append(diff(self.nft.read(family, self.name), table))
            commit(done[-1])
        return tuple(done)

    def held(self) -> tuple[Table, ...]:
        """The tables that the kernel holds.

        Raises: KernelError.
        """
        return tuple(table for family in FAMILIES if (table := self.nft.read(family, self.name)) is not None)

    def remove(self) -> bool:
        """Deletes the tables; returns whether there was one. The rules of base chains are deleted first.

        For a moment after a table is deleted, packets still pass its base chains. The maps are empty then, and rules
        behind the maps may drop packets (measured: 4 to 7 of 20,000 packets, in one of ten deletions).

        Raises: KernelError.
        """
        there = [family for family, name in self.nft.tables() if name == self.name and family in FAMILIES]
        for family in there:
            hooked = (chain.name for chain in self.nft.chains(family, self.name) if chain.hook)
            self.commit(Transaction(family, self.name, tuple(map(FlushChain, hooked))))
            self.commit(removal(family, self.name))
        return bool(there)


def clear(name: str, netns: Path | str | None = None) -> bool:
    """Deletes the tables that an earlier run left; returns whether there was one.

    Raises: KernelError.
    """
    tables = FamilyTables(name, netns)
    try:
        return tables.remove()
    finally:
        tables.close()
