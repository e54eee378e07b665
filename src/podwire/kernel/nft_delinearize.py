"""Decodes the kernel's register expressions into rules. Pure.

The expressions are run symbolically: a register holds the operand that was loaded, and a statement uses the operands of
the registers that it names. A match that nft adds before a field is removed when that field follows. An expression or
combination that ``state.nft_rules`` cannot express makes the rule :class:`~podwire.state.nft_rules.Opaque`.
"""

from collections.abc import Mapping

from podwire.kernel import nft_limits, uapi
from podwire.kernel.nft_codec import attribute_list, attributes, number, string
from podwire.kernel.nft_linearize import (
    COMPARISONS,
    DYNSET_OPS,
    LOG_LEVELS,
    NAT_FLAGS,
    REJECT_CODES,
    VERDICT_CODES,
)
from podwire.state.nft import FAMILIES, Set, interval_text
from podwire.state.nft_fields import FieldType, field_type, loaded_field, payload_field
from podwire.state.nft_rules import (
    Assign,
    Concat,
    Counter,
    Field,
    LiteralValue,
    LogStatement,
    Mapped,
    Masked,
    Masquerade,
    Match,
    Nat,
    Notrack,
    Numgen,
    Opaque,
    Operand,
    Redirect,
    Reject,
    Rule,
    SetRef,
    Statement,
    Update,
    Values,
    Verdict,
    VerdictMap,
    operand_types,
)
from podwire.state.nft_types import data_type, width

_VERDICTS = {code & 0xFFFFFFFF: name for name, code in VERDICT_CODES.items()}
_OPS = {code: op for op, code in COMPARISONS.items()}
_LEVELS = {code: level for level, code in LOG_LEVELS.items()}
_DYNSET = {code: op for op, code in DYNSET_OPS.items()}


_KEY = uapi.NFTA_META_KEY
_DREG = uapi.NFTA_META_DREG
"""The expressions ``meta``, ``ct`` and ``fib`` have the same numbers for these."""


class _Unknown(Exception):
    """An expression that ``state.nft_rules`` cannot express; the argument is its name."""


def verdict_of(payload: bytes) -> Verdict:
    """The verdict in a ``NFTA_DATA_VERDICT`` payload."""
    attrs = attributes(payload)
    return Verdict(
        _VERDICTS.get(number(attrs.get(uapi.NFTA_VERDICT_CODE)), "drop"), string(attrs.get(uapi.NFTA_VERDICT_CHAIN))
    )


def delinearize(expressions: bytes, family: str, sets: Mapping[str, Set], comment: str = "") -> Rule:
    """The rule of an expression list; ``sets`` are those of its table, with anonymous ones."""
    reader = _Reader(family, sets)
    try:
        for _, element in attribute_list(expressions):
            outer = attributes(element)
            reader.expression(string(outer.get(uapi.NFTA_EXPR_NAME)), attributes(outer.get(uapi.NFTA_EXPR_DATA, b"")))
    except _Unknown as unknown:
        return Rule((Opaque(str(unknown)),), comment)
    return Rule(tuple(reader.out), comment)


def _slot(payload: bytes | None) -> int:
    attrs = number(payload)
    first = uapi.NFT_REG32_00
    return attrs - first if attrs >= first else (attrs - 1) * 4


def _data(payload: bytes | None) -> bytes:
    return attributes(payload or b"").get(uapi.NFTA_DATA_VALUE, b"")


class _Partial:
    """The first bytes of a payload field, before a prefix match."""

    def __init__(self, field: FieldType) -> None:
        self.field = field


class _Bits:
    """A field after ``& mask ^ flip``."""

    def __init__(self, field: Field, mask: bytes, flip: bytes) -> None:
        self.field, self.mask, self.flip = field, mask, flip


Content = Field | Numgen | Masked | Concat | Mapped | _Partial | _Bits | bytes


