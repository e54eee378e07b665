"""Follows a packet through tables of iptables given as values, and names the rules that decide. Pure.

A packet passes the hooks as in :mod:`podwire.trace.nft`: from outside PREROUTING, then INPUT, or FORWARD and
POSTROUTING; from this machine OUTPUT and POSTROUTING, and INPUT when it is for this machine. Where a rule matches at
random, both outcomes are possible: :meth:`Tracer.outcomes` follows each. Lists of ``recent`` keep their entries between
packets, as in the kernel; time does not advance. With virtual servers of IPVS, a packet to one of them is taken at the
end of INPUT, or before ``filter`` of OUTPUT when this machine sends it; it continues as a packet of the machine to the
real server. An unsupported option raises an error; none is skipped.

Cost: one walk of the rules, and for each random choice one more walk of the rules behind it. A rule is parsed once for
all packets.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import lru_cache
from math import inf

import msgspec
from msgspec.structs import replace

from podwire.errors import ProtocolError
from podwire.state.iptables import Ruleset
from podwire.state.ipvs import Destination, Key, VirtualServer
from podwire.state.nft_types import PROTOCOLS
from podwire.trace.bytecode import run
from podwire.trace.ipset import Sets, find
from podwire.trace.networks import within
from podwire.trace.packet import LocalAddresses, Outcome, Packet, TraceStep

_WORD = re.compile(r'"[^"]*"|\S+')
_IPVS = "ipvs"
"""A marker in the list of tables: here IPVS takes packets."""

_HOOKS = {
    "prerouting": (("mangle", "PREROUTING"), ("nat", "PREROUTING")),
    "input": (("mangle", "INPUT"), ("filter", "INPUT"), (_IPVS, "INPUT")),
    "forward": (("mangle", "FORWARD"), ("filter", "FORWARD")),
    "output": (("mangle", "OUTPUT"), ("nat", "OUTPUT"), (_IPVS, "OUTPUT"), ("filter", "OUTPUT")),
    "balanced output": (("mangle", "OUTPUT"), ("filter", "OUTPUT")),
    "postrouting": (("mangle", "POSTROUTING"), ("nat", "POSTROUTING")),
}
_ALONE = frozenset(("--rcheck", "--set", "--reap", "--rsource", "--random-fully", "--map-mark"))
"""Options without a value."""
_NO_CONDITION = frozenset(("-m", "--comment", "--mode", "--seconds", "--reap", "--mask", "--rsource", "--random-fully",
                           "--reject-with", "--nfacct-name", "--limit", "--limit-burst"))  # fmt: skip


class RuleOption(msgspec.Struct, frozen=True):
    """One option of a rule with its value."""

    name: str
    value: str = ""
    negated: bool = False


@lru_cache(maxsize=2048)
def parse_rule(text: str) -> tuple[RuleOption, ...]:
    """The options of a rule in their order.

    Raises: ProtocolError for a word that is not the beginning of an option.
    """
    tokens = iter(_WORD.findall(text))
    options: list[RuleOption] = []
    negated = False
    for word in tokens:
        if word == "!":
            negated = True
            continue
        if not word.startswith("-"):
            raise ProtocolError("local", f"the tracer does not know the option {word!r} of the rule {text!r}")
        value = "" if word in _ALONE else next(tokens, "").strip('"')
        if word in ("--match-set", "--map-set", "--tcp-flags"):
            value = f"{value} {next(tokens, '')}"
        options.append(RuleOption(word, value, negated))
        negated = False
    return tuple(options)


class _Ended(Exception):
    """A rule dropped or rejected the packet."""

    def __init__(self, verdict: str) -> None:
        super().__init__(verdict)
        self.verdict = verdict


_COMMENT = re.compile(r'-m comment --comment (?:"([^"]*)"|(\S+))')


class Tracer:
    """The tables of one machine, and the entries of their lists."""

    def __init__(self, rulesets: Iterable[Ruleset], machine: LocalAddresses) -> None:
        self.machine = machine
        self.recent: dict[str, dict[str, float]] = {}
        """Sources by list, with the seconds since their last packet."""
        self.sets: Sets = {}
        """Sets of ipset(8) that rules match."""
        self.servers: dict[tuple[str, str, int], VirtualServer] = {}
        """Virtual servers by protocol, address and port."""
        self.persistent: dict[tuple[str, Key], Destination] = {}
        """The real server that each client keeps."""
        self.chains: dict[tuple[str, str, str], tuple[str, ...]] = {}
        for ruleset in rulesets:
            for chain, rules in ruleset.chains.items():
                self.chains[ruleset.family, ruleset.table, chain] = rules
            for chain, rule in ruleset.jumps:
                key = ruleset.family, ruleset.table, chain
                self.chains[key] = (*self.chains.get(key, ()), rule)

    def trace(self, packet: Packet, choices: Iterable[int] = ()) -> Outcome:
        """The outcome for a packet.

        ``choices`` are the answers of random matches in order: 0 when a random match matches, otherwise 1; for IPVS the
        index of the real server. Missing answers are 0.
        """
        walk = _Walk(self, packet)
        walk.choices = list(choices)
        outcome = walk.run()
        for name, source in walk.added:
            self.recent.setdefault(name, {})[source] = 0.0
        self.persistent |= walk.new_persistence
        return outcome

    def about(self, step: TraceStep) -> str:
        """The comment of the step's rule."""
        comment = _COMMENT.search(step.rule)
        return (comment[1] or comment[2] or "") if comment is not None else ""

    def outcomes(self, packet: Packet) -> Iterator[Outcome]:
        """Every possible outcome. Entries that the packet adds to lists are dropped afterwards."""
        walks = [_Walk(self, packet)]
        while walks:
            walk = walks.pop()
            yield walk.run()
            walks += reversed(walk.alternatives)


