"""Writes the chains of port tables and rules of one family into the contents of the data plane (pure)."""

from collections.abc import Iterable, Mapping

from podwire.dataplane.contents import KeyedContents
from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.layout import ChainLayout
from podwire.policy.dataplanes.iptables.numbers import Numbers
from podwire.policy.dataplanes.iptables.rulechains import RuleChains
from podwire.policy.portchanges import TableChange
from podwire.policy.ports import PortTable
from podwire.policy.profilenames import ProfileName
from podwire.policy.verdicts import RuleIdentity
from podwire.state.ipset import IpSet, IpSetElement
from podwire.state.iptables import Rules

_WITHOUT_NAME = names.PORTS


class NumberedChainWriter:
    """Writes the chains of one family, and gives numbers to the chains of port tables."""

    def __init__(
        self, layout: ChainLayout, keyed: KeyedContents[Rules, IpSet, str, IpSetElement], numbers: Numbers
    ) -> None:
        """``keyed`` receives the chains; ``numbers`` are the numbers of the chains of port tables."""
        self.layout = layout
        self._keyed = keyed
        self._numbers = numbers
        self._chains_of: dict[str, tuple[str, ...]] = {}

    def table_name(self, table: PortTable, profile: ProfileName, attempt: int) -> str:
        """The name of a new chain of a table: a hash of its meaning and of the number of the attempt."""
        return names.ports_chain(table, profile, attempt)

    def rule_name(self, identity: RuleIdentity) -> str:
        """The name of the chain of a rule."""
        return names.rule_chain(identity)

    def signature(self, table: PortTable, profile: ProfileName) -> str:
        """The rules of a table's chains, as text without the name of the chain."""
        return _signature(_WITHOUT_NAME, RuleChains(self.layout).ports(_WITHOUT_NAME, table, profile).items())

    def add_table(self, name: str, table: PortTable, profile: ProfileName) -> None:
        """Adds the chains of a table.

        Raises: KernelError when the packet mark has too few numbers.
        """
        self._numbers.take(name)
        self._put(name, table, profile)

    def change_table(self, name: str, change: TableChange, profile: ProfileName) -> bool:
        """Replaces the chains of a table, which iptables-restore does at once; always possible."""
        before = self._chains_of[name]
        self._put(name, change.after, profile)
        for chain in set(before) - set(self._chains_of[name]):
            self._keyed.remove_chain(chain)
        return True

    def _put(self, name: str, table: PortTable, profile: ProfileName) -> None:
        chains = RuleChains(self.layout).ports(name, table, profile)
        for chain, rules in chains.items():
            self._keyed.put_chain(chain, rules)
        self._chains_of[name] = tuple(chains)

    def remove_table(self, name: str) -> None:
        """Removes the chains of a table."""
        for chain in self._chains_of.pop(name):
            self._keyed.remove_chain(chain)
        self._numbers.give_back(name)

    def add_rule(self, name: str, identity: RuleIdentity, text: str) -> None:
        """Adds the chain of a rule, or gives the chain another text."""
        prefix = name.removeprefix(names.CHAIN).lower()
        self._keyed.put_chain(name, RuleChains(self.layout).rule(identity, prefix, text))

    def remove_rule(self, name: str) -> None:
        """Removes the chain of a rule."""
        self._keyed.remove_chain(name)

    def element(self, chain: str) -> IpSetElement:
        """The set element that gives a packet the number of a port table's chain."""
        return self.layout.numbered(self._numbers.used[chain])


def known_tables(chains: Mapping[str, Rules]) -> dict[str, str]:
    """The names of the chains of port tables among the kernel's chains, by :meth:`NumberedChainWriter.signature`."""
    tables: dict[str, list[tuple[str, Rules]]] = {}
    for chain, rules in chains.items():
        if chain.startswith(names.PORTS):
            name = names.PORTS + chain.removeprefix(names.PORTS).partition("-")[0]
            tables.setdefault(name, []).append((chain, rules))
    return {_signature(name, own): name for name, own in tables.items()}


def _signature(name: str, chains: Iterable[tuple[str, Rules]]) -> str:
    lines = (f"{chain.removeprefix(name)} {rule}" for chain, rules in sorted(chains) for rule in rules)
    return "\n".join(lines).replace(f"-g {name}", "-g ")
