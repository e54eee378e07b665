"""Changes that make a kernel hold one owner's share of iptables, as text for ``iptables-restore --noflush``.

The program changes one table after the other, each of them completely or not at all. Chains that are not in the text
stay unchanged.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from podwire.state.chain_marks import ChainMark
from podwire.state.iptables import Rules, Ruleset

Saved = Mapping[str, Mapping[str, Sequence[str]]]
"""Rules by chain by table, as ``state.iptables.parse_save`` returns them."""


def chains_text(chains: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Whole chains; a line with the name empties the chain, or creates it."""
    yield from (f":{chain} - [0:0]" for chain in chains)
    for chain, rules in chains.items():
        yield from (f"-A {chain} {rule}" for rule in rules)


def document(blocks: Iterable[tuple[str, Iterable[str]]]) -> str:
    """The text of blocks of lines, one block per table; empty blocks are left out."""
    lines: list[str] = []
    for table, body in blocks:
        inside = list(body)
        if inside:
            lines += (f"*{table}", *inside, "COMMIT")
    return "\n".join(lines) + "\n" if lines else ""


def tables_of(text: str) -> frozenset[str]:
    """The tables that a text changes."""
    return frozenset(line[1:] for line in text.splitlines() if line.startswith("*"))


def count_tables(text: str) -> int:
    """The number of tables that a text changes."""
    return text.count("COMMIT\n")


def count_rules(text: str) -> dict[str, int]:
    """The number of rules that a text writes, by table."""
    counts: dict[str, int] = {}
    table = ""
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(("-A ", "-I ")):
            counts[table] = counts.get(table, 0) + 1
    return counts


def repair(saved: Saved, desired: Iterable[Ruleset], mark: ChainMark) -> str:
    """The text that makes the kernel hold exactly these chains and jumps of the owner; empty if it does already."""
    by_table = {ruleset.table: ruleset for ruleset in desired}
    return document((table, _repair_table(saved.get(table, {}), by_table[table], mark)) for table in mark.tables)


def removal(saved: Saved, mark: ChainMark) -> str:
    """The text that deletes all chains and jumps of the owner."""
    return repair(saved, (Ruleset(family="", table=table) for table in mark.tables), mark)


def _repair_table(saved: Mapping[str, Sequence[str]], desired: Ruleset, mark: ChainMark) -> Iterator[str]:
    write: dict[str, Rules] = {}
    for chain, rules in desired.chains.items():
        present = saved.get(chain)
        if present is None or not mark.equal((desired.table, chain), present, rules):
            write[chain] = rules
    deleted: dict[str, Rules] = {c: () for c in saved if mark.owns(desired.table, c) and c not in desired.chains}
    yield from chains_text({**write, **deleted})
    yield from (f"-D {chain} {rule}" for chain, rule in _surplus_jumps(saved, desired, mark))
    if mark.last:
        yield from _repair_last_jumps(saved, desired.jumps)
        yield from (f"-X {chain}" for chain in deleted)
        return
    jumps = tuple(desired.jumps)
    late = [(chain, rule) for chain, rule in jumps if mark.first and _is_late(chain, rule, saved, jumps)]
    yield from (f"-D {chain} {rule}" for chain, rule in late)
    missing = [(chain, rule) for chain, rule in jumps if rule not in saved.get(chain, ()) or (chain, rule) in late]
    yield from (f"-I {chain} {rule}" for chain, rule in reversed(missing))
    yield from (f"-X {chain}" for chain in deleted)


def _repair_last_jumps(saved: Mapping[str, Sequence[str]], jumps: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Moves each jump behind all rules of other owners, but before the first that no packet passes."""
    for chain, rule in jumps:
        present = list(saved.get(chain, ()))
        rules = [other for other in present if other != rule]
        index = next((i for i, other in enumerate(rules) if is_refusal(other)), len(rules))
        if present != [*rules[:index], rule, *rules[index:]]:
            if rule in present:
                yield f"-D {chain} {rule}"
            yield f"-I {chain} {index + 1} {rule}"


def is_refusal(rule: str) -> bool:
    """Whether a rule drops or rejects every packet."""
    return rule.startswith(("-j DROP", "-j REJECT"))


def _is_late(chain: str, rule: str, saved: Mapping[str, Sequence[str]], jumps: tuple[tuple[str, str], ...]) -> bool:
    """Whether the kernel has the jump behind a rule of another owner."""
    present = list(saved.get(chain, ()))
    return rule in present and any((chain, other_rule) not in jumps for other_rule in present[: present.index(rule)])


def target_of(rule: str) -> str:
    """The chain or verdict of a rule."""
    return rule.rpartition(" -j ")[2].partition(" ")[0] if " -j " in rule else rule.removeprefix("-j ")


def _surplus_jumps(saved: Mapping[str, Sequence[str]], desired: Ruleset, mark: ChainMark) -> Iterator[tuple[str, str]]:
    """Rules in chains of other owners that jump to the owner's chains and are not desired."""
    desired_jumps = set(desired.jumps)
    for chain, rules in saved.items():
        if mark.owns(desired.table, chain):
            continue
        known_rules: set[str] = set()
        for rule in rules:
            if mark.owns(desired.table, target_of(rule)) and (
                (chain, rule) not in desired_jumps or rule in known_rules
            ):
                yield chain, rule
            known_rules.add(rule)


def own_part(family: str, table: str, chains: Mapping[str, Sequence[str]], mark: ChainMark) -> Ruleset:
    """The owner's chains and jumps of a table; chains whose order is free are in canonical order."""
    own = {chain: mark.canonical((table, chain), rules) for chain, rules in chains.items() if mark.owns(table, chain)}
    jumps = tuple(
        (chain, rule)
        for chain, rules in chains.items()
        if chain not in own
        for rule in rules
        if mark.owns(table, target_of(rule))
    )
    return Ruleset(family=family, table=table, chains=own, jumps=jumps)
