"""HostPorts in the kernel: the table of :mod:`podwire.cni.ports`, and tracked connections that keep packets from it.

A kernel without nftables refuses pods with hostPorts; all other pods need no table.
"""

from collections.abc import Collection

from podwire.cni import staleflows
from podwire.cni.heldtable import HeldTable
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.ports import TABLE, held_in
from podwire.cni.spec import PortMapping
from podwire.kernel import network
from podwire.kernel.conntrack import Conntrack
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath


class HostPorts:
    """The hostPorts of a network namespace (None: that of this thread)."""

    def __init__(self, netns_path: NetnsPath = None) -> None:
        self._netns_path = netns_path
        self.table = HeldTable("inet", TABLE, netns_path)
        """The table that the kernel holds."""

    def read(self) -> dict[str, tuple[PortMapping, ...]]:
        """The hostPorts that the kernel holds, by the address of the pod.

        Raises: KernelError.
        """
        table = self.table.read()
        return {} if table is None else held_in(table)

    def forget_stale(self, attachments: Collection[Attachment]) -> None:
        """Deletes tracked connections that keep packets to the pods' hostPorts from them.

        Raises: KernelError.
        """
        if self.table.supported:
            with Netlink(self._netns_path) as netlink:
                node = {x.cidr.partition("/")[0] for x in network.read_paths(netlink).addresses}
            with Conntrack(self._netns_path) as conntrack:
                staleflows.forget(conntrack, attachments, node)
