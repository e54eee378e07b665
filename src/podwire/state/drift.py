"""How what a kernel holds differs from what it should hold, as lines with a sign.

A line with ``+`` stands for an object that the next run of a reconciler would add, a line with ``-`` for an object that
it would delete. A changed object has one line of each sign, with only the fields that differ. Left out are objects with
another mark than the share's, elements that packets put into dynamic sets, and counters. The lines come in the order of
the kinds: objects of ip(8) first, then the tables.
"""

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from podwire.state import changes
from podwire.state.changes import Change
from podwire.state.ipset import IpSet
from podwire.state.iptables import Ruleset
from podwire.state.ipvs import VirtualServer
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_diff import element_changes

Sign = Literal["+", "-"]


class Difference(NamedTuple):
    """One line: where it belongs (``routing: table inet podwire-masquerade, set pods``), sign and text."""

    where: str
    sign: Sign
    text: str


def render(differences: Iterable[Difference]) -> Iterator[str]:
    """The lines as a unified diff, with a header before each group of lines that belong together."""
    last = ""
    for difference in differences:
        if difference.where != last:
            last = difference.where
            yield f"@@ {last} @@"
        yield f"{difference.sign}{difference.text}"


def compare_network(title: str, have: NetworkState, want: NetworkState, owner: OwnerMark) -> Iterator[Difference]:
    """The differences of the objects of ip(8) that carry the owner's mark."""
    found = changes.diff(have, owner.stamp(want), owner)
    for conflict in found.conflicts:
        yield Difference(title, "+", f"{conflict.value}  # {conflict.reason}")
    held = _by_key(have, owner)
    for step in found.steps:
        yield from (Difference(title, sign, text) for sign, text in _step(step, held))


def _by_key(have: NetworkState, owner: OwnerMark) -> dict[Any, Any]:
    """The objects of the kernel by type and key; where two have the same key, the object of the owner."""
    found: dict[Any, Any] = {}
    for value in have.objects():
        key = _key(value)
        if key not in found or getattr(value, "proto", 0) == owner.route_protocol:
            found[key] = value
    return found


def _key(value: Any) -> Any:
    return (type(value), value.name if isinstance(value, Link) else value.key)


def _step(step: Change, held: dict[Any, Any]) -> Iterator[tuple[Sign, str]]:
    there = held.get(_key(step.value))
    if step.verb == "delete":
        yield "-", str(step.value)
        return
    if there is not None and step.verb == "set" and isinstance(step.value, Link):
        wanted = replace(step.value, index=0)
        fields = changes.differences(there, wanted)
        yield "-", str(replace(wanted, **{field: getattr(there, field) for field in fields}))
        yield "+", str(wanted)
        return
    if there is not None and step.verb == "replace":
        yield "-", str(there)
    yield "+", str(step.value)


def compare_table(title: str, have: Table | None, want: Table) -> Iterator[Difference]:
    """The differences of one table."""
    where = f"{title}: table {want.family} {want.name}"
    if have is None:
        yield from (Difference(where, "+", line) for line in want.lines())
        return
    if have.comment != want.comment:
        yield from _replaced(where, [f'comment "{have.comment}"'], [f'comment "{want.comment}"'])
    old_sets, new_sets = ({each.name: each for each in table.sets} for table in (have, want))
    for name in sorted(old_sets.keys() | new_sets.keys()):
        yield from _compare_set(where, old_sets.get(name), new_sets.get(name))
    old_chains, new_chains = ({chain.name: chain for chain in table.chains} for table in (have, want))
    for name in sorted(old_chains.keys() | new_chains.keys()):
        yield from _compare_chain(where, old_chains.get(name), new_chains.get(name))


def compare_ruleset(title: str, have: Ruleset, want: Ruleset) -> Iterator[Difference]:
    """The differences of one table of iptables. The order of rules counts."""
    where = f"{title}: {want.title}"
    yield from _replaced(where, sorted(_jumps(have)), sorted(_jumps(want)))
    for chain in sorted(have.chains.keys() | want.chains.keys()):
        old, new = (_chain_of(table, chain) for table in (have, want))
        yield from _replaced(f"{where}, chain {chain}", old, new)


