"""The rules of the ``iptables`` data plane for :mod:`podwire.policy.tracing`: as planned, and as a kernel holds them.

Numbers of profiles and tables are given in order of creation, so a plan for some pods has other numbers than a kernel
that holds all pods; the outcome for a packet is the same. Rules that the kernel holds are shown with their counters.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from podwire.kernel import iptables_chains
from podwire.kernel.iptables import FAMILIES, Iptables
from podwire.kernel.netns import NetnsPath
from podwire.policy.compile import Compiler
from podwire.policy.contents import follow
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.dataplanes.iptables import kernel
from podwire.policy.dataplanes.iptables.contents import Contents
from podwire.policy.dataplanes.iptables.dataplane import layout_of
from podwire.policy.dataplanes.iptables.names import set_prefix
from podwire.policy.status.counts import Count
from podwire.state.chain_marks import POLICY
from podwire.state.ipset import IpSet
from podwire.state.iptables import Ruleset
from podwire.state.kinds import SetMark
from podwire.state.value import StateValue
from podwire.trace import iptables
from podwire.trace.ipset import Elements
from podwire.trace.packet import LocalAddresses, Outcome, Packet, TraceStep

OWNER_MARKS: Mapping[str, Any] = {
    "iptables": POLICY,
    "ipset": SetMark(prefixes=tuple(set_prefix(family) for family in FAMILIES)),
}

Counts = Mapping[tuple[str, str], Count]
"""The counters of the chains of rules, by family and chain."""


class Tracer:
    """Rules and sets of both families."""

    def __init__(self, values: Iterable[StateValue], machine: LocalAddresses, counts: Counts | None = None) -> None:
        rulesets: list[Ruleset] = []
        sets: dict[str, Elements] = {}
        for value in values:
            if isinstance(value, Ruleset):
                rulesets.append(value)
            elif isinstance(value, IpSet):
                marks = {key: element.mark for key, element in value.elements.items() if element.mark is not None}
                sets[value.name] = Elements(value.kind, value.elements, marks)
        self._tracer = iptables.Tracer(rulesets, machine)
        self._tracer.sets = sets
        self._counts = counts or {}

    def outcomes(self, packet: Packet) -> Iterator[Outcome]:
        """The possible outcomes for a packet; the rules in their steps have counters."""
        for outcome in self._tracer.outcomes(packet):
            yield replace(outcome, steps=tuple(self._counted(step, packet.family) for step in outcome.steps))

    def _counted(self, step: TraceStep, family: str) -> TraceStep:
        """A step with the counter of its rule, in the format of iptables-save -c."""
        count = self._counts.get((family, step.chain))
        if count is None or "-j NFLOG" in step.rule:
            return step
        return replace(step, rule=f"[{count.packets}:{count.bytes}] {step.rule}")

    def about(self, step: TraceStep) -> str:
        """The comment of the step's rule: the policies of a profile, or the rule of a policy."""
        return self._tracer.about(step)


def planned(compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts, machine: LocalAddresses) -> Tracer:
    """A tracer over the rules and sets that the data plane would program."""
    values: list[Ruleset | IpSet] = []
    for family in FAMILIES:
        contents = Contents(layout_of(facts, family, ()), {}, {})
        follow(contents, compiler, compiler.everything(), devices)
        values += contents.desired()
    return Tracer(values, machine)


def held(values: Sequence[StateValue], netns_path: NetnsPath, machine: LocalAddresses) -> Tracer | None:
    """A tracer over the rules and sets that the kernel holds, with its counters; None when it holds no rules.

    Raises: KernelError.
    """
    if not any(isinstance(value, Ruleset) for value in values):
        return None
    counts: dict[tuple[str, str], Count] = {}
    for programs, _ in iptables_chains.marked(netns_path, POLICY):
        for family in FAMILIES:
            with Iptables(family, programs, netns_path) as tool:
                counts |= {(family, chain): count for chain, count in kernel.read_counts(tool).items()}
    return Tracer(values, machine, counts)
