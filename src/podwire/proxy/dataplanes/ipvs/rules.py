"""The iptables rules of mode ``ipvs`` in one network namespace."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from podwire.kernel.iptables import FAMILIES, Iptables, Programs, choose
from podwire.kernel.iptables_tables import drop_tables, make_tables
from podwire.kernel.iptables_watch import watch
from podwire.kernel.netns import NetnsPath
from podwire.proxy.xtables import kernel as xtables
from podwire.state.chain_marks import PROXY_IPVS
from podwire.state.iptables import Ruleset
from podwire.state.iptables_diff import count_rules, count_tables, repair

_IP6 = Path("/proc/sys/net/ipv6")


class IpvsRules:
    """The rules in one network namespace (None: that of this process), and what was written last.

    Raises: Unsupported when the machine has no iptables.
    """

    def __init__(self, netns_path: NetnsPath, programs: Programs | None = None) -> None:
        self._netns_path = netns_path
        self.programs = programs or xtables.held_by(netns_path, PROXY_IPVS) or choose(netns_path)
        self.watch = watch(self.programs, PROXY_IPVS.tables, netns_path)
        self.families = FAMILIES if _IP6.exists() else FAMILIES[:1]
        self._tools = {family: Iptables(family, self.programs, netns_path) for family in self.families}
        self._written: dict[str, tuple[Ruleset, ...]] = {}
        """The rules that were written last, by family."""
        self._changed_rules: dict[tuple[str, str], int] = {}
        """The number of rules that the last change wrote, by family and table."""

    def close(self) -> None:
        """Closes the sockets to the kernel; the rules stay."""
        for tool in self._tools.values():
            tool.close()
        self.watch.close()

    def counts(self) -> dict[tuple[str, str], tuple[int, int]]:
        """By family and table: the number of rules, and how many of them the last change wrote."""
        return {
            (family, ruleset.table): (
                sum(map(len, ruleset.chains.values())) + len(ruleset.jumps),
                self._changed_rules.get((family, ruleset.table), 0),
            )
            for family, rulesets in self._written.items()
            for ruleset in rulesets
        }

    def hold(self, rules: Mapping[str, Sequence[Ruleset]]) -> list[str]:
        """Makes the kernel hold these rules, by family; reads the kernel first, and returns the written texts.

        Raises: KernelError.
        """
        texts: list[str] = []

        def write() -> int:
            for family, rulesets in rules.items():
                tool = self._tools[family]
                text = repair(xtables.read(tool), rulesets, PROXY_IPVS)
                tool.restore(text)
                self._count(family, text)
                texts.append(text)
            return sum(map(count_tables, texts))

        make_tables(self.programs, PROXY_IPVS.tables, self._netns_path, self.watch.ignore_process)
        self.watch.notifications_off(write)
        self._written = {family: tuple(rulesets) for family, rulesets in rules.items()}
        return [text for text in texts if text]

    def change(self, family: str, rules: Sequence[Ruleset]) -> str:
        """Writes the difference to the rules that were written last, without reading the kernel; returns the text.

        Raises: KernelError.
        """
        saved = {ruleset.table: {**dict(ruleset.chains), **_jumps(ruleset)} for ruleset in self._written[family]}
        text = repair(saved, rules, PROXY_IPVS)
        self.watch.restore(self._tools[family], text)
        self._count(family, text)
        self._written[family] = tuple(rules)
        return text

    def _count(self, family: str, text: str) -> None:
        counts = count_rules(text)
        self._changed_rules |= {(family, table): counts.get(table, 0) for table in PROXY_IPVS.tables}

    def remove(self) -> None:
        """Removes our rules, except rules that another mode in force has too.

        Raises: KernelError.
        """
        self._written = {}
        self.watch.notifications_off(lambda: sum(xtables.remove(tool, PROXY_IPVS) for tool in self._tools.values()))
        drop_tables(PROXY_IPVS.tables, self._netns_path, self.watch.ignore_process)


def _jumps(ruleset: Ruleset) -> dict[str, tuple[str, ...]]:
    rules: dict[str, tuple[str, ...]] = {}
    for chain, rule in ruleset.jumps:
        rules[chain] = (*rules.get(chain, ()), rule)
    return rules
