"""The difference between two tables as one atomic transaction of keyed operations.

The order inside a transaction is the order in which the kernel can follow it: new sets and chains, elements and
rules that go, rules and elements that come, then chains and sets no longer named. A chain whose rules differ is
flushed and written again; a set or base chain whose declaration differs cannot be changed in place, so the table
is replaced whole, in one transaction as well. Cost: the size of the difference.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from podwire.state.nft import Chain, Element, Set, Table
from podwire.state.nft_rules import Rule


class AddTable(msgspec.Struct, frozen=True, gc=False):
    """Makes the table, or leaves it as it is."""

    comment: str = ""

    def __str__(self) -> str:
        return "add table"


class DeleteTable(msgspec.Struct, frozen=True, gc=False):
    """Removes the table with all it holds."""

    empty: bool = False
    """Whether it is refused while the table holds anything."""

    def __str__(self) -> str:
        return "delete table"


class AddChain(msgspec.Struct, frozen=True, gc=False):
    """Makes the chain without its rules, or changes its policy."""

    chain: Chain

    def __str__(self) -> str:
        return f"add chain {self.chain.name}"


class DeleteChain(msgspec.Struct, frozen=True, gc=False):
    """Removes an unused chain."""

    name: str
    empty: bool = False
    """Whether it is refused while the chain has rules."""

    def __str__(self) -> str:
        return f"delete chain {self.name}"


class FlushChain(msgspec.Struct, frozen=True, gc=False):
    """Removes all rules of a chain."""

    name: str

    def __str__(self) -> str:
        return f"flush chain {self.name}"


class AddRule(msgspec.Struct, frozen=True, gc=False):
    """Adds a rule at the end of a chain."""

    chain: str
    rule: Rule

    def __str__(self) -> str:
        return f"add rule {self.chain} {self.rule}"


class AddSet(msgspec.Struct, frozen=True, gc=False):
    """Makes a set or map; its elements are not looked at."""

    set: Set

    def __str__(self) -> str:
        return f"add {'map' if self.set.data else 'set'} {self.set.name}"


class DeleteSet(msgspec.Struct, frozen=True, gc=False):
    """Removes a set or map."""

    set: Set

    def __str__(self) -> str:
        return f"delete {'map' if self.set.data else 'set'} {self.set.name}"


class AddElements(msgspec.Struct, frozen=True, gc=False):
    """Adds elements; fails when one is there with other data."""

    set: Set
    """The declaration; its own elements are not looked at."""
    elements: Mapping[bytes, Element]

    def __str__(self) -> str:
        return f"add element {self.set.name} {{ {_sample(self.set, self.elements)} }}"


class DeleteElements(msgspec.Struct, frozen=True, gc=False):
    """Removes elements; fails when one is not there."""

    set: Set
    elements: Mapping[bytes, Element]

    def __str__(self) -> str:
        return f"delete element {self.set.name} {{ {_sample(self.set, self.elements)} }}"


Operation = (
    AddTable
    | DeleteTable
    | AddChain
    | DeleteChain
    | FlushChain
    | AddRule
    | AddSet
    | DeleteSet
    | AddElements
    | DeleteElements
)

_SAMPLE = 8


def _sample(declared: Set, elements: Mapping[bytes, Element]) -> str:
    texts = [declared.element_text(key, element) for key, element in islice(elements.items(), _SAMPLE)]
    more = len(elements) - len(texts)
    return ", ".join(texts) + (f", and {more} more" if more else "")


class Transaction(msgspec.Struct, frozen=True, gc=False):
    """Operations on one table that take effect together or not at all."""

    family: str
    table: str
    operations: tuple[Operation, ...] = ()

    def __str__(self) -> str:
        return "\n".join(f"{operation}  # {self.family} {self.table}" for operation in self.operations)

    def __bool__(self) -> bool:
        return bool(self.operations)


def diff(have: Table | None, want: Table) -> Transaction:
    """The operations that turn ``have`` (None: no such table) into ``want``; none when they agree."""
    if have is None:
        return Transaction(want.family, want.name, _create(want))
    if not _same_frame(have, want):
        return Transaction(want.family, want.name, (AddTable(), DeleteTable(), *_create(want)))
    return Transaction(want.family, want.name, tuple(_change(have, want)))


def removal(family: str, name: str) -> Transaction:
    """The transaction that removes a table, and succeeds when there is none."""
    return Transaction(family, name, (AddTable(), DeleteTable()))


def _create(want: Table) -> tuple[Operation, ...]:
    return (
        AddTable(want.comment),
        *(AddSet(each) for each in want.sets),
        *(AddChain(chain) for chain in want.chains),
        *_rules(want.chains),
        *(AddElements(each, each.elements) for each in want.sets if each.elements and not each.dynamic),
    )


def _rules(chains: Iterable[Chain]) -> Iterable[AddRule]:
    return (AddRule(chain.name, rule) for chain in chains for rule in chain.rules)


def _same_frame(have: Table, want: Table) -> bool:
    """Whether what cannot be changed in place is equal: table comment, set declarations, hooks of chains."""
    if have.comment != want.comment:
        return False
    old_sets = {each.name: each.without_elements() for each in have.sets}
    old_chains = {chain.name: _frame(chain) for chain in have.chains}
    if any(old_chains.get(chain.name, _frame(chain)) != _frame(chain) for chain in want.chains):
        return False
    declared = (each.without_elements() for each in want.sets)
    return all(old_sets.get(each.name, each) == each for each in declared)


def _frame(chain: Chain) -> tuple[str, str, int, str]:
    return (chain.type, chain.hook, chain.priority, chain.comment)


def _change(have: Table, want: Table) -> Iterable[Operation]:
    old_sets = {each.name: each for each in have.sets}
    old_chains = {chain.name: chain for chain in have.chains}
    gone_chains = [chain for chain in have.chains if chain.name not in {each.name for each in want.chains}]
    gone_sets = [each for each in have.sets if each.name not in {wanted.name for wanted in want.sets}]
    yield from (AddSet(each) for each in want.sets if each.name not in old_sets)
    for chain in want.chains:
        old = old_chains.get(chain.name)
        if old is None or old.policy != chain.policy:
            yield AddChain(chain)
    changes = [element_changes(old_sets.get(each.name), each) for each in want.sets]
    yield from (removed for removed, _ in changes if removed is not None)
    changed = [chain for chain in want.chains if not _same_rules(old_chains.get(chain.name), chain)]
    yield from (FlushChain(chain.name) for chain in (*changed, *gone_chains) if chain.name in old_chains)
    yield from _rules(changed)
    yield from (added for _, added in changes if added is not None)
    yield from (DeleteSet(each) for each in gone_sets if each.verdicts)
    yield from (DeleteChain(chain.name) for chain in gone_chains)
    yield from (DeleteSet(each) for each in gone_sets if not each.verdicts)


def _same_rules(old: Chain | None, new: Chain) -> bool:
    old_rules = () if old is None else old.rules
    return len(old_rules) == len(new.rules) and all(
        a.wanted == b.wanted for a, b in zip(old_rules, new.rules, strict=True)
    )


def element_changes(old: Set | None, new: Set) -> tuple[DeleteElements | None, AddElements | None]:
    """What must leave and what must enter a set; None for nothing. Dynamic sets are the kernel's."""
    if new.dynamic:
        return None, None
    before: Mapping[bytes, Element] = {} if old is None else old.elements
    after = new.elements
    removed = {key: element for key, element in before.items() if after.get(key) != element}
    added = {key: element for key, element in after.items() if before.get(key) != element}
    return (
        DeleteElements(new.without_elements(), removed) if removed else None,
        AddElements(new.without_elements(), added) if added else None,
    )
