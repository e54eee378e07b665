"""Detects changes of iptables rules by other programs in a network namespace.

For the nft kind the kernel sends notifications. For legacy rules it sends none. There the numbers of entries, the sizes
and the hook offsets of the tables are compared with those after the last write of podwire, by one system call for each
table: when a program of legacy iptables ends (:mod:`podwire.kernel.xtables_lock`), and every 0.05 s. A change that
keeps all of them, such as a rule that takes the place of an equally long one, shows in a digest of the rules, which is
compared every second (:mod:`podwire.kernel.legacy_rules`). The rules of tables that are too large for that have no
digest; for these ``changed`` also returns True every 30 s. While changes follow one another, the pause after each
doubles up to 30 s.
"""

import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

from podwire.errors import KernelError
from podwire.kernel.iptables import FAMILIES, Iptables, Programs, Ticker
from podwire.kernel.iptables_comments import with_comment_as_userdata
from podwire.kernel.legacy_rules import KnownTables, LegacyTables
from podwire.kernel.looks import LOOK_S
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_monitor import KeptChains, NftMonitor
from podwire.kernel.xtables_lock import LockUses, lock
from podwire.state.iptables import ChainSize
from podwire.state.iptables_diff import tables_of
from podwire.state.nft_diff import RestoreRules, Transaction

POLL_S = 30.0  # as kube-proxy's syncPeriod
RULES_S = 1.0
"""Between two comparisons of the rules of legacy tables."""


