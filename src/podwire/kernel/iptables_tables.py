"""Tables of iptables (nft kind) that podwire creates, and deletes when they are no longer used.

iptables-restore creates a missing table and never deletes one. So missing tables are created here first, with a comment
that names the owner: nft(8) shows the comment, and iptables uses the table like any other. A table with this comment is
deleted when it holds only the kernel's own chains, empty and with policy accept. Any other rule or chain keeps the
table.
"""

from collections.abc import Callable, Iterable

from podwire.errors import Unsupported
from podwire.kernel.iptables import FAMILIES, Programs
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.state.nft_diff import AddTable, Transaction

COMMENT = "podwire"
"""The comment that names the owner."""

Started = Callable[[int], None]
"""Called with the netlink port that notifications of the following changes carry."""


def make_tables(programs: Programs, names: Iterable[str], netns_path: NetnsPath, started: Started) -> None:
    """Creates the missing tables of both families.

    A family that the kernel lacks is skipped: iptables-restore reports it.

    Raises: KernelError.
    """
    if programs.kind != "nft":
        return
    with Nft(netns_path) as nft:
        there = nft.tables()
        missing = [(family, name) for family in FAMILIES for name in names if (family, name) not in there]
        if missing:
            started(nft.port)
        for family, name in missing:
            try:
                nft.commit(Transaction(family, name, (AddTable(COMMENT),)))
            except Unsupported:
                continue


def drop_tables(names: Iterable[str], netns_path: NetnsPath, started: Started = lambda _: None) -> None:
    """Deletes podwire's tables of both families that hold no rules.

    Raises: KernelError.
    """
    try:
        nft = Nft(netns_path)
    except Unsupported:
        return
    with nft:
        started(nft.port)
        for family in FAMILIES:
            for name in names:
                nft.delete_unused(family, name, COMMENT)
