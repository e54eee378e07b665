"""Counted nouns, durations and shares."""

import pytest

from podwire.model.wording import count, duration, percent


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes")], ids=("none", "one", "several")
)
def test_only_one_is_singular(number: int, text: str) -> None:
    assert count(number, "node") == text


def test_a_plural_of_its_own() -> None:
    assert [count(n, "policy", "policies") for n in (1, 2)] == ["1 policy", "2 policies"]


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0ms"),
        (812.4, "812ms"),
        (999.4, "999ms"),
        (999.6, "1.0s"),
        (7008, "7.0s"),
        (9_990, "10s"),
        (42_000, "42s"),
        (425_000, "7m5s"),
        (12_000_000, "3h20m"),
        (1_051_200_000, "12d4h"),
    ],
)
def test_durations_change_their_unit(milliseconds: float, text: str) -> None:
    assert duration(milliseconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0%"),
        (1e-9, "<0.001%"),
        (0.0004, "0.04%"),
        (0.003, "0.3%"),
        (0.01, "1%"),
        (1 / 3, "33%"),
        (0.9999, ">99%"),
        (1, "100%"),
    ],
)
def test_a_small_share_is_not_zero(share: float, text: str) -> None:
    assert percent(share) == text
