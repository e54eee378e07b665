"""Selectors in Calico's language: parsing, matching, errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import ConfigError
from podwire.model.expression import EVERYTHING, Comparison, parse_expression

LABELS = {"rack": "r1", "role": "route-reflector", "projectcalico.org/RouteReflectorClusterID": "244.0.0.1"}

TRUE = (
    "all()",
    " global( ) ",
    "has(rack)",
    "!has(zone)",
    "rack == 'r1'",
    'rack=="r1"',
    "rack != 'r2'",
    "zone != 'a'",
    "rack in {'r0', 'r1'}",
    "rack not in {'r0'}",
    "zone not in {'r0'}",
    "rack not in {}",
    "role contains 'reflect'",
    "role starts with 'route'",
    "role ends with 'tor'",
    "has(projectcalico.org/RouteReflectorClusterID)",
    "has(zone) || rack == 'r1' && role != 'x'",
    "rack == 'r1' && !(role == 'x' || has(zone))",
    "!!has(rack)",
)
FALSE = (
    "!all()",
    "has(zone)",
    "rack == 'r2'",
    "zone == ''",
    "rack != 'r1'",
    "zone in {'a'}",
    "rack in {}",
    "zone contains ''",
    "zone starts with ''",
    "(has(zone) || rack == 'r1') && role == 'x'",
)


@pytest.mark.parametrize("text", TRUE)
def test_expression_selects_the_labels(text: str) -> None:
    assert parse_expression(text, "test", "spec.nodeSelector").matches(LABELS)


@pytest.mark.parametrize("text", FALSE)
def test_expression_does_not_select_the_labels(text: str) -> None:
    assert not parse_expression(text, "test", "spec.nodeSelector").matches(LABELS)


def test_and_binds_closer_than_or() -> None:
    parsed = parse_expression("a == '1' || b == '1' && c == '1'", "test", "")
    assert parsed.matches({"a": "1"}) and parsed.matches({"b": "1", "c": "1"}) and not parsed.matches({"b": "1"})


def test_label_may_have_the_name_of_an_operator() -> None:
    assert parse_expression("has == 'x'", "test", "") == Comparison("has", "in", ("x",))
    assert parse_expression("all()", "test", "") == EVERYTHING


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'the end' at character 1 of ''; expected a label"),
        ("rack = 'r1'", "= 'r1'. at character 5 of .*; expected a label, a text in quotes, or an operator"),
        ("rack == r1", "'r1' at character 9 of .*; expected a text in quotes"),
        ("rack == 'r1", "expected a label, a text in quotes"),
        ("has(rack", "'the end' .* expected \\)"),
        ("has()", "'\\)' .* expected a label"),
        ("rack in {'a' 'b'}", "expected ,"),
        ("rack in {'a',}", "expected a text in quotes"),
        ("rack starts 'a'", "expected with"),
        ("has(a) has(b)", "expected the end, && or"),
        ("has(a) &&", "expected a label, has"),
        ("(" * 40 + "all()" + ")" * 40, "no more than 32 nested"),
        ("!" * 40 + "all()", "no more than 32 nested"),
    ],
)
def test_wrong_expression_names_place_and_expectation(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"test: spec.peerSelector: not a selector: .*{problem}"):
        parse_expression(text, "test", "spec.peerSelector")


@given(st.text(alphabet="ab'\"!&|()={}, inothaswlc", max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        parse_expression(text, "test", "").matches({"a": "b"})
    except ConfigError:
        pass
