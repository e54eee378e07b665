"""nftables of one network namespace: read a table, apply a desired table, commit keyed changes.

:meth:`Nft.apply` reads the table and commits the difference as one transaction: packets see the old table or the new
one, never a mixture; an equal table is not changed. :meth:`Nft.commit` sends a prepared transaction without reading
(one changed element costs about 0.1 ms at any size of the table). No process is started. An error names the refused
operation and, for elements, the element.
"""

import errno
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from podwire.errors import KernelError, KernelNotFound
from podwire.kernel import nft_codec as nl
from podwire.kernel import uapi
from podwire.kernel.failure import refusal
from podwire.kernel.nft_answers import (
    element_count,
    read_chain,
    read_elements,
    read_rule,
    read_set,
    read_table,
    rule_chain,
)
from podwire.kernel.nft_delinearize import delinearize
from podwire.kernel.nft_elements import is_tree
from podwire.kernel.nft_messages import Batch
from podwire.kernel.nft_socket import NftSocket, Refusal
from podwire.state.nft import FAMILIES, Chain, Element, Set, Table
from podwire.state.nft_diff import (
    AddElements,
    DeleteChain,
    DeleteElements,
    DeleteTable,
    Operation,
    Transaction,
    diff,
    removal,
)
from podwire.state.nft_rules import Rule

_READS = 32
_SETTLED = 32_768
"""A dump of more bytes of elements is checked. While the kernel enlarges a hash table, in the background after a load,
a dump lacks some elements and repeats others. If the kernel states the number of elements (6.18 does), the dump is
compared with it; otherwise a dump is accepted when the next one has the same elements."""


