"""Names and values of custom objects in expressions."""

import datetime

import pytest

from podwire.embedded.apiserver.cel import values


@pytest.mark.parametrize(
    ("name", "want"),
    [("plain", "plain"), ("a-b.c/d", "a__dash__b__dot__c__slash__d"), ("a__b", "a__underscores__b"), ("in", "__in__")],
)
def test_names_are_escaped(name: str, want: str) -> None:
    assert values.escaped(name) == want


@pytest.mark.parametrize(
    ("schema", "want"),
    [
        ({"type": "array", "items": {"type": "object"}}, "list(map(string,dyn))"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "map(string,double)"),
        ({"type": "string", "nullable": True}, "dyn"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({}, "dyn"),
    ],
)
def test_types_follow_the_schema(schema: dict[str, object], want: str) -> None:
    assert values.type_of(schema) == want


def test_unreadable_formats_are_errors() -> None:
    for form, text in (("duration", "1 hour"), ("byte", "%"), ("date-time", "soon")):
        with pytest.raises(ValueError):
            values.value_of(text, {"type": "string", "format": form})


def test_durations_have_all_units() -> None:
    found = values.value_of("-1h2m3.5s", {"type": "string", "format": "duration"})
    assert found == -datetime.timedelta(hours=1, minutes=2, seconds=3.5)
