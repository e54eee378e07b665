"""Follows a packet through tables of iptables given as values, and says which rules decided (pure).

The way is that of :mod:`podwire.trace.nft`: from outside through PREROUTING, then INPUT or FORWARD and POSTROUTING; of
the machine's own through OUTPUT and POSTROUTING, and INPUT when it goes to itself. Where a rule matches by chance both
answers are possible: :meth:`Tracer.outcomes` takes each in turn. Lists of ``recent`` remember between packets, as in
the kernel; time does not pass. With virtual servers of IPVS, a packet to one of them is taken at the end of INPUT, and
what the machine itself sends before ``filter`` of OUTPUT; it goes on as a packet of the machine to the real server. An
option that is not known here raises; it is never skipped.

The cost is one walk of the rules, and where chance chooses one more of what comes behind, for each choice.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from ipaddress import ip_address, ip_network
from math import inf

import msgspec
from msgspec.structs import replace

from podwire.errors import ProtocolError
from podwire.state.iptables import Ruleset
from podwire.state.ipvs import Destination, Key, VirtualServer
from podwire.state.nft_types import PROTOCOLS
from podwire.trace.bytecode import run
from podwire.trace.ipset import Sets, find
from podwire.trace.packet import LocalAddresses, Outcome, Packet, TraceStep

_WORD = re.compile(r'"[^"]*"|\S+')
_IPVS = "ipvs"
"""Stands in the list of tables for the place where IPVS takes packets."""

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
_SAYS_NOTHING = frozenset(("-m", "--comment", "--mode", "--seconds", "--reap", "--mask", "--rsource", "--random-fully",
                           "--reject-with", "--nfacct-name", "--limit", "--limit-burst"))  # fmt: skip


class RuleOption(msgspec.Struct, frozen=True):
    """One option of a rule with its value."""

    name: str
    value: str = ""
    negated: bool = False


def parse_rule(text: str) -> tuple[RuleOption, ...]:
    """The options of a rule in their order.

    Raises: ProtocolError for a word that no option begins with.
    """
    words = iter(_WORD.findall(text))
    found: list[RuleOption] = []
    negated = False
    for word in words:
        if word == "!":
            negated = True
            continue
        if not word.startswith("-"):
            raise ProtocolError("local", f"the tracer does not know the option {word!r} of the rule {text!r}")
        value = "" if word in _ALONE else next(words, "").strip('"')
        if word in ("--match-set", "--map-set", "--tcp-flags"):
            value = f"{value} {next(words, '')}"
        found.append(RuleOption(word, value, negated))
        negated = False
    return tuple(found)


class _Ended(Exception):
    """The packet's way ended: drop or reject."""

    def __init__(self, verdict: str) -> None:
        super().__init__(verdict)
        self.verdict = verdict


_COMMENT = re.compile(r'-m comment --comment (?:"([^"]*)"|(\S+))')


class Tracer:
    """Tables of one machine, with the memory of their lists."""

    def __init__(self, rulesets: Iterable[Ruleset], machine: LocalAddresses) -> None:
        self.machine = machine
        self.recent: dict[str, dict[str, float]] = {}
        """Sources by list, with the seconds since they were seen."""
        self.sets: Sets = {}
        """Sets of ipset(8) that rules match."""
        self.servers: dict[tuple[str, str, int], VirtualServer] = {}
        """Virtual servers by protocol, address and port."""
        self.persistent: dict[tuple[str, Key], Destination] = {}
        """Which real server a client keeps."""
        self.chains: dict[tuple[str, str, str], tuple[str, ...]] = {}
        for each in rulesets:
            for chain, rules in each.chains.items():
                self.chains[each.family, each.table, chain] = rules
            for chain, rule in each.jumps:
                key = each.family, each.table, chain
                self.chains[key] = (*self.chains.get(key, ()), rule)

    def trace(self, packet: Packet, choices: Iterable[int] = ()) -> Outcome:
        """The outcome for a packet.

        ``choices`` are the answers of chance in order: 0 when a random match matches, otherwise 1; for IPVS the index
        of the real server. Answers that are missing are 0.
        """
        walk = _Walk(self, packet)
        walk.choices = list(choices)
        found = walk.run()
        for name, source in walk.remembers:
            self.recent.setdefault(name, {})[source] = 0.0
        self.persistent |= walk.keeps
        return found

    def about(self, step: TraceStep) -> str:
        """The comment of the step's rule."""
        found = _COMMENT.search(step.rule)
        return (found[1] or found[2] or "") if found is not None else ""

    def outcomes(self, packet: Packet) -> Iterator[Outcome]:
        """Every outcome that chance allows. Lists forget what the walk put in."""
        walks = [_Walk(self, packet)]
        while walks:
            walk = walks.pop()
            yield walk.run()
            walks += reversed(walk.others)