def compare_ipset(title: str, have: IpSet | None, want: IpSet) -> Iterator[Difference]:
    """The differences of one set. The time that an element has left is not compared."""
    where = f"{title}: set {want.name}"
    if have is None or have.declaration != want.declaration:
        yield from _replaced(where, [have.created()] if have else [], [want.created()])
    there = have.elements if have is not None and have.declaration == want.declaration else {}
    for key in sorted(there.keys() | want.elements.keys()):
        if key not in want.elements and have is not None:
            yield Difference(where, "-", have.added(key))
        elif key not in there:
            yield Difference(where, "+", want.added(key))
        elif have is not None and there[key].mark != want.elements[key].mark:
            yield Difference(where, "-", have.added(key))
            yield Difference(where, "+", want.added(key))


def compare_servers(title: str, have: Iterable[VirtualServer], want: Iterable[VirtualServer]) -> Iterator[Difference]:
    """The differences of virtual servers. A real server of weight 0 that is not wanted is draining: no difference."""
    there, wanted = ({server.key: server for server in servers} for servers in (have, want))
    for key in sorted(there.keys() | wanted.keys()):
        old, new = there.get(key), wanted.get(key)
        places = {each.endpoint for each in new.destinations} if new is not None else set()
        if old is not None:
            staying = tuple(each for each in old.destinations if each.weight or each.endpoint in places)
            if new is None and old.destinations and not staying:
                continue
            old = replace(old, destinations=staying)
        before, after = (list(server.lines()) if server is not None else [] for server in (old, new))
        yield from _replaced(f"{title}: ipvs", before, after)


def _chain_of(ruleset: Ruleset, chain: str) -> list[str]:
    if chain not in ruleset.chains:
        return []
    return [f":{chain}", *(f"-A {chain} {rule}" for rule in ruleset.chains[chain])]


def _jumps(ruleset: Ruleset) -> Iterator[str]:
    return (f"-A {chain} {rule}" for chain, rule in ruleset.jumps)


def surplus_table(title: str, have: Table) -> Iterator[Difference]:
    """A table that should not be there."""
    where = f"{title}: table {have.family} {have.name}"
    yield from (Difference(where, "-", line) for line in have.canonical().lines())


def _compare_set(where: str, old: Set | None, new: Set | None) -> Iterator[Difference]:
    either = new or old
    assert either is not None, "one of the two exists"
    where = f"{where}, {'map' if either.data else 'set'} {either.name}"
    if old is None or new is None:
        lines = [line.strip() for line in either.lines()]
        yield from _replaced(where, lines if old else [], lines if new else [])
        return
    before, after = ([line.strip() for line in x.without_elements().lines()] for x in (old, new))
    if before != after:
        yield from _replaced(where, before, after)
    removed, added = element_changes(old, new)
    gone, come = removed.elements if removed else {}, added.elements if added else {}
    for key in sorted(gone.keys() | come.keys()):
        if key in gone:
            yield Difference(where, "-", old.element_text(key, gone[key]))
        if key in come:
            yield Difference(where, "+", new.element_text(key, come[key]))


def _compare_chain(where: str, old: Chain | None, new: Chain | None) -> Iterator[Difference]:
    either = new or old
    assert either is not None, "one of the two exists"
    yield from _replaced(f"{where}, chain {either.name}", _chain_lines(old), _chain_lines(new))


def _chain_lines(chain: Chain | None) -> list[str]:
    if chain is None:
        return []
    wanted = replace(chain, rules=tuple(rule.wanted for rule in chain.rules))
    return [line.strip() for line in wanted.lines()]


def _replaced(where: str, old: list[str], new: list[str]) -> Iterator[Difference]:
    for verb, low, high, first, last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if verb != "equal":
            yield from (Difference(where, "-", line) for line in old[low:high])
            yield from (Difference(where, "+", line) for line in new[first:last])
