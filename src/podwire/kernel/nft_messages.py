"""nftables objects to and from netlink messages (pure): tables, chains, sets, elements, and whole transactions.

Element lists are the bulk of a large load: an element whose parts have fixed lengths is joined from constant headers
and its bytes, about a microsecond each. Sources: ``include/uapi/linux/netfilter/nf_tables.h``; userdata types from
``include/libnftnl/udata.h``; numbers of ``typeof`` from ``include/expression.h`` and ``include/proto.h`` of nftables.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from podwire.kernel import nft_codec as nl
from podwire.kernel.nft_codec import attribute, attributes, nested, number, pieces, string, text, u32, u64
from podwire.kernel.nft_delinearize import verdict_of
from podwire.kernel.nft_linearize import AnonymousSet, linearize, verdict_value
from podwire.state.nft import FAMILIES, Chain, Element, Set
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
from podwire.state.nft_fields import field_type
from podwire.state.nft_rules import Verdict
from podwire.state.nft_types import data_type, length, type_number, types_of_number, width

HOOKS: dict[str, dict[str, int]] = {
    family: {"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}
    for family in ("ip", "ip6", "inet", "bridge")
}
POLICIES = {"drop": 0, "accept": 1}
SET_FLAGS = {"anonymous": 1, "constant": 2, "dynamic": 0x20, "interval": 4, "timeout": 0x10}
_SET_MAP = 8
_SET_CONCAT = 0x80
_DATA_VERDICT = 0xFFFFFF00
_VERDICT_SIZE = 16
_INTERVAL_END = 1
_CHUNK = 60_000
"""Bytes of elements in one message, below the 65,535 that an attribute can hold."""

_ELEM_COMMENT = 0
_SET_KEYBYTEORDER, _SET_KEY_TYPEOF, _SET_DATA_TYPEOF, _SET_COMMENT = 0, 3, 4, 7
_HOST_ORDER = struct.pack("=I", 1)


def userdata(kind: int, payload: bytes) -> bytes:
    """One userdata record."""
    return bytes((kind, len(payload))) + payload


def comment_data(comment: str, kind: int = 0) -> bytes:
    """A comment record, empty without a comment; the kernel allows 128 bytes with the end, a longer one is cut."""
    return userdata(kind, comment.encode()[:127] + b"\0") if comment else b""


def records(data: bytes | None) -> dict[int, bytes]:
    """Userdata records by type."""
    found: dict[int, bytes] = {}
    offset = 0
    while data and offset + 2 <= len(data):
        kind, size = data[offset], data[offset + 1]
        found[kind] = data[offset + 2 : offset + 2 + size]
        offset += 2 + size
    return found


_EXPR_PAYLOAD, _EXPR_META, _EXPR_CONCAT, _EXPR_NUMGEN = 7, 9, 13, 23
_PROTO = {"ip": 12, "ip6": 13, "th": 11}
_TEMPLATES = {"ip daddr": 12, "ip saddr": 11, "ip6 daddr": 9, "th dport": 2}


def _typeof(types: tuple[str, ...]) -> bytes:
    """How nft writes down a ``typeof`` declaration."""
    if len(types) == 1:
        return _typeof_one(types[0])
    parts = b"".join(userdata(index, _typeof_one(name)) for index, name in enumerate(types))
    return userdata(0, struct.pack("=I", _EXPR_CONCAT)) + userdata(1, parts)


def _typeof_one(type_name: str) -> bytes:
    example = data_type(type_name).example
    if type_name == "slot":
        kind, detail = _EXPR_NUMGEN, _numbers(1, 2, 0)
    elif example in _TEMPLATES:
        kind, detail = _EXPR_PAYLOAD, _numbers(_PROTO[example.split()[0]], _TEMPLATES[example])
    else:
        kind, detail = _EXPR_META, _numbers(field_type(example).a)
    return userdata(0, struct.pack("=I", kind)) + userdata(1, detail)


def _numbers(*values: int) -> bytes:
    return b"".join(userdata(index, struct.pack("=I", value)) for index, value in enumerate(values))


class Batch:
    """The messages of one transaction and, for errors, the operation behind each sequence number."""

    def __init__(self, transaction: Transaction, first_sequence: int = 1) -> None:
        self.transaction = transaction
        self.family = FAMILIES[transaction.family]
        self.first = first_sequence
        self.parts: list[bytes] = [nl.message(nl.NFNL_MSG_BATCH_BEGIN, 0, first_sequence, 0, b"", batch=True)]
        self.subjects: list[Operation | None] = [None]
        self.sets = 0

    def encode(self) -> bytes:
        """The bytes of the whole batch; the last message asks for an answer.

        Raises: ConfigError for a rule that cannot be written.
        """
        for operation in self.transaction.operations:
            _ENCODERS[type(operation)](self, operation)
        return self._joined()

    def _joined(self) -> bytes:
        last = bytearray(self.parts[-1])
        flags = struct.unpack_from("=H", last, 6)[0]
        struct.pack_into("=H", last, 6, flags | nl.NLM_F_ACK)
        self.parts[-1] = bytes(last)
        end = nl.message(nl.NFNL_MSG_BATCH_END, 0, self.first + len(self.parts), 0, b"", batch=True)
        return b"".join((*self.parts, end))

    def subject(self, sequence: int) -> tuple[Operation | None, bytes]:
        """Operation and message of a sequence number."""
        index = sequence - self.first
        inside = 0 <= index < len(self.subjects)
        return (self.subjects[index], self.parts[index]) if inside else (None, b"")

    def add(self, operation: Operation, kind: int, flags: int, body: bytes) -> None:
        """Appends one message."""
        self.parts.append(nl.message(kind, flags, self.first + len(self.parts), self.family, body))
        self.subjects.append(operation)

    def add_table(self, operation: AddTable) -> None:
        """NEWTABLE."""
        data = comment_data(operation.comment)
        body = text(1, self.transaction.table) + (attribute(6, data) if data else b"")
        self.add(operation, nl.NFT_MSG_NEWTABLE, nl.NLM_F_CREATE, body)

    def delete_table(self, operation: DeleteTable) -> None:
        """DELTABLE."""
        flags = nl.NLM_F_NONREC if operation.empty else 0
        self.add(operation, nl.NFT_MSG_DELTABLE, flags, text(1, self.transaction.table))

    def add_chain(self, operation: AddChain) -> None:
        """NEWCHAIN without rules."""
        chain = operation.chain
        body = text(1, self.transaction.table) + text(3, chain.name)
        if chain.hook:
            hook = u32(1, HOOKS[self.transaction.family][chain.hook]) + u32(2, chain.priority)
            body += nested(4, hook) + u32(5, POLICIES[chain.policy]) + text(7, chain.type)
        data = comment_data(chain.comment)
        self.add(operation, nl.NFT_MSG_NEWCHAIN, nl.NLM_F_CREATE, body + (attribute(12, data) if data else b""))

    def delete_chain(self, operation: DeleteChain) -> None:
        """DELCHAIN."""
        flags = nl.NLM_F_NONREC if operation.empty else 0
        self.add(operation, nl.NFT_MSG_DELCHAIN, flags, text(1, self.transaction.table) + text(3, operation.name))

    def flush_chain(self, operation: FlushChain) -> None:
        """DELRULE of all rules of a chain."""
        self.add(operation, nl.NFT_MSG_DELRULE, 0, text(1, self.transaction.table) + text(2, operation.name))

    def add_rule(self, operation: AddRule) -> None:
        """NEWRULE, after its anonymous sets."""
        written = linearize(operation.rule, self.transaction.family, self.sets + 1)
        for carried in written.sets:
            self._carry(operation, carried)
        data = comment_data(operation.rule.comment)
        body = text(1, self.transaction.table) + text(2, operation.chain) + nested(4, written.expressions)
        body += attribute(7, data) if data else b""
        self.add(operation, nl.NFT_MSG_NEWRULE, nl.NLM_F_CREATE | nl.NLM_F_APPEND, body)

    def _carry(self, operation: Operation, carried: AnonymousSet) -> None:
        self.sets += 1
        body = set_body(self.transaction.table, carried.set, carried.number, len(carried.set.elements))
        self.add(operation, nl.NFT_MSG_NEWSET, nl.NLM_F_CREATE, body)
        for chunk in element_lists(carried.set, carried.set.elements):
            head = text(1, self.transaction.table) + text(2, carried.set.name) + u32(4, carried.number)
            self.add(operation, nl.NFT_MSG_NEWSETELEM, nl.NLM_F_CREATE, head + nested(3, chunk))

    def add_set(self, operation: AddSet) -> None:
        """NEWSET without elements."""
        self.sets += 1
        body = set_body(self.transaction.table, operation.set, self.sets, operation.set.size)
        self.add(operation, nl.NFT_MSG_NEWSET, nl.NLM_F_CREATE, body)

    def delete_set(self, operation: DeleteSet) -> None:
        """DELSET."""
        body = text(1, self.transaction.table) + text(2, operation.set.name)
        self.add(operation, nl.NFT_MSG_DELSET, 0, body)

    def add_elements(self, operation: AddElements) -> None:
        """NEWSETELEM, in as many messages as it takes."""
        self._elements(operation, nl.NFT_MSG_NEWSETELEM, nl.NLM_F_CREATE, keys_only=False)

    def delete_elements(self, operation: DeleteElements) -> None:
        """DELSETELEM."""
        self._elements(operation, nl.NFT_MSG_DELSETELEM, 0, keys_only=True)

    def _elements(self, operation: AddElements | DeleteElements, kind: int, flags: int, *, keys_only: bool) -> None:
        head = text(1, self.transaction.table) + text(2, operation.set.name)
        for chunk in element_lists(operation.set, operation.elements, keys_only=keys_only):
            self.add(operation, kind, flags, head + nested(3, chunk))


_ENCODERS: dict[type, Callable[[Batch, Any], None]] = {
    AddTable: Batch.add_table,
    DeleteTable: Batch.delete_table,
    AddChain: Batch.add_chain,
    DeleteChain: Batch.delete_chain,
    FlushChain: Batch.flush_chain,
    AddRule: Batch.add_rule,
    AddSet: Batch.add_set,
    DeleteSet: Batch.delete_set,
    AddElements: Batch.add_elements,
    DeleteElements: Batch.delete_elements,
}


def set_body(table: str, declared: Set, identity: int, size: int) -> bytes:
    """The body of NEWSET."""
    flags = sum(SET_FLAGS[flag] for flag in declared.flags) | (_SET_MAP if declared.data else 0)
    concatenated = "interval" in declared.flags and len(declared.key) > 1
    flags |= _SET_CONCAT if concatenated else 0
    body = text(1, table) + text(2, declared.name) + u32(3, flags)
    body += u32(4, type_number(declared.key)) + u32(5, declared.key_length)
    if declared.verdicts:
        body += u32(6, _DATA_VERDICT) + u32(7, _VERDICT_SIZE)
    elif declared.data:
        body += u32(6, type_number(declared.data)) + u32(7, length(declared.data))
    description = u32(1, size) if size else b""
    if concatenated:
        fields = (nested(1, u32(1, width(data_type(name).size))) for name in declared.key)
        description += nested(2, b"".join(fields))
    if description:
        body += nested(9, description)
    if declared.timeout_s:
        body += u64(11, declared.timeout_s * 1000)
    data = _set_userdata(declared)
    return body + u32(10, identity) + (attribute(13, data) if data else b"")


def _set_userdata(declared: Set) -> bytes:
    data = b""
    if len(declared.key) == 1 and (data_type(declared.key[0]).host_order or declared.key[0] == "ifname"):
        data += userdata(_SET_KEYBYTEORDER, _HOST_ORDER)
    if "slot" in declared.key + declared.data:
        data += userdata(_SET_KEY_TYPEOF, _typeof(declared.key))
        if declared.data and not declared.verdicts:
            data += userdata(_SET_DATA_TYPEOF, _typeof(declared.data))
    return data + comment_data(declared.comment, _SET_COMMENT)


def element_lists(declared: Set, elements: Mapping[bytes, Element], *, keys_only: bool = False) -> Iterator[bytes]:
    """Element attributes in pieces that fit into a message each."""
    encode = _interval_encoder(declared) if is_tree(declared) else _element_encoder(declared)
    parts: list[bytes] = []
    size = 0
    for key, element in elements.items():
        part = encode(key, element, keys_only)
        size += len(part)
        if size > _CHUNK:
            yield b"".join(parts)
            parts, size = [], len(part)
        parts.append(part)
    if parts:
        yield b"".join(parts)


def is_tree(declared: Set) -> bool:
    """Whether the kernel keeps this set as a tree of single-field intervals."""
    return "interval" in declared.flags and len(declared.key) == 1


class _element_encoder:  # noqa: N801
    """Encodes the elements of one set with headers made once."""

    def __init__(self, declared: Set) -> None:
        self.key_head, self.key_tail = _value_frame(1, declared.key_length)
        data_size = 0 if declared.verdicts or not declared.data else length(declared.data)
        self.data_head, self.data_tail = _value_frame(2, data_size) if data_size else (b"", b"")
        self.verdicts: dict[Verdict, bytes] = {}

    def __call__(self, key: bytes, element: Element, keys_only: bool) -> bytes:
        body = self.key_head + key + self.key_tail
        if element.end and element.end != key:
            body += nested(10, attribute(1, element.end))
        elif element.end:
            body += nested(10, attribute(1, key))
        if not keys_only:
            if element.verdict is not None:
                body += self._verdict(element.verdict)
            elif element.data:
                body += self.data_head + element.data + self.data_tail
            if element.timeout_s:
                body += u64(4, element.timeout_s * 1000)
            if element.comment:
                body += attribute(6, comment_data(element.comment))
        return _ELEMENT_HEAD.pack(len(body) + 4, 1 | nl.NLA_F_NESTED) + body

    def _verdict(self, verdict: Verdict) -> bytes:
        found = self.verdicts.get(verdict)
        if found is None:
            found = self.verdicts[verdict] = verdict_value(2, verdict)
        return found


_ELEMENT_HEAD = struct.Struct("=HH")


def _value_frame(kind: int, size: int) -> tuple[bytes, bytes]:
    padding = -size & 3
    head = struct.pack("=HHHH", 8 + size + padding, kind | nl.NLA_F_NESTED, 4 + size, 1)
    return head, b"\0" * padding


class _interval_encoder:  # noqa: N801
    """Encodes an interval as its start and, with a flag, the value behind its end."""

    def __init__(self, declared: Set) -> None:
        self.plain = _element_encoder(declared)

    def __call__(self, key: bytes, element: Element, keys_only: bool) -> bytes:
        end = element.end or key
        start = self.plain(key, msgspec.structs.replace(element, end=b""), keys_only)
        if all(byte == 0xFF for byte in end):
            return start
        behind = (int.from_bytes(end, "big") + 1).to_bytes(len(end), "big")
        return start + nested(1, nested(1, attribute(1, behind)) + u32(3, _INTERVAL_END))


def read_table(body: bytes) -> tuple[str, str]:
    """Name and comment of a NEWTABLE answer."""
    found = attributes(body)
    return string(found.get(1)), string(records(found.get(6)).get(0))


def read_chain(body: bytes, family: str) -> tuple[str, Chain]:
    """Table name and chain (without rules) of a NEWCHAIN answer."""
    found = attributes(body)
    comment = string(records(found.get(12)).get(0))
    name = string(found.get(3))
    if 4 not in found:
        return string(found.get(1)), Chain(name=name, comment=comment)
    hook = attributes(found[4])
    hooks = {value: word for word, value in HOOKS.get(family, {}).items()}
    priority = struct.unpack("!i", hook[2])[0]
    return string(found.get(1)), Chain(
        name=name,
        type=string(found.get(7)),
        hook=hooks.get(number(hook.get(1)), "unknown"),
        priority=priority,
        policy="accept" if number(found.get(5), 1) else "drop",
        comment=comment,
    )


def read_rule(body: bytes) -> tuple[str, str, int, bytes, str]:
    """Table, chain, handle, expression list and comment of a NEWRULE answer."""
    found = attributes(body)
    comment = string(records(found.get(7)).get(0))
    return string(found.get(1)), string(found.get(2)), number(found.get(3)), found.get(4, b""), comment


def read_set(body: bytes) -> tuple[str, Set]:
    """Table name and declaration of a NEWSET answer."""
    found = attributes(body)
    bits = number(found.get(3))
    flags = tuple(flag for flag, bit in SET_FLAGS.items() if bits & bit)
    data: tuple[str, ...] = ()
    if bits & _SET_MAP:
        kind = number(found.get(6))
        data = ("verdict",) if kind == _DATA_VERDICT else types_of_number(kind) or ("unknown",)
    size = number(attributes(found.get(9, b"")).get(1))
    return string(found.get(1)), Set(
        name=string(found.get(2)),
        key=types_of_number(number(found.get(4))) or ("unknown",),
        data=data,
        flags=flags,
        size=size,
        timeout_s=number(found.get(11)) // 1000,
        comment=string(records(found.get(13)).get(_SET_COMMENT)),
    )


def element_count(body: bytes, declared: Set) -> int | None:
    """How many elements a NEWSET answer says there are; None where the kernel does not say (6.18 does).

    Also None where elements end by themselves: those that have ended count until they are collected.
    """
    count = attributes(body).get(20)
    return None if count is None or {"timeout", "dynamic"} & set(declared.flags) else number(count)


def read_elements(bodies: Iterable[bytes], declared: Set) -> dict[bytes, Element]:
    """The elements in NEWSETELEM answers."""
    raw = [element for body in bodies for _, element in pieces(attributes(body).get(3, b""))]
    if is_tree(declared):
        return _tree_elements([attributes(element) for element in raw])
    verdicts: dict[bytes, Verdict] = {}
    found: dict[bytes, Element] = {}
    size = declared.key_length
    like = None
    for part in raw:
        if like is not None and like.fits(part):
            found[part[8 : 8 + size]] = Element(part[like.data :])
            continue
        element = attributes(part)
        read = found[element[1][4:][:size]] = _read_element(element, declared, verdicts)
        if like is None and read.data and not len(read.data) & 3 and element.keys() == {1, 2}:
            like = _Like(part, len(read.data))
    return found


class _Like:
    """An element of key and data alone, and whether another one has the same form: a third of the time to read it."""

    def __init__(self, part: bytes, size: int) -> None:
        self.data = len(part) - size
        self.length = len(part)
        self.head, self.middle = part[:8], part[self.data - 8 : self.data]

    def fits(self, part: bytes) -> bool:
        """Whether only the bytes of key and data differ."""
        return len(part) == self.length and part[:8] == self.head and part[self.data - 8 : self.data] == self.middle


def _read_element(element: dict[int, bytes], declared: Set, verdicts: dict[bytes, Verdict]) -> Element:
    data = element.get(2)
    verdict = None
    value = b""
    if data is not None and declared.verdicts:
        verdict = verdicts.get(data)
        if verdict is None:
            verdict = verdicts[data] = verdict_of(attributes(data).get(2, b""))
    elif data is not None:
        value = attributes(data).get(1, b"")
    comment = string(records(element[6]).get(_ELEM_COMMENT)) if 6 in element else ""
    end = attributes(element[10]).get(1, b"") if 10 in element else b""
    timeout = number(element.get(4)) // 1000
    if timeout == declared.timeout_s:
        timeout = 0
    return Element(value, verdict, end, comment, timeout)


def _tree_elements(raw: list[dict[int, bytes]]) -> dict[bytes, Element]:
    ends = sorted(attributes(e[1])[1] for e in raw if number(e.get(3)) & _INTERVAL_END)
    starts = sorted(
        ((attributes(e[1])[1], e) for e in raw if not number(e.get(3)) & _INTERVAL_END), key=lambda pair: pair[0]
    )
    found: dict[bytes, Element] = {}
    place = 0
    for key, element in starts:
        while place < len(ends) and ends[place] <= key:
            place += 1
        if place < len(ends):
            last = (int.from_bytes(ends[place], "big") - 1).to_bytes(len(key), "big")
        else:
            last = b"\xff" * len(key)
        data = attributes(element.get(2, b""))
        verdict = verdict_of(data[2]) if 2 in data else None
        comment = string(records(element.get(6)).get(_ELEM_COMMENT))
        found[key] = Element(data.get(1, b""), verdict, last, comment)
    return found
