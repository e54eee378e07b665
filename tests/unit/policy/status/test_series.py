"""Series of metrics: bounded, and their sums are right."""

from podwire.policy.ports import Ruling
from podwire.policy.status.counts import GONE, Count, Counted
from podwire.policy.status.series import OTHER_POLICIES, Series
from podwire.policy.verdicts import RuleHit


def denied(packets: int, *policies: str, direction: str = "Ingress") -> Counted:
    return Counted(RuleHit(direction, Ruling(accept=False), policies), Count(packets, 0))


def values(series: Series, *counted: Counted) -> dict[tuple[str, str, str], int]:
    return {(name, labels["policy"], labels["direction"]): value for name, _, labels, value in series.samples(counted)}


def test_dropped_and_audited_packets_have_series() -> None:
    audited = Counted(RuleHit("Egress", Ruling(accept=True, audit=True), ("shop/c",)), Count(5, 0))
    allowed = Counted(RuleHit("Egress", Ruling(True, "shop/c", 0)), Count(9, 0))
    cluster = Counted(RuleHit("Ingress", Ruling(False, "deny", 1)), Count(2, 0))
    again = Counted(RuleHit("Ingress", Ruling(False, "deny", 2)), Count(1, 0))
    assert values(Series(), denied(3, "shop/a", "shop/b"), audited, allowed, cluster, again, denied(0, "shop/z")) == {
        ("podwire_policy_dropped_packets_total", "shop/a,shop/b", "ingress"): 3,
        ("podwire_policy_dropped_packets_total", "deny", "ingress"): 3,
        ("podwire_policy_audited_packets_total", "shop/c", "egress"): 5,
    }


def test_their_number_is_bounded_and_no_packet_is_missing() -> None:
    series = Series()
    early = [denied(1, f"shop/{number:03}") for number in range(150)]
    values(series, *early)
    late = [denied(1, f"shop/a{number:03}") for number in range(500)]
    result = values(series, *early, *late, denied(7, GONE))
    assert len(result) == 201
    assert sum(result.values()) == 657
    assert result["podwire_policy_dropped_packets_total", OTHER_POLICIES, "ingress"] == 457
    assert all(
        ("podwire_policy_dropped_packets_total", f"shop/{number:03}", "ingress") in result for number in range(150)
    )
