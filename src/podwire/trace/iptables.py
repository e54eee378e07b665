"""Follows a packet through tables of iptables given as values, and says which rules decided (pure).

The way is that of :mod:`podwire.trace.nft`: from outside through PREROUTING, then INPUT or FORWARD and POSTROUTING; of
the machine's own through OUTPUT and POSTROUTING, and INPUT when it goes to itself. Where a rule matches by chance both
answers are possible: :meth:`Tracer.outcomes` takes each in turn. Lists of ``recent`` remember between packets, as in
the kernel; time does not pass. An option that is not known here raises; it is never skipped.

The cost is one walk of the rules for each choice.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_address, ip_network

import msgspec
from msgspec.structs import replace

from podwire.errors import ProtocolError
from podwire.state.iptables import Ruleset
from podwire.trace.packet import Machine, Outcome, Packet, Step

_WORD = re.compile(r'"[^"]*"|\S+')
_HOOKS = {
    "prerouting": (("nat", "PREROUTING"),),
    "input": (("filter", "INPUT"),),
    "forward": (("filter", "FORWARD"),),
    "output": (("nat", "OUTPUT"), ("filter", "OUTPUT")),
    "postrouting": (("nat", "POSTROUTING"),),
}
_ALONE = frozenset(("--rcheck", "--set", "--reap", "--rsource", "--random-fully"))
"""Options without a value."""
_SAYS_NOTHING = frozenset(("-m", "--comment", "--mode", "--seconds", "--reap", "--mask", "--rsource", "--random-fully",
                           "--reject-with"))  # fmt: skip


class Option(msgspec.Struct, frozen=True):
    """One option of a rule with its value."""

    name: str
    value: str = ""
    negated: bool = False


def parse_rule(text: str) -> tuple[Option, ...]:
    """The options of a rule in their order.

    Raises: ProtocolError for a word that no option begins with.
    """
    words = iter(_WORD.findall(text))
    found: list[Option] = []
    negated = False
    for word in words:
        if word == "!":
            negated = True
            continue
        if not word.startswith("-"):
            raise ProtocolError("local", f"{word!r} is no option of a rule: {text}")
        value = "" if word in _ALONE else next(words, "").strip('"')
        found.append(Option(word, value, negated))
        negated = False
    return tuple(found)


class _Ended(Exception):
    """The packet's way ended: drop or reject."""

    def __init__(self, verdict: str) -> None:
        super().__init__(verdict)
        self.verdict = verdict


class Tracer:
    """Tables of one machine, with the memory of their lists."""

    def __init__(self, rulesets: Iterable[Ruleset], machine: Machine) -> None:
        self.machine = machine
        self.recent: dict[str, set[str]] = {}
        self.chains: dict[tuple[str, str, str], tuple[str, ...]] = {}
        for each in rulesets:
            for chain, rules in each.chains.items():
                self.chains[each.family, each.table, chain] = rules
            for chain, rule in each.jumps:
                key = each.family, each.table, chain
                self.chains[key] = (*self.chains.get(key, ()), rule)

    def trace(self, packet: Packet, choices: Iterable[int] = ()) -> Outcome:
        """What becomes of a packet; ``choices`` say of each rule that matches by chance whether not, then 0."""
        return _Walk(self, packet, list(choices)).run()

    def outcomes(self, packet: Packet) -> Iterator[Outcome]:
        """Every outcome that chance allows. Lists forget what the walk put in."""
        before = {name: set(sources) for name, sources in self.recent.items()}
        open_ends: list[list[int]] = [[]]
        while open_ends:
            given = open_ends.pop()
            self.recent = {name: set(sources) for name, sources in before.items()}
            walk = _Walk(self, packet, given)
            yield walk.run()
            open_ends += [[*given, *[0] * more, 1] for more in range(walk.asked - len(given))]
        self.recent = before


