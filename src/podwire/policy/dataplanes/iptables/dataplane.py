"""The ``iptables`` data plane of policies: keeps rules and sets of both families equal to what the compiler says.

1. ``load`` reads the kernel and writes what differs, numbers stay what they were: there is no moment without rules, and
a restart with nothing changed writes nothing. 2. ``update`` writes what a change touches, without reading: elements of
sets alone, unless chains come or go, which costs one or two calls of iptables-restore. 3. A refused step is answered by
a full load; when that fails too, what is in force stays, the error is raised, and the next call loads again.
4. ``heal`` writes what somebody else changed, and puts our jumps first again; of rules of the nft kind the kernel tells
at once, of legacy ones and of sets it tells nothing, so ``disturbed`` looks every 30 s whether the rules are what they
should be and how many elements the sets have, and says yes every 10 minutes, for the elements themselves. 5. ``close``
leaves everything in force, ``remove`` takes it away. 6. Without IPv6, IPv4 is enforced all the same.

Whoever calls waits for iptables-restore: 27 ms (legacy) to 56 ms (nft) of a changed policy among 1,000, and of a pod
that is the first of its policies; 11 ms of that are our own work, which no thread would take off the others. A change
of elements alone runs no program (4 ms). So it is not done in a thread: while one is at work, a pod that comes would
have to wait for it all the same, and what is counted, told and compared would have to be kept from it. What may take
seconds is the lock of the legacy kind while others write; that is waited for before, beside other work.
"""

import select
from collections.abc import Mapping
from pathlib import Path

from podwire.errors import KernelError
from podwire.kernel.ipset import IpSets
from podwire.kernel.iptables import FAMILIES, Iptables, Programs, Ticker, choose, locked
from podwire.kernel.iptables_tables import drop_tables, make_tables
from podwire.kernel.iptables_watch import POLL_S, watch
from podwire.policy.compile import Compiler, Delta
from podwire.policy.contents import follow
from podwire.policy.dataplane import PolicyFacts, of_family
from podwire.policy.dataplanes.iptables import kernel
from podwire.policy.dataplanes.iptables.contents import Contents
from podwire.policy.dataplanes.iptables.kernel import clear, held
from podwire.policy.dataplanes.iptables.layout import ChainLayout
from podwire.policy.dataplanes.iptables.names import RULE, TABLE
from podwire.policy.dataplanes.iptables.numbers import Marks
from podwire.policy.dataplanes.iptables.steps import Steps
from podwire.policy.status.counts import Counted, Totals
from podwire.policy.verdicts import RuleHit
from podwire.state.ipset import IpSet
from podwire.state.iptables import Ruleset

_ALL = 20
"""Every so many times that the time comes, all is read."""

__all__ = ["IptablesPolicy", "clear", "held"]


