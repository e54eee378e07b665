"""HostPorts in the kernel: the table of :mod:`podwire.cni.ports`, and tracked connections that keep packets from it.

A kernel without nftables refuses pods with hostPorts; all other pods need no table.
"""

from collections.abc import Callable

from podwire.cni import staleflows
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.ports import TABLE, held_in
from podwire.cni.spec import PortMapping
from podwire.errors import Unsupported
from podwire.kernel import network
from podwire.kernel.conntrack import Conntrack
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_drift import TableWatch
from podwire.state.nft import Table


class HostPorts:
    """The hostPort table of a network namespace (None: that of this thread)."""

    def __init__(self, netns_path: NetnsPath = None) -> None:
        self._netns_path = netns_path
        self._nft: Nft | None = None
        self._nft_missing: Unsupported | None = None
        self._watch: TableWatch | None = None
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
        if self._watch is not None:
            self._watch.attach(changed)

    def drifted(self) -> bool:
        """Whether the hostPort table differs from the one that is held.

        Raises: KernelError.
        """
        return self._watch is not None and self._watch.drifted()

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
            self._nft.delete("inet", TABLE)
        else:
            self._nft.apply(table)

    def read(self) -> dict[str, tuple[PortMapping, ...]]:
        """The hostPorts that the kernel holds, by the address of the pod.

        Raises: KernelError.
        """
        table = self._nft.read("inet", TABLE) if self._nft is not None else None
        return {} if table is None else held_in(table)

    def forget_stale(self, attachment: Attachment) -> None:
        """Deletes tracked connections that keep packets to the pod's hostPorts from it.

        Raises: KernelError.
        """
        if self._nft is not None:
            with Netlink(self._netns_path) as netlink:
                node = {x.cidr.partition("/")[0] for x in network.read_paths(netlink).addresses}
            with Conntrack(self._netns_path) as conntrack:
                staleflows.forget(conntrack, attachment.ports, attachment.addresses, node)