class _Place(msgspec.Struct):
    """How far a packet is in a chain."""

    chain: str
    rules: tuple[str, ...]
    next: int = 0


class _Walk:
    """One packet on its way; a copy of it goes on from where chance chose otherwise."""

    def __init__(self, tracer: Tracer, packet: Packet) -> None:
        self.tracer = tracer
        self.packet = packet
        self.choices: list[int] | None = None
        """The answers of chance; None: all possible answers, by copies in ``others``."""
        self.others: list[_Walk] = []
        self.remembers: set[tuple[str, str]] = set()
        """(list, source) that the packet itself put in."""
        self.remembered: dict[str, None] = {}
        self.keeps: dict[tuple[str, Key], Destination] = {}
        """Which real servers the client keeps from now on."""
        self.probability = 1.0
        self.steps: list[TraceStep] = []
        self.translated = self.masqueraded = self.delivered = self.routed = False
        self.hook = "prerouting" if packet.input else "output"
        self.hooks: list[str] = []
        """Still to come."""
        self.tables = list(_HOOKS[self.hook])
        """(table, chain) of this hook, still to come."""
        self.table = ""
        self.stack: list[_Place] = []

    def copy(self) -> "_Walk":
        """The same packet in the same place."""
        other = copy(self)
        other.others = []
        other.remembers = set(self.remembers)
        other.remembered = dict(self.remembered)
        other.keeps = dict(self.keeps)
        other.steps, other.hooks, other.tables = list(self.steps), list(self.hooks), list(self.tables)
        other.stack = [copy(place) for place in self.stack]
        return other

    def run(self) -> Outcome:
        """The rest of the way."""
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
        """Goes to the next of the kernel's own chains; False at the end of the way."""
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
        """IPVS: a real server of the virtual server that the packet is for, if it is for one."""
        packet = self.packet
        server = self.tracer.servers.get((packet.protocol, packet.destination, packet.destination_port))
        if server is None:
            return
        able = [destination for destination in server.destinations if destination.weight]
        if not able:
            raise _Ended("reject")
        client = packet.source, server.key
        kept = self.tracer.persistent.get(client)
        if kept in able and server.persistent_s:
            self.remembered[f"ipvs {server.key}: {packet.source} -> {kept}"] = None
            able = [kept]
        if self.choices is not None:
            able = [able[(self.choices.pop(0) if self.choices else 0) % len(able)]]
        share = self.probability / len(able)
        for destination in able[1:]:
            other = self.copy()
            other.send_to(server, destination, share)
            self.others.append(other)
        self.send_to(server, able[0], share)

    def send_to(self, server: VirtualServer, destination: Destination, probability: float) -> None:
        """The packet goes on to a real server."""
        self.probability = probability
        self.steps.append(TraceStep(self.hook, _IPVS, str(server.key), f"{next(server.lines())} {destination}"))
        if server.persistent_s:
            self.keeps[self.packet.source, server.key] = destination
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
        """Where the packet goes behind the first hook."""
        self.routed = True
        self.delivered = self.tracer.machine.owns(self.packet.destination)
        if not self.packet.input:
            self.hooks = ["postrouting", "input"] if self.delivered else ["postrouting"]
        else:
            self.hooks = ["input"] if self.delivered else ["forward", "postrouting"]

    def call(self, chain: str) -> None:
        """Goes into a chain."""
        self.stack.append(_Place(chain, self.tracer.chains.get((self.packet.family, self.table, chain), ())))

    def step(self) -> None:
        """Takes the next rule of the chain, or leaves it."""
        place = self.stack[-1]
        if place.next == len(place.rules):
            self.stack.pop()
            return
        rule = place.rules[place.next]
        place.next += 1
        if _passes_by(rule, self.packet):
            return
        options = parse_rule(rule)
        target = next((option for option in options if option.name in ("-j", "-g")), None)
        if self.matches(options) and target is not None:
            elements = self.map(options) if target.value == "SET" else ()
            if elements or target.value != "SET":
                where = f"{self.packet.family}tables {self.table}"
                self.steps.append(TraceStep(self.hook, where, place.chain, rule, elements))
            self.obey(target, options)

    def map(self, options: tuple[RuleOption, ...]) -> tuple[str, ...]:
        """``-j SET --map-set``: the packet gets the mark that a set has for it; the element, where there is one."""
        name, _, ways = next(each.value for each in options if each.name == "--map-set").partition(" ")
        found = find(self.tracer.sets, name, ways, self.packet)
        if not found:
            return ()
        value, mask = self.tracer.sets[name].marks[found]
        self.packet = replace(self.packet, mark=self.packet.mark & ~mask ^ value)
        return (f"set {name} {{ {found} skbmark 0x{value:x}/0x{mask:x} }}",)

    def obey(self, target: RuleOption, options: tuple[RuleOption, ...]) -> None:
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
        """``--set-xmark``: the bits of the mask go, those of the value turn."""
        value, mask = (int(part, 16) for part in text.split("/"))
        self.packet = replace(self.packet, mark=self.packet.mark & ~mask ^ value)

    def matches(self, options: tuple[RuleOption, ...]) -> bool:
        """Whether all matches of a rule hold; lists take the packet in only then."""
        for option in options:
            if option.name in ("-j", "-g"):
                return True
            if option.name not in _SAYS_NOTHING and self.holds(option, options) == option.negated:
                return False
        return True

    def holds(self, option: RuleOption, options: tuple[RuleOption, ...]) -> bool:
        """Whether a match holds, not yet turned by ``!``."""
        if option.name in ("--rcheck", "--set", "--name"):
            return self.remember(option, options)
        check = _MATCHES.get(option.name)
        if check is None:
            raise ProtocolError("local", f"the tracer does not know the match {option.name}")
        return check(self, option.value)

    def remember(self, option: RuleOption, options: tuple[RuleOption, ...]) -> bool:
        """The match ``recent``."""
        name = next(each.value for each in options if each.name == "--name")
        source = self.packet.source
        if option.name == "--set":
            self.remembers.add((name, source))
        if option.name != "--rcheck" or (name, source) in self.remembers:
            return True
        within = next((float(each.value) for each in options if each.name == "--seconds"), inf)
        if self.tracer.recent.get(name, {}).get(source, inf) >= within:
            return False
        self.remembered[f"list {name} {{ {source} }}"] = None
        return True

    def chance(self, text: str) -> bool:
        """A match by chance."""
        if self.choices is not None:
            return not self.choices or self.choices.pop(0) == 0
        other = self.copy()
        other.probability *= 1 - float(text)
        self.others.append(other)
        self.probability *= float(text)
        return True

    def marked(self, text: str) -> bool:
        """``--mark``."""
        value, mask = (int(part, 16) for part in text.split("/"))
        return self.packet.mark & mask == value

    def in_set(self, text: str) -> bool:
        """``--match-set``."""
        name, _, ways = text.partition(" ")
        return bool(find(self.tracer.sets, name, ways, self.packet))


