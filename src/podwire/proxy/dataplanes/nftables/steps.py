"""How a change is cut into transactions (pure).

One transaction is atomic for rules, and for elements; but a packet keeps to the generation of rules that it met first,
and finds the elements of the moment. So chains come one step earlier than the elements that lead to them: for a packet
in flight they would have no rules yet, and it would pass untranslated. Slots and chains leave one step later than the
verdicts that led to them. And the kernel makes one message of 4 KB for each element of a transaction while anybody on
the machine listens to rule changes: 400 MB at 10,000 Services with 10 endpoints, and 25 us each instead of 2.
So a table that is not there yet is filled in parts, and gets its hooks last: until then no packet sees it.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from podwire.state.nft_diff import (
    AddChain,
    AddElements,
    AddRule,
    AddSet,
    AddTable,
    DeleteChain,
    DeleteElements,
    DeleteSet,
    DeleteTable,
    FlushChain,
    Operation,
    Transaction,
)

PART = 8192
"""Elements in one transaction of a table that is not in use yet."""

_SLOT_SETS = frozenset(
    ("endpoints", "node-port-endpoints", "affinity-slots", "affinity-node-port-slots", "affinity-endpoints")
)


def steps(transaction: Transaction) -> Iterator[Transaction]:
    """The transactions to commit one after the other; a small change of a table in use is one or two."""
    operations = transaction.operations
    fresh = any(isinstance(o, AddTable) for o in operations) and not any(isinstance(o, DeleteTable) for o in operations)
    parts = _from_nothing(operations) if fresh else in_steps(operations)
    return (Transaction(transaction.family, transaction.table, tuple(part)) for part in parts if part)


def in_steps(operations: Iterable[Operation]) -> tuple[list[Operation], list[Operation], list[Operation]]:
    """What nothing leads to yet, what packets meet, and what nothing leads to any more; to be committed in turn.

    A packet that was sent to ``cluster-8`` before the second commit may look its slot up after it: the slots of the
    lower half have to be there still. A table that is replaced as a whole is one step.
    """
    everything = tuple(operations)
    if any(isinstance(operation, DeleteTable) for operation in everything):
        return [], list(everything), []
    kept = {o.set.name: o.elements for o in everything if isinstance(o, AddElements)}
    new = {o.chain.name for o in everything if isinstance(o, AddChain)}
    gone = {o.name for o in everything if isinstance(o, DeleteChain)}
    before: list[Operation] = []
    now: list[Operation] = []
    later: list[Operation] = []
    for operation in everything:
        if isinstance(operation, DeleteElements) and operation.set.name in _SLOT_SETS:
            again = kept.get(operation.set.name, {})
            replaced = {key: element for key, element in operation.elements.items() if key in again}
            left = {key: element for key, element in operation.elements.items() if key not in again}
            now += [DeleteElements(operation.set, replaced)] if replaced else []
            later += [DeleteElements(operation.set, left)] if left else []
        elif _comes(operation, new):
            before.append(operation)
        elif _goes(operation, gone):
            later.append(operation)
        else:
            now.append(operation)
    return before, now, later


def _comes(operation: Operation, new: set[str]) -> bool:
    return isinstance(operation, AddSet | AddChain) or (isinstance(operation, AddRule) and operation.chain in new)


def _goes(operation: Operation, gone: set[str]) -> bool:
    return isinstance(operation, DeleteChain | DeleteSet) or (
        isinstance(operation, FlushChain) and operation.name in gone
    )


def _from_nothing(operations: tuple[Operation, ...]) -> Iterator[list[Operation]]:
    """Frame without hooks, elements in parts, hooks."""
    hooked = {o.chain.name for o in operations if isinstance(o, AddChain) and o.chain.hook}
    frame: list[Operation] = []
    hooks: list[Operation] = []
    elements: list[AddElements] = []
    for operation in operations:
        name = operation.chain.name if isinstance(operation, AddChain) else ""
        name = operation.chain if isinstance(operation, AddRule) else name
        if isinstance(operation, AddElements):
            elements.append(operation)
        else:
            (hooks if name in hooked else frame).append(operation)
    if sum(len(operation.elements) for operation in elements) <= PART:
        yield [*frame, *hooks, *elements]
        return
    yield frame
    for operation in elements:
        entries = iter(operation.elements.items())
        while part := dict(islice(entries, PART)):
            yield [AddElements(operation.set, part)]
    yield hooks
