"""The chains of one owner in a network namespace, in both kinds of iptables."""

from collections.abc import Iterable, Iterator

from podwire.kernel.iptables import FAMILIES, Iptables, Kind, Programs, choose, find, legacy_tables, nft_tables
from podwire.kernel.iptables_tables import make_tables
from podwire.kernel.netns import NetnsPath
from podwire.state.chain_marks import ChainMark
from podwire.state.iptables import Ruleset, parse_save
from podwire.state.iptables_diff import Saved, own_part, repair


def saved_by_kind(netns_path: NetnsPath, tables: Iterable[str]) -> Iterator[tuple[Programs, dict[str, Saved]]]:
    """The kinds of iptables in which one of the tables exists, and all rules of the kind, by family.

    Without such a table no program runs.

    Raises: KernelError.
    """
    desired = frozenset(tables)
    only = next(iter(desired)) if len(desired) == 1 else ""
    kinds: tuple[tuple[Kind, bool], ...] = (
        ("nft", any(name in desired for _, name in nft_tables(netns_path))),
        ("legacy", bool(desired & legacy_tables(netns_path))),
    )
    for kind, used in kinds:
        programs = find(kind) if used else None
        if programs is None:
            continue
        saved: dict[str, Saved] = {}
        for family in FAMILIES:
            with Iptables(family, programs, netns_path) as tool:
                saved[family] = parse_save(tool.save(only))
        yield programs, saved


def marked(netns_path: NetnsPath, mark: ChainMark) -> Iterator[tuple[Programs, dict[str, Saved]]]:
    """The kinds of iptables that hold chains of the owner, and all rules of the kind, by family.

    Raises: KernelError.
    """
    for programs, saved in saved_by_kind(netns_path, mark.tables):
        if any(mark.marks(tables) for tables in saved.values()):
            yield programs, saved


def read(netns_path: NetnsPath, mark: ChainMark) -> tuple[Ruleset, ...]:
    """The owner's chains in the kernel, by table; chains whose order is free are in canonical order.

    Raises: KernelError.
    """
    return tuple(
        own_part(family, table, tables.get(table, {}), mark)
        for _, saved in marked(netns_path, mark)
        for family, tables in saved.items()
        for table in sorted(mark.tables)
    )


def apply(netns_path: NetnsPath, mark: ChainMark, desired: Iterable[Ruleset]) -> tuple[str, ...]:
    """Makes the kernel hold exactly these chains of the owner; returns the texts for iptables-restore.

    Raises: KernelError; a table that was not refused may be changed.
    """
    programs = next((programs_in_use for programs_in_use, _ in marked(netns_path, mark)), None) or choose(netns_path)
    make_tables(programs, mark.tables, netns_path, lambda _: None)
    rulesets = list(desired)
    written: list[str] = []
    for family in FAMILIES:
        by_table = {table: Ruleset(family=family, table=table) for table in mark.tables}
        by_table |= {ruleset.table: ruleset for ruleset in rulesets if ruleset.family == family}
        with Iptables(family, programs, netns_path) as tool:
            text = repair(parse_save(tool.save()), by_table.values(), mark)
            tool.restore(text)
        written += [text] if text else []
    return tuple(written)
