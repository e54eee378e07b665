"""Totals never go down, whatever becomes of the rules that count."""

from collections.abc import Collection

from podwire.policy.ports import Ruling
from podwire.policy.status.counts import GONE, Count, Counted, RuleCounters, Totals, by_policy
from podwire.policy.verdicts import RuleHit

DENIED = RuleHit("Ingress", Ruling(accept=False), ("shop/a", "shop/b"))
ALLOWED = RuleHit("Ingress", Ruling(True, "shop/a", 0))
NAMES = {"rule-1": DENIED, "rule-2": ALLOWED}


def read(**packets: int) -> dict[str, Counted]:
    return {name: Counted(NAMES[f"rule-{name[1:]}"], Count(count, 60 * count)) for name, count in packets.items()}


def packets_by_hit(totals: Totals) -> dict[RuleHit, int]:
    return {item.hit: item.count.packets for item in totals.all()}


def test_families_are_added_up() -> None:
    totals = Totals()
    totals.totals("ip", read(r1=3, r2=0))
    totals.totals("ip6", read(r1=2))
    (only,) = totals.all()
    assert only == Counted(DENIED, Count(5, 300))


def test_a_rule_that_is_added_again_continues_counting() -> None:
    totals = Totals()
    totals.totals("ip", read(r1=3))
    totals.keep("ip", read(r1=5))
    assert packets_by_hit(totals) == {DENIED: 5}
    totals.totals("ip", read(r2=1))
    totals.totals("ip", read(r1=2, r2=1))
    assert packets_by_hit(totals) == {DENIED: 7, ALLOWED: 1}


def test_a_deleted_counter_counts_as_a_new_counter() -> None:
    totals = Totals()
    totals.totals("ip", read(r1=10))
    totals.totals("ip", read(r1=4))
    assert packets_by_hit(totals) == {DENIED: 14}
    totals.totals("ip", {})
    assert packets_by_hit(totals) == {DENIED: 14}
    totals.totals("ip", read(r1=1))
    assert packets_by_hit(totals) == {DENIED: 15}


def test_counts_stay_with_the_policies_of_their_time() -> None:
    """A denial keeps its counter when another policy isolates the same pods."""
    three = RuleHit("Ingress", Ruling(accept=False), ("shop/a", "shop/b", "shop/c"))
    totals = Totals()
    totals.totals("ip", read(r1=3))
    totals.take("ip", read(r1=5))
    totals.totals("ip", {"r1": Counted(three, Count(9, 540))})
    assert packets_by_hit(totals) == {DENIED: 5, three: 4}
    totals.totals("ip", read(r1=10))
    assert packets_by_hit(totals) == {DENIED: 6, three: 4}
    totals.totals("ip", {})
    assert packets_by_hit(totals) == {DENIED: 6, three: 4}


def test_counts_of_deleted_rules_are_kept_as_a_sum() -> None:
    totals = Totals()
    for number in range(3000):
        hit = RuleHit("Ingress", Ruling(accept=False), (f"shop/{number}",))
        totals.keep("ip", {"rule-x": Counted(hit, Count(1, 60))})
    assert sum(item.count.packets for item in totals.all()) == 3000
    assert len(totals.all()) <= 2049
    assert packets_by_hit(totals)[RuleHit("Ingress", Ruling(accept=False), (GONE,))] > 900


def test_a_denial_counts_for_all_that_isolate() -> None:
    totals = Totals()
    totals.totals("ip", read(r1=3, r2=1))
    assert by_policy(totals.all()) == {
        ("shop/a", "dropped"): Count(3, 180),
        ("shop/b", "dropped"): Count(3, 180),
        ("shop/a", "allowed"): Count(1, 60),
    }


class KernelCounters:
    """Counters by chain, as a kernel holds them; ``read`` counts how often they were read."""

    def __init__(self, counters: dict[str, int]) -> None:
        self.counters = counters
        self.wanted: list[Collection[str] | None] = []

    def read(self, _family: str, chains: Collection[str] | None) -> dict[str, Count]:
        self.wanted.append(chains)
        return {name: Count(packets, packets * 100) for name, packets in self.counters.items()}


class Rules:
    """The rules of chains."""

    def __init__(self, hits: dict[str, RuleHit]) -> None:
        self.hits = hits

    def meaning(self, name: str) -> RuleHit | None:
        return self.hits.get(name)


def test_rule_counters_keep_counts_of_deleted_chains() -> None:
    first, second = RuleHit("Ingress", Ruling(True, "shop/db", 0)), RuleHit("Ingress", Ruling(True, "shop/db", 1))
    kernel = KernelCounters({"rule-a": 3, "rule-b": 5, "other": 7})
    counters = RuleCounters({"ip": Rules({"rule-a": first, "rule-b": second})}, kernel.read)
    counters.keep("ip", set())
    counters.keep("ip6", {"rule-a"})
    assert kernel.wanted == [], "nothing is read without chains or without contents"
    counters.keep("ip", {"rule-a"})
    del kernel.counters["rule-a"]
    assert {count.hit: count.count.packets for count in counters.counts()} == {first: 3, second: 5}
    assert kernel.wanted == [{"rule-a"}, None]
    assert counters.hit("rule-b") == second and counters.hit("other") is None
