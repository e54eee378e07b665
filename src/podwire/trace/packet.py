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
    """The destination before Services translated it; empty: the present destination."""
    input: str = ""
    """The input interface; empty for a packet that this machine sends."""
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
    """The answers of the routing table that rules need: which addresses are the machine's own."""

    addresses: frozenset[Address] = frozenset()

    def owns(self, address: Address) -> bool:
        """Whether packets to the address are delivered to this machine."""
        return address in self.addresses or address.startswith("127.") or address == "::1"


RELAY = "relay"
"""In place of a hook: the step is taken by a process of podwire, on a connection of its own."""


class TraceStep(msgspec.Struct, frozen=True):
    """One rule that matched, or a policy that decided."""

    hook: str
    table: str
    chain: str
    rule: str
    elements: tuple[str, ...] = ()
    """The matching elements of sets and maps, each as ``map services { 10.96.0.1 . tcp . 443 : goto cluster-4 }``."""

    def __str__(self) -> str:
        return f"{self.hook}: {self.table} {self.chain}: {self.rule}"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a packet."""

    verdict: str
    """``accept``, ``drop`` or ``reject``."""
    packet: Packet
    """The packet after all rules."""
    translated: bool = False
    masqueraded: bool = False
    delivered: bool = False
    """Whether the packet is delivered to this machine instead of forwarded."""
    steps: tuple[TraceStep, ...] = ()
    probability: float = 1.0
    """Its probability, where a choice is random."""
    remembered: tuple[str, ...] = ()
    """Entries of earlier packets that the packet matched, in the form of ``TraceStep.elements``."""

    def __str__(self) -> str:
        lines = [str(step) for step in self.steps]
        masqueraded = ", masqueraded" if self.masqueraded else ""
        return "\n".join([*lines, f"{self.verdict}: {self.packet}{masqueraded}"])


class Tracer(Protocol):
    """Rules of one node through which a packet can be followed: the kernel's or planned ones."""

    def outcomes(self, packet: Packet) -> Iterator[Outcome]:
        """All possible outcomes of a packet with their probabilities; without random choices, one outcome."""
        ...

    def about(self, step: TraceStep) -> str:
        """The comment of the step's rule or chain, such as the policy behind it; empty: none."""
        ...
