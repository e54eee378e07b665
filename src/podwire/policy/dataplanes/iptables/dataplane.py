"""The ``iptables`` data plane of policies: keeps rules and sets of both families equal to the output of the compiler.

1. ``load`` reads the kernel and writes only the differences; chains keep their numbers. So there is no moment without
rules, and a restart with nothing changed writes nothing. 2. ``update`` writes only what a change touches and does not
read the kernel: usually only elements of sets; if chains are added or removed, one or two calls of iptables-restore.
3. After a refused step, everything is loaded again; if the load fails too, the rules in force stay, the error is
raised, and the next call loads again. 4. ``heal`` restores what another program changed and moves the jumps to the
first place again. The kernel reports changes of nft rules at once, but not changes of legacy rules and of sets. So
``disturbed`` compares the sizes of legacy tables and the numbers of set elements 20 times a second (the latter less
often where that would take more than 0.1 % of one CPU), the rules every second, and returns True every 10 minutes so
that the elements themselves are compared. 5. ``close`` leaves all rules in force, ``remove`` deletes them. 6. Without
IPv6 on the machine, IPv4 is still enforced.

Calls block until iptables-restore ends: 27 ms (legacy) to 56 ms (nft) for a changed policy among 1,000, and for the
first pod of its policies; 11 ms of these are Python code. A change that only changes elements starts no program (4 ms).
Calls do not run in a thread: a new pod would still wait for the end of the thread, and counters, reports and
comparisons would have to wait too. Only the lock of the legacy kind may take seconds, while other programs write; the
caller waits for the lock before the change, and other work continues.
"""

import select
from collections.abc import Collection, Mapping
from pathlib import Path

from podwire.errors import KernelError
from podwire.kernel.ipset import IpSets
from podwire.kernel.iptables import FAMILIES, Iptables, Programs, Ticker, choose, locked
from podwire.kernel.iptables_tables import drop_tables, make_tables
from podwire.kernel.iptables_watch import POLL_S, watch
from podwire.kernel.looks import Looks
from podwire.kernel.netns import NetnsPath
from podwire.policy.compile import Compiler
from podwire.policy.contents import follow
from podwire.policy.dataplane import PolicyFacts, of_family
from podwire.policy.dataplanes.iptables import kernel
from podwire.policy.dataplanes.iptables.contents import Contents
from podwire.policy.dataplanes.iptables.kernel import clear
from podwire.policy.dataplanes.iptables.layout import ChainLayout
from podwire.policy.dataplanes.iptables.names import RULE, TABLE
from podwire.policy.dataplanes.iptables.numbers import MarkBits
from podwire.policy.dataplanes.iptables.podelements import KernelState, names_in_kernel
from podwire.policy.dataplanes.iptables.steps import Steps
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.profile import ProfileKey
from podwire.policy.profilenames import ProfileName
from podwire.policy.status.counts import Count, Counted, RuleCounters
from podwire.policy.verdicts import RuleHit
from podwire.state.ipset import IpSet
from podwire.state.iptables import Ruleset

_FULL_COMPARISON = 20
"""Each 20th tick of the poll timer leads to a full comparison with the kernel."""

__all__ = ["IptablesPolicy", "clear"]


