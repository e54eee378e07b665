"""The table ``filter`` of iptables in a network namespace: read and changed by whole lines.

A reading and a change cost one process each, 3 ms and more with many rules. The kind of iptables is the one that is in
use on the node, chosen at the first use; with ``nftables`` it is the one whose tables are in nf_tables.
"""

from collections.abc import Sequence

from podwire.errors import Unsupported
from podwire.kernel import network
from podwire.kernel.iptables import Iptables, Programs, choose, find
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.state.iptables import parse_save

_TABLE = "filter"


class FilterTable:
    """The table in a node's network namespace (None: that of the calling thread)."""

    def __init__(self, netns_path: NetnsPath = None) -> None:
        self._netns_path = netns_path
        self._chosen: Programs | None = None

    def read(self, family: str, *, nftables: bool) -> dict[str, list[str]]:
        """The rules by chain of a family, ``ip`` or ``ip6``.

        Raises: Unsupported without iptables; KernelError.
        """
        with Iptables(family, self._programs(nftables=nftables), self._netns_path) as tool:
            return parse_save(tool.save(_TABLE)).get(_TABLE, {})

    def change(self, family: str, lines: Sequence[str], *, nftables: bool) -> None:
        """Applies lines of iptables-restore in one step; none: nothing is done.

        Raises: Unsupported without iptables; KernelError, and nothing is changed then.
        """
        if lines:
            with Iptables(family, self._programs(nftables=nftables), self._netns_path) as tool:
                tool.restore("\n".join((f"*{_TABLE}", *lines, "COMMIT", "")))

    def is_bridge(self, name: str) -> bool:
        """Whether a device of the namespace is a bridge.

        Raises: KernelError.
        """
        with Netlink(self._netns_path) as netlink:
            return any(link.name == name and link.kind == "bridge" for link in network.read_links(netlink))

    def _programs(self, *, nftables: bool) -> Programs:
        if nftables:
            programs = find("nft")
            if programs is None:
                raise Unsupported("iptables", detail="iptables-nft-restore is not installed")
            return programs
        if self._chosen is None:
            self._chosen = choose(self._netns_path)
        return self._chosen
