"""The changes that make a kernel hold one owner's share of iptables, as text for ``iptables-restore --noflush``.

The program changes one table after the other, each of them completely or not at all. Chains that the text does not name
stay unchanged.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from podwire.state.chain_marks import ChainMark
from podwire.state.iptables import Rules, Ruleset

Saved = Mapping[str, Mapping[str, Sequence[str]]]
"""Rules by chain by table, as ``state.iptables.parse_save`` gives them."""


def chains_text(chains: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Whole chains; a line with the name empties the chain, or creates it."""
    yield from (f":{chain} - [0:0]" for chain in chains)
    for chain, rules in chains.items():
        yield from (f"-A {chain} {rule}" for rule in rules)


def document(blocks: Iterable[tuple[str, Iterable[str]]]) -> str:
    """The text of blocks of lines, one block a table; empty blocks are left out."""
    lines: list[str] = []
    for table, body in blocks:
        inside = list(body)
        if inside:
            lines += (f"*{table}", *inside, "COMMIT")
    return "\n".join(lines) + "\n" if lines else ""


def count_tables(text: str) -> int:
    """How many times a text changes a table."""
    return text.count("COMMIT\n")


def count_rules(text: str) -> dict[str, int]:
    """How many rules a text writes, by table."""
    found: dict[str, int] = {}
    table = ""
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(("-A ", "-I ")):
            found[table] = found.get(table, 0) + 1
    return found


def repair(saved: Saved, wanted: Iterable[Ruleset], mark: ChainMark) -> str:
    """The text that makes the kernel hold exactly the wanted chains and jumps of the owner; empty if it does."""
    by_table = {each.table: each for each in wanted}
    return document((table, _repair_table(saved.get(table, {}), by_table[table], mark)) for table in mark.tables)


def removal(saved: Saved, mark: ChainMark) -> str:
    """The text that deletes all chains and jumps of the owner."""
    return repair(saved, (Ruleset(family="", table=table) for table in mark.tables), mark)


def _repair_table(saved: Mapping[str, Sequence[str]], wanted: Ruleset, mark: ChainMark) -> Iterator[str]:
    write: dict[str, Rules] = {}
    for chain, rules in wanted.chains.items():
        have = saved.get(chain)
        if have is None or not mark.equal((wanted.table, chain), have, rules):
            write[chain] = rules
    gone: dict[str, Rules] = {c: () for c in saved if mark.owns(wanted.table, c) and c not in wanted.chains}
    yield from chains_text({**write, **gone})
    yield from (f"-D {chain} {rule}" for chain, rule in _surplus_jumps(saved, wanted, mark))
    jumps = tuple(wanted.jumps)
    late = [(chain, rule) for chain, rule in jumps if mark.first and _is_late(chain, rule, saved, jumps)]
    yield from (f"-D {chain} {rule}" for chain, rule in late)
    missing = [(chain, rule) for chain, rule in jumps if rule not in saved.get(chain, ()) or (chain, rule) in late]
    yield from (f"-I {chain} {rule}" for chain, rule in reversed(missing))
    yield from (f"-X {chain}" for chain in gone)


def _is_late(chain: str, rule: str, saved: Mapping[str, Sequence[str]], jumps: tuple[tuple[str, str], ...]) -> bool:
    """Whether the kernel holds the jump behind a rule of another owner."""
    have = list(saved.get(chain, ()))
    return rule in have and any((chain, each) not in jumps for each in have[: have.index(rule)])


def target_of(rule: str) -> str:
    """The chain or verdict that a rule leads to."""
    return rule.rpartition(" -j ")[2].partition(" ")[0] if " -j " in rule else rule.removeprefix("-j ")


def _surplus_jumps(saved: Mapping[str, Sequence[str]], wanted: Ruleset, mark: ChainMark) -> Iterator[tuple[str, str]]:
    """Rules in chains of other owners that jump to the owner's chains and are not wanted."""
    keep = set(wanted.jumps)
    for chain, rules in saved.items():
        if mark.owns(wanted.table, chain):
            continue
        seen: set[str] = set()
        for rule in rules:
            if mark.owns(wanted.table, target_of(rule)) and ((chain, rule) not in keep or rule in seen):
                yield chain, rule
            seen.add(rule)


def own_part(family: str, table: str, chains: Mapping[str, Sequence[str]], mark: ChainMark) -> Ruleset:
    """The owner's chains and jumps of a table; chains whose order is free come in canonical order."""
    own = {chain: mark.canonical((table, chain), rules) for chain, rules in chains.items() if mark.owns(table, chain)}
    jumps = tuple(
        (chain, rule)
        for chain, rules in chains.items()
        if chain not in own
        for rule in rules
        if mark.owns(table, target_of(rule))
    )
    return Ruleset(family=family, table=table, chains=own, jumps=jumps)
