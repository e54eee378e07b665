"""The ``nftables`` data plane of policies: keeps both families' tables equal to what the compiler says.

1. ``load`` reads the kernel and commits what differs: there is no moment without rules, and a restart with nothing
changed writes nothing. 2. ``update`` commits what a change touches, without reading. 3. A refused transaction is
answered by a full load; when that fails too, the last good rules stay in force, the error is raised, and the next call
loads again. 4. ``heal`` writes what somebody else changed. 5. ``close`` leaves everything in force, ``remove`` takes it
away.
"""

from collections.abc import Mapping
from pathlib import Path

from podwire.errors import KernelError, Unsupported
from podwire.kernel.nft import Nft
from podwire.kernel.nft_socket import NftMonitor
from podwire.policy.compile import Compiler, Delta
from podwire.policy.dataplane import Facts
from podwire.policy.dataplanes.nftables.contents import Contents
from podwire.policy.dataplanes.nftables.layout import RULE, TABLE, Layout
from podwire.policy.dataplanes.nftables.steps import steps
from podwire.policy.ruled import Ruled
from podwire.policy.status.counts import Count, Counted, Totals
from podwire.state.nft import Table
from podwire.state.nft_diff import (
    AddElements,
    DeleteChain,
    DeleteElements,
    DeleteTable,
    FlushChain,
    Transaction,
    diff,
    removal,
)

FAMILIES = ("ip", "ip6")

_FEW = 16
"""Chains up to which each is asked for what it counted; of more, all are."""

_MANY = 256
"""Elements from which on a change is worth the two system calls that make it unheard."""


class NftablesPolicy:
    """Policies through nftables in one network namespace (None: that of this process)."""

    name = "nftables"

    def __init__(self, facts: Facts, netns: Path | str | None = None) -> None:
        self._nft = Nft(netns)
        self._monitor = NftMonitor(netns, (self._nft.port,))
        self._facts = facts
        self._contents: dict[str, Contents] = {}
        self._missing: set[str] = set()
        self._lost = True
        self._unheard = False
        self._totals = Totals()

    def close(self) -> None:
        """Lets go of the kernel; what is in force stays."""
        self._nft.close()
        self._monitor.close()

    def fileno(self) -> int:
        """Readable when :meth:`disturbed` should be asked."""
        return self._monitor.fileno()

    def disturbed(self) -> bool:
        """Whether somebody else may have changed a table of ours since the last call."""
        changed = self._monitor.changed()
        unheard, self._unheard = self._unheard, False
        return unheard or ("", "") in changed or any((family, TABLE) in changed for family in FAMILIES)

    def load(
        self, compiler: Compiler, devices: Mapping[str, str], facts: Facts | None = None
    ) -> tuple[Transaction, ...]:
        """Makes the kernel hold exactly what the compiler says; ``devices`` has that of each pod of this node.

        Raises: KernelError; the tables are as they were.
        """
        self._facts = facts or self._facts
        self._lost = True
        everything = Delta(pods=dict(compiler.pods), made=set(compiler.profiles))
        committed = []
        for family in FAMILIES:
            if family in self._missing:
                continue
            contents = Contents(layout_of(self._facts, family))
            follow(contents, compiler, everything, devices)
            contents.commit()
            have = self._nft.read(family, TABLE)
            transaction = diff(have, contents.table())
            try:
                self._commit(transaction)
            except Unsupported:
                if have is not None or family == FAMILIES[0]:
                    raise
                self._missing.add(family)
                continue
            self._contents[family] = contents
            committed.append(transaction)
        self._lost = False
        return tuple(committed)

    def update(
        self, compiler: Compiler, devices: Mapping[str, str], delta: Delta, facts: Facts | None = None
    ) -> tuple[Transaction, ...]:
        """Takes over a change of the compiler; a pod whose device came or went stands in ``delta.pods`` too.

        ``facts`` are others than before, though alike.

        Raises: KernelError when a full load was tried as well and failed.
        """
        self._facts = facts or self._facts
        if self._lost:
            return self.load(compiler, devices)
        committed = []
        try:
            for family, contents in self._contents.items():
                if facts is not None:
                    contents.move(layout_of(facts, family))
                follow(contents, compiler, delta, devices)
                committed.append(contents.commit())
                self._commit(committed[-1])
        except KernelError:
            return self.load(compiler, devices)
        return tuple(committed)

    def heal(self) -> tuple[Transaction, ...]:
        """Reads the kernel and writes what differs; what had to be written.

        Raises: KernelError.
        """
        committed = []
        for family, contents in self._contents.items():
            transaction = diff(self._nft.read(family, TABLE), contents.table())
            self._commit(transaction)
            committed.append(transaction)
        return tuple(committed)

    def ruled(self, prefix: str) -> Ruled | None:
        """What packets that are logged with a prefix met; None: a rule that is there no more, or none of ours."""
        found = (contents.meaning(prefix) for contents in self._contents.values())
        return next(filter(None, found), None)

    def counts(self) -> tuple[Counted, ...]:
        """What rules have counted since this object was made, and before where they are older.

        Raises: KernelError.
        """
        for family in self._contents:
            self._totals.totals(family, self._read_counts(family))
        return self._totals.all()

    def _read_counts(self, family: str, chain: str = "") -> dict[str, Counted]:
        """What rules have counted, as far as it is known what they stand for."""
        contents = self._contents.get(family)
        if contents is None:
            return {}
        read = self._nft.counters(family, TABLE, chain)
        known = ((name, contents.meaning(name), Count(*numbers)) for name, numbers in read.items())
        return {name: Counted(ruled, count) for name, ruled, count in known if ruled is not None}

    def _keep_counts(self, transaction: Transaction) -> None:
        """Keeps what rules have counted that a transaction takes away."""
        gone = {o.name for o in transaction.operations if isinstance(o, DeleteChain | FlushChain)}
        gone = {name for name in gone if name.startswith(RULE)}
        family = transaction.family
        if any(isinstance(operation, DeleteTable) for operation in transaction.operations):
            self._totals.keep(family, self._read_counts(family))
        elif len(gone) > _FEW:
            readings = self._read_counts(family)
            self._totals.keep(family, {name: readings[name] for name in gone & readings.keys()})
        else:
            for name in gone:
                self._totals.keep(family, self._read_counts(family, name))

    def _commit(self, transaction: Transaction) -> None:
        """A large change is made unheard, since the kernel makes a message of each element for who listens."""
        self._keep_counts(transaction)
        elements = sum(len(o.elements) for o in transaction.operations if isinstance(o, AddElements | DeleteElements))
        if elements < _MANY:
            self._commit_steps(transaction)
            return
        self._monitor.pause()
        before = self._nft.generation()
        try:
            count = self._commit_steps(transaction)
        finally:
            self._monitor.resume()
        self._unheard = self._nft.generation() != before + count

    def _commit_steps(self, transaction: Transaction) -> int:
        count = 0
        for step in steps(transaction):
            self._nft.commit(step)
            count += 1
        return count

    @property
    def missing(self) -> frozenset[str]:
        """Families that this kernel cannot program."""
        return frozenset(self._missing)

    def desired(self) -> tuple[Table, ...]:
        """The tables that the kernel should hold."""
        return tuple(contents.table().canonical() for contents in tuple(self._contents.values()))

    def remove(self) -> None:
        """Takes the tables away.

        Raises: KernelError.
        """
        for family in FAMILIES:
            _take_away(self._nft, family)
        self._lost = True


