"""How a change is cut into transactions (pure).

One transaction is atomic, yet two things ask for more than one. Slots leave one step later than the verdicts that led
to them, for packets in flight. And the kernel makes one message of 4 KB for each element of a transaction while
anybody on the machine listens to rule changes: 400 MB at 10,000 Services with 10 endpoints, and 25 us each instead of
2. So a table that is not there yet is filled in parts, and gets its hooks last: until then no packet sees it.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from podwire.state.nft_diff import (
    AddChain,
    AddElements,
    AddRule,
    AddTable,
    DeleteElements,
    DeleteTable,
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
    parts = _from_nothing(operations) if fresh else in_two_steps(operations)
    return (Transaction(transaction.family, transaction.table, tuple(part)) for part in parts if part)


def in_two_steps(operations: Iterable[Operation]) -> tuple[list[Operation], list[Operation]]:
    """The operations without the removal of slots, and that removal, to be committed right after.

    A packet that was sent to ``cluster-8`` before the commit may look its slot up after it: the slots of the lower half
    have to be there still.
    """
    everything = tuple(operations)
    kept = {o.set.name: o.elements for o in everything if isinstance(o, AddElements)}
    first: list[Operation] = []
    second: list[Operation] = []
    for operation in everything:
        if not isinstance(operation, DeleteElements) or operation.set.name not in _SLOT_SETS:
            first.append(operation)
            continue
        again = kept.get(operation.set.name, {})
        now = {key: element for key, element in operation.elements.items() if key in again}
        later = {key: element for key, element in operation.elements.items() if key not in again}
        first += [DeleteElements(operation.set, now)] if now else []
        second += [DeleteElements(operation.set, later)] if later else []
    return first, second


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
