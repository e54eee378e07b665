"""The difference between two tables as one atomic transaction of keyed operations.

The operations are in the order that the kernel requires: new sets and chains, deleted elements and rules, new rules and
elements, then deleted chains and sets. A chain whose rules differ is flushed and written again. The declaration of a
set or base chain cannot be changed in place; when it differs, the whole table is replaced, in one transaction as well.
Cost: the size of the difference.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from podwire.model.wording import count
from podwire.state.nft import Chain, Element, Set, Table
from podwire.state.nft_rules import Rule


class AddTable(msgspec.Struct, frozen=True, gc=False):
    """Creates the table; has no effect on an existing one."""

    comment: str = ""

    def __str__(self) -> str:
        return "add table"


class DeleteTable(msgspec.Struct, frozen=True, gc=False):
    """Removes the table with all its objects."""

    empty: bool = False
    """Whether the kernel refuses it while the table has objects."""

    def __str__(self) -> str:
        return "delete table"


class AddChain(msgspec.Struct, frozen=True, gc=False):
    """Creates the chain without its rules, or changes its policy."""

    chain: Chain

    def __str__(self) -> str:
        return f"add chain {self.chain.name}"


class DeleteChain(msgspec.Struct, frozen=True, gc=False):
    """Removes an unused chain."""

    name: str
    empty: bool = False
    """Whether the kernel refuses it while the chain has rules."""

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
    """Creates a set or map; its elements are ignored."""

    set: Set

    def __str__(self) -> str:
        return f"add {'map' if self.set.data else 'set'} {self.set.name}"


class DeleteSet(msgspec.Struct, frozen=True, gc=False):
    """Removes a set or map."""

    set: Set

    def __str__(self) -> str:
        return f"delete {'map' if self.set.data else 'set'} {self.set.name}"


class AddElements(msgspec.Struct, frozen=True, gc=False):
    """Adds elements; fails when one exists with other data."""

    set: Set
    """The declaration; its own elements are ignored."""
    elements: Mapping[bytes, Element]

    def __str__(self) -> str:
        return f"add element {self.set.name} {{ {_sample(self.set, self.elements)} }}"


class RestoreElements(msgspec.Struct, frozen=True, gc=False):
    """Adds elements as the kernel encoded them at their deletion; an element that exists with the same data stays."""

    set: Set
    elements: Mapping[bytes, bytes]
    """The encoded elements by their keys."""

    def __str__(self) -> str:
        keys_alone = msgspec.structs.replace(self.set, data=())
        return f"add element {self.set.name} {{ {_sample(keys_alone, dict.fromkeys(self.elements, Element()))} }}"


class RestoreRules(msgspec.Struct, frozen=True, gc=False):
    """Adds rules as the kernel encoded them at their deletion, in their order; comments may be user data instead."""

    chain: str
    rules: tuple[bytes, ...]
    first: bool = False
    """Whether they are added before the rules that the chain has, not behind them."""

    def __str__(self) -> str:
        return f"restore {count(len(self.rules), 'rule')} of chain {self.chain}"


class DeleteElements(msgspec.Struct, frozen=True, gc=False):
    """Removes elements; fails when one does not exist."""

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
    | RestoreElements
    | RestoreRules
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


def diff(present: Table | None, desired: Table) -> Transaction:
    """The operations that turn ``present`` (None: no such table) into ``desired``; none when they are equal."""
    if present is None:
        return Transaction(desired.family, desired.name, _create(desired))
    if not _same_frame(present, desired):
        return replacement(desired)
    return Transaction(desired.family, desired.name, tuple(_change(present, desired)))


def rewriting(chains: Iterable[Chain]) -> Iterator[Operation]:
    """The operations that write whole chains, whether these exist or not; a chain may jump to another one."""
    every = tuple(chains)
    yield from (AddChain(chain) for chain in every)
    yield from (FlushChain(chain.name) for chain in every)
    yield from _rules(every)


def replacement(desired: Table) -> Transaction:
    """The transaction that replaces a table, or creates it; no packet passes without rules in between."""
    return Transaction(desired.family, desired.name, (AddTable(), DeleteTable(), *_create(desired)))


def removal(family: str, name: str) -> Transaction:
    """The transaction that removes a table; it also succeeds without the table."""
    return Transaction(family, name, (AddTable(), DeleteTable()))


def _create(desired: Table) -> tuple[Operation, ...]:
    return (
        AddTable(desired.comment),
        *(AddSet(declared) for declared in desired.sets),
        *(AddChain(chain) for chain in desired.chains),
        *_rules(desired.chains),
        *(
            AddElements(declared, declared.elements)
            for declared in desired.sets
            if declared.elements and not declared.dynamic
        ),
    )


def _rules(chains: Iterable[Chain]) -> Iterable[AddRule]:
    return (AddRule(chain.name, rule) for chain in chains for rule in chain.rules)


def _same_frame(present: Table, desired: Table) -> bool:
    """Whether everything that cannot be changed in place is equal: table comment, set declarations, hooks of chains."""
    if present.comment != desired.comment:
        return False
    old_sets = {declared.name: declared.without_elements() for declared in present.sets}
    old_chains = {chain.name: _frame(chain) for chain in present.chains}
    if any(old_chains.get(chain.name, _frame(chain)) != _frame(chain) for chain in desired.chains):
        return False
    declared = (declared_set.without_elements() for declared_set in desired.sets)
    return all(old_sets.get(declared_set.name, declared_set) == declared_set for declared_set in declared)


def _frame(chain: Chain) -> tuple[str, str, str, int, str]:
    return (chain.type, chain.hook, chain.device, chain.priority, chain.comment)


def _change(present: Table, desired: Table) -> Iterable[Operation]:
    old_sets = {declared_set.name: declared_set for declared_set in present.sets}
    old_chains = {chain.name: chain for chain in present.chains}
    gone_chains = [
        chain for chain in present.chains if chain.name not in {desired_chain.name for desired_chain in desired.chains}
    ]
    gone_sets = [
        declared_set
        for declared_set in present.sets
        if declared_set.name not in {desired_set.name for desired_set in desired.sets}
    ]
    yield from (AddSet(declared_set) for declared_set in desired.sets if declared_set.name not in old_sets)
    for chain in desired.chains:
        old = old_chains.get(chain.name)
        if old is None or old.policy != chain.policy:
            yield AddChain(chain)
    changes = [element_changes(old_sets.get(declared_set.name), declared_set) for declared_set in desired.sets]
    yield from (removed for removed, _ in changes if removed is not None)
    changed = [chain for chain in desired.chains if not _same_rules(old_chains.get(chain.name), chain)]
    yield from (FlushChain(chain.name) for chain in (*changed, *gone_chains) if chain.name in old_chains)
    yield from _rules(changed)
    yield from (added for _, added in changes if added is not None)
    yield from (DeleteSet(gone_set) for gone_set in gone_sets if gone_set.verdicts)
    yield from (DeleteChain(chain.name) for chain in gone_chains)
    yield from (DeleteSet(gone_set) for gone_set in gone_sets if not gone_set.verdicts)


def _same_rules(old: Chain | None, new: Chain) -> bool:
    old_rules = () if old is None else old.rules
    if old_rules is new.rules:
        return True
    return len(old_rules) == len(new.rules) and all(
        a.without_counts == b.without_counts for a, b in zip(old_rules, new.rules, strict=True)
    )


def element_changes(old: Set | None, new: Set) -> tuple[DeleteElements | None, AddElements | None]:
    """The elements to delete and to add; None for nothing. Elements of dynamic sets are left to the kernel."""
    if new.dynamic:
        return None, None
    before: Mapping[bytes, Element] = {} if old is None else old.elements
    after = new.elements
    removed = _missing(before, after)
    added = _missing(after, before)
    return (
        DeleteElements(new.without_elements(), removed) if removed else None,
        AddElements(new.without_elements(), added) if added else None,
    )


def _missing(elements: Mapping[bytes, Element], other_elements: Mapping[bytes, Element]) -> dict[bytes, Element]:
    """The elements that ``other_elements`` lacks or has with other data; identity is compared first."""
    return {
        key: element
        for key, element in elements.items()
        if (other := other_elements.get(key)) is not element and other != element
    }
