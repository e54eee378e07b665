"""The ``iptables`` data plane: keeps kube-proxy's chains of both families equal to the resolved Services.

1. ``load`` reads the kernel and writes only what differs, stale chains included: a restart with nothing changed
writes nothing. 2. ``update`` writes the chains of the changed Services and their rules in the shared ones, in one call
of iptables-restore for each family that changed, without reading. 3. A refused text is answered by a full load; when
that fails too, the error is raised and the next call loads again. 4. ``heal`` reads and writes what somebody else
changed. Rules of the nft kind tell of changes at once; for legacy ``disturbed`` says yes every 30 s. 5. ``close``
leaves everything in force; ``remove`` takes away our chains, of both kinds, and nothing of others.
6. Without IPv6, IPv4 Services are programmed all the same; ``missing`` names the family.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from podwire.errors import KernelError
from podwire.kernel import netns
from podwire.kernel.iptables import Iptables, Kind, Programs, Ticker, choose, find, legacy_tables, nft_tables
from podwire.kernel.nft import Nft
from podwire.kernel.nft_socket import NftMonitor
from podwire.proxy.dataplanes.iptables.contents import Contents
from podwire.proxy.dataplanes.iptables.layout import Layout
from podwire.proxy.dataplanes.iptables.names import KUBE_PROXY_MARK, MARK
from podwire.proxy.dataplanes.iptables.restore import (
    Saved,
    canonical,
    count_tables,
    ours,
    removal,
    repair,
    repair_in_parts,
)
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ServicePort
from podwire.state.iptables import TABLES, Ruleset, parse_save

FAMILIES = ("ip", "ip6")
_POLL_S = 30.0  # as kube-proxy's syncPeriod
_LIBERAL = Path("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")


class _Rules:
    """One family in the kernel, and who else changes it."""

    def __init__(self, family: str, programs: Programs, place: Path | str | None) -> None:
        self.tool = Iptables(family, programs, place)
        self.contents: Contents | None = None


class _NftWatch:
    """Notifications of nf_tables, without those of our own calls."""

    def __init__(self, place: Path | str | None) -> None:
        self._nft = Nft(place)
        self._monitor = NftMonitor(place)
        self._unheard = False
        self.started = self._monitor.leave_out
        self.fileno = self._monitor.fileno

    def changed(self) -> bool:
        found = self._monitor.changed()
        unheard, self._unheard = self._unheard, False
        return unheard or any(f in ("", *FAMILIES) and t in ("", *TABLES) for f, t in found)

    def unheard(self, write: Callable[[], int]) -> None:
        """Does a large write that returns how many tables it changed, while nothing is told."""
        self._monitor.pause()
        before = self._nft.generation()
        count = -1
        try:
            count = write()
        finally:
            self._monitor.resume()
            self._unheard = self._nft.generation() != before + count

    def close(self) -> None:
        self._monitor.close()
        self._nft.close()


class _Poll:
    """Legacy rules change in silence."""

    def __init__(self) -> None:
        self._ticker = Ticker(_POLL_S)
        self.fileno = self._ticker.fileno
        self.changed = self._ticker.ticked
        self.close = self._ticker.close

    def started(self, process: int) -> None:
        """Of no interest here."""

    def unheard(self, write: Callable[[], int]) -> None:
        """Nothing is told anyway."""
        write()


class IptablesDataPlane:
    """Services through iptables in one network namespace (None: that of this process)."""

    name = "iptables"
    instant = False

    def __init__(self, facts: NodeFacts, place: Path | str | None = None, programs: Programs | None = None) -> None:
        self.programs = programs or _held_by(place) or choose(place)
        self._place = place
        self._facts = facts
        self._watch = _NftWatch(place) if self.programs.kind == "nft" else _Poll()
        self._rules = {family: _Rules(family, self.programs, place) for family in FAMILIES}
        self._services: dict[str, tuple[ServicePort, ...]] = {}
        self._missing: set[str] = set()
        self._lost = True
        self._lock = threading.Lock()
        """Held while contents change: :meth:`desired` and :meth:`conflicts` are asked from another thread."""

    def close(self) -> None:
        """Lets go of the kernel; traffic goes on."""
        for rules in self._rules.values():
            rules.tool.close()
        self._watch.close()

    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`disturbed` should be asked."""
        return self._watch.fileno()

    def disturbed(self) -> bool:
        """Whether somebody else may have changed a table that holds rules of ours since the last call."""
        return self._watch.changed()

    def remove(self) -> None:
        """Takes our rules away.

        Raises: KernelError.
        """
        self._watch.unheard(lambda: sum(_remove(rules.tool) for rules in self._rules.values()))
        self._lost = True

    def load(self, services: ServiceMap, facts: NodeFacts | None = None) -> tuple[str, ...]:
        """Makes the kernel hold exactly these Services; returns what had to be written, a text for each family.

        Raises: KernelError; a table that was not refused may be changed.
        """
        self._facts = facts or self._facts
        self._services = {key: ports for key, ports in services.items() if ports}
        self._lost = True
        written: list[str] = []

        def write() -> int:
            written.extend(self._load_families())
            return sum(map(count_tables, written))

        self._watch.unheard(write)
        self._lost = False
        return tuple(written)

    def _load_families(self) -> list[str]:
        written: list[str] = []
        for family, rules in self._rules.items():
            if family in self._missing:
                continue
            contents = Contents(Layout(family, self._facts, liberal=self._liberal()))
            contents.change(_family_map(self._services, family))
            try:
                texts = tuple(self._repair(parse_save(rules.tool.save()), contents.rulesets()))
                for text in texts:
                    rules.tool.restore(text)
            except KernelError:
                if rules.contents is not None or family == FAMILIES[0] or self._has_ip6():
                    raise
                self._missing.add(family)
                continue
            rules.contents = contents
            written.append("".join(texts))
        return written

    def _repair(self, saved: Saved, wanted: tuple[Ruleset, ...]) -> Iterator[str]:
        """Legacy takes each text for a whole new table, so it gets one."""
        if self.programs.kind == "nft":
            yield from repair_in_parts(saved, wanted)
        elif text := repair(saved, wanted):
            yield text

    def _liberal(self) -> bool:
        with netns.inside(self._place):
            return _LIBERAL.exists() and _LIBERAL.read_text(encoding="ascii").strip() != "0"

    def _has_ip6(self) -> bool:
        return Path("/proc/sys/net/ipv6").exists()

    def update(self, changed: ServiceMap) -> tuple[str, ...]:
        """Takes over changed Services (an empty tuple: gone); returns what was written, a text for each family.

        Raises: KernelError when a full load was tried as well and failed.
        """
        for key, ports in changed.items():
            if ports:
                self._services[key] = ports
            else:
                self._services.pop(key, None)
        if self._lost:
            return self.load(self._services)
        try:
            return tuple(self._update(rules, family, changed) for family, rules in self._rules.items())
        except KernelError:
            return self.load(self._services)

    def _update(self, rules: _Rules, family: str, changed: ServiceMap) -> str:
        if rules.contents is None:
            return ""
        with self._lock:
            text = rules.contents.change(_family_map(changed, family)).text()
        rules.tool.restore(text, self._watch.started)
        return text

    def heal(self) -> tuple[str, ...]:
        """Reads the kernel and writes what differs; returns what had to be written.

        Raises: KernelError.
        """
        return self.load(self._services)

    @property
    def missing(self) -> frozenset[str]:
        """Families that this machine cannot program."""
        return frozenset(self._missing)

    def conflicts(self) -> tuple[str, ...]:
        """Services of which a frontend is held by another Service."""
        with self._lock:
            found = [rules.contents.claims.waiting() for rules in self._rules.values() if rules.contents is not None]
        return tuple(sorted({key for keys in found for key in keys}))

    def desired(self) -> tuple[Ruleset, ...]:
        """What the kernel should hold, a table each; later changes do not show in it."""
        with self._lock:
            return tuple(
                ruleset
                for rules in self._rules.values()
                if rules.contents is not None
                for ruleset in rules.contents.rulesets()
            )


