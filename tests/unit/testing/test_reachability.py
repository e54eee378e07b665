"""Yes, no, and neither."""

import pytest

from podwire.local.probe.plan import Attempt, PacketSource, ProbePort
from podwire.local.probe.result import ProbeResult
from podwire.testing.reachability import JUDGED, Reached, Undecided

BECAUSE = "shop/web -> shop/db TCP 80: dropped at ingress: isolated by shop/deny"


def result(name: str, *, reached: bool, because: str = "", either: bool = False) -> ProbeResult:
    attempt = Attempt(
        source=PacketSource(name=name),
        target="shop/db",
        address="10.0.0.1",
        port=ProbePort(number=80),
        because=because,
        either=either,
    )
    return ProbeResult(
        attempt, reached=reached, answered_by="shop/db" if reached else "", error="" if reached else "refused"
    )


def reached(*results: ProbeResult) -> Reached:
    return Reached("shop/web", "db:80", results, lambda results: f"said of {results.attempt.source.name}")


def test_all_is_yes_and_none_is_no() -> None:
    assert reached(result("shop/web-1", reached=True), result("shop/web-2", reached=True))
    assert not reached(result("shop/web-1", reached=False), result("shop/web-2", reached=False))


def test_mixed_results_are_undecided() -> None:
    subset = reached(result("shop/web-1", reached=True), result("shop/web-2", reached=False))
    with pytest.raises(Undecided, match=r"shop/web-2 -> shop/db .* not reached, refused"):
        bool(subset)
    assert repr(subset) == "<shop/web -> db:80: some reached, some not>"


def test_endpoint_chosen_by_chance_is_no_answer() -> None:
    with pytest.raises(Undecided):
        bool(reached(result("shop/web-1", reached=True, because=BECAUSE, either=True)))


def test_denied_is_not_refused() -> None:
    assert reached(result("shop/web", reached=False, because=BECAUSE)).denied
    assert not reached(result("shop/web", reached=False)).denied
    assert not reached(result("shop/web", reached=True, because=BECAUSE)).denied


def test_short_text_for_pytest() -> None:
    assert repr(reached(result("shop/web", reached=True))) == "<shop/web -> db:80: reached>"
    assert repr(reached(result("shop/web", reached=False))) == "<shop/web -> db:80: not reached, refused>"
    denied = reached(result("shop/web", reached=False, because=BECAUSE))
    assert repr(denied) == "<shop/web -> db:80: not reached, policies deny it>"


def test_the_full_text_explains_policies_once() -> None:
    two = reached(result("shop/web-1", reached=False), result("shop/web-2", reached=False))
    assert str(two).splitlines() == [
        "shop/web-1 -> shop/db (10.0.0.1) 80/TCP: not reached, refused",
        "said of shop/web-1",
        "shop/web-2 -> shop/db (10.0.0.1) 80/TCP: not reached, refused",
    ]


def test_the_last_assertion_is_remembered() -> None:
    item = reached(result("shop/web", reached=True))
    assert JUDGED.get() is not item
    assert item
    assert JUDGED.get() is item
