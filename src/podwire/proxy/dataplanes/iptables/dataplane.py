"""The ``iptables`` data plane: keeps kube-proxy's chains of both families equal to the resolved Services.

1. ``load`` reads the kernel and writes only what differs, stale chains included: a restart with nothing changed writes
   nothing.
2. ``update`` writes the chains of the changed Services and their rules in the shared chains, without reading, in one
   call of iptables-restore for each family that changed.
3. A refused text is followed by a full load. When that fails too, the error is raised and the next call loads again.
4. ``heal`` puts back the rules that other programs deleted from our chains, writes the other chains that the kernel's
   notifications name, and the jumps of chains that were flushed; then it reads the kernel and writes what else another
   program changed. Rules of the nft kind notify of changes at once; the sizes of legacy tables are compared every
   0.05 s and their rules every second, and ``disturbed`` is true every 30 s for rules of tables above 4 MiB.
5. ``close`` leaves everything in force; ``remove`` removes our chains, of both kinds, and nothing else.
6. Where node ports answer on loopback, ``route_localnet`` is turned on after the rules that guard it exist, and turned
   off before they are removed.
7. Without IPv6, IPv4 Services are programmed all the same; ``missing`` names the family.
"""

import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from podwire.errors import KernelError
from podwire.kernel import netns, sysctl
from podwire.kernel.iptables import FAMILIES, Iptables, Programs, choose
from podwire.kernel.iptables_tables import drop_tables, make_tables
from podwire.kernel.iptables_watch import watch
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nfacct import Counters
from podwire.proxy.dataplane import INVALID_DROPPED, LOCALHOST_ACCEPTED, Counts
from podwire.proxy.dataplanes.iptables.contents import Contents
from podwire.proxy.dataplanes.iptables.layout import LOOPBACK, IptablesLayout
from podwire.proxy.dataplanes.iptables.restore import split_repair
from podwire.proxy.nodeports import localhost_node_ports
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ports_of_family
from podwire.proxy.xtables import kernel as xtables
from podwire.state.chain_marks import KUBE_PROXY_MARK, PROXY_IPTABLES
from podwire.state.iptables import Ruleset
from podwire.state.iptables_diff import Saved, count_rules, count_tables, repair

_NAMED = 64
"""Up to this many changed chains are written before the rules are read; more may take longer than reading."""
COUNTERS = (INVALID_DROPPED, LOCALHOST_ACCEPTED)
_ROUTE_LOCALNET = "net/ipv4/conf/all/route_localnet"
_LIBERAL = Path("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")


class _FamilyRules:
    """The rules of one family, and the tool that writes them."""

    def __init__(self, family: str, programs: Programs, netns_path: NetnsPath) -> None:
        self.tool = Iptables(family, programs, netns_path)
        self.contents: Contents | None = None
        self.last: dict[str, int] = {}
        """Rules that the last change wrote, by table."""