def _remove(tool: Iptables) -> int:
    """Takes our rules of one family away; how many tables that changed."""
    text = removal(parse_save(tool.save()))
    tool.restore(text)
    return count_tables(text)


def _left(place: Path | str | None, *marks: str) -> Iterator[tuple[Programs, dict[str, Saved]]]:
    """Kinds of iptables in which rules with one of the marks are, and all that they print, by family.

    Where no table of iptables exists no program is run.
    """
    kinds: tuple[tuple[Kind, bool], ...] = (("nft", bool(nft_tables(place))), ("legacy", bool(legacy_tables(place))))
    for kind, used in kinds:
        programs = find(kind) if used else None
        if programs is None:
            continue
        saved: dict[str, Saved] = {}
        for family in FAMILIES:
            with Iptables(family, programs, place) as tool:
                saved[family] = parse_save(tool.save())
        if any(mark in tables.get("nat", {}) for tables in saved.values() for mark in marks):
            yield programs, saved


def _held_by(place: Path | str | None) -> Programs | None:
    """The kind that holds rules of an earlier run, where both are in use; a start goes on with that one."""
    if not nft_tables(place) or not legacy_tables(place):
        return None
    return next((programs for programs, _ in _left(place, MARK)), None)


def clear(place: Path | str | None = None) -> bool:
    """Takes away what an earlier data plane of this mode left, or kube-proxy; whether there was anything.

    Raises: KernelError.
    """
    found = False
    for programs, saved in _left(place, MARK, KUBE_PROXY_MARK):
        found = True
        for family, tables in saved.items():
            with Iptables(family, programs, place) as tool:
                tool.restore(removal(tables))
    return found


def held(place: Path | str | None = None) -> tuple[Ruleset, ...]:
    """What the kernel holds of ours, a table each; shared chains in canonical order.

    Raises: KernelError.
    """
    return tuple(
        _own_part(family, table, tables.get(table, {}))
        for _, saved in _left(place, MARK)
        for family, tables in saved.items()
        for table in TABLES
    )


def _own_part(family: str, table: str, chains: Mapping[str, Sequence[str]]) -> Ruleset:
    own = {chain: canonical((table, chain), rules) for chain, rules in chains.items() if ours(table, chain)}
    jumps = tuple(
        (chain, rule)
        for chain, rules in chains.items()
        if chain not in own
        for rule in rules
        if ours(table, rule.rpartition("-j ")[2].partition(" ")[0])
    )
    return Ruleset(family=family, table=table, chains=own, jumps=jumps)


def _family_map(services: ServiceMap, family: str) -> Mapping[str, tuple[ServicePort, ...]]:
    return {key: tuple(p for p in ports if p.family == family) for key, ports in services.items()}
