"""Tables of iptables, of the nft kind, that are there because of us, and go with us.

iptables-restore makes a table that is not there, and never takes one away. So what is not there is made here first,
with a comment that says whose it is: nft(8) shows it, and to iptables it is a table like any other. It goes when
nothing is left in it but the kernel's own chains, empty and letting all pass. A rule or a chain of somebody else keeps
it, and so does not being ours.
"""

from collections.abc import Callable, Iterable

from podwire.errors import Unsupported
from podwire.kernel.iptables import FAMILIES, Programs
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.state.nft_diff import AddTable, Transaction

COMMENT = "podwire"
"""Whose they are."""

Started = Callable[[int], None]
"""Hears under which number nf_tables tells of our changes."""


def make_tables(programs: Programs, names: Iterable[str], netns_path: NetnsPath, started: Started) -> None:
    """Makes the tables of both families that are not there.

    A family that the kernel lacks is passed over: iptables-restore says so.

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
    """Takes away the tables of both families that are ours and do nothing any more.

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
                nft.delete_bare(family, name, COMMENT)
