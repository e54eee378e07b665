"""The chains of port tables and rules, which profiles share: a chain exists until its last use is dropped (pure)."""

from collections import Counter

from podwire.dataplane.contents import KeyedContents
from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.layout import ChainLayout
from podwire.policy.dataplanes.iptables.numbers import Numbers
from podwire.policy.ports import PortTable
from podwire.policy.profile import ProfileKey
from podwire.policy.verdicts import RuleHit, denying_policies
from podwire.state.ipset import IpSet, IpSetElement
from podwire.state.iptables import Rules

NamedTable = tuple[str, PortTable]
"""A table of ports with the name of its chain."""

_KEPT_HITS = 1024
"""How many deleted rules are kept, because a log line may still name them."""


class NumberedTableChains:
    """The chains of port tables and rules of one family, with the number of uses of each."""

    def __init__(
        self, layout: ChainLayout, keyed: KeyedContents[Rules, IpSet, str, IpSetElement], numbers: Numbers
    ) -> None:
        """``keyed`` receives the chains; ``numbers`` are the numbers of the chains of port tables."""
        self.layout = layout
        self._keyed = keyed
        self._numbers = numbers
        self._uses: Counter[str] = Counter()
        self._needs: dict[str, tuple[str, ...]] = {}
        self._chains_of: dict[str, tuple[str, ...]] = {}
        self._hits: dict[str, RuleHit] = {}
        self._gone: dict[str, RuleHit] = {}

    def take(self, named: NamedTable, key: ProfileKey) -> str:
        """The chain of a table of ports; it exists until each taken use is dropped."""
        chain, table = named
        if not self._uses[chain]:
            self._chains_of[chain] = self._ports(table, key, chain)
            denying = denying_policies(key)
            self._needs[chain] = tuple(self._rule(denying.hit(ruling)) for ruling in table.rulings)
            self._numbers.take(chain)
        self._uses[chain] += 1
        return chain

    def _ports(self, table: PortTable, key: ProfileKey, chain: str) -> tuple[str, ...]:
        chains = self.layout.ports(chain, table, denying_policies(key))
        for name, rules in chains.items():
            self._keyed.put_chain(name, rules)
        return tuple(chains)

    def _rule(self, hit: RuleHit) -> str:
        chain = names.rule_chain(hit)
        if not self._uses[chain]:
            self._keyed.put_chain(chain, self.layout.rule(hit, chain.removeprefix(names.CHAIN).lower()))
            self._chains_of[chain] = (chain,)
            self._hits[chain] = hit
            self._gone.pop(chain, None)
        self._uses[chain] += 1
        return chain

    def drop(self, chain: str) -> None:
        """Drops one use of a chain; with the last use, the chain is removed and its own uses of chains are dropped."""
        self._uses[chain] -= 1
        if self._uses[chain]:
            return
        del self._uses[chain]
        if chain in self._hits:
            self._gone[chain] = self._hits.pop(chain)
            if len(self._gone) > _KEPT_HITS:
                del self._gone[next(iter(self._gone))]
        for name in self._chains_of.pop(chain):
            self._keyed.remove_chain(name)
        if chain in self._numbers.used:
            self._numbers.give_back(chain)
        for need in self._needs.pop(chain, ()):
            self.drop(need)

    def meaning(self, name: str) -> RuleHit | None:
        """The rule for a chain name or a log prefix, if it exists or was removed lately; None: unknown."""
        chain = name if name.startswith(names.RULE) else names.CHAIN + name.upper()
        return self._hits.get(chain) or self._gone.get(chain)

    def element(self, chain: str) -> IpSetElement:
        """The set element that gives a packet the number of a port table's chain."""
        return self.layout.numbered(self._numbers.used[chain])