class _Walk:
    """One packet on its way."""

    def __init__(self, tracer: Tracer, packet: Packet, choices: list[int]) -> None:
        self.tracer = tracer
        self.packet = packet
        self.choices = choices
        self.asked = 0
        self.steps: list[Step] = []
        self.translated = False
        self.masqueraded = False
        self.place = ("", "")
        """Hook and table."""

    def run(self) -> Outcome:
        """The whole way."""
        verdict = "accept"
        own = not self.packet.input
        delivered = False
        try:
            self.pass_hook("output" if own else "prerouting")
            delivered = self.tracer.machine.owns(self.packet.destination)
            if not own:
                self.pass_hook("input" if delivered else "forward")
            if own or not delivered:
                self.pass_hook("postrouting")
            if own and delivered:
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
        )

    def pass_hook(self, hook: str) -> None:
        """The kernel's own chains of a hook."""
        for table, chain in _HOOKS[hook]:
            if table == "nat" and self.packet.state != "new":
                continue
            self.place = hook, table
            self.run_chain(chain)

    def run_chain(self, chain: str) -> bool:
        """Whether a rule ended the table; False at the end of the chain."""
        _, table = self.place
        for rule in self.tracer.chains.get((self.packet.family, table, chain), ()):
            options = parse_rule(rule)
            target = next((option for option in options if option.name in ("-j", "-g")), None)
            if not self.matches(options):
                continue
            if target is not None:
                self.steps.append(Step(self.place[0], f"{self.packet.family}tables {table}", chain, rule))
                ends = self.obey(target, options)
                if ends is not None:
                    return ends
        return False

    def obey(self, target: Option, options: tuple[Option, ...]) -> bool | None:
        """What a target says of the rest of the table: True ended, False back to the caller, None go on."""
        arguments = {option.name: option.value for option in options}
        match target.value:
            case "ACCEPT":
                return True
            case "RETURN":
                return False
            case "DROP" | "REJECT":
                raise _Ended(target.value.lower())
            case "MARK":
                self.mark(arguments["--set-xmark"])
                return None
            case "MASQUERADE":
                self.masqueraded = True
                return True
            case "DNAT":
                address, _, port = arguments["--to-destination"].rpartition(":")
                self.packet = replace(self.packet, destination=address.strip("[]"), destination_port=int(port))
                self.translated = True
                return True
        if (self.packet.family, self.place[1], target.value) not in self.tracer.chains:
            raise ProtocolError("local", f"no chain {target.value} in {self.place[1]}")
        if self.run_chain(target.value):
            return True
        return False if target.name == "-g" else None

    def mark(self, text: str) -> None:
        """``--set-xmark``: the bits of the mask go, those of the value turn."""
        value, mask = (int(part, 16) for part in text.split("/"))
        self.packet = replace(self.packet, mark=self.packet.mark & ~mask ^ value)

    def matches(self, options: tuple[Option, ...]) -> bool:
        """Whether all matches of a rule hold; lists take the packet in only then."""
        for option in options:
            if option.name in ("-j", "-g"):
                return True
            if option.name not in _SAYS_NOTHING and self.holds(option, options) == option.negated:
                return False
        return True

    def holds(self, option: Option, options: tuple[Option, ...]) -> bool:
        """Whether a match holds, not yet turned by ``!``."""
        if option.name in ("--rcheck", "--set", "--name"):
            return self.remember(option, options)
        check = _MATCHES.get(option.name)
        if check is None:
            raise ProtocolError("local", f"the match {option.name} is not known here")
        return check(self, option.value)

    def remember(self, option: Option, options: tuple[Option, ...]) -> bool:
        """The match ``recent``."""
        name = next(each.value for each in options if each.name == "--name")
        sources = self.tracer.recent.setdefault(name, set())
        if option.name == "--set":
            sources.add(self.packet.source)
        return option.name != "--rcheck" or self.packet.source in sources

    def chance(self, _: str) -> bool:
        """A match by chance; 0 says yes."""
        self.asked += 1
        return self.asked > len(self.choices) or self.choices[self.asked - 1] == 0

    def marked(self, text: str) -> bool:
        """``--mark``."""
        value, mask = (int(part, 16) for part in text.split("/"))
        return self.packet.mark & mask == value


def _within(address: str, network: str) -> bool:
    return ip_address(address) in ip_network(network)


_MATCHES: dict[str, Callable[[_Walk, str], bool]] = {
    "-s": lambda walk, text: _within(walk.packet.source, text),
    "-d": lambda walk, text: _within(walk.packet.destination, text),
    "-p": lambda walk, text: walk.packet.protocol == text,
    "-i": lambda walk, text: (
        walk.packet.input.startswith(text[:-1]) if text.endswith("+") else walk.packet.input == text
    ),
    "--dport": lambda walk, text: walk.packet.destination_port == int(text),
    "--src-type": lambda walk, _: walk.tracer.machine.owns(walk.packet.source),
    "--dst-type": lambda walk, _: walk.tracer.machine.owns(walk.packet.destination),
    "--ctstate": lambda walk, text: walk.packet.state.upper() in text.split(","),
    "--mark": _Walk.marked,
    "--probability": _Walk.chance,
}
