"""Follows a packet through nftables tables given as values, and names the rules that decide. Pure.

The base chains of a hook run in the order of their priorities, as in the kernel: after ``accept`` and the end of a
chain the next base chain follows, ``drop`` and ``reject`` end the packet. A packet from outside passes prerouting, then
input, or forward and postrouting; a packet of this machine passes output and postrouting, and input as well when it is
for this machine. ``numgen`` can yield any number: :meth:`Tracer.outcomes` follows every choice. Dynamic sets keep their
elements between packets, as in the kernel; time does not advance. An unsupported statement raises an error; none is
skipped.

Cost: one walk of the rules per choice.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from math import prod

import msgspec

from podwire.errors import ProtocolError
from podwire.state.nft import Chain, Element, Set, Table, interval_bounds
from podwire.state.nft_fields import field_type
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
from podwire.state.nft_types import PROTOCOLS, data_type, pack, unpack, width
from podwire.trace.nft_field_values import FlowContext, text_of
from podwire.trace.nft_numgen import Draw, alike
from podwire.trace.packet import LocalAddresses, Outcome, Packet, TraceStep

_COMMENT = re.compile(r' comment "([^"]*)"$')
_ADDRESS_TYPES = {"ip": "ipv4_addr", "ip6": "ipv6_addr"}


class _NoMatch(Exception):
    """A match failed, which ends its rule."""


class _Ended(Exception):
    """A rule dropped or rejected the packet."""

    def __init__(self, verdict: str) -> None:
        super().__init__(verdict)
        self.verdict = verdict


class Tracer:
    """The tables of one machine, and the elements of their dynamic sets."""

    def __init__(self, tables: Iterable[Table], machine: LocalAddresses) -> None:
        self.tables = tuple(tables)
        self.machine = machine
        self.sets: dict[tuple[str, str, str], Set] = {
            (table.family, table.name, declared.name): declared for table in self.tables for declared in table.sets
        }
        self.memory: dict[tuple[str, str, str], dict[bytes, Element | None]] = {}
        """Elements that packets added to dynamic sets, or deleted (None)."""

    def trace(self, packet: Packet, choices: Iterable[int] = ()) -> Outcome:
        """The outcome for a packet; ``choices`` are the answers of ``numgen`` in order, then 0."""
        return _Walk(self, packet, list(choices)).run()

    def about(self, step: TraceStep) -> str:
        """The comment of the step's chain, or that of its rule if the chain has none."""
        for table in self.tables:
            if f"{table.family} {table.name}" == step.table:
                comments = (chain.comment for chain in table.chains if chain.name == step.chain and chain.comment)
                match = _COMMENT.search(step.rule)
                return next(comments, match[1] if match is not None else "")
        return ""

    def hook(self, frame: Packet, name: str) -> Outcome:
        """The outcome for a frame at one hook of a bridge; its devices are ports."""
        return _Walk(self, frame, []).frame(name)

    def outcomes(self, packet: Packet) -> Iterator[Outcome]:
        """Every outcome that ``numgen`` allows, once each. Elements that the packet adds are dropped afterwards.

        All answers of ``numgen`` without an element in a map are one choice, because the rules that follow are the
        same.
        """
        before = {place: dict(entries) for place, entries in self.memory.items()}
        outcomes: dict[tuple[object, ...], Outcome] = {}
        choices: list[int] = []
        draws: list[Draw] = []
        while True:
            self.memory = {place: dict(entries) for place, entries in before.items()}
            walk = _Walk(self, packet, choices, draws)
            outcome = walk.run()
            result = (outcome.verdict, outcome.packet, outcome.translated, outcome.masqueraded, outcome.delivered)
            earlier = outcomes.get(result)
            if earlier is not None:
                outcome = msgspec.structs.replace(earlier, probability=earlier.probability + outcome.probability)
            outcomes[result] = outcome
            choices, draws = walk.chosen, walk.draws
            while choices and draws[-1].after(choices[-1]) is None:
                choices.pop()
                draws.pop()
            if not choices:
                self.memory = before
                yield from outcomes.values()
                return
            choices[-1] = draws[-1].after(choices[-1]) or 0