def layout_of(facts: Facts, family: str) -> Layout:
    """What is laid out for a node in one family."""

    def own(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(text for text in texts if (":" in text) == (family == "ip6"))

    return Layout(
        family=family,
        pod_ranges=own(facts.pod_ranges),
        node_addresses=own(facts.addresses),
        log=facts.log,
        cluster_ranges=own(facts.cluster_ranges),
        encapsulation_ports=facts.encapsulation_ports,
        keep=facts.keep,
        bridges=facts.bridges,
    )


def follow(contents: Contents, compiler: Compiler, delta: Delta, devices: Mapping[str, str]) -> None:
    """Brings contents up to what a compiler says."""
    contents.follow(compiler.profiles, delta)
    for pod, profiles in delta.pods.items():
        device = devices.get(pod, "")
        contents.place(pod, device, profiles if device else None)
    contents.end(delta.ended)


def clear(netns: Path | str | None = None) -> bool:
    """Takes away what an earlier run left; whether there was anything.

    Raises: KernelError.
    """
    with Nft(netns) as nft:
        left = [family for family, name in nft.tables() if name == TABLE and family in FAMILIES]
        for family in left:
            _take_away(nft, family)
    return bool(left)


def _take_away(nft: Nft, family: str) -> None:
    """Takes a table away, its base chains' rules before the rest.

    A base chain is asked for a moment after its table is gone; then its maps are empty, and what is behind them drops
    (seen: 4 to 7 packets of some 20,000, in one of ten times).
    """
    held = nft.read(family, TABLE)
    if held is None:
        return
    base = tuple(FlushChain(chain.name) for chain in held.chains if chain.hook)
    if base:
        nft.commit(Transaction(family, TABLE, base))
    nft.commit(removal(family, TABLE))
