"""The rules of one mode in a network namespace: what was left of them, and their removal."""

from collections.abc import Iterator
from pathlib import Path

from podwire.kernel.iptables import FAMILIES, Iptables, Kind, Programs, find, legacy_tables, nft_tables
from podwire.kernel.iptables_tables import drop_tables
from podwire.proxy.xtables.ownership import MARKS, Ownership
from podwire.state.iptables import Ruleset, parse_save
from podwire.state.iptables_diff import Saved, count_tables, own_part, removal

Place = Path | str | None


def read(tool: Iptables) -> Saved:
    """All rules of a family.

    Raises: KernelError.
    """
    return parse_save(tool.save())


def remove(tool: Iptables, owner: Ownership) -> int:
    """Takes a mode's rules of one family away; how many tables that changed.

    Raises: KernelError.
    """
    saved = read(tool)
    text = removal(saved, owner.beside(_marks(saved)))
    tool.restore(text)
    return count_tables(text)


def _marks(saved: Saved) -> frozenset[str]:
    return frozenset(MARKS) & saved.get("nat", {}).keys()


def left(place: Place, *marks: str) -> Iterator[tuple[Programs, dict[str, Saved]]]:
    """Kinds of iptables in which rules with one of the marks are, and all that they print, by family.

    Where no table of iptables exists no program is run.

    Raises: KernelError.
    """
    kinds: tuple[tuple[Kind, bool], ...] = (("nft", bool(nft_tables(place))), ("legacy", bool(legacy_tables(place))))
    for kind, used in kinds:
        programs = find(kind) if used else None
        if programs is None:
            continue
        saved: dict[str, Saved] = {}
        for family in FAMILIES:
            with Iptables(family, programs, place) as tool:
                saved[family] = read(tool)
        if any(mark in tables.get("nat", {}) for tables in saved.values() for mark in marks):
            yield programs, saved


def held_by(place: Place, owner: Ownership) -> Programs | None:
    """The kind that holds rules of an earlier run, where both are in use; a start goes on with that one."""
    if not nft_tables(place) or not legacy_tables(place):
        return None
    return next((programs for programs, _ in left(place, owner.mark)), None)


def clear(place: Place, owner: Ownership, *marks: str) -> bool:
    """Takes away what an earlier data plane of the mode left, or whose marks these are; whether there was anything.

    Raises: KernelError.
    """
    found = False
    for programs, saved in left(place, owner.mark, *marks):
        found = True
        for family, tables in saved.items():
            with Iptables(family, programs, place) as tool:
                tool.restore(removal(tables, owner.beside(_marks(tables))))
    if found:
        drop_tables(owner.tables, place)
    return found


def held(place: Place, owner: Ownership) -> tuple[Ruleset, ...]:
    """What the kernel holds of the mode, a table each.

    Raises: KernelError.
    """
    return tuple(
        own_part(family, table, tables.get(table, {}), owner)
        for _, saved in left(place, owner.mark)
        for family, tables in saved.items()
        for table in sorted(owner.tables)
    )
