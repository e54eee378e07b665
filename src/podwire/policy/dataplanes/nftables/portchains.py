"""Writes the chains of port tables and rules of one family into the contents of the data plane (pure)."""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.dataplane.contents import KeyedContents
from podwire.policy.dataplanes.nftables.layout import PORTS, TableLayout
from podwire.policy.dataplanes.nftables.rulechains import (
    Rests,
    RuleChains,
    map_name,
    port_element,
    ports_name,
    ports_texts,
    rest_of,
    rests_of,
    rule_name,
)
from podwire.policy.portchanges import TableChange
from podwire.policy.ports import LAST_PORT, PROTOCOLS, PortTable, Ruling
from podwire.policy.profilenames import ProfileName
from podwire.policy.verdicts import RuleIdentity
from podwire.state.nft import Chain, Element, Set, Table


class _Written(msgspec.Struct, frozen=True):
    """The chain of a port table in the contents."""

    texts: tuple[str, ...]
    """The rules of the chain."""
    rests: Rests
    """The rulings that the maps of single ports leave to the rules."""
    counts: Mapping[str, int]
    """The numbers of entries of the table, by protocol."""


class PortChainWriter:
    """Writes the chains of one family."""

    def __init__(self, layout: TableLayout, keyed: KeyedContents[Chain, Set, bytes, Element]) -> None:
        """``keyed`` receives the chains and sets."""
        self.layout = layout
        self._keyed = keyed
        self._tables: dict[str, _Written] = {}

    def table_name(self, table: PortTable, profile: ProfileName, attempt: int) -> str:
        """The name of a new chain of a table: a hash of its meaning and of the number of the attempt."""
        return ports_name(table, profile, attempt)

    def rule_name(self, identity: RuleIdentity) -> str:
        """The name of the chain of a rule."""
        return rule_name(identity)

    def signature(self, table: PortTable, profile: ProfileName) -> str:
        """The rules and maps of a table's chain, as text without the name of the chain."""
        chains = RuleChains(self.layout)
        return _signature("", chains.ports_chain("", table, profile), chains.ports_sets("", table, profile))

    def add_table(self, name: str, table: PortTable, profile: ProfileName) -> None:
        """Adds the chain and the maps of a table."""
        chains = RuleChains(self.layout)
        for declared in chains.ports_sets(name, table, profile):
            self._keyed.add_set(declared)
        counts = {protocol: len(table.of_protocol(protocol)) for protocol in PROTOCOLS}
        self._tables[name] = _Written(ports_texts(name, table, profile), rests_of(table), counts)
        self._keyed.put_chain(name, chains.ports_chain(name, table, profile))

    def change_table(self, name: str, change: TableChange, profile: ProfileName) -> bool:
        """Changes elements of the maps; returns False if rules or maps of ranges differ.

        A packet is looked up in one of the maps, and finds the old elements or the new ones.
        """
        written, protocols = self._tables[name], change.protocols
        before, rests = written.rests, _other_rests(written.rests, change, protocols)
        counts = _other_counts(written.counts, change)
        alike = change.before.other == change.after.other and all(
            written.counts[protocol] > 1 and counts[protocol] > 1 and rests[protocol] == before[protocol]
            for protocol in protocols
        )
        if not alike and ports_texts(name, change.after, profile, rests) != written.texts:
            return False
        maps = {protocol: map_name(name, protocol) for protocol in protocols}
        maps = {protocol: declared for protocol, declared in maps.items() if declared in self._keyed.sets}
        if any(before[protocol] is None or rests[protocol] is None for protocol in maps):
            return False
        for protocol, declared in maps.items():
            self._keyed.put_elements(declared, _changed_ports(change, protocol, rests[protocol], profile))
        self._tables[name] = _Written(written.texts, rests, counts)
        return True

    def remove_table(self, name: str) -> None:
        """Removes the chain and the maps of a table."""
        del self._tables[name]
        self._keyed.remove_chain(name)
        for protocol in PROTOCOLS:
            if map_name(name, protocol) in self._keyed.sets:
                self._keyed.remove_set(map_name(name, protocol))

    def add_rule(self, name: str, identity: RuleIdentity, text: str) -> None:
        """Adds the chain of a rule, or gives the chain another text."""
        self._keyed.put_chain(name, RuleChains(self.layout).rule_chain(identity, text))

    def remove_rule(self, name: str) -> None:
        """Removes the chain of a rule."""
        self._keyed.remove_chain(name)


def known_tables(table: Table | None) -> Mapping[str, str]:
    """The names of the chains of port tables in a table of the kernel, by :meth:`PortChainWriter.signature`."""
    if table is None:
        return {}
    sets = {declared.name: declared for declared in table.sets}
    chains = (chain for chain in table.chains if chain.name.startswith(PORTS))
    return {
        _signature(chain.name, chain, (sets[name] for name in _map_names(chain.name) if name in sets)): chain.name
        for chain in chains
    }


def _map_names(chain: str) -> Iterable[str]:
    return (map_name(chain, protocol) for protocol in PROTOCOLS)


def _signature(name: str, chain: Chain, sets: Iterable[Set]) -> str:
    rules = (f"{rule.without_counts}".replace(f"@{name}-", "@-") for rule in chain.rules)
    maps = (
        f"{declared.name.removeprefix(name)} {declared.flags} {sorted(declared.elements.items(), key=_key)}"
        for declared in sets
    )
    return "\n".join((*rules, *maps))


def _key(item: tuple[bytes, Element]) -> bytes:
    return item[0]


def _other_counts(before: Mapping[str, int], change: TableChange) -> Mapping[str, int]:
    """The numbers of entries by protocol after a change; ``before`` are those before."""
    counts = dict(before)
    for entries, step in ((change.added, 1), (change.removed, -1)):
        for entry in entries:
            counts[entry.protocol] += step
    return counts


def _other_rests(before: Rests, change: TableChange, protocols: Iterable[str]) -> Rests:
    """The rulings of :func:`rests_of` after a change of these protocols; ``before`` are those before."""
    rests = dict(before)
    for protocol in protocols:
        ranges = {e.ruling for e in change.added if e.protocol == protocol and e.first != e.last}
        full = len(change.after.entries) > LAST_PORT  # then a protocol may have single ports alone
        if full or rests[protocol] is None or not ranges <= {rests[protocol]}:
            rests[protocol] = rest_of(change.after, protocol)
    return rests


def _changed_ports(
    change: TableChange, protocol: str, rest: Ruling | None, profile: ProfileName
) -> dict[bytes, Element | None]:
    """The elements of the single ports that differ; None: the element is gone."""
    removed, added = (
        [e for e in entries if e.protocol == protocol and e.first == e.last and e.ruling != rest]
        for entries in (change.removed, change.added)
    )
    return {
        **{entry.first.to_bytes(2, "big"): None for entry in removed},
        **dict(port_element(entry.first, entry.ruling, profile) for entry in added),
    }
