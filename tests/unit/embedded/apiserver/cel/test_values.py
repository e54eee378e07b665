"""Names and values of custom objects in expressions."""

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
        ({"type": "array", "items": {"type": "object", "additionalProperties": {"type": "string"}}},
         "list(map(string,string))"),
        ({"type": "array", "items": {"x-kubernetes-preserve-unknown-fields": True}}, "dyn"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "map(string,double)"),
        ({"type": "string", "nullable": True}, "string"),
        ({"x-kubernetes-int-or-string": True}, "dyn"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({}, "dyn"),
    ],
)  # fmt: skip
def test_types_follow_the_schema(schema: dict[str, object], want: str) -> None:
    assert values.type_of(schema) == want


def test_unreadable_formats_are_errors() -> None:
    for form, text in (("duration", "1 hour"), ("byte", "%"), ("date-time", "soon")):
        with pytest.raises(ValueError):
            values.value_of(text, {"type": "string", "format": form})


def test_durations_have_all_units() -> None:
    result = values.value_of("-1h2m3.5s", {"type": "string", "format": "duration"})
    assert (result.seconds, result.nanos) == (-3724, 500_000_000)


def test_equal_schemas_are_one_type() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b-c": {"type": "integer"}, "d": {}}}
    assert values.type_of(schema) == values.type_of(schema)
    assert values.type_of(schema) != values.type_of({**schema, "properties": {"a": {"type": "integer"}}})