class _Walk:
    """The rules that one packet passes.

    A dispatch table: one method for each kind of statement and operand.
    """

    def __init__(self, tracer: Tracer, packet: Packet, choices: list[int], draws: Iterable[Draw] = ()) -> None:
        """``draws`` follow the first choices, as far as they are known."""
        self.tracer = tracer
        self.packet = packet
        self.original = packet
        self.choices = list(choices)
        self.chosen: list[int] = []
        self.known_draws = list(draws)
        self.draws: list[Draw] = []
        self.steps: list[TraceStep] = []
        self.translated = False
        self.masqueraded = False
        self.table = Table(family="ip", name="")
        self.hook = ""
        self.matched: list[tuple[Set, bytes, Element]] = []
        """The elements of sets and maps that the present rule matched."""
        self.added: set[tuple[str, bytes]] = set()
        """The elements that the packet itself added to dynamic sets."""
        self.remembered: dict[str, None] = {}
        self.fields: dict[str, bytes] = {}
        """Fields of the present packet that were read."""
        self.rules: tuple[Rule, ...] = ()
        """The present rule and the following ones."""
        self.tried = 1
        """The number of following rules that need not run, because they draw the same random number."""
        self.families: tuple[str, ...] = ("inet", packet.family)
        """The families whose tables the packet passes."""

    def frame(self, hook: str) -> Outcome:
        """Passes one hook of a bridge."""
        self.families = ("bridge",)
        verdict = "accept"
        try:
            self.pass_hook(hook)
        except _Ended as ended:
            verdict = ended.verdict
        return Outcome(verdict=verdict, packet=self.packet, steps=tuple(self.steps))

    def run(self) -> Outcome:
        """Passes all hooks."""
        delivered = False
        verdict = "accept"
        try:
            if self.packet.input:
                self.pass_hook("prerouting")
                delivered = self.tracer.machine.owns(self.packet.destination)
                self.pass_hook("input" if delivered else "forward")
            else:
                self.pass_hook("output")
                delivered = self.tracer.machine.owns(self.packet.destination)
            if not delivered or not self.packet.input:
                self.pass_hook("postrouting")
            if delivered and not self.packet.input:
                self.pass_hook("input")
        except _Ended as ended:
            verdict = ended.verdict
        return Outcome(
            verdict=verdict,
            packet=self.packet,
            translated=self.translated,
            masqueraded=self.masqueraded,
            delivered=delivered,
            steps=tuple(self.steps),
            probability=prod(draw.probability(n) for draw, n in zip(self.draws, self.chosen, strict=True)),
            remembered=tuple(self.remembered),
        )

    def pass_hook(self, hook: str) -> None:
        """Passes all base chains of a hook."""
        chains = [
            (chain.priority, table, chain)
            for table in self.tracer.tables
            if table.family in self.families
            for chain in table.chains
            if chain.hook == hook
        ]
        self.hook = hook
        for _, table, chain in sorted(chains, key=lambda entry: entry[0]):
            if chain.type == "nat" and (self.packet.state != "new" or (self.translated and hook != "postrouting")):
                continue
            self.table = table
            verdict = self.run_chain(chain)
            if verdict is None and chain.policy == "drop":
                self.record(chain, "policy drop")
                raise _Ended("drop")

    def record(self, chain: Chain, rule: str) -> None:
        """Records a rule that took part."""
        elements = tuple(_element_text(*match) for match in self.matched)
        self.matched = []
        self.steps.append(TraceStep(self.hook, f"{self.table.family} {self.table.name}", chain.name, rule, elements))

    def run_chain(self, chain: Chain) -> str | None:
        """``accept`` when a rule accepted the packet, None at the end of the chain."""
        position = 0
        while position < len(chain.rules):
            self.rules, self.tried = chain.rules[position:], 1
            verdict = self.run_rule(chain, chain.rules[position])
            position += self.tried
            if verdict is None:
                continue
            if verdict.kind == "accept":
                return "accept"
            if verdict.kind == "return":
                return None
            if verdict.kind == "drop":
                raise _Ended("drop")
            answer = self.run_chain(self.table.chain(verdict.chain))
            if answer is not None or verdict.kind == "goto":
                return answer
        return None

    def run_rule(self, chain: Chain, rule: Rule) -> Verdict | None:
        """The verdict of a rule; None when it has none or did not match."""
        self.matched = []
        try:
            for statement in rule.statements:
                verdict = self.statement(chain, rule, statement)
                if verdict is not None:
                    if not isinstance(statement, Reject | Nat):
                        self.record(chain, str(rule))
                    return None if verdict.kind == "continue" else verdict
        except _NoMatch:
            return None
        self.record(chain, str(rule))
        return None

    def statement(self, chain: Chain, rule: Rule, statement: Statement) -> Verdict | None:
        """Runs one statement; returns its verdict."""
        match statement:
            case Match():
                self.match(statement)
            case Verdict():
                return statement
            case VerdictMap():
                return self.verdict_map(statement)
            case Assign():
                self.assign(statement)
            case Update():
                self.update(statement)
            case Counter() | LogStatement() | Limit() | Notrack():
                pass
            case Reject():
                if statement.how == "tcp reset" and self.packet.protocol != "tcp":
                    raise _NoMatch
                self.record(chain, str(rule))
                raise _Ended("reject")
            case _:
                return self.translate(chain, rule, statement)
        return None

    def translate(self, chain: Chain, rule: Rule, statement: Statement) -> Verdict:
        """An address translation; it accepts the packet at this hook."""
        if isinstance(statement, Masquerade) or (isinstance(statement, Nat) and statement.kind == "snat"):
            self.masqueraded = True
            return Verdict("accept")
        if isinstance(statement, Redirect):
            loopback = "127.0.0.1" if self.packet.family == "ip" else "::1"
            self.redirect(loopback, int(statement.port.text) if statement.port else None)
            return Verdict("accept")
        if not isinstance(statement, Nat):
            raise ProtocolError("local", f"the tracer does not know {statement}")
        if isinstance(statement.address, Mapped):
            types = (_ADDRESS_TYPES[statement.family], "inet_service")
            values = unpack(types if statement.ports else types[:1], self.value(statement.address))
            self.redirect(values[0], int(values[1]) if statement.ports else None)
        elif statement.address is not None:
            self.redirect(statement.address.text, int(statement.port.text) if statement.port else None)
        self.record(chain, str(rule))
        return Verdict("accept")

    def redirect(self, address: str, port: int | None) -> None:
        """A new destination."""
        self.packet = msgspec.structs.replace(
            self.packet, destination=address, destination_port=self.packet.destination_port if port is None else port
        )
        self.translated = True
        self.fields.clear()

    def match(self, match: Match) -> None:
        """Raises _NoMatch when the packet does not match."""
        value = self.value(match.left)
        if isinstance(match.right, SetRef):
            matched = self.find(match.right.name, value) is not None
        elif isinstance(match.right, Values):
            matched = any(self.equal(match.left, value, text) for text in match.right.values)
        else:
            matched = self.compare(match, value, match.right)
        if matched == (match.op == "!="):
            raise _NoMatch

    def compare(self, match: Match, value: bytes, right: LiteralValue) -> bool:
        """Whether the values agree, for ``==`` and ``!=`` alike."""
        kind = operand_types(match.left)[0]
        if kind.flags and isinstance(match.left, Field) and match.op == "==":
            bits = kind.parse(right.text)
            return any(a & b for a, b in zip(value, bits, strict=True))
        return self.equal(match.left, value, right.text)

    def equal(self, left: Operand, value: bytes, text: str) -> bool:
        """Whether a value equals the text, or lies in its interval or wildcard."""
        kind = operand_types(left)[0]
        if kind.name == "ifname":
            name, pattern = value.rstrip(b"\0").decode(), text.strip('"')
            return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        if "/" in text or ("-" in text and kind.name in ("inet_service", "ipv4_addr", "ipv6_addr")):
            first, last = interval_bounds(kind.name, text)
            return first <= value <= last
        return value == kind.parse(text)

    def set_key(self, name: str) -> tuple[str, str, str]:
        """The key of a set of the present table."""
        return self.table.family, self.table.name, name

    def find(self, name: str, key: bytes) -> Element | None:
        """The element of a set or map that contains the key."""
        declared = self.tracer.sets[self.set_key(name)]
        start, element = self.find_with_key(declared, key)
        if element is not None:
            self.matched.append((declared, start, element))
            if declared.dynamic and (name, key) not in self.added:
                self.remembered[_element_text(declared, start, element)] = None
        return element

    def find_with_key(self, declared: Set, key: bytes) -> tuple[bytes, Element | None]:
        """The element that contains the key, with its own key."""
        memory = self.tracer.memory.get(self.set_key(declared.name), {})
        if key in memory:
            return key, memory[key]
        if "interval" not in declared.flags:
            return key, declared.elements.get(key)
        for start, element in declared.elements.items():
            if _inside(declared, start, element.end or start, key):
                return start, element
        return key, None

    def verdict_map(self, statement: VerdictMap) -> Verdict | None:
        """The verdict of a map; without one the rule ends."""
        element = self.find(statement.map, self.value(statement.key))
        if element is None or element.verdict is None:
            raise _NoMatch
        return element.verdict

    def assign(self, statement: Assign) -> None:
        """Sets the packet's mark, or its destination."""
        if statement.field.name.endswith("saddr"):
            raise ProtocolError("local", f"the tracer does not know {statement}")
        if isinstance(statement.value, LiteralValue):
            data = field_type(statement.field.name).type.parse(statement.value.text)
        else:
            data = self.value(statement.value)
        if statement.field.name == "meta mark":
            mark = int(data_type("mark").render(data[:4]), 0)
            self.packet = msgspec.structs.replace(self.packet, mark=mark)
            self.fields.pop("meta mark", None)
        elif statement.field.name in ("ip daddr", "ip6 daddr"):
            self.redirect(data_type(_ADDRESS_TYPES[self.packet.family]).render(data), None)

    def update(self, statement: Update) -> None:
        """Adds an element to a dynamic set, or deletes it."""
        set_key = self.set_key(statement.set)
        entries = self.tracer.memory.setdefault(set_key, {})
        key = self.value(statement.key)
        if statement.op == "delete":
            entries[key] = None
        elif self.find_with_key(self.tracer.sets[set_key], key)[1] is None:
            data = self.value(statement.data) if statement.data is not None else b""
            entries[key] = Element(data)
            self.added.add((statement.set, key))

    def value(self, operand: Operand) -> bytes:
        """The bytes of an operand; padded fields for a concatenation."""
        if isinstance(operand, Field):
            return self.field(operand.name)
        if isinstance(operand, Numgen):
            return self.slot(operand, self.choose(lambda: Draw(operand.modulus)))
        if isinstance(operand, Masked):
            return self.masked(operand)
        if isinstance(operand, Mapped):
            element = self.find(operand.map, self.drawn_key(operand))
            if element is None:
                raise _NoMatch
            return element.data
        return self.joined(operand.parts)

    def joined(self, parts: Iterable[Operand]) -> bytes:
        """Values side by side, each padded to 4 bytes."""
        values = (self.value(part) for part in parts)
        return b"".join(value.ljust(width(len(value)), b"\0") for value in values)

    def slot(self, numgen: Numgen, number: int) -> bytes:
        """A number as ``numgen`` yields it."""
        return data_type("slot").parse(str(numgen.offset + number))

    def drawn_key(self, mapped: Mapped) -> bytes:
        """The key of a map, part of which may be a random number."""
        parts = mapped.key.parts if isinstance(mapped.key, Concat) else (mapped.key,)
        place = next((index for index, part in enumerate(parts) if isinstance(part, Numgen)), None)
        if place is None:
            return self.value(mapped.key)
        numgen = parts[place]
        assert isinstance(numgen, Numgen)
        head, tail = self.joined(parts[:place]), self.joined(parts[place + 1 :])
        declared = self.tracer.sets[self.set_key(mapped.map)]

        def draw() -> Draw:
            keys = ((n, head + self.slot(numgen, n) + tail) for n in range(numgen.modulus))
            numbers = [n for n, key in keys if self.find_with_key(declared, key)[1] is not None]
            return Draw(numgen.modulus, numbers, alike(self.rules) if numbers else 1)

        number = self.choose(draw)
        if number == self.draws[-1].miss:
            self.tried = self.draws[-1].tries
        return head + self.slot(numgen, number) + tail

    def choose(self, draw: Callable[[], Draw]) -> int:
        """The next random number."""
        index = len(self.chosen)
        drawn = self.known_draws[index] if index < len(self.known_draws) else draw()
        answer = self.choices[index] if index < len(self.choices) else drawn.options[0]
        self.chosen.append(answer)
        self.draws.append(drawn)
        return answer

    def masked(self, operand: Masked) -> bytes:
        """A value with bits changed."""
        value = self.value(operand.field)
        mask = field_type(operand.field.name).type.parse(operand.value.text)
        pairs = zip(value, mask, strict=True)
        if operand.op == "&":
            return bytes(a & b for a, b in pairs)
        return bytes(a | b for a, b in pairs) if operand.op == "|" else bytes(a ^ b for a, b in pairs)

    def field(self, name: str) -> bytes:
        """The bytes of a field; no match when the packet does not have the field."""
        known = self.fields.get(name)
        if known is None:
            known = self.fields[name] = self.read(name)
        return known

    def read(self, name: str) -> bytes:
        """The bytes of a field that was not read yet."""
        kind = field_type(name)
        if kind.family and kind.family != self.packet.family:
            raise _NoMatch
        if kind.protocol and kind.protocol != PROTOCOLS.get(self.packet.protocol):
            raise _NoMatch
        flow = FlowContext(original=self.original, translated=self.translated, machine=self.tracer.machine)
        return pack((kind.kind,), (text_of(name, self.packet, flow),))


def _element_text(declared: Set, key: bytes, element: Element) -> str:
    kind = "map" if declared.data else "set"
    return f"{kind} {declared.name} {{ {declared.element_text(key, element)} }}"


def _inside(declared: Set, start: bytes, end: bytes, key: bytes) -> bool:
    offset = 0
    for name in declared.key:
        size = data_type(name).size
        part = slice(offset, offset + size)
        if not start[part] <= key[part] <= end[part]:
            return False
        offset += width(size)
    return True
