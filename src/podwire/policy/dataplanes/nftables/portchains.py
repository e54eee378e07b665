"""Writes the chains of port tables and rules of one family into the contents of the data plane (pure)."""

from collections.abc import Iterable, Iterator, Mapping

from podwire.dataplane.contents import KeyedContents
from podwire.policy.dataplanes.nftables.layout import PORTS, TableLayout
from podwire.policy.dataplanes.nftables.rulechains import (
    RuleChains,
    SinglePortsByProtocol,
    map_name,
    port_element,
    ports_name,
    ports_texts,
    rule_name,
    single_ports,
)
from podwire.policy.ports import PROTOCOLS, PortTable, SinglePorts
from podwire.policy.profilenames import ProfileName
from podwire.policy.verdicts import RuleIdentity
from podwire.state.nft import Chain, Element, Set, Table


class PortChainWriter:
    """Writes the chains of one family."""

    def __init__(self, layout: TableLayout, keyed: KeyedContents[Chain, Set, bytes, Element]) -> None:
        """``keyed`` receives the chains and sets."""
        self.layout = layout
        self._keyed = keyed
        self._tables: dict[str, tuple[tuple[str, ...], SinglePortsByProtocol]] = {}
        """The rules of each chain as text, and what its maps of single ports hold."""

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
        self._tables[name] = (ports_texts(name, table, profile), single_ports(table))
        self._keyed.put_chain(name, chains.ports_chain(name, table, profile))

    def change_table(self, name: str, table: PortTable, profile: ProfileName) -> bool:
        """Changes elements of the maps; returns False if rules or maps of ranges differ.

        A packet is looked up in one of the maps, and finds the old elements or the new ones.
        """
        texts, before = self._tables[name]
        singles = single_ports(table)
        if ports_texts(name, table, profile, singles) != texts:
            return False
        changes: dict[str, dict[bytes, Element | None]] = {}
        for protocol in PROTOCOLS:
            old, new, declared = before[protocol], singles[protocol], map_name(name, protocol)
            if declared in self._keyed.sets:
                if old is None or new is None:
                    return False
                changes[declared] = dict(_changed_ports(old, new, profile))
        for declared, elements in changes.items():
            self._keyed.put_elements(declared, elements)
        self._tables[name] = (texts, singles)
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


def _changed_ports(
    before: SinglePorts, after: SinglePorts, profile: ProfileName
) -> Iterator[tuple[bytes, Element | None]]:
    """The elements of single ports that differ; None: the element is gone."""
    for port in before.ports.keys() - after.ports.keys():
        yield port.to_bytes(2, "big"), None
    for port, ruling in after.ports.items():
        if before.ports.get(port) is not ruling and before.ports.get(port) != ruling:
            yield port_element(port, ruling, profile)
