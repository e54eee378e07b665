"""The kernel as routing uses it: one namespace's rtnetlink and nftables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from podwire.errors import KernelError
from podwire.kernel import network
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.routing import underlay
from podwire.routing.nodes import Address, Underlay
from podwire.state.network import NetworkState, Owner
from podwire.state.nft import Table

OWNER = Owner(route_protocol=113, alias_prefix="podwire/routing")
"""The mark of what routing puts into a kernel."""


class KernelMachine:
    """Routing's share of a network namespace (None: the one of this thread)."""

    def __init__(self, netns: Path | str | None = None) -> None:
        self._netlink = Netlink(netns)
        self._nft = Nft(netns)

    def close(self) -> None:
        """Closes the sockets; everything in the kernel stays."""
        self._netlink.close()
        self._nft.close()

    def underlay(self, addresses: Sequence[Address]) -> Underlay | None:
        """The device with the node's addresses."""
        return underlay.find(network.read(self._netlink), addresses)

    def hold(self, state: NetworkState) -> Sequence[str]:
        """Makes the kernel hold routing's state; what failed, in words."""
        try:
            report = network.apply(self._netlink, state, OWNER)
        except KernelError as failure:
            return [str(failure)]
        return [str(failure) for failure in report.failed]

    def hold_tables(self, tables: Mapping[str, Table | None]) -> Sequence[str]:
        """Makes the kernel hold nftables tables; what failed, in words."""
        failed = []
        for name, table in tables.items():
            try:
                if table is None:
                    self._nft.delete("inet", name)
                else:
                    self._nft.apply(table)
            except KernelError as failure:
                failed.append(str(failure))
        return failed
