"""How long a changed endpoint takes to be answered."""

import datetime

import pytest

from podwire.dns.programming import ProgrammingTimes
from podwire.model.meta import ObjectMeta
from podwire.model.service import TRIGGER_TIME_ANNOTATION

_START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_NAME = "coredns_kubernetes_dns_programming_duration_seconds"


def totals(times: ProgrammingTimes) -> list[float]:
    """Sum and count."""
    return [value for name, _, value in times.series() if name in (f"{_NAME}_sum", f"{_NAME}_count")]


def a_slice(text: str) -> ObjectMeta:
    return ObjectMeta(name="web-1", namespace="shop", annotations={TRIGGER_TIME_ANNOTATION: text} if text else {})


def test_duration_is_from_the_change_to_the_zone() -> None:
    times = ProgrammingTimes(_START)
    times.arrived(a_slice("2026-01-01T00:00:10Z"))
    for _ in range(2):
        times.answered("shop/web-1", _START + datetime.timedelta(seconds=10.25), headless=True)
    assert totals(times) == [0.25, 1]
    bounds = [labels[-1][1] for name, labels, value in times.series() if name.endswith("_bucket") and value]
    assert bounds[0] == "0.256"
    assert {labels[0] for _, labels, _ in times.series()} == {("service_kind", "headless_with_selector")}


@pytest.mark.parametrize(
    ("text", "headless"),
    [("2026-01-01T00:00:10Z", False), ("2025-12-31T23:59:59Z", True), ("", True), ("yesterday", True)],
)
def test_others_are_not_measured(text: str, headless: bool) -> None:
    times = ProgrammingTimes(_START)
    times.arrived(a_slice(text))
    times.answered("shop/web-1", _START + datetime.timedelta(seconds=20), headless=headless)
    assert totals(times) == [0.0, 0]