class _Position(msgspec.Struct):
    """The position of a packet in a chain."""

    chain: str
    rules: tuple[str, ...]
    next: int = 0


class _Walk:
    """One packet; where a random match has two answers, a copy follows the other one."""

    def __init__(self, tracer: Tracer, packet: Packet) -> None:
        self.tracer = tracer
        self.packet = packet
        self.choices: list[int] | None = None
        """The answers of random matches; None: all possible answers, followed by copies in ``alternatives``."""
        self.alternatives: list[_Walk] = []
        self.added: set[tuple[str, str]] = set()
        """(list, source) pairs that the packet itself added."""
        self.remembered: dict[str, None] = {}
        self.new_persistence: dict[tuple[str, Key], Destination] = {}
        """The real servers that the client keeps from now on."""
        self.probability = 1.0
        self.steps: list[TraceStep] = []
        self.translated = self.masqueraded = self.delivered = self.routed = False
        self.hook = "prerouting" if packet.input else "output"
        self.hooks: list[str] = []
        """The hooks that follow."""
        self.tables = list(_HOOKS[self.hook])
        """The (table, chain) pairs of this hook that follow."""
        self.table = ""
        self.stack: list[_Position] = []

    def copy(self) -> "_Walk":
        """The same packet at the same position."""
        alternative = copy(self)
        alternative.alternatives = []
        alternative.added = set(self.added)
        alternative.remembered = dict(self.remembered)
        alternative.new_persistence = dict(self.new_persistence)
        alternative.steps, alternative.hooks, alternative.tables = list(self.steps), list(self.hooks), list(self.tables)
        alternative.stack = [copy(position) for position in self.stack]
        return alternative

    def run(self) -> Outcome:
        """Follows the packet to its end."""
        verdict = "accept"
        try:
            while self.stack or self.enter():
                if self.stack:
                    self.step()
        except _Ended as ended:
            verdict = ended.verdict
        return Outcome(
            verdict=verdict,
            packet=self.packet,
            translated=self.translated,
            masqueraded=self.masqueraded,
            delivered=self.delivered,
            steps=tuple(self.steps),
            probability=self.probability,
            remembered=tuple(self.remembered),
        )

    def enter(self) -> bool:
        """Continues with the next base chain; False when there is none."""
        while not self.tables:
            if not self.routed:
                self.route()
            if not self.hooks:
                return False
            self.hook = self.hooks.pop(0)
            self.tables = list(_HOOKS[self.hook])
        self.table, chain = self.tables.pop(0)
        if self.table == _IPVS:
            self.balance()
        elif self.table != "nat" or self.packet.state == "new":
            self.call(chain)
        return True

    def balance(self) -> None:
        """IPVS: chooses a real server if the packet is for a virtual server."""
        packet = self.packet
        server = self.tracer.servers.get((packet.protocol, packet.destination, packet.destination_port))
        if server is None:
            return
        candidates = [destination for destination in server.destinations if destination.weight]
        if not candidates:
            raise _Ended("reject")
        client = packet.source, server.key
        persistent = self.tracer.persistent.get(client)
        if persistent in candidates and server.persistent_s:
            self.remembered[f"ipvs {server.key}: {packet.source} -> {persistent}"] = None
            candidates = [persistent]
        if self.choices is not None:
            candidates = [candidates[(self.choices.pop(0) if self.choices else 0) % len(candidates)]]
        share = self.probability / len(candidates)
        for destination in candidates[1:]:
            alternative = self.copy()
            alternative.send_to(server, destination, share)
            self.alternatives.append(alternative)
        self.send_to(server, candidates[0], share)

    def send_to(self, server: VirtualServer, destination: Destination, probability: float) -> None:
        """Sends the packet on to a real server."""
        self.probability = probability
        self.steps.append(TraceStep(self.hook, _IPVS, str(server.key), f"{next(server.lines())} {destination}"))
        if server.persistent_s:
            self.new_persistence[self.packet.source, server.key] = destination
        self.packet = replace(
            self.packet, destination=destination.address, destination_port=destination.port, output="", input=""
        )
        self.translated = self.routed = True
        self.delivered = self.tracer.machine.owns(destination.address)
        if not self.delivered:
            self.tables, self.hooks = [], ["balanced output", "postrouting"]
        elif self.hook == "output":
            self.hooks = ["postrouting", "input"]

    def route(self) -> None:
        """The decision of the routing table after the first hook."""
        self.routed = True
        self.delivered = self.tracer.machine.owns(self.packet.destination)
        if not self.packet.input:
            self.hooks = ["postrouting", "input"] if self.delivered else ["postrouting"]
        else:
            self.hooks = ["input"] if self.delivered else ["forward", "postrouting"]

    def call(self, chain: str) -> None:
        """Goes into a chain."""
        self.stack.append(_Position(chain, self.tracer.chains.get((self.packet.family, self.table, chain), ())))

    def step(self) -> None:
        """Takes the next rule of the chain, or returns from it."""
        position = self.stack[-1]
        if position.next == len(position.rules):
            self.stack.pop()
            return
        rule = position.rules[position.next]
        position.next += 1
        if _is_for_another_destination(rule, self.packet):
            return
        options = parse_rule(rule)
        target = next((option for option in options if option.name in ("-j", "-g")), None)
        if self.matches(options) and target is not None:
            elements = self.map(options) if target.value == "SET" else ()
            if elements or target.value != "SET":
                where = f"{self.packet.family}tables {self.table}"
                self.steps.append(TraceStep(self.hook, where, position.chain, rule, elements))
            self.run_target(target, options)

    def map(self, options: tuple[RuleOption, ...]) -> tuple[str, ...]:
        """``-j SET --map-set``: sets the mark that a set has for the packet; returns the matching element, if any."""
        name, _, directions = next(option.value for option in options if option.name == "--map-set").partition(" ")
        element = find(self.tracer.sets, name, directions, self.packet)
        if not element:
            return ()
        value, mask = self.tracer.sets[name].marks[element]
        self.packet = replace(self.packet, mark=self.packet.mark & ~mask ^ value)
        return (f"set {name} {{ {element} skbmark 0x{value:x}/0x{mask:x} }}",)

    def run_target(self, target: RuleOption, options: tuple[RuleOption, ...]) -> None:
        """Runs the target of a rule."""
        arguments = {option.name: option.value for option in options}
        match target.value:
            case "ACCEPT":
                self.stack.clear()
            case "RETURN":
                self.stack.pop()
            case "SET" | "NFLOG":
                pass
            case "DROP" | "REJECT":
                raise _Ended(target.value.lower())
            case "MARK":
                self.mark(arguments["--set-xmark"])
            case "MASQUERADE":
                self.masqueraded = True
                self.stack.clear()
            case "DNAT":
                address, _, port = arguments["--to-destination"].rpartition(":")
                self.packet = replace(self.packet, destination=address.strip("[]"), destination_port=int(port))
                self.translated = True
                self.stack.clear()
            case chain:
                if (self.packet.family, self.table, chain) not in self.tracer.chains:
                    raise ProtocolError(
                        "local", f"a rule leads to chain {chain}, which table {self.table} does not have"
                    )
                if target.name == "-g":
                    self.stack.pop()
                self.call(chain)

    def mark(self, text: str) -> None:
        """``--set-xmark``: clears the bits of the mask, then inverts those of the value."""
        value, mask = (int(number, 16) for number in text.split("/"))
        self.packet = replace(self.packet, mark=self.packet.mark & ~mask ^ value)

    def matches(self, options: tuple[RuleOption, ...]) -> bool:
        """Whether all matches of a rule hold; only then lists record the packet."""
        for option in options:
            if option.name in ("-j", "-g"):
                return True
            if option.name not in _NO_CONDITION and self.match_holds(option, options) == option.negated:
                return False
        return True

    def match_holds(self, option: RuleOption, options: tuple[RuleOption, ...]) -> bool:
        """Whether a match holds, before ``!``."""
        if option.name in ("--rcheck", "--set", "--name"):
            return self.recent(option, options)
        check = _MATCHES.get(option.name)
        if check is None:
            raise ProtocolError("local", f"the tracer does not know the match {option.name}")
        return check(self, option.value)

    def recent(self, option: RuleOption, options: tuple[RuleOption, ...]) -> bool:
        """The match ``recent``."""
        name = next(option.value for option in options if option.name == "--name")
        source = self.packet.source
        if option.name == "--set":
            self.added.add((name, source))
        if option.name != "--rcheck" or (name, source) in self.added:
            return True
        within = next((float(option.value) for option in options if option.name == "--seconds"), inf)
        if self.tracer.recent.get(name, {}).get(source, inf) >= within:
            return False
        self.remembered[f"list {name} {{ {source} }}"] = None
        return True

    def random(self, text: str) -> bool:
        """A random match."""
        if self.choices is not None:
            return not self.choices or self.choices.pop(0) == 0
        alternative = self.copy()
        alternative.probability *= 1 - float(text)
        self.alternatives.append(alternative)
        self.probability *= float(text)
        return True

    def marked(self, text: str) -> bool:
        """``--mark``."""
        value, mask = (int(number, 16) for number in text.split("/"))
        return self.packet.mark & mask == value

    def in_set(self, text: str) -> bool:
        """``--match-set``."""
        name, _, directions = text.partition(" ")
        return bool(find(self.tracer.sets, name, directions, self.packet))


