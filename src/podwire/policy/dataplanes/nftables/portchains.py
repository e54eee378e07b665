"""The chains of port tables and rules, which profiles share: a chain exists until its last use is dropped (pure)."""

from collections import Counter
from collections.abc import Callable

from podwire.dataplane.contents import KeyedContents
from podwire.policy.dataplanes.nftables.layout import TableLayout, leading_to, ports_name, rule_name
from podwire.policy.ports import PortTable
from podwire.policy.profile import ProfileKey
from podwire.policy.verdicts import RuleHit, denying_policies
from podwire.state.nft import Chain, Element, Set

_KEPT_HITS = 1024
"""How many deleted chains of rules are kept: their counts and log lines are still looked up."""


class PortTableChains:
    """The chains of port tables and rules of one family, with the number of uses of each."""

    def __init__(self, layout: TableLayout, keyed: KeyedContents[Chain, Set, bytes, Element]) -> None:
        """``keyed`` receives the chains and sets."""
        self.layout = layout
        self._keyed = keyed
        self._uses: Counter[str] = Counter()
        self._needs: dict[str, tuple[str, ...]] = {}
        self._hits: dict[str, RuleHit] = {}
        self._gone: dict[str, RuleHit] = {}

    def _put(self, chain: Chain) -> None:
        self._keyed.put_chain(chain.name, chain)

    def take(self, table: PortTable, key: ProfileKey) -> str:
        """The chain of a table of ports; it exists until each taken use is dropped."""
        denying = denying_policies(key)
        name = ports_name(table, denying)
        if not self._uses[name]:
            hits = [denying.hit(ruling) for ruling in table.rulings]
            for hit in hits:
                self._rule(hit)
            sets = self.layout.ports_sets(name, table, denying)
            for declared in sets:
                self._keyed.add_set(declared)
            needs = tuple(map(rule_name, hits))
            self._put(self.layout.ports_chain(name, table, denying))
            self._needs[name] = (*needs, *(f"@{declared.name}" for declared in sets))
        self._uses[name] += 1
        return name

    def _rule(self, hit: RuleHit) -> None:
        name = rule_name(hit)
        if not self._uses[name]:
            self._put(self.layout.rule_chain(hit))
            self._hits[name] = hit
        self._uses[name] += 1

    def drop(self, name: str, times: int = 1) -> None:
        """Drops uses of a chain; with the last use, the chain is removed and its own uses of chains are dropped."""
        self._uses[name] -= times
        if self._uses[name]:
            return
        del self._uses[name]
        if name in self._hits:
            self._gone[name] = self._hits.pop(name)
            if len(self._gone) > _KEPT_HITS:
                del self._gone[next(iter(self._gone))]
        self._keyed.remove_chain(name)
        for need in self._needs.pop(name, ()):
            if need.startswith("@"):
                self._keyed.remove_set(need[1:])
            else:
                self.drop(need)

    def settle(self, peer_chains: "PeerChains") -> None:
        """Updates the use counts of chains, and gives back the chains that were taken only for the update."""
        self._uses.update({chain: step for chain, step in peer_chains.steps.items() if step > 0})
        for chain, step in peer_chains.steps.items():
            if step < 0:
                self.drop(chain, -step)
        for chain in peer_chains.taken:
            self.drop(chain)

    def meaning(self, name: str) -> RuleHit | None:
        """The rule of a chain that exists or was removed lately; None: the chain is unknown."""
        return self._hits.get(name) or self._gone.get(name)


class PeerChains:
    """The chains of tables during one update of many addresses; each is taken once, and dropped after the update."""

    def __init__(self, take: Callable[[PortTable], str]) -> None:
        self._take = take
        self._known: dict[int, tuple[str | None, Element | None]] = {id(None): (None, None)}
        self.taken: list[str] = []
        self.steps: Counter[str] = Counter()
        """The change in the number of addresses that use each chain."""

    def chain_of(self, table: PortTable | None) -> tuple[str | None, Element | None]:
        """The chain of a table, and the map element that jumps to it."""
        known = self._known.get(id(table))
        if known is None:
            assert table is not None, "None is known"
            chain = self._take(table)
            self.taken.append(chain)
            known = self._known[id(table)] = (chain, leading_to(chain))
        return known

    def moved(self, before: str | None, after: str | None) -> None:
        """Counts that an address now uses another chain."""
        if before is not None:
            self.steps[before] -= 1
        if after is not None:
            self.steps[after] += 1
