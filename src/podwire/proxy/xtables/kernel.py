"""Reads and removes the iptables rules of one mode in a network namespace."""

from collections.abc import Iterator

from podwire.kernel.iptables import Iptables, Programs, legacy_tables, nft_tables
from podwire.kernel.iptables_chains import saved_by_kind
from podwire.kernel.iptables_tables import drop_tables
from podwire.kernel.netns import NetnsPath
from podwire.state.chain_marks import MARK_CHAINS, ChainMark
from podwire.state.iptables import parse_save
from podwire.state.iptables_diff import Saved, count_tables, removal


def read(tool: Iptables, table: str = "") -> Saved:
    """All rules of a family, or those of one table.

    Raises: KernelError.
    """
    return parse_save(tool.save(table))


def remove(tool: Iptables, owner: ChainMark) -> int:
    """Removes the rules of a mode in one family; returns the number of changed tables.

    Raises: KernelError.
    """
    saved = read(tool)
    text = removal(saved, owner.beside(_marks(saved)))
    tool.restore(text)
    return count_tables(text)


def _marks(saved: Saved) -> frozenset[str]:
    return frozenset(MARK_CHAINS) & saved.get("nat", {}).keys()


def leftover_rules(netns_path: NetnsPath, owner: ChainMark, *marks: str) -> Iterator[tuple[Programs, dict[str, Saved]]]:
    """Kinds of iptables that hold the owner's mark or one of the others, and all rules of the kind, by family.

    Where no table of iptables exists no program is run.

    Raises: KernelError.
    """
    for programs, saved in saved_by_kind(netns_path, owner.tables):
        if any(mark in tables.get("nat", {}) for tables in saved.values() for mark in (owner.mark, *marks)):
            yield programs, saved


def held_by(netns_path: NetnsPath, owner: ChainMark) -> Programs | None:
    """The kind of iptables that holds rules of an earlier run, when both kinds are in use; None without such rules."""
    if not nft_tables(netns_path) or not legacy_tables(netns_path):
        return None
    return next((programs for programs, _ in leftover_rules(netns_path, owner)), None)


def clear(netns_path: NetnsPath, owner: ChainMark, *marks: str) -> bool:
    """Removes the rules that an earlier run of the mode, or the owner of a mark, left; returns whether there were any.

    Raises: KernelError.
    """
    removed = False
    for programs, saved in leftover_rules(netns_path, owner, *marks):
        removed = True
        for family, tables in saved.items():
            with Iptables(family, programs, netns_path) as tool:
                tool.restore(removal(tables, owner.beside(_marks(tables))))
    if removed:
        drop_tables(owner.tables, netns_path)
    return removed
