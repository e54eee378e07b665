"""Encodes rules as the kernel's register expressions. Pure.

Operands are loaded into 32-bit registers from slot 0 upwards, the fields of a concatenation side by side. A statement
uses them at once, so every statement starts at slot 0. Matches that nft adds implicitly (``tcp dport`` needs ``meta
l4proto tcp``) are written as nft writes them, so that its listing omits them. An anonymous set becomes a set of its own
in the same batch; the rule refers to it by an id.

Source: ``net/netfilter/nf_tables_api.c`` and ``nft_*.c`` (what each expression requires), ``src/netlink_linearize.c``
of nftables (the forms that its listing recognizes).
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from podwire.errors import ConfigError
from podwire.kernel import nft_limits, uapi
from podwire.kernel.nft_codec import attribute, data_value, expression, nested, text, u32, u64
from podwire.state.nft import FAMILIES, Set, interval_bounds
from podwire.state.nft_fields import NETWORK_HEADER, FieldType, field_type
from podwire.state.nft_rules import (
    Assign,
    Counter,
    Field,
    Limit,
    LiteralValue,
    LogStatement,
    Mapped,
    Masked,
    Masquerade,
    Match,
    Nat,
    Notrack,
    Numgen,
    Operand,
    Redirect,
    Reject,
    Rule,
    SetRef,
    Statement,
    SynProxy,
    Update,
    Values,
    Verdict,
    VerdictMap,
    operand_types,
)
from podwire.state.nft_types import ETHERTYPES, width

VERDICT_CODES = {"drop": 0, "accept": 1, "continue": -1, "break": -2, "jump": -3, "goto": -4, "return": -5}
COMPARISONS = {"==": 0, "!=": 1, "<": 2, "<=": 3, ">": 4, ">=": 5}
NAT_FLAGS = {
    "random": uapi.NF_NAT_RANGE_PROTO_RANDOM,
    "persistent": uapi.NF_NAT_RANGE_PERSISTENT,
    "fully-random": uapi.NF_NAT_RANGE_PROTO_RANDOM_FULLY,
}
LOG_LEVELS = {"emerg": 0, "alert": 1, "crit": 2, "err": 3, "warn": 4, "notice": 5, "info": 6, "debug": 7}
REJECT_CODES = {
    "icmp": {
        "net-unreachable": 0,
        "host-unreachable": 1,
        "prot-unreachable": 2,
        "port-unreachable": 3,
        "net-prohibited": 9,
        "host-prohibited": 10,
        "admin-prohibited": 13,
    },
    "icmpv6": {
        "no-route": 0,
        "admin-prohibited": 1,
        "addr-unreachable": 3,
        "port-unreachable": 4,
        "policy-fail": 5,
        "reject-route": 6,
    },
    "icmpx": {"no-route": 0, "port-unreachable": 1, "host-unreachable": 2, "admin-prohibited": 3},
}
DYNSET_OPS = {"add": 0, "update": 1, "delete": 2}
_RANDOM_MODES = {"inc": 0, "random": 1}


class AnonymousSet(msgspec.Struct, frozen=True):
    """A set that belongs to one rule: its id in the batch, and its declaration with elements."""

    number: int
    set: Set


class Linearized(msgspec.Struct, frozen=True):
    """The expression list of one rule, ready for ``NFTA_RULE_EXPRESSIONS``, and the anonymous sets to create first."""

    expressions: bytes
    sets: tuple[AnonymousSet, ...]


def register(slot: int) -> int:
    """The kernel's number of a 32-bit register slot (NFT_REG32_00 is 8)."""
    return uapi.NFT_REG32_00 + slot


@lru_cache(maxsize=1 << 14)
def verdict_value(kind: int, verdict: Verdict) -> bytes:
    """A ``NFTA_DATA_VERDICT`` inside its attribute."""
    chain = text(uapi.NFTA_VERDICT_CHAIN, verdict.chain) if verdict.chain else b""
    return nested(
        kind, nested(uapi.NFTA_DATA_VERDICT, u32(uapi.NFTA_VERDICT_CODE, VERDICT_CODES[verdict.kind]) + chain)
    )


def linearize(rule: Rule, family: str, first_set: int = 1) -> Linearized:
    """The expressions of a rule in a table of that family; anonymous sets are numbered from ``first_set``.

    Raises: ConfigError for a statement that cannot be encoded.
    """
    written = _linearized(rule, family, 1)
    return written if first_set == 1 or not written.sets else _linearized(rule, family, first_set)


