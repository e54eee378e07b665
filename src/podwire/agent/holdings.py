"""What this node's kernel should hold, as text, and how it differs from what it does hold.

Each part of the agent tells its share: a network state with its owner mark, and nftables tables. The difference is
what the next run of the reconcilers would do, in the words of ip(8) and nft; an empty text says that all is well.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from podwire.kernel import network
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.state.network import NetworkState, Owner
from podwire.state.nft import Table
from podwire.state.nft_diff import diff


class Share(NamedTuple):
    """What one part holds; without an owner it holds tables alone."""

    part: str
    tables: Sequence[Table]
    state: NetworkState = NetworkState()
    owner: Owner | None = None


class Holdings:
    """The shares of all parts of an agent."""

    def __init__(self) -> None:
        self.shares: list[Callable[[], Share]] = []

    def page(self, query: str) -> str:
        """The text of ``/state``; with the query ``diff`` that of the difference."""
        return self.difference() if query == "diff" else self.text()

    def text(self) -> str:
        """What should be, part by part."""
        lines: list[str] = []
        for share in (tell() for tell in self.shares):
            state = share.owner.stamp(share.state) if share.owner else share.state
            tables = "".join(f"{table.canonical()}\n" for table in share.tables)
            lines.append(f"# {share.part}\n{state}{tables}")
        return "\n".join(lines)

    def difference(self) -> str:
        """What would have to be done, part by part; parts without a difference are left out."""
        lines: list[str] = []
        with Netlink() as netlink, Nft() as nft:
            for share in (tell() for tell in self.shares):
                found = str(network.plan(netlink, share.state, share.owner)) if share.owner else ""
                for table in share.tables:
                    changes = diff(nft.read(table.family, table.name), table)
                    found += f"{changes}\n" if changes else ""
                if found:
                    lines.append(f"# {share.part}\n{found}")
        return "\n".join(lines)
