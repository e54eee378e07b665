"""The kernel's register expressions back into rules (pure).

The expressions are run symbolically: a register holds the operand that was loaded there, and a statement takes what
lies in the registers that it names. Matches that nft implies are dropped again when the field that implied them
follows. An expression or combination that has no counterpart in ``state.nft_rules`` makes the rule
:class:`~podwire.state.nft_rules.Opaque`.
"""

from collections.abc import Mapping

from podwire.kernel import uapi
from podwire.kernel.nft_codec import attributes, number, pieces, string
from podwire.kernel.nft_linearize import (
    COMPARISONS,
    DYNSET_OPS,
    LIMIT_UNITS,
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
_UNITS = {seconds: unit for unit, seconds in LIMIT_UNITS.items()}
_LEVELS = {code: level for level, code in LOG_LEVELS.items()}
_DYNSET = {code: op for op, code in DYNSET_OPS.items()}


_KEY = uapi.NFTA_META_KEY
_DREG = uapi.NFTA_META_DREG
"""The expressions ``meta``, ``ct`` and ``fib`` have the same numbers for these."""


class _Unknown(Exception):
    """An expression without a counterpart; the argument says which."""


def verdict_of(payload: bytes) -> Verdict:
    """The verdict in a ``NFTA_DATA_VERDICT`` payload."""
    found = attributes(payload)
    return Verdict(
        _VERDICTS.get(number(found.get(uapi.NFTA_VERDICT_CODE)), "drop"), string(found.get(uapi.NFTA_VERDICT_CHAIN))
    )


def delinearize(expressions: bytes, family: str, sets: Mapping[str, Set], comment: str = "") -> Rule:
    """The rule that an expression list means; ``sets`` are those of its table, anonymous ones included."""
    reader = _Reader(family, sets)
    try:
        for _, element in pieces(expressions):
            outer = attributes(element)
            reader.expression(string(outer.get(uapi.NFTA_EXPR_NAME)), attributes(outer.get(uapi.NFTA_EXPR_DATA, b"")))
    except _Unknown as unknown:
        return Rule((Opaque(str(unknown)),), comment)
    return Rule(tuple(reader.out), comment)


def _slot(payload: bytes | None) -> int:
    found = number(payload)
    first = uapi.NFT_REG32_00
    return found - first if found >= first else (found - 1) * 4


def _data(payload: bytes | None) -> bytes:
    return attributes(payload or b"").get(uapi.NFTA_DATA_VALUE, b"")


class _Partial:
    """The first bytes of a payload field, on their way to a prefix match."""

    def __init__(self, field: FieldType) -> None:
        self.field = field


class _Bits:
    """A field after ``& mask ^ flip``."""

    def __init__(self, field: Field, mask: bytes, flip: bytes) -> None:
        self.field, self.mask, self.flip = field, mask, flip


Content = Field | Numgen | Masked | Concat | Mapped | _Partial | _Bits | bytes


class _Reader:
    """Registers and the statements so far."""

    def __init__(self, family: str, sets: Mapping[str, Set]) -> None:
        self.family = family
        self.sets = sets
        self.out: list[Statement] = []
        self.registers: dict[int, Content] = {}
        self.protocol = 0
        self.network = family if family in ("ip", "ip6") else ""
        self.implied: Match | None = None

    def expression(self, name: str, found: dict[int, bytes]) -> None:
        """Runs one expression."""
        read = _READERS.get(name)
        if read is None:
            raise _Unknown(name)
        read(self, found)

    def drop_implied(self, name: str) -> None:
        """Takes back the match that the field just loaded implies."""
        last = self.out[-1] if self.out else None
        if last is not None and last is self.implied and isinstance(last, Match) and str(last.left) == name:
            self.out.pop()
        self.implied = None

    def payload(self, found: dict[int, bytes]) -> None:
        """A header field, whole or its first bytes."""
        base, offset, size = (
            number(found.get(uapi.NFTA_PAYLOAD_BASE)),
            number(found.get(uapi.NFTA_PAYLOAD_OFFSET)),
            number(found.get(uapi.NFTA_PAYLOAD_LEN)),
        )
        field = payload_field(base, offset, size, self.network, self.protocol)
        slot = _slot(found.get(uapi.NFTA_PAYLOAD_DREG))
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

    def loaded(self, source: str, found: dict[int, bytes], direction: int) -> None:
        """A ``meta``, ``ct`` or ``fib`` value."""
        a = number(found.get(_KEY))
        field = loaded_field(source, a, direction)
        if field is None:
            raise _Unknown(f"{source} {a}")
        self.registers[_slot(found.get(_DREG))] = Field(field.name)

    def meta(self, found: dict[int, bytes]) -> None:
        """Loads or sets packet metadata."""
        if uapi.NFTA_META_SREG in found:
            self.assign("meta", found, _slot(found[uapi.NFTA_META_SREG]))
        else:
            self.loaded("meta", found, 0)

    def connection(self, found: dict[int, bytes]) -> None:
        """Loads or sets connection data."""
        if uapi.NFTA_CT_SREG in found:
            self.assign("ct", found, _slot(found[uapi.NFTA_CT_SREG]))
        else:
            self.loaded("ct", found, number(found[uapi.NFTA_CT_DIRECTION]) if uapi.NFTA_CT_DIRECTION in found else -1)

    def fib(self, found: dict[int, bytes]) -> None:
        """A routing lookup."""
        self.loaded("fib", found, number(found.get(uapi.NFTA_FIB_FLAGS)))

    def assign(self, source: str, found: dict[int, bytes], slot: int) -> None:
        """A mark that is set."""
        field = loaded_field(source, number(found.get(_KEY)), 0 if source == "meta" else -1)
        if field is None:
            raise _Unknown(f"{source} set")
        content = self.registers.get(slot)
        value = LiteralValue(field.type.render(content)) if isinstance(content, bytes) else self.operand(slot)
        self.out.append(Assign(Field(field.name), value))

    def operand(self, slot: int) -> Operand:
        """What a register holds, as an operand."""
        content = self.registers.get(slot)
        if isinstance(content, _Bits):
            return _masked(content)
        if content is None or isinstance(content, bytes | _Partial):
            raise _Unknown("register")
        return content

    def numgen(self, found: dict[int, bytes]) -> None:
        """A generated number."""
        mode = "random" if number(found.get(uapi.NFTA_NG_TYPE)) else "inc"
        self.registers[_slot(found.get(uapi.NFTA_NG_DREG))] = Numgen(
            number(found.get(uapi.NFTA_NG_MODULUS)), number(found.get(uapi.NFTA_NG_OFFSET)), mode
        )

    def bitwise(self, found: dict[int, bytes]) -> None:
        """Masks a register."""
        content = self.registers.get(_slot(found.get(uapi.NFTA_BITWISE_SREG)))
        if not isinstance(content, Field) or number(found.get(uapi.NFTA_BITWISE_OP)):
            raise _Unknown("bitwise")
        self.registers[_slot(found.get(uapi.NFTA_BITWISE_DREG))] = _Bits(
            content, _data(found.get(uapi.NFTA_BITWISE_MASK)), _data(found.get(uapi.NFTA_BITWISE_XOR))
        )

    def compare(self, found: dict[int, bytes]) -> None:
        """A match with a constant."""
        slot, op, data = (
            _slot(found.get(uapi.NFTA_CMP_SREG)),
            _OPS[number(found.get(uapi.NFTA_CMP_OP))],
            _data(found.get(uapi.NFTA_CMP_DATA)),
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

    def range(self, found: dict[int, bytes]) -> None:
        """A match with an interval."""
        operand = self.operand(_slot(found.get(uapi.NFTA_RANGE_SREG)))
        text = interval_text(
            operand_types(operand)[0].name,
            _data(found.get(uapi.NFTA_RANGE_FROM_DATA)),
            _data(found.get(uapi.NFTA_RANGE_TO_DATA)),
        )
        self.out.append(Match(operand, LiteralValue(text), _OPS[number(found.get(uapi.NFTA_RANGE_OP))]))

    def key(self, slot: int, declared: Set, *, masked: bool = False) -> Field | Numgen | Concat:
        """The fields in the registers that a set's key covers; with ``masked``, a concatenation may have such."""
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

    def lookup(self, found: dict[int, bytes]) -> None:
        """A set match, a map's answer or a verdict map."""
        declared = self.sets.get(string(found.get(uapi.NFTA_LOOKUP_SET)))
        if declared is None:
            raise _Unknown("lookup")
        key = self.key(_slot(found.get(uapi.NFTA_LOOKUP_SREG)), declared)
        op = "!=" if number(found.get(uapi.NFTA_LOOKUP_FLAGS)) & uapi.NFT_LOOKUP_F_INV else "=="
        if uapi.NFTA_LOOKUP_DREG not in found:
            self.out.append(Match(key, _set_operand(declared), op))
        elif number(found[uapi.NFTA_LOOKUP_DREG]) == uapi.NFT_REG_VERDICT:
            self.out.append(VerdictMap(key, declared.name))
        else:
            self.registers[_slot(found[uapi.NFTA_LOOKUP_DREG])] = Mapped(key, declared.name)

    def immediate(self, found: dict[int, bytes]) -> None:
        """A constant, or a verdict."""
        if number(found.get(uapi.NFTA_IMMEDIATE_DREG)) == uapi.NFT_REG_VERDICT:
            self.out.append(
                verdict_of(attributes(found.get(uapi.NFTA_IMMEDIATE_DATA, b"")).get(uapi.NFTA_DATA_VERDICT, b""))
            )
        else:
            self.registers[_slot(found.get(uapi.NFTA_IMMEDIATE_DREG))] = _data(found.get(uapi.NFTA_IMMEDIATE_DATA))

    def nat(self, found: dict[int, bytes]) -> None:
        """An address translation."""
        kind = "dnat" if number(found.get(uapi.NFTA_NAT_TYPE)) == uapi.NFT_NAT_DNAT else "snat"
        family = "ip" if number(found.get(uapi.NFTA_NAT_FAMILY)) == FAMILIES["ip"] else "ip6"
        address = (
            self.registers.get(_slot(found.get(uapi.NFTA_NAT_REG_ADDR_MIN)))
            if uapi.NFTA_NAT_REG_ADDR_MIN in found
            else None
        )
        flags = _flag_names(number(found.get(uapi.NFTA_NAT_FLAGS)))
        if isinstance(address, Mapped):
            self.out.append(Nat(kind, family, address, ports=uapi.NFTA_NAT_REG_PROTO_MIN in found, flags=flags))
            return
        port = (
            self.registers.get(_slot(found.get(uapi.NFTA_NAT_REG_PROTO_MIN)))
            if uapi.NFTA_NAT_REG_PROTO_MIN in found
            else None
        )
        if not isinstance(address, bytes) or not isinstance(port, bytes | None):
            raise _Unknown("nat")
        text = data_type("ipv4_addr" if family == "ip" else "ipv6_addr").render(address)
        shown = None if port is None else LiteralValue(str(int.from_bytes(port[:2], "big")))
        self.out.append(Nat(kind, family, LiteralValue(text), shown, flags=flags))

    def masquerade(self, found: dict[int, bytes]) -> None:
        """Source address of the way out."""
        if uapi.NFTA_MASQ_REG_PROTO_MIN in found:
            raise _Unknown("masq")
        self.out.append(Masquerade(_flag_names(number(found.get(uapi.NFTA_MASQ_FLAGS)))))

    def redirect(self, found: dict[int, bytes]) -> None:
        """To this machine."""
        port = (
            self.registers.get(_slot(found.get(uapi.NFTA_REDIR_REG_PROTO_MIN)))
            if uapi.NFTA_REDIR_REG_PROTO_MIN in found
            else None
        )
        if not isinstance(port, bytes | None):
            raise _Unknown("redir")
        self.out.append(Redirect(None if port is None else LiteralValue(str(int.from_bytes(port[:2], "big")))))

    def reject(self, found: dict[int, bytes]) -> None:
        """An answer of refusal."""
        kind, code = number(found.get(uapi.NFTA_REJECT_TYPE)), number(found.get(uapi.NFTA_REJECT_ICMP_CODE))
        if kind == uapi.NFT_REJECT_TCP_RST:
            self.drop_implied("meta l4proto")
            self.out.append(Reject("tcp reset"))
            return
        default = {"ip": "icmp", "ip6": "icmpv6"}.get(self.family, "icmpx")
        word = "icmpx" if kind == uapi.NFT_REJECT_ICMPX_UNREACH else default
        for name, value in REJECT_CODES[word].items():
            if value == code:
                plain = word == default and name == "port-unreachable"
                self.out.append(Reject("" if plain else f"{word} {name}"))
                return
        raise _Unknown("reject")

    def counter(self, found: dict[int, bytes]) -> None:
        """A counter with what it has counted."""
        self.out.append(
            Counter(number(found.get(uapi.NFTA_COUNTER_PACKETS)), number(found.get(uapi.NFTA_COUNTER_BYTES)))
        )

    def log(self, found: dict[int, bytes]) -> None:
        """A log line or netlink message."""
        level = _LEVELS.get(number(found.get(uapi.NFTA_LOG_LEVEL), 4), "")
        group = number(found[uapi.NFTA_LOG_GROUP]) if uapi.NFTA_LOG_GROUP in found else None
        self.out.append(
            LogStatement(
                string(found.get(uapi.NFTA_LOG_PREFIX)), "" if level == "warn" or group is not None else level, group
            )
        )

    def limit(self, found: dict[int, bytes]) -> None:
        """A rate."""
        unit = _UNITS.get(number(found.get(uapi.NFTA_LIMIT_UNIT)))
        if unit is None or number(found.get(uapi.NFTA_LIMIT_TYPE)) != uapi.NFT_LIMIT_PKTS:
            raise _Unknown("limit")
        over = bool(number(found.get(uapi.NFTA_LIMIT_FLAGS)) & uapi.NFT_LIMIT_F_INV)
        self.out.append(
            Limit(number(found.get(uapi.NFTA_LIMIT_RATE)), unit, number(found.get(uapi.NFTA_LIMIT_BURST)), over)
        )

    def dynset(self, found: dict[int, bytes]) -> None:
        """An entry into a dynamic set."""
        declared = self.sets.get(string(found.get(uapi.NFTA_DYNSET_SET_NAME)))
        if declared is None or uapi.NFTA_DYNSET_EXPR in found:
            raise _Unknown("dynset")
        key = self.key(_slot(found.get(uapi.NFTA_DYNSET_SREG_KEY)), declared, masked=True)
        data = self.operand(_slot(found[uapi.NFTA_DYNSET_SREG_DATA])) if uapi.NFTA_DYNSET_SREG_DATA in found else None
        if isinstance(key, Numgen) or not isinstance(data, Field | Numgen | None):
            raise _Unknown("dynset")
        timeout = number(found.get(uapi.NFTA_DYNSET_TIMEOUT)) // 1000
        self.out.append(Update(_DYNSET[number(found.get(uapi.NFTA_DYNSET_OP))], declared.name, key, data, timeout))

    def notrack(self, _found: dict[int, bytes]) -> None:
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
}