class Nft:
    """nftables in one network namespace (None: that of this thread)."""

    def __init__(self, netns: Path | str | int | None = None) -> None:
        self._socket = NftSocket(netns)

    def __enter__(self) -> "Nft":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket; everything in the kernel stays."""
        self._socket.close()

    @property
    def port(self) -> int:
        """The port in notifications of this object's transactions; :class:`NftMonitor` ignores them by it."""
        return self._socket.port

    def generation(self) -> int:
        """A number that grows with every transaction in this namespace."""
        return self._socket.generation()

    def tables(self) -> tuple[tuple[str, str], ...]:
        """(family, name) of every table."""
        names: list[tuple[str, str]] = []
        for family, value in FAMILIES.items():
            bodies = self._socket.dump(uapi.NFT_MSG_GETTABLE, value)
            names.extend((family, read_table(body)[0]) for body in bodies)
        return tuple(names)

    def read(self, family: str, name: str) -> Table | None:
        """The table in canonical order with its counters and the elements of dynamic sets; None when it does not exist.

        Raises: KernelError.
        """
        for _ in range(_READS):
            before = self._socket.generation()
            try:
                table = self._read(family, name)
            except KernelNotFound:
                continue
            if self._socket.generation() == before:
                return table
        raise KernelError(
            "read",
            f"table {family} {name}",
            errno.EINTR,
            f"the rules changed during each of {_READS} attempts to read them",
        )

    def _read(self, family: str, name: str) -> Table | None:
        value = FAMILIES[family]
        comments = dict(read_table(body) for body in self._socket.dump(uapi.NFT_MSG_GETTABLE, value))
        if name not in comments:
            return None
        sets = self._sets(value, name)
        rules: dict[str, list[tuple[bytes, str]]] = {}
        for body in self._socket.dump(uapi.NFT_MSG_GETRULE, value, nl.text(uapi.NFTA_RULE_TABLE, name)):
            table, owner, _, expressions, comment = read_rule(body)
            if table == name:
                rules.setdefault(owner, []).append((expressions, comment))
        chains = []
        for chain in self.chains(family, name):
            written = (delinearize(e, family, sets, comment) for e, comment in rules.get(chain.name, ()))
            chains.append(msgspec.structs.replace(chain, rules=tuple(written)))
        chains.sort(key=lambda chain: chain.name)
        named_sets = [declared for declared in sets.values() if "anonymous" not in declared.flags]
        named_sets.sort(key=lambda declared: declared.name)
        return Table(family=family, name=name, comment=comments[name], chains=tuple(chains), sets=tuple(named_sets))

    def _sets(self, family: int, table: str) -> dict[str, Set]:
        declarations: dict[str, tuple[Set, int | None]] = {}
        for body in self._socket.dump(uapi.NFT_MSG_GETSET, family, nl.text(uapi.NFTA_SET_TABLE, table)):
            owner, declared = read_set(body)
            if owner == table:
                declarations[declared.name] = declared, element_count(body, declared)
        return {name: self._with_elements(family, table, *declaration) for name, declaration in declarations.items()}

    def _with_elements(self, family: int, table: str, declared: Set, count: int | None) -> Set:
        """The set with its elements; ``count`` is the number of elements that the kernel states, or None."""
        request = nl.text(uapi.NFTA_SET_ELEM_LIST_TABLE, table) + nl.text(uapi.NFTA_SET_ELEM_LIST_SET, declared.name)
        elements: dict[bytes, Element] = {}
        for _ in range(_READS):
            bodies = self._socket.dump(uapi.NFT_MSG_GETSETELEM, family, request)
            before, elements = elements, read_elements(bodies, declared)
            if is_tree(declared) or sum(map(len, bodies)) <= _SETTLED or len(elements) == count:
                break
            if count is None and elements.keys() == before.keys():
                break
        return msgspec.structs.replace(declared, elements=elements)

    def chains(self, family: str, table: str) -> tuple[Chain, ...]:
        """The chains of a table, without their rules.

        Raises: KernelError.
        """
        bodies = self._socket.dump(uapi.NFT_MSG_GETCHAIN, FAMILIES[family])
        return tuple(chain for owner, chain in (read_chain(body, family) for body in bodies) if owner == table)

    def rules(self, family: str, table: str, chain: str, sets: Mapping[str, Set]) -> tuple[Rule, ...]:
        """The rules of one chain with their counters; ``sets`` are the declared sets of the table.

        Raises: KernelError.
        """
        request = nl.text(uapi.NFTA_RULE_TABLE, table) + nl.text(uapi.NFTA_RULE_CHAIN, chain)
        answers = (read_rule(body) for body in self._socket.dump(uapi.NFT_MSG_GETRULE, FAMILIES[family], request))
        return tuple(delinearize(e, family, sets, c) for t, owner, _, e, c in answers if (t, owner) == (table, chain))

    def rule_counts(self, family: str, table: str, chain: str = "") -> dict[str, int]:
        """The number of rules of each chain, or of one chain; a chain without rules is left out.

        Raises: KernelError.
        """
        request = nl.text(uapi.NFTA_RULE_TABLE, table) + (nl.text(uapi.NFTA_RULE_CHAIN, chain) if chain else b"")
        try:
            bodies = self._socket.dump(uapi.NFT_MSG_GETRULE, FAMILIES[family], request)
        except KernelNotFound:
            return {}
        head = nl.text(uapi.NFTA_RULE_TABLE, table)
        names = Counter(rule_chain(body, head) for body in bodies if body.startswith(head))
        return {name.rstrip(b"\0").decode(errors="replace"): number for name, number in names.items()}

    def counters(self, family: str, table: str, chain: str = "") -> dict[str, tuple[int, int]]:
        """The sum of packets and bytes of the rules' counters by chain, or of one chain.

        Chains without a counter are left out; empty when the table or chain does not exist.

        Raises: KernelError.
        """
        request = nl.text(uapi.NFTA_RULE_TABLE, table) + (nl.text(uapi.NFTA_RULE_CHAIN, chain) if chain else b"")
        totals: dict[str, tuple[int, int]] = {}
        try:
            bodies = self._socket.dump(uapi.NFT_MSG_GETRULE, FAMILIES[family], request)
        except KernelNotFound:
            return totals
        for body in bodies:
            if _COUNTER not in body:
                continue
            fields = nl.attributes(body)
            name = nl.string(fields.get(uapi.NFTA_RULE_CHAIN))
            if nl.string(fields.get(uapi.NFTA_RULE_TABLE)) == table and chain in ("", name):
                for packets, size in _counted(fields.get(uapi.NFTA_RULE_EXPRESSIONS, b"")):
                    before = totals.get(name, (0, 0))
                    totals[name] = before[0] + packets, before[1] + size
        return totals

    def apply(self, desired: Table) -> Transaction:
        """Makes the kernel hold exactly this table; returns the changes, empty when there were none.

        Raises: KernelError naming the refused operation; the table is unchanged.
        """
        present = self.read(desired.family, desired.name)
        transaction = diff(present, desired)
        self.commit(transaction)
        return transaction

    def delete(self, family: str, name: str) -> None:
        """Removes the table with everything in it; has no effect when it does not exist."""
        if (family, name) in self.tables():
            self.commit(removal(family, name))

    def delete_unused(self, family: str, name: str, comment: str) -> bool:
        """Removes a table with this comment that holds only base chains without rules and with policy accept.

        Returns whether it was removed. When a rule or chain is added at the same moment, the kernel refuses, and the
        table stays.

        Raises: KernelError.
        """
        if (name, comment) not in map(read_table, self._socket.dump(uapi.NFT_MSG_GETTABLE, FAMILIES[family])):
            return False
        chains = self.chains(family, name)
        if any(not chain.hook or chain.policy != "accept" for chain in chains):
            return False
        deletions: list[Operation] = [DeleteChain(chain.name, empty=True) for chain in chains]
        try:
            self.commit(Transaction(family, name, (*deletions, DeleteTable(empty=True))))
        except KernelError as failure:
            if failure.errno == errno.EBUSY:
                return False
            raise
        return True

    def commit(self, transaction: Transaction, generation: int = 0) -> None:
        """Commits all operations or none; an empty transaction is not sent.

        With a ``generation`` the kernel refuses it (ERESTART) when the rules of the namespace have changed since then.

        Raises: KernelError naming the refused operation.
        """
        if not transaction:
            return
        batch = Batch(transaction, self._socket.next_sequence(), generation)
        data = batch.encode()
        self._socket.next_sequence(len(batch.parts) + 1)
        try:
            self._socket.transact(data)
        except Refusal as refused:
            raise self._error(batch, refused) from refused

    def _error(self, batch: Batch, refused: Refusal) -> KernelError:
        operation, message = batch.subject(refused.sequence)
        table = f"{batch.transaction.family} {batch.transaction.table}"
        if operation is None:
            return refusal("commit", f"table {table}", refused.number, refused.text)
        subject = str(operation)
        if isinstance(operation, AddElements | DeleteElements) and refused.offset:
            subject = _element_at(operation, message, refused.offset) or subject
        return refusal("nft", f"{subject} in table {table}", refused.number, refused.text)