@lru_cache(maxsize=1 << 10)
def _linearized(rule: Rule, family: str, first_set: int) -> Linearized:
    """The result of :func:`linearize`; cached, because the chains of profiles begin with the same rules."""
    writer = _Writer(family, first_set)
    for statement in rule.statements:
        writer.statement(statement)
    return Linearized(b"".join(writer.out), tuple(writer.sets))


_IPV4_CHECKSUM = 10
"""The offset of the checksum in the header of IPv4."""


def _header_write(field: FieldType) -> bytes:
    """Writes the address of a network header; the checksums of IPv4, and of TCP and UDP, follow the change."""
    if field.type.name not in ("ipv4_addr", "ipv6_addr") or field.a != NETWORK_HEADER:
        raise ConfigError("nft", "", f"cannot set {field.name}: expected an address of the network header")
    kind, offset = (uapi.NFT_PAYLOAD_CSUM_INET, _IPV4_CHECKSUM) if field.family == "ip" else (0, 0)
    return (
        u32(uapi.NFTA_PAYLOAD_SREG, register(0))
        + u32(uapi.NFTA_PAYLOAD_BASE, field.a)
        + u32(uapi.NFTA_PAYLOAD_OFFSET, field.b)
        + u32(uapi.NFTA_PAYLOAD_LEN, field.type.size)
        + u32(uapi.NFTA_PAYLOAD_CSUM_TYPE, kind)
        + u32(uapi.NFTA_PAYLOAD_CSUM_OFFSET, offset)
        + u32(uapi.NFTA_PAYLOAD_CSUM_FLAGS, uapi.NFT_PAYLOAD_L4CSUM_PSEUDOHDR)
    )


