"""A table of one name in both families of IP: what a data plane of nftables keeps in one network namespace.

1. Who listens to nf_tables hears of what others change, and not of what is written here. 2. A large change is made
:meth:`unheard <FamilyTables.unheard>`, since the kernel makes a message of each element for who listens (25 us each);
that others wrote meanwhile is known by the number of transactions. 3. On a kernel that cannot program IPv6, IPv4 is
programmed all the same; ``missing`` names the family.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from podwire.errors import Unsupported
from podwire.kernel.nft import Nft
from podwire.kernel.nft_socket import NftMonitor
from podwire.state.nft import Table
from podwire.state.nft_diff import FlushChain, Transaction, diff, removal

FAMILIES = ("ip", "ip6")

Commit = Callable[[Transaction], object]


class FamilyTables:
    """The tables of this name in a network namespace (None: that of this thread)."""

    def __init__(self, name: str, netns: Path | str | None = None) -> None:
        self.name = name
        self.nft = Nft(netns)
        self._monitor = NftMonitor(netns, (self.nft.port,))
        self._missing: set[str] = set()
        self._committed = 0
        self._unheard = False

    def close(self) -> None:
        """Lets go of the kernel; the tables stay."""
        self.nft.close()
        self._monitor.close()

    def fileno(self) -> int:
        """Readable when :meth:`disturbed` should be asked."""
        return self._monitor.fileno()

    def disturbed(self) -> bool:
        """Whether somebody else may have changed one of the tables since the last call."""
        changed = self._monitor.changed()
        unheard, self._unheard = self._unheard, False
        return unheard or ("", "") in changed or any((family, self.name) in changed for family in FAMILIES)

    @property
    def missing(self) -> frozenset[str]:
        """Families that this kernel cannot program."""
        return frozenset(self._missing)

    def commit(self, transaction: Transaction) -> None:
        """Commits a transaction as it is.

        Raises: KernelError.
        """
        if transaction:
            self.nft.commit(transaction)
            self._committed += 1

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """What is written meanwhile makes no messages; :meth:`disturbed` says so when others wrote too.

        Raises: KernelError.
        """
        self._monitor.pause()
        others = self.nft.generation() - self._committed
        try:
            yield
        finally:
            self._monitor.resume()
            self._unheard = self._unheard or self.nft.generation() - self._committed != others

    def load(self, want: Callable[[str, Table | None], Table], commit: Commit) -> Iterator[tuple[str, Transaction]]:
        """Has the kernel hold what ``want`` makes of a family and of what is held; what was committed, each by itself.

        Raises: KernelError.
        """
        for family in FAMILIES:
            if family in self._missing:
                continue
            have = self.nft.read(family, self.name)
            transaction = diff(have, want(family, have))
            try:
                commit(transaction)
            except Unsupported:
                if have is not None or family == FAMILIES[0]:
                    raise
                self._missing.add(family)
                continue
            yield family, transaction

    def heal(self, wanted: Iterable[tuple[str, Table]], commit: Commit) -> tuple[Transaction, ...]:
        """Has the kernel hold these tables again, each with its family; what had to be committed for each.

        Raises: KernelError.
        """
        done = []
        for family, table in wanted:
            done.append(diff(self.nft.read(family, self.name), table))
            commit(done[-1])
        return tuple(done)

    def held(self) -> tuple[Table, ...]:
        """The tables that the kernel holds.

        Raises: KernelError.
        """
        return tuple(table for family in FAMILIES if (table := self.nft.read(family, self.name)) is not None)

    def remove(self) -> bool:
        """Takes the tables away; whether there was one. The rules of base chains go before the rest.

        A base chain is asked for a moment after its table is gone; then its maps are empty, and what is behind them
        may drop (seen: 4 to 7 packets of some 20,000, in one of ten times).

        Raises: KernelError.
        """
        there = [family for family, name in self.nft.tables() if name == self.name and family in FAMILIES]
        for family in there:
            hooked = (chain.name for chain in self.nft.chains(family, self.name) if chain.hook)
            self.commit(Transaction(family, self.name, tuple(map(FlushChain, hooked))))
            self.commit(removal(family, self.name))
        return bool(there)


def clear(name: str, netns: Path | str | None = None) -> bool:
    """Takes away the tables that an earlier run left; whether there was one.

    Raises: KernelError.
    """
    tables = FamilyTables(name, netns)
    try:
        return tables.remove()
    finally:
        tables.close()