_COUNTER = b"counter\0"


def _counted(expressions: bytes) -> Iterator[tuple[int, int]]:
    """Packets and bytes of the counters among a rule's expressions."""
    for _, element in nl.attribute_list(expressions):
        if _COUNTER not in element:
            continue
        attrs = nl.attributes(element)
        if attrs.get(uapi.NFTA_EXPR_NAME) == _COUNTER:
            values = nl.attributes(attrs.get(uapi.NFTA_EXPR_DATA, b""))
            yield nl.number(values.get(uapi.NFTA_COUNTER_PACKETS)), nl.number(values.get(uapi.NFTA_COUNTER_BYTES))


def _element_at(operation: AddElements | DeleteElements, message: bytes, offset: int) -> str:
    """The element whose attribute lies at ``offset`` of its message; empty when none does."""
    head = 8 if int.from_bytes(message[offset : offset + 2], "little") > 4 else 0
    key = nl.attributes(message[offset + 4 :][: 4 + 256]).get(uapi.NFTA_SET_ELEM_KEY, b"")[4:] if head else b""
    key = key[: operation.set.key_length]
    element = operation.elements.get(key)
    if element is None:
        return ""
    verb = "add" if isinstance(operation, AddElements) else "delete"
    return f"{verb} element {operation.set.name} {{ {operation.set.element_text(key, element)} }}"