class _Reader:
    """The registers, and the statements so far.

    A dispatch table: one method for each kind of expression, which ``_READERS`` names.
    """

    def __init__(self, family: str, sets: Mapping[str, Set]) -> None:
        self.family = family
        self.sets = sets
        self.out: list[Statement] = []
        self.registers: dict[int, Content] = {}
        self.protocol = 0
        self.network = family if family in ("ip", "ip6") else ""
        self.implied: Match | None = None

    def expression(self, name: str, attrs: dict[int, bytes]) -> None:
        """Runs one expression."""
        read = _READERS.get(name)
        if read is None:
            raise _Unknown(name)
        read(self, attrs)

    def drop_implied(self, name: str) -> None:
        """Removes the match that the loaded field implies."""
        last = self.out[-1] if self.out else None
        if last is not None and last is self.implied and isinstance(last, Match) and str(last.left) == name:
            self.out.pop()
        self.implied = None

    def payload(self, attrs: dict[int, bytes]) -> None:
        """A header field that is loaded, whole or its first bytes; or an address that is set."""
        base, offset, size = (
            number(attrs.get(uapi.NFTA_PAYLOAD_BASE)),
            number(attrs.get(uapi.NFTA_PAYLOAD_OFFSET)),
            number(attrs.get(uapi.NFTA_PAYLOAD_LEN)),
        )
        field = payload_field(base, offset, size, self.network, self.protocol)
        if uapi.NFTA_PAYLOAD_SREG in attrs:
            self.set_field(field, _slot(attrs[uapi.NFTA_PAYLOAD_SREG]))
            return
        slot = _slot(attrs.get(uapi.NFTA_PAYLOAD_DREG))
        if field is None:
            self.registers[slot] = _Partial(self._shortened(base, offset, size))
            return
        self._follow(field)
        self.registers[slot] = Field(field.name)

    def _shortened(self, base: int, offset: int, size: int) -> FieldType:
        for whole in (4, 16):
            field = payload_field(base, offset, whole, self.network, 0)
            if field is not None and size < whole and base == 1:
                self._follow(field)
                return field
        raise _Unknown(f"payload {base} {offset} {size}")

    def _follow(self, field: FieldType) -> None:
        if field.protocol:
            self.drop_implied("meta l4proto")
        elif field.family and self.family not in ("ip", "ip6"):
            self.drop_implied("meta protocol" if self.family == "bridge" else "meta nfproto")

    def loaded(self, source: str, attrs: dict[int, bytes], direction: int) -> None:
        """A ``meta``, ``ct`` or ``fib`` value."""
        a = number(attrs.get(_KEY))
        field = loaded_field(source, a, direction)
        if field is None:
            raise _Unknown(f"{source} {a}")
        self.registers[_slot(attrs.get(_DREG))] = Field(field.name)

    def meta(self, attrs: dict[int, bytes]) -> None:
        """Loads or sets packet metadata."""
        if uapi.NFTA_META_SREG in attrs:
            self.assign("meta", attrs, _slot(attrs[uapi.NFTA_META_SREG]))
        else:
            self.loaded("meta", attrs, 0)

    def connection(self, attrs: dict[int, bytes]) -> None:
        """Loads or sets connection data."""
        if uapi.NFTA_CT_SREG in attrs:
            self.assign("ct", attrs, _slot(attrs[uapi.NFTA_CT_SREG]))
        else:
            self.loaded("ct", attrs, number(attrs[uapi.NFTA_CT_DIRECTION]) if uapi.NFTA_CT_DIRECTION in attrs else -1)

    def fib(self, attrs: dict[int, bytes]) -> None:
        """A routing lookup."""
        self.loaded("fib", attrs, number(attrs.get(uapi.NFTA_FIB_FLAGS)))

    def socket(self, attrs: dict[int, bytes]) -> None:
        """A value of the local socket that the packet leads to."""
        key = number(attrs.get(uapi.NFTA_SOCKET_KEY))
        field = loaded_field("socket", key, 0)
        if field is None:
            raise _Unknown(f"socket {key}")
        self.registers[_slot(attrs.get(uapi.NFTA_SOCKET_DREG))] = Field(field.name)

    def assign(self, source: str, attrs: dict[int, bytes], slot: int) -> None:
        """A mark that is set."""
        self.set_field(loaded_field(source, number(attrs.get(_KEY)), 0 if source == "meta" else -1), slot)

    def set_field(self, field: FieldType | None, slot: int) -> None:
        """A field that is set to the content of a register."""
        if field is None:
            raise _Unknown("set")
        if field.source == "payload":
            self._follow(field)
        content = self.registers.get(slot)
        value = LiteralValue(field.type.render(content)) if isinstance(content, bytes) else self.operand(slot)
        self.out.append(Assign(Field(field.name), value))

    def operand(self, slot: int) -> Operand:
        """The operand in a register."""
        content = self.registers.get(slot)
        if isinstance(content, _Bits):
            return _masked(content)
        if content is None or isinstance(content, bytes | _Partial):
            raise _Unknown("register")
        return content

    def numgen(self, attrs: dict[int, bytes]) -> None:
        """A generated number."""
        mode = "random" if number(attrs.get(uapi.NFTA_NG_TYPE)) else "inc"
        self.registers[_slot(attrs.get(uapi.NFTA_NG_DREG))] = Numgen(
            number(attrs.get(uapi.NFTA_NG_MODULUS)), number(attrs.get(uapi.NFTA_NG_OFFSET)), mode
        )

    def bitwise(self, attrs: dict[int, bytes]) -> None:
        """Masks a register."""
        content = self.registers.get(_slot(attrs.get(uapi.NFTA_BITWISE_SREG)))
        if not isinstance(content, Field) or number(attrs.get(uapi.NFTA_BITWISE_OP)):
            raise _Unknown("bitwise")
        self.registers[_slot(attrs.get(uapi.NFTA_BITWISE_DREG))] = _Bits(
            content, _data(attrs.get(uapi.NFTA_BITWISE_MASK)), _data(attrs.get(uapi.NFTA_BITWISE_XOR))
        )

    def compare(self, attrs: dict[int, bytes]) -> None:
        """A match with a constant."""
        slot, op, data = (
            _slot(attrs.get(uapi.NFTA_CMP_SREG)),
            _OPS[number(attrs.get(uapi.NFTA_CMP_OP))],
            _data(attrs.get(uapi.NFTA_CMP_DATA)),
        )
        content = self.registers.get(slot)
        if isinstance(content, _Partial):
            size = content.field.type.size
            padded = int.from_bytes(data.ljust(size, b"\0"), "big").to_bytes(size, "big")
            text = f"{content.field.type.render(padded)}/{len(data) * 8}"
            self.out.append(Match(Field(content.field.name), LiteralValue(text), op))
        elif isinstance(content, _Bits):
            self.out.append(_bits_match(content, op, data))
        else:
            self._compare_field(self.operand(slot), op, data)

    def _compare_field(self, operand: Operand, op: str, data: bytes) -> None:
        kind = operand_types(operand)[0]
        wildcard = kind.name == "ifname" and len(data) < 16
        text = '"' + data.decode() + '*"' if wildcard else kind.render(data)
        match = Match(operand, LiteralValue(text), op)
        last = self.out[-1] if self.out else None
        if op == "<=" and isinstance(last, Match) and last.op == ">=" and last.left == operand:
            first = kind.parse(str(last.right))
            self.out[-1] = Match(operand, LiteralValue(interval_text(kind.name, first, data)))
            return
        self.out.append(match)
        if op == "==" and isinstance(operand, Field):
            self._note(match, operand.name, data)

    def _note(self, match: Match, name: str, data: bytes) -> None:
        if name in ("meta l4proto", "ip protocol", "ip6 nexthdr"):
            self.protocol = data[0]
            self.implied = match
        elif name == "meta nfproto":
            self.network = "ip" if data[0] == FAMILIES["ip"] else "ip6"
            self.implied = match
        elif name == "meta protocol":
            self.network = str(match.right)
            self.implied = match

    def range(self, attrs: dict[int, bytes]) -> None:
        """A match with an interval."""
        operand = self.operand(_slot(attrs.get(uapi.NFTA_RANGE_SREG)))
        text = interval_text(
            operand_types(operand)[0].name,
            _data(attrs.get(uapi.NFTA_RANGE_FROM_DATA)),
            _data(attrs.get(uapi.NFTA_RANGE_TO_DATA)),
        )
        self.out.append(Match(operand, LiteralValue(text), _OPS[number(attrs.get(uapi.NFTA_RANGE_OP))]))

    def key(self, slot: int, declared: Set, *, masked: bool = False) -> Field | Numgen | Concat:
        """The fields in the registers of a set's key; with ``masked``, a concatenation may contain masked fields."""
        parts: list[Field | Numgen | Masked] = []
        for name in declared.key:
            part = self.operand(slot)
            if not isinstance(part, Field | Numgen | Masked) or (isinstance(part, Masked) and not masked):
                raise _Unknown("lookup key")
            parts.append(part)
            slot += width(data_type(name).size) // 4
        if len(parts) > 1:
            return Concat(tuple(parts))
        if isinstance(parts[0], Masked):
            raise _Unknown("lookup key")
        return parts[0]

    def lookup(self, attrs: dict[int, bytes]) -> None:
        """A set match, the answer of a map, or a verdict map."""
        declared = self.sets.get(string(attrs.get(uapi.NFTA_LOOKUP_SET)))
        if declared is None:
            raise _Unknown("lookup")
        key = self.key(_slot(attrs.get(uapi.NFTA_LOOKUP_SREG)), declared)
        op = "!=" if number(attrs.get(uapi.NFTA_LOOKUP_FLAGS)) & uapi.NFT_LOOKUP_F_INV else "=="
        if uapi.NFTA_LOOKUP_DREG not in attrs:
            self.out.append(Match(key, _set_operand(declared), op))
        elif number(attrs[uapi.NFTA_LOOKUP_DREG]) == uapi.NFT_REG_VERDICT:
            self.out.append(VerdictMap(key, declared.name))
        else:
            self.registers[_slot(attrs[uapi.NFTA_LOOKUP_DREG])] = Mapped(key, declared.name)

    def immediate(self, attrs: dict[int, bytes]) -> None:
        """A constant, or a verdict."""
        if number(attrs.get(uapi.NFTA_IMMEDIATE_DREG)) == uapi.NFT_REG_VERDICT:
            self.out.append(
                verdict_of(attributes(attrs.get(uapi.NFTA_IMMEDIATE_DATA, b"")).get(uapi.NFTA_DATA_VERDICT, b""))
            )
        else:
            self.registers[_slot(attrs.get(uapi.NFTA_IMMEDIATE_DREG))] = _data(attrs.get(uapi.NFTA_IMMEDIATE_DATA))

    def nat(self, attrs: dict[int, bytes]) -> None:
        """An address translation."""
        kind = "dnat" if number(attrs.get(uapi.NFTA_NAT_TYPE)) == uapi.NFT_NAT_DNAT else "snat"
        family = "ip" if number(attrs.get(uapi.NFTA_NAT_FAMILY)) == FAMILIES["ip"] else "ip6"
        address = (
            self.registers.get(_slot(attrs.get(uapi.NFTA_NAT_REG_ADDR_MIN)))
            if uapi.NFTA_NAT_REG_ADDR_MIN in attrs
            else None
        )
        flags = _flag_names(number(attrs.get(uapi.NFTA_NAT_FLAGS)))
        if isinstance(address, Mapped):
            self.out.append(Nat(kind, family, address, ports=uapi.NFTA_NAT_REG_PROTO_MIN in attrs, flags=flags))
            return
        port = (
            self.registers.get(_slot(attrs.get(uapi.NFTA_NAT_REG_PROTO_MIN)))
            if uapi.NFTA_NAT_REG_PROTO_MIN in attrs
            else None
        )
        if not isinstance(address, bytes) or not isinstance(port, bytes | None):
            raise _Unknown("nat")
        text = data_type("ipv4_addr" if family == "ip" else "ipv6_addr").render(address)
        shown = None if port is None else LiteralValue(str(int.from_bytes(port[:2], "big")))
        self.out.append(Nat(kind, family, LiteralValue(text), shown, flags=flags))

    def masquerade(self, attrs: dict[int, bytes]) -> None:
        """Masquerade: the source becomes the address of the output device."""
        if uapi.NFTA_MASQ_REG_PROTO_MIN in attrs:
            raise _Unknown("masq")
        self.out.append(Masquerade(_flag_names(number(attrs.get(uapi.NFTA_MASQ_FLAGS)))))

    def redirect(self, attrs: dict[int, bytes]) -> None:
        """Redirect to this machine."""
        port = (
            self.registers.get(_slot(attrs.get(uapi.NFTA_REDIR_REG_PROTO_MIN)))
            if uapi.NFTA_REDIR_REG_PROTO_MIN in attrs
            else None
        )
        if not isinstance(port, bytes | None):
            raise _Unknown("redir")
        self.out.append(Redirect(None if port is None else LiteralValue(str(int.from_bytes(port[:2], "big")))))

    def reject(self, attrs: dict[int, bytes]) -> None:
        """Reject with an error message."""
        kind, code = number(attrs.get(uapi.NFTA_REJECT_TYPE)), number(attrs.get(uapi.NFTA_REJECT_ICMP_CODE))
        if kind == uapi.NFT_REJECT_TCP_RST:
            self.drop_implied("meta l4proto")
            self.out.append(Reject("tcp reset"))
            return
        default = {"ip": "icmp", "ip6": "icmpv6"}.get(self.family, "icmpx")
        reject_type = "icmpx" if kind == uapi.NFT_REJECT_ICMPX_UNREACH else default
        for name, value in REJECT_CODES[reject_type].items():
            if value == code:
                plain = reject_type == default and name == "port-unreachable"
                self.out.append(Reject("" if plain else f"{reject_type} {name}"))
                return
        raise _Unknown("reject")

    def counter(self, attrs: dict[int, bytes]) -> None:
        """A counter with its packets and bytes."""
        self.out.append(
            Counter(number(attrs.get(uapi.NFTA_COUNTER_PACKETS)), number(attrs.get(uapi.NFTA_COUNTER_BYTES)))
        )

    def log(self, attrs: dict[int, bytes]) -> None:
        """A log line or netlink message."""
        level = _LEVELS.get(number(attrs.get(uapi.NFTA_LOG_LEVEL), 4), "")
        group = number(attrs[uapi.NFTA_LOG_GROUP]) if uapi.NFTA_LOG_GROUP in attrs else None
        self.out.append(
            LogStatement(
                string(attrs.get(uapi.NFTA_LOG_PREFIX)), "" if level == "warn" or group is not None else level, group
            )
        )

    def limit(self, attrs: dict[int, bytes]) -> None:
        """A rate."""
        limit = nft_limits.read_limit(attrs)
        if limit is None:
            raise _Unknown("limit")
        self.out.append(limit)

    def synproxy(self, attrs: dict[int, bytes]) -> None:
        """Cookies in place of connections."""
        statement = nft_limits.read_synproxy(attrs)
        if statement is None:
            raise _Unknown("synproxy")
        self.out.append(statement)

    def dynset(self, attrs: dict[int, bytes]) -> None:
        """Adds an element to a dynamic set."""
        declared = self.sets.get(string(attrs.get(uapi.NFTA_DYNSET_SET_NAME)))
        bound = nft_limits.read_bound(attrs[uapi.NFTA_DYNSET_EXPR]) if uapi.NFTA_DYNSET_EXPR in attrs else None
        if declared is None or (bound is None and uapi.NFTA_DYNSET_EXPR in attrs):
            raise _Unknown("dynset")
        key = self.key(_slot(attrs.get(uapi.NFTA_DYNSET_SREG_KEY)), declared, masked=True)
        data = self.operand(_slot(attrs[uapi.NFTA_DYNSET_SREG_DATA])) if uapi.NFTA_DYNSET_SREG_DATA in attrs else None
        if isinstance(key, Numgen) or not isinstance(data, Field | Numgen | None):
            raise _Unknown("dynset")
        timeout = number(attrs.get(uapi.NFTA_DYNSET_TIMEOUT)) // 1000
        op = _DYNSET[number(attrs.get(uapi.NFTA_DYNSET_OP))]
        self.out.append(Update(op, declared.name, key, data, timeout, bound))

    def notrack(self, _attrs: dict[int, bytes]) -> None:
        """No connection tracking."""
        self.out.append(Notrack())


