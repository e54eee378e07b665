"""The ``nftables`` data plane of policies: keeps the tables of both families equal to the output of the compiler.

1. ``load`` reads the kernel and commits only the differences: there is no moment without rules, and a restart with
nothing changed writes nothing. 2. ``update`` commits only what a change touches and does not read the kernel. 3. After
a refused transaction, everything is loaded again; if the load fails too, the last good rules stay in force, the error
is raised, and the next call loads again. 4. ``restore`` writes what the kernel's notifications name, without reading:
chains, deleted elements, a whole table that was deleted; ``heal`` reads and writes what still differs. 5. ``close``
leaves all rules in force, ``remove`` deletes the tables.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext

from podwire.errors import KernelError
from podwire.kernel import nft_families
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft_families import FamilyTables
from podwire.policy.compile import Compiler
from podwire.policy.contents import follow
from podwire.policy.dataplane import PolicyFacts, of_family
from podwire.policy.dataplanes.nftables.contents import Contents
from podwire.policy.dataplanes.nftables.layout import RULE, TABLE, TableLayout
from podwire.policy.dataplanes.nftables.placements import names_in_kernel
from podwire.policy.dataplanes.nftables.steps import steps
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.profile import ProfileKey
from podwire.policy.profilenames import ProfileName
from podwire.policy.status.counts import Count, Counted, RuleCounters
from podwire.policy.verdicts import RuleHit
from podwire.state.nft import Table
from podwire.state.nft_diff import (
    AddElements,
    DeleteChain,
    DeleteElements,
    DeleteTable,
    FlushChain,
    Transaction,
)

_FEW = 16
"""Up to this number of chains, the counters of each chain are read; above it, those of the whole table."""

_MANY = 256
"""From this number of elements on, notifications are turned off for the change; this costs two system calls."""


class NftablesPolicy:
    """Policies through nftables in one network namespace (None: that of this process)."""

    name = "nftables"

    def __init__(self, facts: PolicyFacts, netns: NetnsPath = None) -> None:
        self._tables = FamilyTables(TABLE, netns)
        self._facts = facts
        self._contents: dict[str, Contents] = {}
        self._reload = True
        self._counters = RuleCounters(self._contents, self._read_counters)

    def close(self) -> None:
        """Closes the sockets to the kernel; the rules stay in force."""
        self._tables.close()

    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`disturbed` should be called."""
        return self._tables.fileno()

    def disturbed(self) -> bool:
        """Whether another program may have changed one of these tables since the last call."""
        return self._tables.disturbed()

    def load(
        self, compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts | None = None
    ) -> tuple[Transaction, ...]:
        """Makes the kernel hold exactly the compiler's policies; returns the committed transactions.

        ``devices`` has the device of each pod of this node, by the pod's key.
        Raises: KernelError; the tables are as they were.
        """
        self._facts = facts or self._facts
        self._reload = True
        new_contents: dict[str, Contents] = {}
        names: dict[ProfileKey, ProfileName] = {}

        def want(family: str, have: Table | None) -> Table:
            layout = layout_of(self._facts, family)
            known = names_in_kernel(have, layout, compiler.pods, devices, names)
            names.update(known.by_profile)
            contents = new_contents[family] = Contents(layout, have, known)
            follow(contents, compiler, compiler.everything(), devices)
            contents.commit()
            return contents.table()

        committed = []
        for family, transaction in self._tables.load(want, self._commit):
            self._contents[family] = new_contents[family]
            committed.append(transaction)
        self._reload = False
        return tuple(committed)

    def update(
        self, compiler: Compiler, devices: Mapping[str, str], delta: PolicyDelta, facts: PolicyFacts | None = None
    ) -> tuple[Transaction, ...]:
        """Commits a change of the compiler; ``delta.pods`` also has the pods whose device was added or removed.

        ``facts`` is None when nothing about the node changed; otherwise the new facts need no other chains.
        Raises: KernelError when a full load was tried as well and failed.
        """
        self._facts = facts or self._facts
        if self._reload:
            return self.load(compiler, devices)
        committed = []
        try:
            for family, contents in self._contents.items():
                if facts is not None:
                    contents.move(layout_of(facts, family))
                self._counters.settle(family, contents.denials(delta.groups.keys() | delta.new_profiles))
                follow(contents, compiler, delta, devices)
                committed.append(contents.commit())
                self._commit(committed[-1], end_accepts=contents.end_accepts)
        except KernelError:
            return self.load(compiler, devices)
        return tuple(committed)

    def heal(self) -> tuple[Transaction, ...]:
        """Reads the kernel and writes the differences; returns the transactions that were needed.
        Raises: KernelError.
        """
        tables = ((family, contents.table()) for family, contents in self._contents.items())
        return self._tables.heal(tables, self._commit)

    def restore(self) -> tuple[Transaction, ...]:
        """Writes what notifications named, without reading; returns what was committed.

        What the kernel refuses is left to :meth:`heal`.
        """
        return () if self._reload else tuple(self._restore_touched())

    def _restore_touched(self) -> Iterator[Transaction]:
        with self._tables.notifications_off():
            for family, parts in self._tables.take_touched().items():
                contents = self._contents.get(family)
                if contents is None:
                    continue
                removed = {name: e for name, e in parts.restorable().items() if not contents.is_tree(name)}
                transaction = (
                    contents.replaced() if parts.deleted else contents.rewritten(parts.chains, parts.sets, removed)
                )
                try:
                    self._keep_counts(transaction)
                    self._tables.commit(transaction)
                except KernelError:
                    continue
                if transaction:
                    yield transaction

    def hit(self, prefix: str) -> RuleHit | None:
        """The rule that logs packets with a prefix; None: the rule is unknown or was deleted long ago."""
        return self._counters.hit(prefix)

    def counts(self) -> tuple[Counted, ...]:
        """The counts of all rules, deleted rules included; a rule that is older than this object keeps its count.
        Raises: KernelError.
        """
        return self._counters.counts()

    def _read_counters(self, family: str, chains: Collection[str] | None) -> dict[str, Count]:
        """The counters of a family by chain: of single chains when few are named, otherwise of the whole table."""
        counted_chains = chains if chains is not None and len(chains) <= _FEW else ("",)
        read = (self._tables.nft.counters(family, TABLE, chain) for chain in counted_chains)
        return {name: Count(*numbers) for counters in read for name, numbers in counters.items()}

    def _keep_counts(self, transaction: Transaction) -> None:
        """Saves the counts of the rules that a transaction deletes."""
        if any(isinstance(operation, DeleteTable) for operation in transaction.operations):
            self._counters.keep(transaction.family, None)
            return
        changed = {o.name for o in transaction.operations if isinstance(o, DeleteChain | FlushChain)}
        self._counters.keep(transaction.family, {name for name in changed if name.startswith(RULE)})

    def _commit(self, transaction: Transaction, *, end_accepts: bool = False) -> None:
        """Commits a transaction; a large one without notifications, because the kernel sends one for each element.

        ``end_accepts`` is that of :func:`~podwire.policy.dataplanes.nftables.steps.steps`.
        """
        self._keep_counts(transaction)
        elements = sum(len(o.elements) for o in transaction.operations if isinstance(o, AddElements | DeleteElements))
        with self._tables.notifications_off() if elements >= _MANY else nullcontext():
            for step in steps(transaction, end_accepts=end_accepts):
                self._tables.commit(step)

    @property
    def missing(self) -> frozenset[str]:
        """Families that this kernel cannot program."""
        return self._tables.missing

    def desired(self) -> tuple[Table, ...]:
        """The tables that the kernel should hold."""
        return tuple(contents.table().canonical() for contents in tuple(self._contents.values()))

    def remove(self) -> None:
        """Deletes the tables.
        Raises: KernelError.
        """
        self._tables.remove()
        self._reload = True


def layout_of(facts: PolicyFacts, family: str) -> TableLayout:
    """The layout of a node's table in one family."""
    return TableLayout(**of_family(facts, family))


def clear(netns: NetnsPath = None) -> bool:
    """Deletes the tables that an earlier run left; returns whether there were any.

    Raises: KernelError.
    """
    return nft_families.clear(TABLE, netns)
