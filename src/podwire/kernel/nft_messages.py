"""nftables objects as netlink messages: tables, chains, sets, elements, and whole transactions. Pure.

Sources: ``include/uapi/linux/netfilter/nf_tables.h``; userdata types from
``include/libnftnl/udata.h``; numbers of ``typeof`` from ``include/expression.h`` and ``include/proto.h`` of nftables.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from podwire.kernel import nft_codec as nl
from podwire.kernel import uapi
from podwire.kernel.nft_codec import attribute, nested, text, u32, u64
from podwire.kernel.nft_elements import chunks, comment_data, element_lists, userdata
from podwire.kernel.nft_linearize import AnonymousSet, linearize
from podwire.state.nft import FAMILIES, Set
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
    RestoreElements,
    RestoreRules,
    Transaction,
)
from podwire.state.nft_fields import field_type
from podwire.state.nft_types import data_type, length, type_number, width

HOOKS: dict[str, dict[str, int]] = {
    family: {"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}
    for family in ("ip", "ip6", "inet", "bridge")
}
HOOKS["inet"]["ingress"] = 5  # NF_INET_INGRESS
POLICIES = {"drop": 0, "accept": 1}
SET_FLAGS = {
    "anonymous": uapi.NFT_SET_ANONYMOUS,
    "constant": uapi.NFT_SET_CONSTANT,
    "dynamic": uapi.NFT_SET_EVAL,
    "interval": uapi.NFT_SET_INTERVAL,
    "timeout": uapi.NFT_SET_TIMEOUT,
}
_VERDICT_SIZE = 16
_SET_KEYBYTEORDER, _SET_KEY_TYPEOF, _SET_DATA_TYPEOF, SET_COMMENT = 0, 3, 4, 7
_HOST_ORDER = struct.pack("=I", 1)


_EXPR_PAYLOAD, _EXPR_META, _EXPR_CONCAT, _EXPR_NUMGEN = 7, 9, 13, 23
_PROTO = {"ip": 12, "ip6": 13, "th": 11}
_TEMPLATES = {"ip daddr": 12, "ip saddr": 11, "ip6 daddr": 9, "th dport": 2}


def _typeof(types: tuple[str, ...]) -> bytes:
    """The userdata of a ``typeof`` declaration, as nft encodes it."""
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

    def __init__(self, transaction: Transaction, first_sequence: int = 1, generation: int = 0) -> None:
        """``generation``: the kernel refuses the batch when the rules have changed since this one; 0: it does not."""
        self.transaction = transaction
        self.family = FAMILIES[transaction.family]
        self.first = first_sequence
        expected = u32(uapi.NFNL_BATCH_GENID, generation) if generation else b""
        self.parts: list[bytes] = [nl.message(uapi.NFNL_MSG_BATCH_BEGIN, 0, first_sequence, 0, expected, batch=True)]
        self.subjects: list[Operation | None] = [None]
        self.sets = 0

    def encode(self) -> bytes:
        """The bytes of the whole batch; the last message requests an acknowledgement.

        Raises: ConfigError for a rule that cannot be encoded.
        """
        for operation in self.transaction.operations:
            _ENCODERS[type(operation)](self, operation)
        return self._joined()

    def _joined(self) -> bytes:
        last = bytearray(self.parts[-1])
        flags = struct.unpack_from("=H", last, 6)[0]
        struct.pack_into("=H", last, 6, flags | uapi.NLM_F_ACK)
        self.parts[-1] = bytes(last)
        end = nl.message(uapi.NFNL_MSG_BATCH_END, 0, self.first + len(self.parts), 0, b"", batch=True)
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
        body = text(uapi.NFTA_TABLE_NAME, self.transaction.table) + (
            attribute(uapi.NFTA_TABLE_USERDATA, data) if data else b""
        )
        self.add(operation, uapi.NFT_MSG_NEWTABLE, uapi.NLM_F_CREATE, body)

    def delete_table(self, operation: DeleteTable) -> None:
        """DELTABLE."""
        flags = uapi.NLM_F_NONREC if operation.empty else 0
        self.add(operation, uapi.NFT_MSG_DELTABLE, flags, text(uapi.NFTA_TABLE_NAME, self.transaction.table))

    def add_chain(self, operation: AddChain) -> None:
        """NEWCHAIN without rules."""
        chain = operation.chain
        body = text(uapi.NFTA_CHAIN_TABLE, self.transaction.table) + text(uapi.NFTA_CHAIN_NAME, chain.name)
        if chain.hook:
            hook = u32(uapi.NFTA_HOOK_HOOKNUM, HOOKS[self.transaction.family][chain.hook]) + u32(
                uapi.NFTA_HOOK_PRIORITY, chain.priority
            )
            hook += text(uapi.NFTA_HOOK_DEV, chain.device) if chain.device else b""
            body += (
                nested(uapi.NFTA_CHAIN_HOOK, hook)
                + u32(uapi.NFTA_CHAIN_POLICY, POLICIES[chain.policy])
                + text(uapi.NFTA_CHAIN_TYPE, chain.type)
            )
        data = comment_data(chain.comment)
        self.add(
            operation,
            uapi.NFT_MSG_NEWCHAIN,
            uapi.NLM_F_CREATE,
            body + (attribute(uapi.NFTA_CHAIN_USERDATA, data) if data else b""),
        )

    def delete_chain(self, operation: DeleteChain) -> None:
        """DELCHAIN."""
        flags = uapi.NLM_F_NONREC if operation.empty else 0
        self.add(
            operation,
            uapi.NFT_MSG_DELCHAIN,
            flags,
            text(uapi.NFTA_CHAIN_TABLE, self.transaction.table) + text(uapi.NFTA_CHAIN_NAME, operation.name),
        )

    def flush_chain(self, operation: FlushChain) -> None:
        """DELRULE of all rules of a chain."""
        self.add(
            operation,
            uapi.NFT_MSG_DELRULE,
            0,
            text(uapi.NFTA_RULE_TABLE, self.transaction.table) + text(uapi.NFTA_RULE_CHAIN, operation.name),
        )

    def add_rule(self, operation: AddRule) -> None:
        """NEWRULE, after its anonymous sets."""
        written = linearize(operation.rule, self.transaction.family, self.sets + 1)
        for carried in written.sets:
            self._carry(operation, carried)
        data = comment_data(operation.rule.comment)
        body = (
            text(uapi.NFTA_RULE_TABLE, self.transaction.table)
            + text(uapi.NFTA_RULE_CHAIN, operation.chain)
            + nested(uapi.NFTA_RULE_EXPRESSIONS, written.expressions)
        )
        body += attribute(uapi.NFTA_RULE_USERDATA, data) if data else b""
        self.add(operation, uapi.NFT_MSG_NEWRULE, uapi.NLM_F_CREATE | uapi.NLM_F_APPEND, body)

    def restore_rules(self, operation: RestoreRules) -> None:
        """NEWRULE with rules as they are encoded."""
        head = text(uapi.NFTA_RULE_TABLE, self.transaction.table) + text(uapi.NFTA_RULE_CHAIN, operation.chain)
        flags = uapi.NLM_F_CREATE | (0 if operation.first else uapi.NLM_F_APPEND)
        rules = operation.rules[::-1] if operation.first else operation.rules
        start = nl.message_start(uapi.NFT_MSG_NEWRULE, flags, self.family, head)
        sequences = range(self.first + len(self.parts), self.first + len(self.parts) + len(rules))
        self.parts += [
            start(sequence, compatibility(rule) + rule) for sequence, rule in zip(sequences, rules, strict=True)
        ]
        self.subjects += [operation] * len(rules)

    def _carry(self, operation: Operation, carried: AnonymousSet) -> None:
        self.sets += 1
        body = set_body(self.transaction.table, carried.set, carried.number, len(carried.set.elements))
        self.add(operation, uapi.NFT_MSG_NEWSET, uapi.NLM_F_CREATE, body)
        for chunk in element_lists(carried.set, carried.set.elements):
            head = (
                text(uapi.NFTA_SET_ELEM_LIST_TABLE, self.transaction.table)
                + text(uapi.NFTA_SET_ELEM_LIST_SET, carried.set.name)
                + u32(uapi.NFTA_SET_ELEM_LIST_SET_ID, carried.number)
            )
            self.add(
                operation,
                uapi.NFT_MSG_NEWSETELEM,
                uapi.NLM_F_CREATE,
                head + nested(uapi.NFTA_SET_ELEM_LIST_ELEMENTS, chunk),
            )

    def add_set(self, operation: AddSet) -> None:
        """NEWSET without elements."""
        self.sets += 1
        body = set_body(self.transaction.table, operation.set, self.sets, operation.set.size)
        self.add(operation, uapi.NFT_MSG_NEWSET, uapi.NLM_F_CREATE, body)

    def delete_set(self, operation: DeleteSet) -> None:
        """DELSET."""
        body = text(uapi.NFTA_SET_TABLE, self.transaction.table) + text(uapi.NFTA_SET_NAME, operation.set.name)
        self.add(operation, uapi.NFT_MSG_DELSET, 0, body)

    def add_elements(self, operation: AddElements) -> None:
        """NEWSETELEM, in as many messages as needed."""
        self._elements(operation, uapi.NFT_MSG_NEWSETELEM, uapi.NLM_F_CREATE, keys_only=False)

    def restore_elements(self, operation: RestoreElements) -> None:
        """NEWSETELEM with elements as they are encoded."""
        head = text(uapi.NFTA_SET_ELEM_LIST_TABLE, self.transaction.table) + text(
            uapi.NFTA_SET_ELEM_LIST_SET, operation.set.name
        )
        for chunk in chunks(operation.elements.values()):
            body = head + nested(uapi.NFTA_SET_ELEM_LIST_ELEMENTS, chunk)
            self.add(operation, uapi.NFT_MSG_NEWSETELEM, uapi.NLM_F_CREATE, body)

    def delete_elements(self, operation: DeleteElements) -> None:
        """DELSETELEM."""
        self._elements(operation, uapi.NFT_MSG_DELSETELEM, 0, keys_only=True)

    def _elements(self, operation: AddElements | DeleteElements, kind: int, flags: int, *, keys_only: bool) -> None:
        head = text(uapi.NFTA_SET_ELEM_LIST_TABLE, self.transaction.table) + text(
            uapi.NFTA_SET_ELEM_LIST_SET, operation.set.name
        )
        for chunk in element_lists(operation.set, operation.elements, keys_only=keys_only):
            self.add(operation, kind, flags, head + nested(uapi.NFTA_SET_ELEM_LIST_ELEMENTS, chunk))


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
    RestoreElements: Batch.restore_elements,
    RestoreRules: Batch.restore_rules,
    DeleteElements: Batch.delete_elements,
}


_PROTOCOL = (  # The kernel encodes the key before the register, and marks no attribute as nested.
    text(uapi.NFTA_EXPR_NAME, "meta")
    + attribute(uapi.NFTA_EXPR_DATA, u32(uapi.NFTA_META_KEY, uapi.NFT_META_L4PROTO) + u32(uapi.NFTA_META_DREG, 1))[:12]
)
_COMPARISON = text(uapi.NFTA_EXPR_NAME, "cmp")
_TO_NAME = 8 + 4
"""From the end of the pattern to the name of the next expression: the register, the head of the list element."""
_TO_OPERATOR = 4 + 8
"""From the end of the name to the operator: the head of the data, the register."""
_TO_VALUE = 8 + 4 + 4
"""From the operator to the value: the operator itself, the heads of the data and of its value."""


def compatibility(rule: bytes) -> bytes:
    """NFTA_RULE_COMPAT of a rule of iptables, as the kernel encoded it without this attribute; empty for most rules.

    Matches and targets of iptables check the protocol of their rule there. iptables writes the protocol as a comparison
    of ``meta l4proto`` too, which this is read from.
    """
    offset = rule.find(_PROTOCOL)
    name = offset + len(_PROTOCOL) + _TO_NAME
    if offset < 0 or not rule.startswith(_COMPARISON, name):
        return b""
    operator = name + len(_COMPARISON) + _TO_OPERATOR
    return _compatibility(rule[operator + 4 : operator + 8], rule[operator + _TO_VALUE])


@lru_cache(maxsize=16)
def _compatibility(operator: bytes, protocol: int) -> bytes:
    flags = 0 if nl.number(operator) == uapi.NFT_CMP_EQ else uapi.NFT_RULE_COMPAT_F_INV
    numbers = u32(uapi.NFTA_RULE_COMPAT_PROTO, protocol) + u32(uapi.NFTA_RULE_COMPAT_FLAGS, flags)
    return nested(uapi.NFTA_RULE_COMPAT, numbers)


def set_body(table: str, declared: Set, identity: int, size: int) -> bytes:
    """The body of NEWSET."""
    flags = sum(SET_FLAGS[flag] for flag in declared.flags) | (uapi.NFT_SET_MAP if declared.data else 0)
    concatenated = "interval" in declared.flags and len(declared.key) > 1
    flags |= uapi.NFT_SET_CONCAT if concatenated else 0
    body = text(uapi.NFTA_SET_TABLE, table) + text(uapi.NFTA_SET_NAME, declared.name) + u32(uapi.NFTA_SET_FLAGS, flags)
    body += u32(uapi.NFTA_SET_KEY_TYPE, type_number(declared.key)) + u32(uapi.NFTA_SET_KEY_LEN, declared.key_length)
    if declared.verdicts:
        body += u32(uapi.NFTA_SET_DATA_TYPE, uapi.NFT_DATA_VERDICT) + u32(uapi.NFTA_SET_DATA_LEN, _VERDICT_SIZE)
    elif declared.data:
        body += u32(uapi.NFTA_SET_DATA_TYPE, type_number(declared.data)) + u32(
            uapi.NFTA_SET_DATA_LEN, length(declared.data)
        )
    description = u32(uapi.NFTA_SET_DESC_SIZE, size) if size else b""
    if concatenated:
        fields = (
            nested(uapi.NFTA_LIST_ELEM, u32(uapi.NFTA_SET_FIELD_LEN, width(data_type(name).size)))
            for name in declared.key
        )
        description += nested(uapi.NFTA_SET_DESC_CONCAT, b"".join(fields))
    if description:
        body += nested(uapi.NFTA_SET_DESC, description)
    if declared.timeout_s:
        body += u64(uapi.NFTA_SET_TIMEOUT, declared.timeout_s * 1000)
    data = _set_userdata(declared)
    return body + u32(uapi.NFTA_SET_ID, identity) + (attribute(uapi.NFTA_SET_USERDATA, data) if data else b"")


def _set_userdata(declared: Set) -> bytes:
    data = b""
    if len(declared.key) == 1 and (data_type(declared.key[0]).host_order or declared.key[0] == "ifname"):
        data += userdata(_SET_KEYBYTEORDER, _HOST_ORDER)
    if "slot" in declared.key + declared.data:
        data += userdata(_SET_KEY_TYPEOF, _typeof(declared.key))
        if declared.data and not declared.verdicts:
            data += userdata(_SET_DATA_TYPEOF, _typeof(declared.data))
    return data + comment_data(declared.comment, SET_COMMENT)