def _flag_names(flags: int) -> tuple[str, ...]:
    return tuple(name for name, bit in NAT_FLAGS.items() if flags & bit)


def _set_operand(declared: Set) -> SetRef | Values:
    if "anonymous" not in declared.flags:
        return SetRef(declared.name)
    ordered = sorted(declared.elements.items())
    return Values(tuple(declared.element_text(key, element) for key, element in ordered))


def _masked(content: _Bits) -> Masked:
    kind = field_type(content.field.name).type
    inverse = bytes(byte ^ 0xFF for byte in content.flip)
    if not any(content.flip):
        return Masked(content.field, "&", LiteralValue(kind.render(content.mask)))
    if content.mask == inverse:
        return Masked(content.field, "|", LiteralValue(kind.render(content.flip)))
    if all(byte == 0xFF for byte in content.mask):
        return Masked(content.field, "^", LiteralValue(kind.render(content.flip)))
    raise _Unknown("bitwise")


def _bits_match(content: _Bits, op: str, data: bytes) -> Match:
    kind = field_type(content.field.name).type
    if kind.flags and op == "!=" and not any(data) and not any(content.flip):
        return Match(content.field, LiteralValue(kind.render(content.mask)))
    if kind.name in ("ipv4_addr", "ipv6_addr") and not any(content.flip):
        prefix = int.from_bytes(content.mask, "big").bit_count()
        return Match(content.field, LiteralValue(f"{kind.render(data)}/{prefix}"), op)
    return Match(_masked(content), LiteralValue(kind.render(data)), op)


_READERS = {
    "payload": _Reader.payload,
    "meta": _Reader.meta,
    "ct": _Reader.connection,
    "fib": _Reader.fib,
    "socket": _Reader.socket,
    "numgen": _Reader.numgen,
    "bitwise": _Reader.bitwise,
    "cmp": _Reader.compare,
    "range": _Reader.range,
    "lookup": _Reader.lookup,
    "immediate": _Reader.immediate,
    "nat": _Reader.nat,
    "masq": _Reader.masquerade,
    "redir": _Reader.redirect,
    "reject": _Reader.reject,
    "counter": _Reader.counter,
    "log": _Reader.log,
    "limit": _Reader.limit,
    "dynset": _Reader.dynset,
    "notrack": _Reader.notrack,
    "synproxy": _Reader.synproxy,
}
