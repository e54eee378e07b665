"""Packets, the machine that they pass, the outcome, and the protocol of tracers."""

from collections.abc import Iterator
from typing import Protocol

import msgspec

Address = str


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """The first packet of a connection, as far as rules can see it."""

    source: Address
    destination: Address
    protocol: str = "tcp"
    source_port: int = 40000
    destination_port: int = 0
    sent_to: Address = ""
    """What it was for before Services came to it; empty: the destination."""
    input: str = ""
    """Interface it came in by; empty for a packet that this machine sends."""
    output: str = ""
    mark: int = 0
    state: str = "new"
    """Connection state: new, established, related, invalid or untracked."""

    @property
    def family(self) -> str:
        """``ip`` or ``ip6``."""
        return "ip6" if ":" in self.destination else "ip"

    def __str__(self) -> str:
        return f"{self.protocol} {self.source}:{self.source_port} -> {self.destination}:{self.destination_port}"


class LocalAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """What rules ask the routing table: which addresses are the machine's own."""

    addresses: frozenset[Address] = frozenset()

    def owns(self, address: Address) -> bool:
        """Whether packets to the address are delivered here."""
        return address in self.addresses or address.startswith("127.") or address == "::1"


RELAY = "relay"
"""Where a step is, instead of a hook, that a process of podwire's takes with a connection of its own."""


class TraceStep(msgspec.Struct, frozen=True):
    """One rule that matched, or a policy that decided."""

    hook: str
    table: str
    chain: str
    rule: str
    elements: tuple[str, ...] = ()
    """What it found in sets and maps, each as ``map services { 10.96.0.1 . tcp . 443 : goto cluster-4 }``."""

    def __str__(self) -> str:
        return f"{self.hook}: {self.table} {self.chain}: {self.rule}"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a packet."""

    verdict: str
    """``accept``, ``drop`` or ``reject``."""
    packet: Packet
    """As it leaves the rules."""
    translated: bool = False
    masqueraded: bool = False
    delivered: bool = False
    """To the machine itself rather than onwards."""
    steps: tuple[TraceStep, ...] = ()
    probability: float = 1.0
    """How likely it is, where chance chooses."""
    remembered: tuple[str, ...] = ()
    """Entries of earlier packets that it found, as ``TraceStep.elements`` has them."""

    def __str__(self) -> str:
        lines = [str(step) for step in self.steps]
        masqueraded = ", masqueraded" if self.masqueraded else ""
        return "\n".join([*lines, f"{self.verdict}: {self.packet}{masqueraded}"])


class Tracer(Protocol):
    """Rules of one node that a packet can be followed through: as a kernel holds them, or as they are planned."""

    def outcomes(self, packet: Packet) -> Iterator[Outcome]:
        """Everything that can become of a packet, each with its probability; without chance, one outcome."""
        ...

    def about(self, step: TraceStep) -> str:
        """What the comment of the step's rule or chain says, such as the policy that it serves; empty: nothing."""
        ...
