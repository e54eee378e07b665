"""One nftables table that the CNI part writes as a whole, and restores when another program changes it.

A change is the difference from the table that was written last, so an ADD does not read the table (1 ms). When another
program has changed it, either the kernel refuses this difference, or the watch notices within about a second; then the
table is read again.
"""

from collections.abc import Callable

from podwire.errors import KernelError, Unsupported
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_drift import TableWatch
from podwire.state.nft import Table
from podwire.state.nft_diff import Transaction, diff


class HeldTable:
    """The table ``name`` of a family in a network namespace (None: that of this thread)."""

    def __init__(self, family: str, name: str, netns_path: NetnsPath = None) -> None:
        self._family = family
        self._name = name
        self._nft: Nft | None = None
        self._missing: Unsupported | None = None
        self._watch: TableWatch | None = None
        self._written: Table | None = None
        """The table as it was written last; None: it has to be read."""
        try:
            self._nft = Nft(netns_path)
            self._watch = TableWatch(netns_path)
        except Unsupported as missing:
            self._missing = missing

    @property
    def supported(self) -> bool:
        """Whether the kernel can have the table, as far as it is known."""
        return self._missing is None

    def close(self) -> None:
        """Closes the sockets; the table stays."""
        if self._nft is not None:
            self._nft.close()
        if self._watch is not None:
            self._watch.close()

    def watch(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` in the running loop when the table is not as held, within about a second."""

        def lost() -> None:
            self._written = None
            changed()

        if self._watch is not None:
            self._watch.attach(lost)

    def drifted(self) -> bool:
        """Whether the table differs from the one that is held.

        Raises: KernelError.
        """
        if self._watch is None or not self._watch.drifted():
            return False
        self._written = None
        return True

    def hold(self, table: Table | None, change: Transaction | None = None) -> None:
        """Makes the kernel hold the table; None: no table of this name.

        ``change`` is the difference from the table of the last call; None: it is computed.

        Raises: Unsupported when the kernel lacks nftables, or this family, and there is a table to hold; KernelError.
        """
        if self._missing is not None or self._nft is None or self._watch is None:
            if table is not None and self._missing is not None:
                raise self._missing
            return
        self._watch.expect(() if table is None else (table,))
        if table is None:
            self._written = None
            self._nft.delete(self._family, self._name)
        elif self._written is None or not self._write(self._nft, change or diff(self._written, table)):
            self._written = None
            try:
                self._nft.apply(table)
            except Unsupported as missing:
                self._missing = missing
                self._watch.expect(())
                raise
        self._written = table

    def _write(self, nft: Nft, change: Transaction) -> bool:
        """Writes a difference; whether the kernel took it."""
        try:
            nft.commit(change)
        except KernelError:
            return False
        return True

    def read(self) -> Table | None:
        """The table that the kernel holds; None when there is none.

        Raises: KernelError.
        """
        return self._nft.read(self._family, self._name) if self._nft is not None else None