class ChainWatch(Protocol):
    """Reports when another program may have changed rules."""

    def fileno(self) -> int:
        """Readable when :meth:`changed` should be called."""
        ...

    def changed(self) -> bool:
        """Whether another program may have changed a table since the last call."""
        ...

    def take_chains(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """The chains by family and table that other programs are known to have changed since the last call.

        A table without chains: other programs changed some chains of it.
        """
        ...

    def empty_chains(self, family: str, table: str, chains: Iterable[str]) -> frozenset[str]:
        """Those of some chains that are known to hold no rule now.

        Raises: KernelError.
        """
        ...

    def put_back(self, family: str, table: str, desired: Mapping[str, ChainSize]) -> tuple[RestoreRules, ...]:
        """Adds the rules again that other programs deleted, as the kernel had them, where they are all that is missing.

        They are those of the last :meth:`take_chains`. Empty when there are none, or when the kernel refuses them.
        """
        ...

    def put_back_table(self, family: str, table: str) -> bool:
        """Puts back podwire's rules of a table as it wrote them last; returns whether that was possible.

        It is with the legacy kind, if the rules of other programs are still the same.
        """
        ...

    def ignore_process(self, process: int) -> None:
        """Must be called with the process id of an iptables program that podwire starts; its changes are ignored."""
        ...

    def restore(self, tool: Iptables, text: str) -> None:
        """Runs iptables-restore; the changes of the text are not reported.

        Raises: KernelError.
        """
        ...

    def notifications_off(self, write: Callable[[], int]) -> None:
        """Calls ``write``, which reads everything first, with notifications off.

        ``write`` returns the number of changed tables.
        """
        ...

    def close(self) -> None:
        """Closes the descriptors."""
        ...


class _NftWatch:
    """Notifications of nf_tables, without podwire's own changes."""

    def __init__(self, netns_path: NetnsPath, tables: frozenset[str], owns: KeptChains | None) -> None:
        self._nft = Nft(netns_path)
        self._monitor = NftMonitor(netns_path, keep_rules=owns) if owns else NftMonitor(netns_path)
        self._monitor.ignore_port(self._nft.port)
        self._tables = tables
        self._missed = False
        self._lock = threading.Lock()
        """Held while the chains change, because another thread may take them."""
        self._chains: dict[tuple[str, str], set[str]] = {}
        self._deleted: dict[tuple[str, str], dict[str, list[bytes]]] = {}
        """Deleted rules by chain, as the kernel encoded them."""
        self._restorable: dict[tuple[str, str], dict[str, list[bytes]]] = {}
        """Those of the chains that were taken last."""
        self.ignore_process = self._monitor.ignore_port
        self.fileno = self._monitor.fileno

    def changed(self) -> bool:
        changes = self._monitor.read()
        missed, self._missed = self._missed, False
        own = {key: touched for key, touched in changes.items() if key[0] in FAMILIES and key[1] in self._tables}
        with self._lock:
            for key, touched in own.items():
                self._chains.setdefault(key, set()).update(touched.chains)
                deleted = self._deleted.setdefault(key, {})
                for chain, rules in touched.rules.items():
                    deleted.setdefault(chain, []).extend(rules)
        return missed or any(f in ("", *FAMILIES) and (not t or t in self._tables) for f, t in changes)

    def take_chains(self) -> Mapping[tuple[str, str], frozenset[str]]:
        with self._lock:
            chains, self._chains = self._chains, {}
            self._restorable, self._deleted = self._deleted, {}
        return {table: frozenset(names) for table, names in chains.items()}

    def put_back(self, family: str, table: str, desired: Mapping[str, ChainSize]) -> tuple[RestoreRules, ...]:
        deleted = {name: rules for name, rules in self._restorable.pop((family, table), {}).items() if name in desired}
        if not deleted:
            return ()
        try:
            generation = self._nft.generation()
            only = next(iter(deleted)) if len(deleted) == 1 else ""
            present = self._nft.rule_counts(family, table, only)
            restorations = tuple(_restorations(deleted, desired, present))
            self._nft.commit(Transaction(family, table, restorations), generation)
        except KernelError:
            return ()
        return restorations

    def put_back_table(self, family: str, table: str) -> bool:
        """Not of this kind."""
        return False

    def empty_chains(self, family: str, table: str, chains: Iterable[str]) -> frozenset[str]:
        return frozenset(chain for chain in chains if not self._nft.rule_counts(family, table, chain))

    def restore(self, tool: Iptables, text: str) -> None:
        tool.restore(text, self.ignore_process)

    def notifications_off(self, write: Callable[[], int]) -> None:
        self._monitor.pause()
        before = self._nft.generation()
        count = -1
        try:
            count = write()
        finally:
            self._monitor.resume()
            self._missed = self._nft.generation() != before + count

    def close(self) -> None:
        self._monitor.close()
        self._nft.close()


def _restorations(
    deleted: Mapping[str, list[bytes]], desired: Mapping[str, ChainSize], present: Mapping[str, int]
) -> Iterator[RestoreRules]:
    """What puts rules back into chains that lack only these."""
    for name, encoded in deleted.items():
        expected, held = desired[name], present.get(name, 0)
        if held + len(encoded) != expected.rules:
            continue
        rules = tuple(map(with_comment_as_userdata, encoded))
        if not held:
            yield RestoreRules(name, rules)
        elif expected.last is not None:
            mark = expected.last.encode()
            last = tuple(rule for rule in rules if mark and mark in rule)
            if first := tuple(rule for rule in rules if rule not in last):
                yield RestoreRules(name, first, first=True)
            if last:
                yield RestoreRules(name, last)


class Poll:
    """Polling, since the kernel sends no notifications for legacy rules."""

    def __init__(self, netns_path: NetnsPath, tables: Iterable[str], owns: KeptChains | None = None) -> None:
        self._owns = owns
        self._tables = LegacyTables(netns_path, tables)
        self._known = KnownTables(self._tables)
        self._ticker = Ticker(LOOK_S)
        self._lock_uses = LockUses()
        self._events = select.epoll()
        for source in (self._ticker, self._lock_uses):
            self._events.register(source.fileno(), select.EPOLLIN)
        self.fileno = self._events.fileno
        self._lock = threading.Lock()
        """Held while podwire writes, because another thread calls :meth:`changed`."""
        self._missed = False
        self._changed: set[tuple[str, str]] = set()
        self._compare_at = time.monotonic() + POLL_S
        self._read_at = 0.0
        """When the rules are compared next."""
        self._pause_s, self._rested_at = LOOK_S, 0.0

    def close(self) -> None:
        self._events.close()
        self._ticker.close()
        self._lock_uses.close()
        self._tables.close()

    def changed(self) -> bool:
        ticked, used = self._ticker.period_ended(), self._lock_uses.used()
        if not (ticked or used) or not self._lock.acquire(blocking=False):
            return False
        try:
            now = time.monotonic()
            if now >= self._rested_at:
                rules = now >= self._read_at
                if self._look(rules=rules) or self._missed:
                    self._missed = False
                    quiet = now - self._rested_at > 2 * self._pause_s
                    self._pause_s = LOOK_S if quiet else min(2 * self._pause_s, POLL_S)
                    self._rested_at = now + self._pause_s
                    return True
                if rules and self._owns:
                    self._known.remember()
        finally:
            self._lock.release()
        if now < self._compare_at:
            return False
        self._compare_at = now + POLL_S
        return True

    def _look(self, *, rules: bool) -> bool:
        """Whether a table differs from what was known of it; it is known then."""
        if rules:
            self._read_at = time.monotonic() + RULES_S
        differing = self._known.differing(rules=rules)
        self._known.accept(differing)
        self._changed |= differing
        return bool(differing)

    def take_chains(self) -> Mapping[tuple[str, str], frozenset[str]]:
        with self._lock:
            changed, self._changed = self._changed, set()
        return {table: frozenset() for table in changed}

    def empty_chains(self, family: str, table: str, chains: Iterable[str]) -> frozenset[str]:
        return frozenset()

    def put_back(self, family: str, table: str, desired: Mapping[str, ChainSize]) -> tuple[RestoreRules, ...]:
        """The kernel tells no rules of this kind."""
        return ()

    def put_back_table(self, family: str, table: str) -> bool:
        if self._owns is None:
            return False
        with self._lock, lock() as is_free:
            done = is_free and self._known.put_back((family, table), partial(self._owns, table))
            self._lock_uses.watch()
        return done

    def ignore_process(self, process: int) -> None:
        """Has no effect, since own changes cause no notifications."""

    def restore(self, tool: Iptables, text: str) -> None:
        if not text:
            return
        written = frozenset((tool.family, table) for table in tables_of(text))
        with self._lock:
            differing = self._known.differing(rules=True, of=written)
            self._changed |= differing
            self._missed = bool(differing) or self._missed
            try:
                tool.restore(text)
            finally:
                self._known.read_written(written)
                self._lock_uses.watch()

    def notifications_off(self, write: Callable[[], int]) -> None:
        with self._lock:
            written = -1
            try:
                written = write()
            finally:
                self._known.read(written=written != 0)
                self._missed = False
                self._lock_uses.watch()


def watch(
    programs: Programs,
    tables: Iterable[str],
    netns_path: NetnsPath,
    owns: KeptChains | None = None,
) -> ChainWatch:
    """A watch on the rules of this kind of iptables in these tables; ``owns``: the chains whose rules can be put back.

    Raises: KernelError.
    """
    if programs.kind != "nft":
        return Poll(netns_path, tables, owns)
    return _NftWatch(netns_path, frozenset(tables), owns)
