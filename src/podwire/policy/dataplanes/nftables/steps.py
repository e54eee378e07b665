"""How a change is cut into transactions (pure).

One transaction is atomic for rules, and for elements, not for both: a packet keeps to the generation of rules that it
met first, and finds the elements of the moment. A chain that comes in the same transaction as the element that leads
to it has no rules for such a packet, which then falls through (seen: 1 to 3 of some 10,000 packets). So
what is new comes first, alone; then what leads there; and what nothing leads to any more goes last.
"""

from collections.abc import Iterator

from podwire.state.nft_diff import (
    AddChain,
    AddElements,
    AddRule,
    AddSet,
    AddTable,
    DeleteChain,
    DeleteSet,
    DeleteTable,
    FlushChain,
    Operation,
    Transaction,
)


def steps(transaction: Transaction) -> Iterator[Transaction]:
    """The transactions to commit one after the other; a table that is replaced as a whole is in one."""
    operations = transaction.operations
    if any(isinstance(operation, DeleteTable) for operation in operations):
        yield transaction
        return
    chains = {o.chain.name for o in operations if isinstance(o, AddChain) and not o.chain.hook}
    sets = {o.set.name for o in operations if isinstance(o, AddSet)}
    gone = {o.name for o in operations if isinstance(o, DeleteChain)}
    parts: tuple[list[Operation], ...] = ([], [], [])
    for operation in operations:
        parts[_part(operation, chains | sets, gone)].append(operation)
    for part in parts:
        if part:
            yield Transaction(transaction.family, transaction.table, tuple(part))


def _part(operation: Operation, new: set[str], gone: set[str]) -> int:
    """0: nothing leads there yet; 1: what packets meet; 2: nothing leads there any more."""
    match operation:
        case AddTable() | AddSet():
            return 0
        case AddChain(chain=chain):
            return 0 if chain.name in new else 1
        case AddRule(chain=name):
            return 0 if name in new else 1
        case AddElements(set=declared):
            return 0 if declared.name in new else 1
        case FlushChain(name=name):
            return 2 if name in gone else 1
        case DeleteChain() | DeleteSet():
            return 2
        case _:
            return 1
