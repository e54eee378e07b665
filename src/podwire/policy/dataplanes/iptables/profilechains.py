"""Writes the chains and sets of profiles of one family into the contents of the data plane (pure)."""

from collections.abc import Mapping

from msgspec.structs import replace

from podwire.dataplane.contents import KeyedContents
from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.layout import ChainLayout
from podwire.policy.dataplanes.iptables.numbers import Numbers
from podwire.policy.dataplanes.iptables.portchains import NumberedChainWriter
from podwire.policy.tablechains import GroupChains
from podwire.state.ipset import IpSet, IpSetElement
from podwire.state.iptables import Rules


class ProfileChains:
    """Writes the chains of profiles; each has a number, a set of exact addresses, and a set of networks if needed."""

    def __init__(
        self,
        layout: ChainLayout,
        keyed: KeyedContents[Rules, IpSet, str, IpSetElement],
        writer: NumberedChainWriter,
        numbers: Mapping[str, Numbers],
    ) -> None:
        """``keyed`` receives the chains and sets; ``numbers`` are those of the chains, by the chain before them."""
        self.layout = layout
        self._keyed = keyed
        self._writer = writer
        self._numbers = numbers

    def add(self, direction: str, chain: str, rules: Rules, tables: tuple[GroupChains, Mapping[str, str]]) -> None:
        """Adds a chain with its sets; ``tables`` are the chains of tables by group, and by network.

        Raises: KernelError when the packet mark has too few numbers.
        """
        groups, ranges = tables
        self._numbers[names.IN if direction == "Ingress" else names.OUT].take(chain)
        self._keyed.add_set(self._hosts(chain, groups))
        if ranges:
            elements = {network: self._writer.element(name) for network, name in ranges.items()}
            self._keyed.add_set(replace(self._declared(chain, 1, "hash:net"), elements=elements))
        self._keyed.put_chain(chain, rules)

    def fill(self, chain: str, groups: GroupChains) -> None:
        """Makes the set of exact addresses have exactly those of these groups."""
        self._keyed.fill_set(self._hosts(chain, groups))

    def comment(self, chain: str, rules: Rules) -> None:
        """Writes the rules of a chain again if their comment differs; nothing else may differ."""
        if self._keyed.chains[chain] != rules:
            self._keyed.put_chain(chain, rules)

    def remove(self, chain: str) -> None:
        """Removes a chain with its sets."""
        self._keyed.remove_chain(chain)
        for name in names.profile_sets(chain, self.layout.family):
            if name in self._keyed.sets:
                self._keyed.remove_set(name)
        self._numbers[names.IN if chain.startswith(f"{names.IN}-") else names.OUT].give_back(chain)

    def _hosts(self, chain: str, groups: GroupChains) -> IpSet:
        """The set of exact addresses."""
        pairs = ((group, self._writer.element(table)) for group, table in groups.items())
        elements = {address: element for group, element in pairs for address in group.addresses[self.layout.family]}
        return replace(self._declared(chain, 0, "hash:ip"), elements=elements)

    def _declared(self, chain: str, index: int, kind: str) -> IpSet:
        """The declaration of the set of exact addresses (index 0) or of networks (1)."""
        family = self.layout.family
        name = names.profile_sets(chain, family)[index]
        return self.layout.declare(name.removeprefix(names.set_prefix(family)), kind, marks=True)
