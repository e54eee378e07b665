"""Parses nft's own text into values: rules, and whole tables as ``nft list table`` prints them.

Rules are parsed token by token: an operand is the longest field name at the position, ``numgen``, a concatenation, a
mask or a map's answer; the next token decides the statement. Literals are converted to the form that nft prints
(``10.0.0.5/8`` becomes ``10.0.0.0/8``, ``0x4000`` becomes ``0x00004000``), so two texts of one rule give equal values.

An unknown statement is an error; none is skipped.
"""

import re
from collections.abc import Callable
from functools import lru_cache

from podwire.errors import ConfigError
from podwire.state.nft import PRIORITIES, Chain, Element, Set, Table, interval_bounds, interval_text
from podwire.state.nft_fields import FIELDS
from podwire.state.nft_rules import (
    Assign,
    Concat,
    ConnectionCount,
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
from podwire.state.nft_types import TYPES, DataType

_TOKEN = re.compile(r'"[^"]*"|[{};,]|[^\s{};,"]+')
_VERDICTS = frozenset(("accept", "drop", "continue", "return"))
_NAT_FLAGS = frozenset(("random", "fully-random", "persistent"))
_LONGEST_FIELD = max(len(name.split()) for name in FIELDS)
_DURATION = re.compile(r"(\d+)([dhms])")
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


class Tokens:
    """The tokens of one rule or table, and the position of the parser."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.items = _TOKEN.findall(text)
        self.at = 0

    @property
    def done(self) -> bool:
        """Whether no token is left."""
        return self.at >= len(self.items)

    def peek(self, ahead: int = 0) -> str:
        """The token at this distance; empty behind the end."""
        position = self.at + ahead
        return self.items[position] if position < len(self.items) else ""

    def take(self) -> str:
        """The next token.

        Raises: ConfigError at the end.
        """
        if self.done:
            raise self.problem("ends too early")
        self.at += 1
        return str(self.items[self.at - 1])

    def skip(self, token: str) -> bool:
        """Takes the token if it is the next one."""
        if self.peek() != token:
            return False
        self.at += 1
        return True

    def expect(self, token: str) -> None:
        """Takes this token.

        Raises: ConfigError when the next token is another one.
        """
        if not self.skip(token):
            raise self.problem(f"expected {token!r}")

    def problem(self, problem: str) -> ConfigError:
        """An error that shows the position."""
        return ConfigError("nft", "", f"{problem} at {self.items[self.at : self.at + 4]} in {self.text[:200]!r}")


@lru_cache(maxsize=1024)
def parse_rule(text: str) -> Rule:
    """One rule from nft's text, cached: the rules of a layout are written as text, and many chains have the same.

    Raises: ConfigError with the position of the error.
    """
    tokens = Tokens(text)
    statements: list[Statement] = []
    comment = ""
    while not tokens.done:
        if tokens.skip("comment"):
            comment = tokens.take().strip('"')
        else:
            statements.append(_statement(tokens))
    return Rule(tuple(statements), comment)


def parse_seconds(text: str) -> int:
    """``1h30m`` in seconds."""
    return sum(int(count) * _UNITS[unit] for count, unit in _DURATION.findall(text))


def _statement(tokens: Tokens) -> Statement:
    word = tokens.peek()
    if word in _VERDICTS:
        return Verdict(tokens.take())
    if word in ("jump", "goto"):
        return Verdict(tokens.take(), tokens.take())
    reader = _STATEMENTS.get(word)
    if reader is not None:
        tokens.take()
        return reader(tokens, word)
    return _match(tokens)


def _nat(tokens: Tokens, kind: str) -> Nat:
    family = tokens.take() if tokens.peek() in ("ip", "ip6") and tokens.peek(1) == "to" else ""
    tokens.expect("to")
    mapped = _try_operand(tokens)
    if isinstance(mapped, Mapped):
        return Nat(kind, family or "ip", mapped, ports=bool(family), flags=_flags(tokens))
    if mapped is not None:
        raise tokens.problem("expected a map")
    address, port = _socket_address(tokens.take())
    family = family or ("ip6" if ":" in address else "ip")
    return Nat(kind, family, LiteralValue(address), None if not port else LiteralValue(port), flags=_flags(tokens))


def _socket_address(text: str) -> tuple[str, str]:
    if text.startswith("["):
        address, _, port = text[1:].partition("]")
        return address, port.removeprefix(":")
    if text.count(":") > 1:
        return text, ""
    address, _, port = text.partition(":")
    return address, port


def _flags(tokens: Tokens) -> tuple[str, ...]:
    names: list[str] = []
    while tokens.peek() in _NAT_FLAGS:
        names.append(tokens.take())
        tokens.skip(",")
    return tuple(names)


def _masquerade(tokens: Tokens, _word: str) -> Masquerade:
    return Masquerade(_flags(tokens))


def _redirect(tokens: Tokens, _word: str) -> Redirect:
    return Redirect(LiteralValue(tokens.take().removeprefix(":"))) if tokens.skip("to") else Redirect()


def _reject(tokens: Tokens, _word: str) -> Reject:
    if not tokens.skip("with"):
        return Reject()
    kind = tokens.take()
    if kind == "tcp":
        tokens.expect("reset")
        return Reject("tcp reset")
    tokens.skip("type")
    return Reject(f"{kind} {tokens.take()}")


def _counter(tokens: Tokens, _word: str) -> Counter:
    packets = int(tokens.take()) if tokens.skip("packets") else 0
    return Counter(packets, int(tokens.take()) if tokens.skip("bytes") else 0)


def _log(tokens: Tokens, _word: str) -> LogStatement:
    prefix = tokens.take().strip('"') if tokens.skip("prefix") else ""
    level = tokens.take() if tokens.skip("level") else ""
    return LogStatement(prefix, level, int(tokens.take()) if tokens.skip("group") else None)


def _limit(tokens: Tokens, _word: str) -> Limit:
    tokens.expect("rate")
    over = tokens.skip("over")
    rate, _, unit = tokens.take().partition("/")
    burst = 5
    if tokens.skip("burst"):
        burst = int(tokens.take())
        tokens.expect("packets")
    return Limit(int(rate), unit, burst, over)


def _update(tokens: Tokens, word: str) -> Update:
    name = tokens.take().removeprefix("@")
    tokens.expect("{")
    key = _update_key(tokens)
    timeout = parse_seconds(tokens.take()) if tokens.skip("timeout") else 0
    bound = _bound(tokens)
    data = _simple(tokens) if tokens.skip(":") else None
    tokens.expect("}")
    if isinstance(data, Concat):
        raise tokens.problem("the data must be one value")
    return Update(word, name, key, data, timeout, bound)


def _bound(tokens: Tokens) -> Limit | ConnectionCount | None:
    if tokens.skip("limit"):
        return _limit(tokens, "limit")
    if not tokens.skip("ct"):
        return None
    tokens.expect("count")
    tokens.expect("over")
    return ConnectionCount(int(tokens.take()))


def _synproxy(tokens: Tokens, _word: str) -> SynProxy:
    tokens.expect("mss")
    mss = int(tokens.take())
    tokens.expect("wscale")
    wscale = int(tokens.take())
    tokens.expect("timestamp")
    tokens.expect("sack-perm")
    return SynProxy(mss, wscale)


def _update_key(tokens: Tokens) -> Field | Concat:
    parts = [_masked_or_simple(tokens)]
    while tokens.skip("."):
        parts.append(_masked_or_simple(tokens))
    if len(parts) > 1:
        return Concat(tuple(parts))
    if not isinstance(parts[0], Field):
        raise tokens.problem("the key must be made of fields")
    return parts[0]


def _masked_or_simple(tokens: Tokens) -> Field | Numgen | Masked:
    operand = _simple(tokens)
    if isinstance(operand, Field) and tokens.peek() in ("&", "|", "^"):
        return Masked(operand, tokens.take(), _value(tokens, operand_types(operand)))
    return operand


_STATEMENTS: dict[str, Callable[[Tokens, str], Statement]] = {
    "dnat": _nat,
    "snat": _nat,
    "masquerade": _masquerade,
    "redirect": _redirect,
    "reject": _reject,
    "counter": _counter,
    "log": _log,
    "limit": _limit,
    "add": _update,
    "update": _update,
    "delete": _update,
    "notrack": lambda _tokens, _word: Notrack(),
    "synproxy": _synproxy,
}


def _match(tokens: Tokens) -> Statement:
    operand = _try_operand(tokens)
    if operand is None:
        raise tokens.problem("unknown statement")
    if tokens.skip("vmap"):
        if not isinstance(operand, Field | Numgen | Concat):
            raise tokens.problem("a vmap needs fields as its key")
        return VerdictMap(operand, tokens.take().removeprefix("@"))
    if tokens.skip("set"):
        if not isinstance(operand, Field):
            raise tokens.problem("only a field can be set")
        return Assign(operand, _try_operand(tokens) or _value(tokens, operand_types(operand)))
    op = tokens.take() if tokens.peek() in ("==", "!=", "<", ">", "<=", ">=") else "=="
    if tokens.peek().startswith("@"):
        return Match(operand, SetRef(tokens.take()[1:]), op)
    if tokens.skip("{"):
        return Match(operand, _values(tokens, operand_types(operand)), op)
    return Match(operand, _value(tokens, operand_types(operand)), op)


def _values(tokens: Tokens, types: tuple[DataType, ...]) -> Values:
    texts: list[str] = []
    while not tokens.skip("}"):
        texts.append(_literal(tokens, types[0]))
        tokens.skip(",")
    return Values(sorted_values(types[0], tuple(texts)))


def sorted_values(kind: DataType, values: tuple[str, ...]) -> tuple[str, ...]:
    """The literals of an anonymous set in the order of their bytes."""
    return tuple(sorted(values, key=lambda text: interval_bounds(kind.name, text)))


def _value(tokens: Tokens, types: tuple[DataType, ...]) -> LiteralValue:
    kind = types[0]
    text = _literal(tokens, kind)
    while kind.flags and tokens.skip(","):
        text += "," + tokens.take()
    return LiteralValue(kind.render(kind.parse(text)) if kind.flags else text)


def _literal(tokens: Tokens, kind: DataType) -> str:
    text = tokens.take()
    if kind.flags:
        return text
    if kind.name == "ifname":
        return '"' + text.strip('"') + '"'
    return interval_text(kind.name, *interval_bounds(kind.name, text))


def _try_operand(tokens: Tokens) -> Operand | None:
    operand = _try_concat(tokens)
    if operand is None:
        return None
    if isinstance(operand, Field) and tokens.peek() in ("&", "|", "^"):
        op = tokens.take()
        return Masked(operand, op, _value(tokens, operand_types(operand)))
    if tokens.skip("map"):
        return Mapped(operand, tokens.take().removeprefix("@"))
    return operand


def _concat(tokens: Tokens) -> Field | Numgen | Concat:
    operand = _try_concat(tokens)
    if operand is None:
        raise tokens.problem("expected a field")
    return operand


def _try_concat(tokens: Tokens) -> Field | Numgen | Concat | None:
    first = _try_simple(tokens)
    if first is None or tokens.peek() != ".":
        return first
    parts: list[Field | Numgen | Masked] = [first]
    while tokens.skip("."):
        parts.append(_simple(tokens))
    return Concat(tuple(parts))


def _simple(tokens: Tokens) -> Field | Numgen:
    operand = _try_simple(tokens)
    if operand is None:
        raise tokens.problem("expected a field")
    return operand


def _try_simple(tokens: Tokens) -> Field | Numgen | None:
    if tokens.skip("numgen"):
        mode = tokens.take()
        tokens.expect("mod")
        modulus = int(tokens.take())
        return Numgen(modulus, int(tokens.take()) if tokens.skip("offset") else 0, mode)
    for count in range(_LONGEST_FIELD, 0, -1):
        name = " ".join(tokens.items[tokens.at : tokens.at + count])
        if name in FIELDS:
            tokens.at += count
            return Field(name)
    return None


def parse_table(text: str) -> Table:
    """A table from the output of ``nft list table``; sets and chains are in the order of their names.

    Raises: ConfigError with the position of the error.
    """
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    head = lines[0].split()
    comment, sets, chains = "", [], []
    index = 1
    while index < len(lines) - 1:
        if lines[index].startswith("comment "):
            comment = lines[index].split('"')[1]
            index += 1
            continue
        end = _block_end(lines, index)
        kind, name, _ = lines[index].split(maxsplit=2)
        body = lines[index + 1 : end]
        if kind == "chain":
            chains.append(_chain(name, body))
        else:
            sets.append(_set(name, body))
        index = end + 1
    table = Table(family=head[1], name=head[2], comment=comment, chains=tuple(chains), sets=tuple(sets))
    return table.canonical()


def _block_end(lines: list[str], start: int) -> int:
    for index in range(start + 1, len(lines)):
        if lines[index] == "}":
            return index
    raise ConfigError("nft", "", f"no line `}}` closes the block {lines[start]!r}")


_HOOK = r'hook (?P<hook>\w+)( device "(?P<device>[^"]+)")?'
_BASE = re.compile(rf"type (?P<type>\w+) {_HOOK} priority (?P<priority>[^;]+); policy (?P<policy>\w+);")


def _chain(name: str, body: list[str]) -> Chain:
    rules: list[Rule] = []
    comment, base = "", None
    for line in body:
        if line.startswith("comment "):
            comment = line.split('"')[1]
        elif line.startswith("type ") and (base := _BASE.fullmatch(line)):
            continue
        else:
            rules.append(parse_rule(line))
    if base is None:
        return Chain(name=name, comment=comment, rules=tuple(rules))
    return Chain(
        name=name,
        type=base["type"],
        hook=base["hook"],
        device=base["device"] or "",
        priority=_priority(base["priority"]),
        policy=base["policy"],
        comment=comment,
        rules=tuple(rules),
    )


def _priority(text: str) -> int:
    word, *offset = text.split()
    return PRIORITIES.get(word, 0) + int("".join(offset) or 0) if word in PRIORITIES else int(text)


def _set(name: str, body: list[str]) -> Set:
    settings: dict[str, str] = {}
    elements = ""
    for index, line in enumerate(body):
        if line.startswith("elements = {"):
            elements = " ".join(body[index:]).removeprefix("elements = {").removesuffix("}")
            break
        word, _, rest = line.partition(" ")
        settings[word] = rest
    declared, _, data = (settings.get("type") or settings["typeof"]).partition(" : ")
    names = _types if "type" in settings else _example_types
    flags = tuple(settings["flags"].split(",")) if "flags" in settings else ()
    empty_set = Set(
        name=name,
        key=names(declared),
        data=names(data) if data else (),
        flags=flags,
        size=int(settings.get("size", 0)),
        timeout_s=parse_seconds(settings.get("timeout", "")),
        comment=settings.get("comment", "").strip('"'),
    )
    return empty_set.with_elements(_elements(empty_set, elements))


def _types(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(" . "))


def _example_types(text: str) -> tuple[str, ...]:
    if text.strip() == "verdict":
        return ("verdict",)
    operand = _concat(Tokens(text))
    kinds = {kind.name for kind in TYPES.values()}
    return tuple(kind.name for kind in operand_types(operand) if kind.name in kinds)


def _elements(declared: Set, text: str) -> list[tuple[bytes, Element]]:
    tokens = Tokens(text)
    entries: list[tuple[bytes, Element]] = []
    while not tokens.done:
        key: list[str] = []
        value: list[str] = []
        comment, timeout = "", 0
        target = key
        while not tokens.done and not tokens.skip(","):
            word = tokens.take()
            if word == "comment":
                comment = tokens.take().strip('"')
            elif word in ("timeout", "expires"):
                timeout = parse_seconds(tokens.take()) if word == "timeout" else (tokens.take(), timeout)[1]
            elif word == ":":
                target = value
            else:
                target.append(word)
        entries.append(declared.element(" ".join(key), " ".join(value), comment, timeout))
    return entries