class _Writer:
    """Collects the expressions of one rule.

    A dispatch table: one method for each kind of statement and operand, which ``_WRITERS`` names.
    """

    def __init__(self, family: str, first_set: int) -> None:
        self.family = family
        self.first_set = first_set
        self.out: list[bytes] = []
        self.sets: list[AnonymousSet] = []
        self.protocol = 0
        self.network = family if family in ("ip", "ip6") else ""

    def statement(self, statement: Statement) -> None:
        """Adds one statement."""
        write = _WRITERS.get(type(statement))
        if write is None:
            raise ConfigError("nft", "", f"cannot write {statement}")
        write(self, statement)

    def add(self, name: str, payload: bytes) -> None:
        """Adds one expression."""
        self.out.append(expression(name, payload))

    def need(self, field: FieldType) -> None:
        """Adds the matches that a field requires, once each."""
        if field.family and not self.network and field.source == "payload":
            if self.family == "bridge":
                self._require("meta protocol", ETHERTYPES[field.family].to_bytes(2, "big"))
            else:
                self._require("meta nfproto", bytes([FAMILIES[field.family]]))
            self.network = field.family
        if field.protocol and self.protocol != field.protocol:
            self._require("meta l4proto", bytes([field.protocol]))
            self.protocol = field.protocol

    def _require(self, name: str, data: bytes) -> None:
        self.load_field(field_type(name), 0)
        self.compare(0, "==", data)

    def load(self, operand: Operand, slot: int = 0) -> int:
        """Loads an operand at ``slot``; returns the slot behind it."""
        if isinstance(operand, Field):
            field = field_type(operand.name)
            self.need(field)
            self.load_field(field, slot)
            return slot + width(field.type.size) // 4
        if isinstance(operand, Numgen):
            self.add(
                "numgen",
                u32(uapi.NFTA_NG_DREG, register(slot))
                + u32(uapi.NFTA_NG_MODULUS, operand.modulus)
                + u32(uapi.NFTA_NG_TYPE, _RANDOM_MODES[operand.mode])
                + u32(uapi.NFTA_NG_OFFSET, operand.offset),
            )
            return slot + 1
        if isinstance(operand, Masked):
            return self._load_masked(operand, slot)
        if isinstance(operand, Mapped):
            self.load(operand.key, slot)
            self.lookup(operand.map, slot, answer=slot)
            return slot + 1
        for part in operand.parts:
            if isinstance(part, Field):
                self.need(field_type(part.name))
        for part in operand.parts:
            slot = self.load(part, slot)
        return slot

    def load_field(self, field: FieldType, slot: int, size: int = 0) -> None:
        """Loads a field, or its first ``size`` bytes."""
        if field.source == "payload":
            place = u32(uapi.NFTA_PAYLOAD_BASE, field.a) + u32(uapi.NFTA_PAYLOAD_OFFSET, field.b)
            length = u32(uapi.NFTA_PAYLOAD_LEN, size or field.type.size)
            self.add("payload", u32(uapi.NFTA_PAYLOAD_DREG, register(slot)) + place + length)
        elif field.source == "ct":
            direction = attribute(uapi.NFTA_CT_DIRECTION, bytes([field.b])) if field.b >= 0 else b""
            self.add("ct", u32(uapi.NFTA_CT_DREG, register(slot)) + u32(uapi.NFTA_CT_KEY, field.a) + direction)
        elif field.source == "fib":
            lookup = u32(uapi.NFTA_FIB_RESULT, field.a) + u32(uapi.NFTA_FIB_FLAGS, field.b)
            self.add("fib", u32(uapi.NFTA_FIB_DREG, register(slot)) + lookup)
        elif field.source == "socket":
            self.add("socket", u32(uapi.NFTA_SOCKET_KEY, field.a) + u32(uapi.NFTA_SOCKET_DREG, register(slot)))
        else:
            self.add("meta", u32(uapi.NFTA_META_DREG, register(slot)) + u32(uapi.NFTA_META_KEY, field.a))

    def _load_masked(self, operand: Masked, slot: int) -> int:
        kind = field_type(operand.field.name).type
        after = self.load(operand.field, slot)
        value = kind.parse(operand.value.text)
        ones = b"\xff" * kind.size
        if operand.op == "&":
            self.bitwise(slot, value, b"\0" * kind.size)
        elif operand.op == "|":
            self.bitwise(slot, bytes(a ^ b for a, b in zip(ones, value, strict=True)), value)
        else:
            self.bitwise(slot, ones, value)
        return after

    def bitwise(self, slot: int, mask: bytes, flip: bytes) -> None:
        """``register = register & mask ^ flip``."""
        self.add(
            "bitwise",
            u32(uapi.NFTA_BITWISE_SREG, register(slot))
            + u32(uapi.NFTA_BITWISE_DREG, register(slot))
            + u32(uapi.NFTA_BITWISE_LEN, len(mask))
            + data_value(uapi.NFTA_BITWISE_MASK, mask)
            + data_value(uapi.NFTA_BITWISE_XOR, flip),
        )

    def compare(self, slot: int, op: str, data: bytes) -> None:
        """Ends the rule unless the comparison with the register holds."""
        self.add(
            "cmp",
            u32(uapi.NFTA_CMP_SREG, register(slot))
            + u32(uapi.NFTA_CMP_OP, COMPARISONS[op])
            + data_value(uapi.NFTA_CMP_DATA, data),
        )

    def lookup(self, name: str, slot: int, answer: int | None = None, *, invert: bool = False, number: int = 0) -> None:
        """Looks up the registers from ``slot`` on; with ``answer``, the map's data are stored there."""
        payload = text(uapi.NFTA_LOOKUP_SET, name) + u32(uapi.NFTA_LOOKUP_SREG, register(slot))
        if answer is not None:
            payload += u32(uapi.NFTA_LOOKUP_DREG, register(answer) if answer >= 0 else uapi.NFT_REG_VERDICT)
        if number:
            payload += u32(uapi.NFTA_LOOKUP_SET_ID, number)
        self.add("lookup", payload + (u32(uapi.NFTA_LOOKUP_FLAGS, uapi.NFT_LOOKUP_F_INV) if invert else b""))

    def immediate(self, slot: int, data: bytes) -> None:
        """Loads a constant."""
        self.add(
            "immediate", u32(uapi.NFTA_IMMEDIATE_DREG, register(slot)) + data_value(uapi.NFTA_IMMEDIATE_DATA, data)
        )

    def match(self, match: Match) -> None:
        """A match of any kind."""
        if isinstance(match.right, LiteralValue):
            self._match_value(match, match.right.text)
            return
        self.load(match.left)
        if isinstance(match.right, SetRef):
            self.lookup(match.right.name, 0, invert=match.op == "!=")
            return
        declared = _anonymous(operand_types(match.left)[0].name, match.right)
        carried = AnonymousSet(self.first_set + len(self.sets), declared)
        self.sets.append(carried)
        self.lookup("__set%d", 0, invert=match.op == "!=", number=carried.number)

    def _match_value(self, match: Match, value: str) -> None:
        kind = operand_types(match.left)[0]
        if kind.flags and match.op == "==" and isinstance(match.left, Field):
            self.load(match.left)
            self.bitwise(0, kind.parse(value), b"\0" * kind.size)
            self.compare(0, "!=", b"\0" * kind.size)
        elif kind.name in ("ipv4_addr", "ipv6_addr") and "/" in value and isinstance(match.left, Field):
            self._match_prefix(match, value)
        elif kind.name == "ifname" and value.endswith('*"'):
            self.load(match.left)
            self.compare(0, match.op, value.strip('"')[:-1].encode())
        elif "-" in value and kind.name in ("inet_service", "ipv4_addr", "ipv6_addr", "inet_proto"):
            first, last = interval_bounds(kind.name, value)
            self.load(match.left)
            self.add(
                "range",
                u32(uapi.NFTA_RANGE_SREG, register(0))
                + u32(uapi.NFTA_RANGE_OP, COMPARISONS[match.op])
                + data_value(uapi.NFTA_RANGE_FROM_DATA, first)
                + data_value(uapi.NFTA_RANGE_TO_DATA, last),
            )
        else:
            self.load(match.left)
            data = kind.parse(value)
            self.compare(0, match.op, data)
            self._note(match, data)

    def _note(self, match: Match, data: bytes) -> None:
        if match.op == "==" and isinstance(match.left, Field):
            if match.left.name in ("meta l4proto", "ip protocol", "ip6 nexthdr"):
                self.protocol = data[0]
            elif match.left.name == "meta nfproto":
                self.network = "ip" if data[0] == FAMILIES["ip"] else "ip6"
            elif match.left.name == "meta protocol":
                self.network = match.right.text if isinstance(match.right, LiteralValue) else ""

    def _match_prefix(self, match: Match, value: str) -> None:
        assert isinstance(match.left, Field)
        field = field_type(match.left.name)
        first, _ = interval_bounds(field.kind, value)
        prefix = int(value.partition("/")[2])
        self.need(field)
        if field.source == "payload" and prefix and prefix % 8 == 0:
            self.load_field(field, 0, prefix // 8)
            self.compare(0, match.op, first[: prefix // 8])
            return
        bits = field.type.size * 8
        mask = ((1 << bits) - (1 << (bits - prefix))).to_bytes(field.type.size, "big")
        self.load_field(field, 0)
        self.bitwise(0, mask, b"\0" * len(mask))
        self.compare(0, match.op, first)

    def verdict(self, verdict: Verdict) -> None:
        """Adds a verdict, which ends the rule."""
        self.add(
            "immediate",
            u32(uapi.NFTA_IMMEDIATE_DREG, uapi.NFT_REG_VERDICT) + verdict_value(uapi.NFTA_IMMEDIATE_DATA, verdict),
        )

    def verdict_map(self, statement: VerdictMap) -> None:
        """A verdict from a map."""
        self.load(statement.key)
        self.lookup(statement.map, 0, answer=-1)

    def assign(self, statement: Assign) -> None:
        """Sets a mark, or an address in the packet's header."""
        field = field_type(statement.field.name)
        self.need(field)
        if isinstance(statement.value, LiteralValue):
            self.immediate(0, field.type.parse(statement.value.text))
        else:
            self.load(statement.value)
        if field.source == "ct":
            self.add("ct", u32(uapi.NFTA_CT_KEY, field.a) + u32(uapi.NFTA_CT_SREG, register(0)))
        elif field.source == "payload":
            self.add("payload", _header_write(field))
        else:
            self.add(field.source, u32(uapi.NFTA_META_KEY, field.a) + u32(uapi.NFTA_META_SREG, register(0)))

    def nat(self, statement: Nat) -> None:
        """Rewrites an address."""
        family = FAMILIES[statement.family]
        payload = u32(uapi.NFTA_NAT_TYPE, uapi.NFT_NAT_SNAT if statement.kind == "snat" else uapi.NFT_NAT_DNAT) + u32(
            uapi.NFTA_NAT_FAMILY, family
        )
        size = 1 if statement.family == "ip" else 4
        if isinstance(statement.address, Mapped):
            self.load(statement.address)
            payload += u32(uapi.NFTA_NAT_REG_ADDR_MIN, register(0)) + (
                u32(uapi.NFTA_NAT_REG_PROTO_MIN, register(size)) if statement.ports else b""
            )
        elif statement.address is not None:
            kind = field_type("ip daddr" if statement.family == "ip" else "ip6 daddr").type
            self.immediate(0, kind.parse(statement.address.text))
            payload += u32(uapi.NFTA_NAT_REG_ADDR_MIN, register(0))
        if statement.port is not None:
            self.immediate(4, struct.pack("!H", int(statement.port.text)))
            payload += u32(uapi.NFTA_NAT_REG_PROTO_MIN, register(4))
        self.add("nat", payload + _flags(uapi.NFTA_NAT_FLAGS, statement.flags))

    def masquerade(self, statement: Masquerade) -> None:
        """Masquerade: the source becomes the address of the output device."""
        self.add("masq", _flags(uapi.NFTA_MASQ_FLAGS, statement.flags))

    def redirect(self, statement: Redirect) -> None:
        """Redirect to this machine."""
        payload = b""
        if statement.port is not None:
            self.immediate(0, struct.pack("!H", int(statement.port.text)))
            payload = u32(uapi.NFTA_REDIR_REG_PROTO_MIN, register(0))
        self.add("redir", payload)

    def reject(self, statement: Reject) -> None:
        """Reject with an error message."""
        if statement.how == "tcp reset":
            if self.protocol != 6:
                self._require("meta l4proto", b"\x06")
                self.protocol = 6
            self.add("reject", u32(uapi.NFTA_REJECT_TYPE, uapi.NFT_REJECT_TCP_RST))
            return
        kind, _, code = statement.how.partition(" ")
        kind = kind or {"ip": "icmp", "ip6": "icmpv6"}.get(self.family, "icmpx")
        number = REJECT_CODES[kind][code or "port-unreachable"]
        answer = uapi.NFT_REJECT_ICMPX_UNREACH if kind == "icmpx" else uapi.NFT_REJECT_ICMP_UNREACH
        self.add("reject", u32(uapi.NFTA_REJECT_TYPE, answer) + attribute(uapi.NFTA_REJECT_ICMP_CODE, bytes([number])))

    def counter(self, _statement: Counter) -> None:
        """A counter, from zero."""
        self.add("counter", u64(uapi.NFTA_COUNTER_BYTES, 0) + u64(uapi.NFTA_COUNTER_PACKETS, 0))

    def log(self, statement: LogStatement) -> None:
        """A log line or netlink message."""
        payload = text(uapi.NFTA_LOG_PREFIX, statement.prefix) if statement.prefix else b""
        if statement.group is not None:
            payload += attribute(uapi.NFTA_LOG_GROUP, struct.pack("!H", statement.group))
        elif statement.level:
            payload += u32(uapi.NFTA_LOG_LEVEL, LOG_LEVELS[statement.level])
        self.add("log", payload)

    def limit(self, statement: Limit) -> None:
        """A rate."""
        self.add("limit", nft_limits.limit_payload(statement))

    def synproxy(self, statement: SynProxy) -> None:
        """Cookies in place of connections."""
        self.add("synproxy", nft_limits.synproxy_payload(statement))

    def update(self, statement: Update) -> None:
        """Adds an element to a dynamic set."""
        behind = self.load(statement.key)
        payload = (
            text(uapi.NFTA_DYNSET_SET_NAME, statement.set)
            + u32(uapi.NFTA_DYNSET_OP, DYNSET_OPS[statement.op])
            + u32(uapi.NFTA_DYNSET_SREG_KEY, register(0))
        )
        if statement.data is not None:
            slot = (behind + 3) & ~3
            self.load(statement.data, slot)
            payload += u32(uapi.NFTA_DYNSET_SREG_DATA, register(slot))
        if statement.bound is not None:
            payload += nft_limits.bound_payload(statement.bound)
        self.add(
            "dynset",
            payload + (u64(uapi.NFTA_DYNSET_TIMEOUT, statement.timeout_s * 1000) if statement.timeout_s else b""),
        )

    def notrack(self, _statement: Notrack) -> None:
        """No connection tracking."""
        self.out.append(nested(uapi.NFTA_LIST_ELEM, text(uapi.NFTA_EXPR_NAME, "notrack")))


def _flags(kind: int, flags: tuple[str, ...]) -> bytes:
    return u32(kind, sum(NAT_FLAGS[flag] for flag in flags)) if flags else b""


def _anonymous(type_name: str, values: Values) -> Set:
    interval = any("/" in value or "-" in value for value in values.values) and not type_name.startswith("icmp")
    flags = ("anonymous", "constant", "interval") if interval else ("anonymous", "constant")
    declared = Set(name="__set%d", key=(type_name,), flags=flags)
    return declared.with_elements(declared.element(value) for value in values.values)


_WRITERS: dict[type, Callable[[_Writer, Any], None]] = {
    Match: _Writer.match,
    Verdict: _Writer.verdict,
    VerdictMap: _Writer.verdict_map,
    Assign: _Writer.assign,
    Nat: _Writer.nat,
    Masquerade: _Writer.masquerade,
    Redirect: _Writer.redirect,
    Reject: _Writer.reject,
    Counter: _Writer.counter,
    LogStatement: _Writer.log,
    Limit: _Writer.limit,
    Update: _Writer.update,
    Notrack: _Writer.notrack,
    SynProxy: _Writer.synproxy,
}