def _is_for_another_destination(rule: str, packet: Packet) -> bool:
    """Whether a rule is for another destination: true for most rules of a large table, which need no parsing then."""
    tokens = rule.split(" ", 2)
    full_length = "/128" if packet.family == "ip6" else "/32"
    return tokens[0] == "-d" and tokens[1].endswith(full_length) and tokens[1] != f"{packet.destination}{full_length}"


def _device(name: str, text: str) -> bool:
    return name.startswith(text[:-1]) if text.endswith("+") else name == text


def _in_range(port: int, text: str) -> bool:
    """A port, or a range of them."""
    first, _, last = text.partition(":")
    return int(first) <= port <= int(last or first)


def _in_state(walk: _Walk, states: list[str]) -> bool:
    """States of the connection; DNAT, which is not one, may be among them."""
    return walk.packet.state.upper() in states or ("DNAT" in states and walk.translated)


_ECHO6 = "128"
"""The only ICMPv6 message that starts a flow."""

_MATCHES: dict[str, Callable[[_Walk, str], bool]] = {
    "-s": lambda walk, text: within(walk.packet.source, text),
    "-d": lambda walk, text: within(walk.packet.destination, text),
    "-p": lambda walk, text: text in (walk.packet.protocol, str(PROTOCOLS.get(walk.packet.protocol))),
    "-i": lambda walk, text: _device(walk.packet.input, text),
    "-o": lambda walk, text: _device(walk.packet.output, text),
    "--dport": lambda walk, text: _in_range(walk.packet.destination_port, text),
    "--dports": lambda walk, text: any(_in_range(walk.packet.destination_port, ports) for ports in text.split(",")),
    "--icmpv6-type": lambda _, text: text == _ECHO6,
    "--src-type": lambda walk, _: walk.tracer.machine.owns(walk.packet.source),
    "--dst-type": lambda walk, _: walk.tracer.machine.owns(walk.packet.destination),
    "--ctstate": lambda walk, text: _in_state(walk, text.split(",")),
    "--ctstatus": lambda _, text: text == "NONE",
    "--ctdir": lambda _, text: text == "ORIGINAL",
    "--tcp-flags": lambda walk, text: text.split()[-1] == "NONE" and walk.packet.protocol == "tcp",
    "--mark": _Walk.marked,
    "--probability": _Walk.random,
    "--match-set": _Walk.in_set,
    "--bytecode": lambda walk, text: run(text, walk.packet.source, walk.packet.destination),
}