class IptablesPolicy:
    """Policies through iptables and ipset in one network namespace (None: that of this process)."""

    name = "iptables"

    def __init__(self, facts: PolicyFacts, netns: Path | str | None = None, programs: Programs | None = None) -> None:
        self.programs = programs or choose(netns)
        kernel.check(self.programs)
        self._place = netns
        self._facts = facts
        self._sets = IpSets(netns)
        self._watch = watch(self.programs, (TABLE,), netns)
        self._ticker = Ticker(POLL_S)
        self._both = select.epoll()
        for each in (self._watch, self._ticker):
            self._both.register(each.fileno(), select.EPOLLIN)
        self._tools = {family: Iptables(family, self.programs, netns) for family in FAMILIES}
        self._contents: dict[str, Contents] = {}
        self._missing: set[str] = set()
        self._doomed: set[str] = set()
        """Sets to take away that rules still referred to."""
        self._ticks = 0
        self._totals = Totals()
        self._lost = True

    def close(self) -> None:
        """Closes the sockets to the kernel; what is in force stays."""
        self._both.close()
        self._watch.close()
        self._ticker.close()
        self._sets.close()
        for tool in self._tools.values():
            tool.close()

    def fileno(self) -> int:
        """Readable when :meth:`disturbed` should be asked."""
        return self._both.fileno()

    def locked(self) -> bool:
        """Whether somebody else's iptables-restore is at work, which ours would wait for."""
        return locked(self.programs)

    def disturbed(self) -> bool:
        """Whether another program may have changed what is ours since the last call."""
        ticked, changed = self._ticker.ticked(), self._watch.changed()
        self._ticks += ticked
        if changed and self.programs.kind == "nft":
            return True
        return (ticked or changed) and (self._ticks % _ALL == 0 or self._differs())

    def _differs(self) -> bool:
        """Whether rules are others than they should be, or sets have more elements, or fewer."""
        try:
            sizes = self._sets.sizes()
            found = ((contents, kernel.read_rules(self._tools[family])) for family, contents in self._contents.items())
            return any(contents.differs(saved, sizes) for contents, saved in found)
        except KernelError:
            return True

    def load(
        self, compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts | None = None
    ) -> tuple[Steps, ...]:
        """Makes the kernel hold exactly what the compiler says; ``devices`` has that of each pod of this node.

        Raises: KernelError; what was in force stays, or what was new already.
        """
        self._facts = facts or self._facts
        self._lost = True
        self._doomed.clear()
        make_tables(self.programs, (TABLE,), self._place, self._watch.started)
        uplinks = self._uplinks(devices)
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
            contents = Contents(layout_of(self._facts, family, uplinks), chains, have)
            follow(contents, compiler, compiler.everything(), devices)
            done.append(contents.loaded(saved, have))
            self._take(tool, done[-1])
            self._contents[family] = contents
        self._lost = False
        return tuple(done)

    def _uplinks(self, devices: Mapping[str, str]) -> tuple[str, ...]:
        return kernel.uplinks(self._place, self._facts.addresses, (*devices.values(), *self._facts.bridges))

    def update(
        self, compiler: Compiler, devices: Mapping[str, str], delta: Delta, facts: PolicyFacts | None = None
    ) -> tuple[Steps, ...]:
        """Takes over a change of the compiler; a pod whose device came or went stands in ``delta.pods`` too.

        ``facts`` are others than before, though alike.

        Raises: KernelError when a full load was tried as well and failed.
        """
        self._facts = facts or self._facts
        if self._lost:
            return self.load(compiler, devices)
        done = []
        try:
            if facts is not None and not self._moved(facts, self._uplinks(devices)):
                return self.load(compiler, devices)
            for family, contents in self._contents.items():
                follow(contents, compiler, delta, devices)
                done.append(contents.changed())
                self._take(self._tools[family], done[-1])
        except KernelError:
            return self.load(compiler, devices)
        return tuple(done)

    def _moved(self, facts: PolicyFacts, uplinks: tuple[str, ...]) -> bool:
        """Takes over facts; not when the uplinks are others."""
        if any(contents.layout.uplinks != uplinks for contents in self._contents.values()):
            return False
        for family, contents in self._contents.items():
            contents.move(layout_of(facts, family, uplinks))
        return True

    def heal(self) -> tuple[Steps, ...]:
        """Reads the kernel and writes what differs; what had to be written.

        Raises: KernelError.
        """
        make_tables(self.programs, (TABLE,), self._place, self._watch.started)
        done = []
        for family, contents in self._contents.items():
            tool = self._tools[family]
            done.append(contents.loaded(kernel.read_rules(tool), kernel.read_sets(self._sets, family)))
            self._take(tool, done[-1])
        self._doomed = kernel.forget(self._sets, self._doomed)
        return tuple(done)

    def _take(self, tool: Iptables, steps: Steps) -> None:
        """Takes the steps of a change, one after the other."""
        self._keep_counts(tool, steps)
        self._sets.commit(steps.prepare)
        tool.restore(steps.enter, self._watch.started)
        self._sets.commit(steps.lead)
        tool.restore(steps.leave, self._watch.started)
        if steps.forget or self._doomed:
            self._doomed = kernel.forget(self._sets, (*self._doomed, *steps.forget))

    def _keep_counts(self, tool: Iptables, steps: Steps) -> None:
        """Keeps what rules have counted that a change takes away."""
        gone = {line.split()[1] for line in steps.leave.splitlines() if line.startswith(f"-X {RULE}")}
        if gone:
            readings = self._readings(tool)
            self._totals.keep(tool.family, {name: readings[name] for name in gone & readings.keys()})

    def _readings(self, tool: Iptables) -> dict[str, Counted]:
        contents = self._contents.get(tool.family)
        if contents is None:
            return {}
        found = ((name, contents.meaning(name), count) for name, count in kernel.read_counts(tool).items())
        return {name: Counted(hit, count) for name, hit, count in found if hit is not None}

    @property
    def missing(self) -> frozenset[str]:
        """Families that this machine cannot program."""
        return frozenset(self._missing)

    def hit(self, prefix: str) -> RuleHit | None:
        """What packets that are logged with a prefix met; None: a rule that is there no more, or none of ours."""
        found = (contents.meaning(prefix) for contents in self._contents.values())
        return next(filter(None, found), None)

    def counts(self) -> tuple[Counted, ...]:
        """What rules have counted since this object was made, and before where they are older.

        Raises: KernelError.
        """
        for family in self._contents:
            self._totals.totals(family, self._readings(self._tools[family]))
        return self._totals.all()

    def desired(self) -> tuple[Ruleset | IpSet, ...]:
        """What the kernel should hold."""
        return tuple(each for contents in tuple(self._contents.values()) for each in contents.desired())

    def remove(self) -> None:
        """Takes all of it away.

        Raises: KernelError.
        """
        self._lost = True
        for tool in self._tools.values():
            if tool.family not in self._missing:
                kernel.remove(tool, self._sets)
        drop_tables((TABLE,), self._place, self._watch.started)
        self._doomed.clear()


def layout_of(facts: PolicyFacts, family: str, uplinks: tuple[str, ...]) -> ChainLayout:
    """What is laid out for a node in one family; ``uplinks`` are the devices that carry its own addresses."""
    return ChainLayout(**of_family(facts, family), marks=Marks(facts.marks), uplinks=uplinks)