class IptablesPolicy:
    """Policies through iptables and ipset in one network namespace (None: that of this process)."""

    name = "iptables"

    def __init__(self, facts: PolicyFacts, netns: NetnsPath = None, programs: Programs | None = None) -> None:
        self.programs = programs or choose(netns)
        kernel.check(self.programs)
        self._netns_path = netns
        self._facts = facts
        self._sets = IpSets(netns)
        self._watch = watch(self.programs, (TABLE,), netns)
        self._ticker = Ticker(POLL_S)
        self._looks = Looks()
        self._events = select.epoll()
        for source in (self._watch, self._ticker, self._looks):
            self._events.register(source.fileno(), select.EPOLLIN)
        self._tools = {family: Iptables(family, self.programs, netns) for family in FAMILIES}
        self._contents: dict[str, Contents] = {}
        self._missing: set[str] = set()
        self._undeleted: set[str] = set()
        """Sets to delete that rules still referred to."""
        self._ticks = 0
        self._counters = RuleCounters(self._contents, self._read_counters)
        self._reload = True

    def close(self) -> None:
        """Closes the sockets to the kernel; the rules stay in force."""
        self._events.close()
        self._watch.close()
        self._ticker.close()
        self._looks.close()
        self._sets.close()
        for tool in self._tools.values():
            tool.close()

    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`disturbed` should be called."""
        return self._events.fileno()

    def locked(self) -> bool:
        """Whether another process holds the xtables lock, which a change would have to wait for."""
        return locked(self.programs)

    def disturbed(self) -> bool:
        """Whether another program may have changed these rules or sets since the last call."""
        ticked, changed = self._ticker.period_ended(), self._watch.changed()
        self._ticks += ticked
        if (changed and self.programs.kind == "nft") or self._looks.differs(self._resized):
            return True
        return (ticked or changed) and (self._ticks % _FULL_COMPARISON == 0 or self._differs())

    def _resized(self) -> bool:
        """Whether a set is gone, or has more or fewer elements; while everything is to be loaded, nothing counts."""
        if self._reload:
            return False
        try:
            sizes = self._sets.sizes()
        except KernelError:
            return True
        return any(contents.resized(sizes) for contents in self._contents.values())

    def _differs(self) -> bool:
        """Whether the rules differ from the desired ones, or a set has more or fewer elements."""
        try:
            sizes = self._sets.sizes()
            readings = (
                (contents, kernel.read_rules(self._tools[family])) for family, contents in self._contents.items()
            )
            return any(contents.differs(saved, sizes) for contents, saved in readings)
        except KernelError:
            return True

    def load(
        self, compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts | None = None
    ) -> tuple[Steps, ...]:
        """Makes the kernel hold exactly the compiler's policies; returns the steps.

        ``devices`` has the device of each pod of this node, by the pod's key.

        Raises: KernelError; steps that were already taken stay in force.
        """
        self._facts = facts or self._facts
        self._reload = True
        self._undeleted.clear()
        make_tables(self.programs, (TABLE,), self._netns_path, self._watch.ignore_process)
        uplinks = self._uplinks(devices)
        names_of_profiles: dict[ProfileKey, ProfileName] = {}
        done = []
        for family, tool in self._tools.items():
            if family in self._missing:
                continue
            try:
                saved = kernel.read_rules(tool)
            except KernelError:
                if family == FAMILIES[0] or Path("/proc/sys/net/ipv6").exists():
                    raise
                self._missing.add(family)
                continue
            have = kernel.read_sets(self._sets, family)
            chains = {name: tuple(rules) for name, rules in saved.get(TABLE, {}).items()}
            layout = layout_of(self._facts, family, uplinks)
            known = names_in_kernel(layout, KernelState(chains, have), compiler.pods, devices, names_of_profiles)
            names_of_profiles.update(known.by_profile)
            contents = Contents(layout, chains, have, known)
            follow(contents, compiler, compiler.everything(), devices)
            done.append(contents.loaded(saved, have))
            self._apply(tool, done[-1])
            self._contents[family] = contents
        self._reload = False
        return tuple(done)

    def _uplinks(self, devices: Mapping[str, str]) -> tuple[str, ...]:
        return kernel.uplinks(self._netns_path, self._facts.addresses, (*devices.values(), *self._facts.bridges))

    def update(
        self, compiler: Compiler, devices: Mapping[str, str], delta: PolicyDelta, facts: PolicyFacts | None = None
    ) -> tuple[Steps, ...]:
        """Writes a change of the compiler; ``delta.pods`` also has the pods whose device was added or removed.

        ``facts`` is None when nothing about the node changed; otherwise the new facts need no other chains.
        Raises: KernelError when a full load was tried as well and failed.
        """
        self._facts = facts or self._facts
        if self._reload:
            return self.load(compiler, devices)
        done = []
        try:
            if facts is not None and not self._moved(facts, self._uplinks(devices)):
                return self.load(compiler, devices)
            for family, contents in self._contents.items():
                self._counters.settle(family, contents.denials(delta.groups.keys() | delta.new_profiles))
                follow(contents, compiler, delta, devices)
                done.append(contents.changed())
                self._apply(self._tools[family], done[-1])
        except KernelError:
            return self.load(compiler, devices)
        return tuple(done)

    def _moved(self, facts: PolicyFacts, uplinks: tuple[str, ...]) -> bool:
        """Takes over facts of the node and returns True; returns False without a change when the uplinks differ."""
        if any(contents.layout.uplinks != uplinks for contents in self._contents.values()):
            return False
        for family, contents in self._contents.items():
            contents.move(layout_of(facts, family, uplinks))
        return True

    def heal(self) -> tuple[Steps, ...]:
        """Reads the kernel and writes the differences; returns the steps that were needed.
        Raises: KernelError.
        """
        make_tables(self.programs, (TABLE,), self._netns_path, self._watch.ignore_process)
        done = []
        for family, contents in self._contents.items():
            tool = self._tools[family]
            done.append(contents.loaded(kernel.read_rules(tool), kernel.read_sets(self._sets, family)))
            self._apply(tool, done[-1])
        self._undeleted = kernel.forget(self._sets, self._undeleted)
        return tuple(done)

    def _apply(self, tool: Iptables, steps: Steps) -> None:
        """Applies the steps of a change, in order."""
        self._keep_counts(tool, steps)
        self._sets.commit(steps.prepare)
        self._watch.restore(tool, steps.enter)
        self._sets.commit(steps.lead)
        self._watch.restore(tool, steps.leave)
        if steps.forget or self._undeleted:
            self._undeleted = kernel.forget(self._sets, (*self._undeleted, *steps.forget))

    def _keep_counts(self, tool: Iptables, steps: Steps) -> None:
        """Saves the counts of the rules that a change deletes."""
        deleted = {line.split()[1] for line in steps.leave.splitlines() if line.startswith(f"-X {RULE}")}
        self._counters.keep(tool.family, deleted)

    def _read_counters(self, family: str, _chains: Collection[str] | None) -> dict[str, Count]:
        return kernel.read_counts(self._tools[family])

    @property
    def missing(self) -> frozenset[str]:
        """Families that this machine cannot program."""
        return frozenset(self._missing)

    def hit(self, prefix: str) -> RuleHit | None:
        """The rule that logs packets with a prefix; None: the rule is unknown or was deleted long ago."""
        return self._counters.hit(prefix)

    def counts(self) -> tuple[Counted, ...]:
        """The counts of all rules, deleted rules included; a rule that is older than this object keeps its count.
        Raises: KernelError.
        """
        return self._counters.counts()

    def desired(self) -> tuple[Ruleset | IpSet, ...]:
        """The rules and sets that the kernel should hold."""
        return tuple(value for contents in tuple(self._contents.values()) for value in contents.desired())

    def remove(self) -> None:
        """Deletes all rules and sets.
        Raises: KernelError.
        """
        self._reload = True
        for tool in self._tools.values():
            if tool.family not in self._missing:
                kernel.remove(tool, self._sets)
        drop_tables((TABLE,), self._netns_path, self._watch.ignore_process)
        self._undeleted.clear()


def layout_of(facts: PolicyFacts, family: str, uplinks: tuple[str, ...]) -> ChainLayout:
    """The layout of a node's chains in one family; ``uplinks`` are the devices with the node's own addresses."""
    return ChainLayout(**of_family(facts, family), marks=MarkBits(facts.marks), uplinks=uplinks)