class IptablesDataPlane:
    """Services through iptables in one network namespace (None: that of this process)."""

    name = "iptables"
    instant = False

    def __init__(self, facts: NodeFacts, netns_path: NetnsPath = None, programs: Programs | None = None) -> None:
        self.programs = programs or xtables.held_by(netns_path, PROXY_IPTABLES) or choose(netns_path)
        self._netns_path = netns_path
        self._facts = facts
        self._watch = watch(self.programs, PROXY_IPTABLES.tables, netns_path, PROXY_IPTABLES.owns)
        self._rules = {family: _FamilyRules(family, self.programs, netns_path) for family in FAMILIES}
        self._missing: set[str] = set()
        self._counters = Counters(netns_path)
        self._counted = False
        self._loopback_enabled = False
        self._refused = 0
        self._lost = True
        self._lock = threading.Lock()
        """Held while contents change, because another thread calls :meth:`desired` and :meth:`conflicts`."""

    def close(self) -> None:
        """Closes the sockets to the kernel; the rules stay in force."""
        for rules in self._rules.values():
            rules.tool.close()
        self._watch.close()
        self._counters.close()

    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`disturbed` should be called."""
        return self._watch.fileno()

    def disturbed(self) -> bool:
        """Whether another program may have changed a table that holds podwire's rules since the last call."""
        return self._watch.changed()

    def remove(self) -> None:
        """Removes our rules.

        Raises: KernelError.
        """
        if self._loopback_enabled:
            _disable_loopback(self._netns_path, xtables.read(self._rules["ip"].tool))
        self._watch.notifications_off(
            lambda: sum(xtables.remove(rules.tool, PROXY_IPTABLES) for rules in self._rules.values())
        )
        drop_tables(PROXY_IPTABLES.tables, self._netns_path, self._watch.ignore_process)
        self._counters.remove(COUNTERS)
        self._lost = True

    def counts(self) -> Counts:
        """The numbers of rules and of refused updates, and packet counts where the kernel has named counters.

        Raises: KernelError.
        """
        packets = self._counters.packets() if self._counted else {}
        with self._lock:
            rules = {
                (family, table): (held.contents.count(table), held.last.get(table, 0))
                for family, held in self._rules.items()
                for table in PROXY_IPTABLES.tables
                if held.contents is not None
            }
        own = {name: count for name, count in packets.items() if name in COUNTERS}
        return Counts(own, rules, refused_updates=self._refused)

    def load(self, services: ServiceMap, facts: NodeFacts | None = None) -> tuple[str, ...]:
        """Makes the kernel hold exactly these Services; returns what had to be written, a text for each family.

        Raises: KernelError; a table that was not refused may be changed.
        """
        self._facts = facts or self._facts
        self._lost = True
        self._make_counters()
        self._watch.take_chains()
        written: list[str] = []

        def write() -> int:
            written.extend(self._load_families(services))
            return sum(map(count_tables, written))

        make_tables(self.programs, PROXY_IPTABLES.tables, self._netns_path, self._watch.ignore_process)
        self._watch.notifications_off(write)
        self._loopback_enabled = localhost_node_ports(self._facts)
        if self._loopback_enabled:
            sysctl.write(_ROUTE_LOCALNET, "1", self._netns_path)
        self._lost = False
        return tuple(written)

    def _make_counters(self) -> None:
        try:
            self._counters.make(COUNTERS)
            self._counted = True
        except KernelError:
            self._counted = False

    def _load_families(self, services: ServiceMap) -> list[str]:
        written: list[str] = []
        for family, rules in self._rules.items():
            if family in self._missing:
                continue
            contents = Contents(
                IptablesLayout(family, self._facts, liberal=_is_liberal(self._netns_path), counted=self._counted)
            )
            contents.change(ports_of_family(services, family))
            try:
                saved = xtables.read(rules.tool)
                if not contents.layout.loopback:
                    _disable_loopback(self._netns_path, saved)
                texts = tuple(self._repair(saved, contents.rulesets()))
                for text in texts:
                    rules.tool.restore(text)
                rules.last = count_rules("".join(texts))
            except KernelError:
                if rules.contents is not None or family == FAMILIES[0] or _has_ip6():
                    raise
                self._missing.add(family)
                continue
            rules.contents = contents
            written.append("".join(texts))
        return written

    def _repair(self, saved: Saved, desired: tuple[Ruleset, ...]) -> Iterator[str]:
        """Yields the texts to restore; iptables-legacy gets one text, since it replaces the table with each."""
        if self.programs.kind == "nft":
            yield from split_repair(saved, desired)
        elif text := repair(saved, desired, PROXY_IPTABLES):
            yield text

    def update(self, services: ServiceMap, changed: ServiceMap) -> tuple[str, ...]:
        """Applies changed Services (an empty tuple removes one); returns what was written, a text for each family.

        Raises: KernelError when a full load was tried as well and failed.
        """
        if self._lost:
            return self.load(services)
        try:
            return tuple(self._update(rules, family, changed) for family, rules in self._rules.items())
        except KernelError:
            self._refused += 1
            return self.load(services)

    def _update(self, rules: _FamilyRules, family: str, changed: ServiceMap) -> str:
        if rules.contents is None:
            return ""
        with self._lock:
            text = rules.contents.change(ports_of_family(changed, family)).text()
        self._watch.restore(rules.tool, text)
        rules.last = count_rules(text)
        return text

    def heal(self, services: ServiceMap) -> tuple[str, ...]:
        """Writes what was noticed, then reads the kernel and writes what differs; returns what was written.

        Raises: KernelError.
        """
        return (*self.repair(), *self.load(services))

    def repair(self) -> tuple[str, ...]:
        """Writes what other programs are known to have changed; what the kernel refuses is left to :meth:`heal`.

        With the nft kind deleted rules are put back as the kernel had them. What else has changed in our chains is
        written, and the jumps to them from chains that are empty now; only the numbers of rules are read. Many chains
        are written only if a chain of the kernel's is empty, because then another program flushed a table. With the
        legacy kind only the tables that changed are read.
        """
        named = {} if self._lost else self._watch.take_chains()
        written: list[str] = []
        for family, rules in self._rules.items():
            tables = {table: chains for (of, table), chains in named.items() if of == family}
            if rules.contents is None or not tables:
                continue
            try:
                written += (self._rewrite if self.programs.kind == "nft" else self._compare)(rules, tables)
            except KernelError:
                continue
        return tuple(written)

    def _compare(self, rules: _FamilyRules, changed: Collection[str]) -> Iterator[str]:
        """Puts tables of one family back, or reads them and writes what differs; yields the text."""
        assert rules.contents is not None, "there is something to write"
        family = rules.contents.layout.family
        restored = [t for t in PROXY_IPTABLES.tables if t in changed and self._watch.put_back_table(family, t)]
        yield from (f"*{table} {family} as it was" for table in restored)
        tables = tuple(table for table in PROXY_IPTABLES.tables if table in changed and table not in restored)
        saved = {table: xtables.read(rules.tool, table).get(table, {}) for table in tables}
        text = repair(saved, rules.contents.rulesets(), msgspec.structs.replace(PROXY_IPTABLES, tables=tables))
        if text:
            self._watch.restore(rules.tool, text)
            yield text

    def _rewrite(self, rules: _FamilyRules, named: Mapping[str, Collection[str]]) -> Iterator[str]:
        """Writes chains of one family by table, and yields the texts."""
        assert rules.contents is not None, "there is something to write"
        family, changed = rules.contents.layout.family, dict(named)
        for table in PROXY_IPTABLES.tables:  # Translation comes back before what refuses untranslated packets.
            chains = named.get(table, ())
            restored = self._watch.put_back(family, table, rules.contents.sizes(table, chains))
            if restored:
                yield "\n".join(f"{operation}  # {family} {table}" for operation in restored)
                changed[table] = set(chains) - {operation.chain for operation in restored}
        yield from self._write_chains(rules, changed)

    def _write_chains(self, rules: _FamilyRules, named: Mapping[str, Collection[str]]) -> Iterator[str]:
        """Writes chains of one family by table with iptables-restore, and yields the texts."""
        assert rules.contents is not None, "there is something to write"
        empty = {
            table: self._watch.empty_chains(
                rules.contents.layout.family, table, {chain for chain, _ in jumps} & set(named.get(table, ()))
            )
            for table, jumps in rules.contents.layout.jumps().items()
        }
        desired = rules.contents.rewritten(named, empty)
        if not any(empty.values()) and sum(len(ruleset.chains) for ruleset in desired) > _NAMED:
            return
        for text in self._repair({}, desired):
            self._watch.restore(rules.tool, text)
            yield text

    @property
    def missing(self) -> frozenset[str]:
        """Families that this machine cannot program."""
        return frozenset(self._missing)

    def conflicts(self) -> tuple[str, ...]:
        """Services that wait for a frontend that another Service owns."""
        with self._lock:
            families = [rules.contents.claims.waiting() for rules in self._rules.values() if rules.contents is not None]
        return tuple(sorted({service for waiting in families for service in waiting}))

    def desired(self) -> tuple[Ruleset, ...]:
        """The rules that the kernel should hold, one value for each table; later changes do not change this value."""
        with self._lock:
            return tuple(
                ruleset
                for rules in self._rules.values()
                if rules.contents is not None
                for ruleset in rules.contents.rulesets()
            )


def clear(netns_path: NetnsPath = None) -> bool:
    """Removes what an earlier data plane of this mode or kube-proxy left; returns whether anything was removed.

    Raises: KernelError.
    """
    for _, saved in xtables.leftover_rules(netns_path, PROXY_IPTABLES):
        _disable_loopback(netns_path, saved["ip"])
    removed = xtables.clear(netns_path, PROXY_IPTABLES, KUBE_PROXY_MARK)
    if removed:
        with Counters(netns_path) as counters:
            counters.remove(COUNTERS)
    return removed


def _is_liberal(netns_path: NetnsPath) -> bool:
    """Whether connection tracking accepts packets outside of the TCP window."""
    with netns.inside(netns_path):
        return _LIBERAL.exists() and _LIBERAL.read_text(encoding="ascii").strip() != "0"


def _has_ip6() -> bool:
    """Whether the kernel has IPv6."""
    return Path("/proc/sys/net/ipv6").exists()


def _disable_loopback(netns_path: NetnsPath, saved: Saved) -> None:
    """Turns ``route_localnet`` off if the saved rules show that an earlier run turned it on."""
    if LOOPBACK in saved.get("filter", {}):
        sysctl.write(_ROUTE_LOCALNET, "0", netns_path)