def _passes_by(rule: str, packet: Packet) -> bool:
    """Whether a rule is plainly for another destination: most rules of a large table, told without parsing them."""
    words = rule.split(" ", 2)
    alone = "/128" if packet.family == "ip6" else "/32"
    return words[0] == "-d" and words[1].endswith(alone) and words[1] != f"{packet.destination}{alone}"


def _within(address: str, network: str) -> bool:
    return ip_address(address) in ip_network(network)


def _device(name: str, text: str) -> bool:
    return name.startswith(text[:-1]) if text.endswith("+") else name == text


def _among(port: int, text: str) -> bool:
    """A port, or a range of them."""
    first, _, last = text.partition(":")
    return int(first) <= port <= int(last or first)


def _in_state(walk: _Walk, states: list[str]) -> bool:
    """States of the connection; DNAT is none, but may stand among them."""
    return walk.packet.state.upper() in states or ("DNAT" in states and walk.translated)


_ECHO6 = "128"
"""The only message of ICMPv6 that begins something."""

_MATCHES: dict[str, Callable[[_Walk, str], bool]] = {
    "-s": lambda walk, text: _within(walk.packet.source, text),
    "-d": lambda walk, text: _within(walk.packet.destination, text),
    "-p": lambda walk, text: text in (walk.packet.protocol, str(PROTOCOLS.get(walk.packet.protocol))),
    "-i": lambda walk, text: _device(walk.packet.input, text),
    "-o": lambda walk, text: _device(walk.packet.output, text),
    "--dport": lambda walk, text: _among(walk.packet.destination_port, text),
    "--dports": lambda walk, text: any(_among(walk.packet.destination_port, each) for each in text.split(",")),
    "--icmpv6-type": lambda _, text: text == _ECHO6,
    "--src-type": lambda walk, _: walk.tracer.machine.owns(walk.packet.source),
    "--dst-type": lambda walk, _: walk.tracer.machine.owns(walk.packet.destination),
    "--ctstate": lambda walk, text: _in_state(walk, text.split(",")),
    "--ctstatus": lambda _, text: text == "NONE",
    "--ctdir": lambda _, text: text == "ORIGINAL",
    "--tcp-flags": lambda walk, text: text.split()[-1] == "NONE" and walk.packet.protocol == "tcp",
    "--mark": _Walk.marked,
    "--probability": _Walk.chance,
    "--match-set": _Walk.in_set,
    "--bytecode": lambda walk, text: run(text, walk.packet.source, walk.packet.destination),
}
