"""What the Services of one family put into the kernel, and the change when one changes (pure).

Addresses, elements and rules may come from several Services; each is there as long as one of them wants it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from podwire.proxy.dataplanes.ipvs.compile import Compiled, compile_service
from podwire.proxy.dataplanes.ipvs.layout import INSIDE, OUTSIDE, IpvsLayout
from podwire.proxy.dataplanes.ipvs.names import SETS, declare, set_name
from podwire.proxy.servicemap import ResolvedPort
from podwire.proxy.xtables.compiled import CompiledServices
from podwire.state.chain_marks import PROXY_IPVS
from podwire.state.ipset import IpSet
from podwire.state.iptables import ChainKey, Rules, Ruleset
from podwire.state.ipvs import Key, VirtualServer


class IpvsDelta(msgspec.Struct, frozen=True):
    """What comes, goes or differs."""

    servers: dict[Key, None] = {}
    """Virtual servers that are not what they were."""
    bound: dict[str, None] = {}
    unbound: dict[str, None] = {}
    added: tuple[IpSet, ...] = ()
    """Sets with the elements that come."""
    removed: tuple[IpSet, ...] = ()
    """Sets with the elements that go."""
    rules: bool = False
    """Whether a chain differs."""


class Contents:
    """All of one family. ``elsewhere`` are the node's own addresses, which are bound already."""

    def __init__(self, layout: IpvsLayout, elsewhere: Iterable[str] = ()) -> None:
        self.layout = layout
        self._services = CompiledServices(partial(compile_service, layout), Compiled())
        self.claims = self._services.claims
        self.servers: dict[Key, VirtualServer] = {}
        self._serving: dict[Key, frozenset[str]] = {}
        self._elsewhere = frozenset(elsewhere)
        self._addresses: Counter[str] = Counter()
        self._elements: dict[str, Counter[str]] = {set_name(kind, layout.family): Counter() for kind in SETS}
        self._rules: dict[ChainKey, Counter[str]] = {INSIDE: Counter(), OUTSIDE: Counter()}

    @property
    def addresses(self) -> tuple[str, ...]:
        """What the device holds."""
        return tuple(self._addresses)

    def serving(self, key: Key) -> frozenset[str]:
        """``address:port`` of the endpoints that still serve for the Service of a virtual server; none without one."""
        return self._serving.get(key, frozenset())

    def binds(self, address: str) -> bool:
        """Whether the device holds an address for a Service."""
        return address in self._addresses

    def sets(self) -> tuple[IpSet, ...]:
        """Every set with its elements."""
        family = self.layout.family
        return tuple(declare(kind, family, self._elements[set_name(kind, family)]) for kind in SETS)

    def rulesets(self) -> tuple[Ruleset, ...]:
        """The rules, a table each."""
        chains: dict[str, dict[str, Rules]] = {table: {} for table in PROXY_IPVS.tables}
        for (table, name), rules in self.layout.chains().items():
            chains[table][name] = rules
        for (table, name), found in self._rules.items():
            chains[table][name] = tuple(sorted(found))
        jumps = self.layout.jumps()
        return tuple(
            Ruleset(family=self.layout.family, table=table, chains=chains[table], jumps=jumps[table])
            for table in sorted(PROXY_IPVS.tables)
        )

    def change(self, changed: Mapping[str, tuple[ResolvedPort, ...]]) -> IpvsDelta:
        """Applies new ports of Services (of this family); returns what differs."""
        delta = _DeltaBuilder(self.layout.family)
        for old, new in self._services.change(changed):
            self._swap(old, new, delta)
        return delta.result()

    def _swap(self, old: Compiled, new: Compiled, delta: "_DeltaBuilder") -> None:
        for key in dict.fromkeys((*new.servers, *old.servers)):
            server = new.servers.get(key)
            if old.servers.get(key) == server:
                continue
            delta.servers[key] = None
            if server is not None:
                self.servers[key] = server
            elif self.servers.get(key) == old.servers[key]:
                # Of two Services that swap a frontend, the one that gets it may have come first.
                del self.servers[key]
        for key, serving in old.serving.items():
            if key not in new.serving and self._serving.get(key) is serving:
                del self._serving[key]
        self._serving |= new.serving
        bound = {address: None for address in new.addresses if address not in self._elsewhere}
        had = {address: None for address in old.addresses if address not in self._elsewhere}
        _count(self._addresses, had, bound, delta.addresses)
        for name in dict.fromkeys((*new.elements, *old.elements)):
            outcome = delta.elements.setdefault(name, {})
            _count(self._elements[name], self._own(name, old), self._own(name, new), outcome)
        for chain in dict.fromkeys((*new.rules, *old.rules)):
            _count(self._rules[chain], old.rules.get(chain, {}), new.rules.get(chain, {}), delta.rules)

    def _own(self, name: str, compiled: Compiled) -> Mapping[str, None]:
        """Elements; addresses that the node has elsewhere keep their own ports, so they are not among the bound."""
        found = compiled.elements.get(name, {})
        if not name.endswith("IPVS-IPS") or not self._elsewhere:
            return found
        return {element: None for element in found if element not in self._elsewhere}


class _DeltaBuilder:
    """A delta while it is made: by what it is about, how often it was wanted before."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.servers: dict[Key, None] = {}
        self.addresses: dict[str, tuple[bool, bool]] = {}
        self.elements: dict[str, dict[str, tuple[bool, bool]]] = {}
        self.rules: dict[str, tuple[bool, bool]] = {}

    def result(self) -> IpvsDelta:
        """The finished delta."""
        return IpvsDelta(
            servers=self.servers,
            bound=_of(self.addresses, (False, True)),
            unbound=_of(self.addresses, (True, False)),
            added=self._sets((False, True)),
            removed=self._sets((True, False)),
            rules=any(before != now for before, now in self.rules.values()),
        )

    def _sets(self, what: tuple[bool, bool]) -> tuple[IpSet, ...]:
        found = ((kind, _of(self.elements.get(set_name(kind, self.family), {}), what)) for kind in SETS)
        return tuple(declare(kind, self.family, elements) for kind, elements in found if elements)


def _of(outcome: Mapping[str, tuple[bool, bool]], what: tuple[bool, bool]) -> dict[str, None]:
    return {text: None for text, change in outcome.items() if change == what}


def _count(
    counter: Counter[str], old: Iterable[str], new: Iterable[str], outcome: dict[str, tuple[bool, bool]]
) -> None:
    """Takes one Service's share of a counter from old to new; ``outcome`` says of each whether it was and is wanted."""
    gone, come = dict.fromkeys(old), dict.fromkeys(new)
    for text in (*(each for each in come if each not in gone), *(each for each in gone if each not in come)):
        before = outcome[text][0] if text in outcome else counter[text] > 0
        counter[text] += 1 if text in come else -1
        if not counter[text]:
            del counter[text]
        outcome[text] = (before, counter[text] > 0)
