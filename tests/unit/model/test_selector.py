"""Label selectors in both forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import ConfigError
from podwire.model.selector import LabelSelector, Requirement, field_terms, from_mapping, parse_selector

_WEB = {"app": "web", "tier": "front", "weight": "5"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app=db", False),
        ("app!=db", True),
        ("app!=web", False),
        ("missing!=x", True),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("!app", False),
        ("app in (db, web)", True),
        ("app in (db)", False),
        ("app notin (db)", True),
        ("missing notin (db)", True),
        ("missing in (db)", False),
        ("app=web,tier=front", True),
        ("app in (web,db),tier!=front", False),
        ("app=", False),
    ],
)
def test_matching(text: str, matches: bool) -> None:
    assert parse_selector(text).matches(_WEB) is matches


@pytest.mark.parametrize("text", ["app=web,x y", "=web", "app in web", "a=b=c", "app>3", "app in (a", "-a=b"])
def test_unparsable_line_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="labelSelector"):
        parse_selector(text)


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LETTERS_AND_DIGITS = f"{_LETTERS}0123456789"
_letter = st.sampled_from(_LETTERS)
_key = st.one_of(
    _letter,
    st.tuples(_letter, st.text(f"{_LETTERS_AND_DIGITS}./-", max_size=8), st.sampled_from(_LETTERS_AND_DIGITS)).map(
        "".join
    ),
)
_value = st.text(_LETTERS_AND_DIGITS, min_size=1, max_size=6)
_values = st.sets(_value, min_size=1).map(lambda values: tuple(sorted(values)))
_terms = st.one_of(
    st.builds(Requirement, key=_key, operator=st.sampled_from(["In", "NotIn"]), values=_values),
    st.builds(Requirement, key=_key, operator=st.sampled_from(["Exists", "DoesNotExist"])),
)


@given(st.lists(_terms, max_size=4))
def test_the_text_of_a_selector_parses_back(terms: list[Requirement]) -> None:
    text = ",".join(str(term) for term in terms)
    assert parse_selector(text).requirements == tuple(terms)


@given(st.lists(_terms, max_size=4), st.dictionaries(_key, _value, max_size=4))
def test_both_forms_agree(terms: list[Requirement], labels: dict[str, str]) -> None:
    form = LabelSelector(match_expressions=tuple(terms))
    assert form.matches(labels) == form.requirements().matches(labels)


def test_numbers_are_compared_only_when_they_are_numbers() -> None:
    greater = Requirement(key="weight", operator="Gt", values=("4",))
    assert greater.matches(_WEB)
    assert not greater.matches({"weight": "4"})
    assert not greater.matches({"weight": "heavy"})
    assert not greater.matches({})
    assert Requirement(key="weight", operator="Lt", values=("6",)).matches(_WEB)
    assert not Requirement(key="weight", operator="Near", values=("5",)).matches(_WEB)


def test_a_plain_map_selects_by_every_pair() -> None:
    selector = from_mapping({"tier": "front", "app": "web"})
    assert str(selector) == "app=web,tier=front"
    assert selector.matches(_WEB) and not selector.matches({"app": "web"})


def test_field_terms() -> None:
    assert field_terms("metadata.name=a,spec.nodeName!=b, status.phase==Running") == (
        ("metadata.name", "a", False),
        ("spec.nodeName", "b", True),
        ("status.phase", "Running", False),
    )
    with pytest.raises(ConfigError, match="fieldSelector"):
        field_terms("metadata.name")
