"""HostPorts in the kernel: the table of :mod:`podwire.cni.ports`, and tracked connections that keep packets from it.

A kernel without nftables refuses pods with hostPorts; all other pods need no table.

A change is the difference from the table that was written last, so an ADD does not read the table (1 ms). When another
program has changed it, either the kernel refuses this difference, or the watch notices within about a second; then the
table is read again.
"""

from collections.abc import Callable, Collection

from podwire.cni import staleflows
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.ports import TABLE, held_in
from podwire.cni.spec import PortMapping
from podwire.errors import KernelError, Unsupported
from podwire.kernel import network
from podwire.kernel.conntrack import Conntrack
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_drift import TableWatch
from podwire.state.nft import Table
from podwire.state.nft_diff import diff


class HostPorts:
    """The hostPort table of a network namespace (None: that of this thread)."""

    def __init__(self, netns_path: NetnsPath = None) -> None:
        self._netns_path = netns_path
        self._nft: Nft | None = None
        self._nft_missing: Unsupported | None = None
        self._watch: TableWatch | None = None
        self._written: Table | None = None
        """The table as it was written last; None: it has to be read."""
        try:
            self._nft = Nft(netns_path)
            self._watch = TableWatch(netns_path)
        except Unsupported as missing:
            self._nft_missing = missing

    @property
    def supported(self) -> bool:
        """Whether the kernel has nftables."""
        return self._nft is not None

    def close(self) -> None:
        """Closes the sockets; the table stays."""
        if self._nft is not None:
            self._nft.close()
        if self._watch is not None:
            self._watch.close()

    def watch(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` in the running loop when the hostPort table is not as held, within about a second."""

        def lost() -> None:
            self._written = None
            changed()

        if self._watch is not None:
            self._watch.attach(lost)

    def drifted(self) -> bool:
        """Whether the hostPort table differs from the one that is held.

        Raises: KernelError.
        """
        if self._watch is None or not self._watch.drifted():
            return False
        self._written = None
        return True

    def hold(self, table: Table | None) -> None:
        """Makes the kernel hold the hostPort table; fails for pods with a hostPort when the kernel lacks nftables.

        Raises: KernelError.
        """
        if self._nft is None:
            if table is not None and self._nft_missing is not None:
                raise self._nft_missing
            return
        if self._watch is not None:
            self._watch.expect(() if table is None else (table,))
        if table is None:
            self._written = None
            self._nft.delete("inet", TABLE)
        elif self._written is None or not self._written_on(self._nft, self._written, table):
            self._written = None
            self._nft.apply(table)
        self._written = table

    def _written_on(self, nft: Nft, before: Table, table: Table) -> bool:
        """Writes the difference from a table; whether the kernel took it."""
        try:
            nft.commit(diff(before, table))
        except KernelError:
            return False
        return True

    def read(self) -> dict[str, tuple[PortMapping, ...]]:
        """The hostPorts that the kernel holds, by the address of the pod.

        Raises: KernelError.
        """
        table = self._nft.read("inet", TABLE) if self._nft is not None else None
        return {} if table is None else held_in(table)

    def forget_stale(self, attachments: Collection[Attachment]) -> None:
        """Deletes tracked connections that keep packets to the pods' hostPorts from them.

        Raises: KernelError.
        """
        if self._nft is not None:
            with Netlink(self._netns_path) as netlink:
                node = {x.cidr.partition("/")[0] for x in network.read_paths(netlink).addresses}
            with Conntrack(self._netns_path) as conntrack:
                staleflows.forget(conntrack, attachments, node)
