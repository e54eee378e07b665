"""The rules of all Services of one family, and the delta when Services change (pure).

When a rule of a Service's own chain changes, the whole chain is written, and no other chain. In shared chains and their
parts single rules are inserted and deleted. A rule is inserted at the head of the chain, which is fast. To delete a
rule, iptables-restore searches the chain, so for more than a few deletions the whole chain is written.
"""

from collections.abc import Collection, Mapping
from functools import partial

from podwire.proxy.dataplanes.iptables.compile import Compiled, compile_service
from podwire.proxy.dataplanes.iptables.layout import SHARED, IptablesLayout
from podwire.proxy.dataplanes.iptables.restore import IptablesDelta
from podwire.proxy.dataplanes.iptables.shared import SharedChain
from podwire.proxy.servicemap import ResolvedPort
from podwire.proxy.xtables.compiled import CompiledServices
from podwire.state.chain_marks import PROXY_IPTABLES
from podwire.state.iptables import TABLES, ChainSize, Rules, Ruleset


class Contents:
    """All rules of one family."""

    def __init__(self, layout: IptablesLayout) -> None:
        self.layout = layout
        self._services = CompiledServices(partial(compile_service, layout), Compiled())
        self.claims = self._services.claims
        self._chains: dict[str, Rules] = {}
        self._shared = {key: SharedChain(key, layout.tail(key)) for key in SHARED}

    def rulesets(self) -> tuple[Ruleset, ...]:
        """The whole desired state, one value for each table."""
        chains: dict[str, dict[str, Rules]] = {table: {} for table in TABLES}
        for (table, name), rules in self.layout.chains().items():
            chains[table][name] = rules
        for (table, _), shared in self._shared.items():
            for name, rules in shared.chains():
                chains[table][name] = PROXY_IPTABLES.canonical((table, name), rules)
        chains["nat"] |= self._chains
        jumps = self.layout.jumps()
        return tuple(
            Ruleset(family=self.layout.family, table=table, chains=chains[table], jumps=jumps[table])
            for table in TABLES
        )

    def rewritten(
        self, named: Mapping[str, Collection[str]], empty: Mapping[str, Collection[str]]
    ) -> tuple[Ruleset, ...]:
        """Our chains among those named of each table, and the jumps from the kernel's own chains that are empty."""
        return tuple(
            Ruleset(
                family=self.layout.family,
                table=table,
                chains=self._named(table, named.get(table, ())),
                jumps=tuple(jump for jump in jumps if jump[0] in empty.get(table, ())),
            )
            for table, jumps in self.layout.jumps().items()
        )

    def _named(self, table: str, names: Collection[str]) -> dict[str, Rules]:
        """Our chains of a table among these names, with their rules."""
        rules_by_chain = {
            name: rules for (of, name), rules in self.layout.chains().items() if of == table and name in names
        }
        for (of, _), shared in self._shared.items():
            if of == table:
                rules_by_chain |= {name: rules for name, rules in shared.chains() if name in names}
        if table == "nat":
            rules_by_chain |= {name: self._chains[name] for name in self._chains.keys() & names}
        return rules_by_chain

    def sizes(self, table: str, names: Collection[str]) -> dict[str, ChainSize]:
        """How many rules our chains among these names should have, and which come last."""
        return {
            name: ChainSize(len(rules), self.layout.last(table, name))
            for name, rules in self._named(table, names).items()
        }

    def count(self, table: str) -> int:
        """The number of our rules in a table."""
        constant = [rules for (of, _), rules in self.layout.chains().items() if of == table]
        shared = sum(len(rules) for key, c in self._shared.items() if key[0] == table for _, rules in c.chains())
        own = sum(map(len, self._chains.values())) if table == "nat" else 0
        return sum(map(len, constant)) + shared + own + len(self.layout.jumps()[table])

    def change(self, changed: Mapping[str, tuple[ResolvedPort, ...]]) -> IptablesDelta:
        """Applies new ports of Services (of this family); returns what to write."""
        delta = IptablesDelta()
        for old, new in self._services.change(changed):
            self._swap(old, new, delta)
        for shared in self._shared.values():
            shared.write(delta)
        return delta

    def _swap(self, old: Compiled, new: Compiled, delta: IptablesDelta) -> None:
        for name in old.chains.keys() - new.chains.keys():
            del self._chains[name]
            delta.removed[name] = None
        for name, rules in new.chains.items():
            if old.chains.get(name) != rules:
                self._chains[name] = delta.chains[name] = rules
        for key, shared in self._shared.items():
            before, after = old.shared.get(key, {}), new.shared.get(key, {})
            for rule, part in before.items():
                if rule not in after:
                    shared.delete(rule, part)
            for rule, part in after.items():
                if rule not in before:
                    shared.insert(rule, part)
