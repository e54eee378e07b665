"""Fields of BGP: communities, durations, passwords."""

import pytest

from podwire.bgp.fields import check_password, community, parse_seconds
from podwire.errors import ConfigError


@pytest.mark.parametrize(("text", "want"), [("64512:100", (64512, 100)), ("4294967295:1:2", (4294967295, 1, 2))])
def test_communities_have_two_or_three_numbers(text: str, want: tuple[int, ...]) -> None:
    assert community(text) == want


@pytest.mark.parametrize("text", ["", "1", "65536:1", "1:2:3:4", "a:b", "-1:2"])
def test_other_communities_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected two numbers"):
        community(text)


@pytest.mark.parametrize(("text", "want"), [("90s", 90), ("1m30s", 90), ("250ms", 0.25), ("1h", 3600)])
def test_durations_have_units(text: str, want: float) -> None:
    assert parse_seconds("x", "y", text) == want


@pytest.mark.parametrize("text", ["90", "s", "1 s", "1d"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"x: y: .*expected a duration"):
        parse_seconds("x", "y", text)


@pytest.mark.parametrize("password", ["x" * 81, 'a"b', "a\nb"])
def test_passwords_that_the_engine_does_not_take_are_refused(password: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_password("x", "y", password)
    assert password not in str(refused.value)
