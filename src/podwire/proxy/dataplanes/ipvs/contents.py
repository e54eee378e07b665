"""The kernel state of all Services, and the delta when Services change (pure).

Several Services may need the same address, element or rule; it stays as long as one Service needs it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import partial
from types import MappingProxyType

import msgspec

from podwire.proxy.dataplanes.ipvs.compile import Compiled, compile_service
from podwire.proxy.dataplanes.ipvs.layout import INSIDE, OUTSIDE, IpvsLayout
from podwire.proxy.dataplanes.ipvs.names import SETS, declare, set_name
from podwire.proxy.frontends import Frontend
from podwire.proxy.servicemap import ResolvedPort, ServiceMap, ports_of_family
from podwire.proxy.xtables.compiled import CompiledServices
from podwire.state.chain_marks import PROXY_IPVS
from podwire.state.ipset import IpSet
from podwire.state.iptables import ChainKey, Rules, Ruleset
from podwire.state.ipvs import Key, VirtualServer


class IpvsDelta(msgspec.Struct, frozen=True):
    """The difference between two states of one family."""

    servers: dict[Key, None] = {}
    """Keys of virtual servers that were added, changed or removed."""
    bound: dict[str, None] = {}
    """Addresses to add to the device."""
    unbound: dict[str, None] = {}
    """Addresses to remove from the device."""
    added: tuple[IpSet, ...] = ()
    """Sets with the elements to add."""
    removed: tuple[IpSet, ...] = ()
    """Sets with the elements to delete."""
    rules: bool = False
    """Whether a rule changed."""


class Contents:
    """The state of one family. ``elsewhere`` are the addresses of the node's other devices."""

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
        """The addresses of the device."""
        return tuple(self._addresses)

    def serving(self, key: Key) -> frozenset[str]:
        """``address:port`` of the serving endpoints of a virtual server's Service; empty without a Service."""
        return self._serving.get(key, frozenset())

    def binds(self, address: str) -> bool:
        """Whether the device holds an address for a Service."""
        return address in self._addresses

    def sets(self) -> tuple[IpSet, ...]:
        """Every set with its elements."""
        family = self.layout.family
        return tuple(declare(kind, family, self._elements[set_name(kind, family)]) for kind in SETS)

    def set_sizes(self) -> dict[str, int]:
        """The number of elements of every set, by name."""
        names = (set_name(kind, self.layout.family) for kind in SETS)
        return {name: len(self._elements[name]) for name in names}

    def rulesets(self) -> tuple[Ruleset, ...]:
        """The rules, one value for each table."""
        chains: dict[str, dict[str, Rules]] = {table: {} for table in PROXY_IPVS.tables}
        for (table, name), rules in self.layout.chains().items():
            chains[table][name] = rules
        for (table, name), counted in self._rules.items():
            chains[table][name] = tuple(sorted(counted))
        jumps = self.layout.jumps()
        return tuple(
            Ruleset(family=self.layout.family, table=table, chains=chains[table], jumps=jumps[table])
            for table in sorted(PROXY_IPVS.tables)
        )

    def change(self, changed: Mapping[str, tuple[ResolvedPort, ...]]) -> IpvsDelta:
        """Applies new ports of Services (of this family); returns the delta."""
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
                # When two Services swap a frontend, its new Service may have been compiled first.
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
        """The elements of a set; the set of bound addresses has no address of the node's other devices."""
        elements = compiled.elements.get(name, {})
        if not name.endswith("IPVS-IPS") or not self._elsewhere:
            return elements
        return {element: None for element in elements if element not in self._elsewhere}


class NodeContents:
    """The state of all families of a node."""

    def __init__(self, families: Mapping[str, Contents] = MappingProxyType({})) -> None:
        self.families = families

    @property
    def addresses(self) -> frozenset[str]:
        """The addresses of the device."""
        return frozenset(address for contents in self.families.values() for address in contents.addresses)

    def binds(self, address: str) -> bool:
        """Whether the device holds an address for a Service."""
        return any(contents.binds(address) for contents in self.families.values())

    def servers(self, keys: Iterable[Key] | None = None) -> dict[Key, VirtualServer]:
        """The virtual servers with these keys; None: all."""
        by_family = [contents.servers for contents in self.families.values()]
        if keys is None:
            return {key: server for servers in by_family for key, server in servers.items()}
        return {key: servers[key] for key in keys for servers in by_family if key in servers}

    def serves(self, key: Key, endpoint: str) -> bool:
        """Whether an endpoint (``address:port``) of a virtual server's Service serves."""
        return any(endpoint in contents.serving(key) for contents in self.families.values())

    def sets(self) -> Iterator[IpSet]:
        """Every set with its elements."""
        return (ip_set for contents in self.families.values() for ip_set in contents.sets())

    def set_sizes(self) -> dict[str, int]:
        """The number of elements of every set, by name."""
        return {name: size for contents in self.families.values() for name, size in contents.set_sizes().items()}

    def rulesets(self) -> dict[str, tuple[Ruleset, ...]]:
        """The rules by family, one value for each table."""
        return {family: contents.rulesets() for family, contents in self.families.items()}

    def waiting(self, foreign: Set[Key]) -> frozenset[str]:
        """The Services that wait for a frontend of another Service or of a foreign virtual server."""
        services = {service for contents in self.families.values() for service in contents.claims.waiting()}
        for contents in self.families.values():
            for key in foreign & contents.servers.keys():
                services |= {owner for owner in map(contents.claims.owner, _frontends(key)) if owner}
        return frozenset(services)

    def change(self, changed: ServiceMap) -> dict[str, IpvsDelta]:
        """Applies new ports of Services; returns the delta of each family."""
        return {f: contents.change(ports_of_family(changed, f)) for f, contents in self.families.items()}


def _frontends(key: Key) -> tuple[Frontend, Frontend]:
    """The frontends that a virtual server may serve: an address, or a node port."""
    return Frontend(key.address, key.protocol, key.port), Frontend("", key.protocol, key.port)


class _DeltaBuilder:
    """Collects a delta: for each address, element and rule whether it was and is needed."""

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
            bound=_with_change(self.addresses, (False, True)),
            unbound=_with_change(self.addresses, (True, False)),
            added=self._sets((False, True)),
            removed=self._sets((True, False)),
            rules=any(before != now for before, now in self.rules.values()),
        )

    def _sets(self, change: tuple[bool, bool]) -> tuple[IpSet, ...]:
        sets = ((kind, _with_change(self.elements.get(set_name(kind, self.family), {}), change)) for kind in SETS)
        return tuple(declare(kind, self.family, elements) for kind, elements in sets if elements)


def _with_change(outcome: Mapping[str, tuple[bool, bool]], change: tuple[bool, bool]) -> dict[str, None]:
    return {text: None for text, was_and_is in outcome.items() if was_and_is == change}


def _count(
    counter: Counter[str], old: Iterable[str], new: Iterable[str], outcome: dict[str, tuple[bool, bool]]
) -> None:
    """Changes the texts that one Service counts; ``outcome`` gets for each text whether it was and is needed."""
    before, after = dict.fromkeys(old), dict.fromkeys(new)
    for text in (*(t for t in after if t not in before), *(t for t in before if t not in after)):
        was_needed = outcome[text][0] if text in outcome else counter[text] > 0
        counter[text] += 1 if text in after else -1
        if not counter[text]:
            del counter[text]
        outcome[text] = (was_needed, counter[text] > 0)
