"""The packets that policies dropped, as a bounded number of metric series (pure).

A cluster may have ten thousand policies: one series for each policy and node would be too much for the collector. A
policy gets its own series on a node when it drops its first packet there, up to ``_MOST`` policies; all other policies
share one series, so that sums are right. A series never disappears: totals never go down.
"""

from collections.abc import Iterable, Iterator

from podwire.policy.status.counts import GONE, Counted

_MOST = 200
OTHER_POLICIES = "(others)"

_METRICS = {
    "dropped": ("podwire_policy_dropped_packets_total", "Packets that policies dropped."),
    "audited": ("podwire_policy_audited_packets_total", "Packets that policies in audit would have dropped."),
}


class Series:
    """The series of one node."""

    def __init__(self) -> None:
        self._own: set[str] = set()

    def samples(self, counted: Iterable[Counted]) -> Iterator[tuple[str, str, dict[str, str], int]]:
        """Name, help, labels and value of each series; the label lists all policies of a rule hit."""
        sums: dict[tuple[str, str, str], int] = {}
        for counted_rule in sorted(counted, key=lambda counted_rule: counted_rule.hit.policies):
            if counted_rule.hit.verdict not in _METRICS or not counted_rule.count.packets:
                continue
            key = (counted_rule.hit.verdict, self._label(counted_rule.hit.policies), counted_rule.hit.direction.lower())
            sums[key] = sums.get(key, 0) + counted_rule.count.packets
        for (verdict, policy, direction), packets in sorted(sums.items()):
            name, text = _METRICS[verdict]
            yield name, text, {"policy": policy, "direction": direction}, packets

    def _label(self, policies: tuple[str, ...]) -> str:
        name = ",".join(policies)
        if name not in self._own and (policies == (GONE,) or len(self._own) >= _MOST):
            return OTHER_POLICIES
        self._own.add(name)
        return name
