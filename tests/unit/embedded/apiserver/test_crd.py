"""Custom kinds: pruning, defaults, checks, and what a definition must be."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.embedded.apiserver import crd
from podwire.embedded.apiserver.kinds import ResourceKind

WIDGET = ResourceKind(group="example.org", version="v1", kind="Widget", plural="widgets", custom=True)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 10},
                "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast"},
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5, "minLength": 2},
                "port": {"x-kubernetes-int-or-string": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "empty": {"type": "object"},
                "maybe": {"type": "string", "nullable": True},
                "parts": {
                    "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
                    "maxItems": 3,
                    "items": {"type": "object", "required": ["id"],
                              "properties": {"id": {"type": "string"}, "on": {"type": "boolean", "default": True}}},
                },
                "one": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                        "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            },
        },
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
    },
}  # fmt: skip


def widget(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec}


def texts(spec: dict[str, Any]) -> list[str]:
    return [f"{cause.field}: {cause.message}" for cause in crd.check(widget(**spec), SCHEMA)]


def test_unknown_fields_are_removed() -> None:
    obj = widget(size=1, sise=2, free={"a": {"b": 1}}, labels={"x": "y"}, empty={"z": 1}, parts=[{"id": "a", "x": 1}])
    result = crd.prune({**obj, "extra": 1}, SCHEMA)
    assert result.unknown == ["spec.sise", "spec.empty.z", "spec.parts[0].x", "extra"]
    assert result.obj == widget(size=1, free={"a": {"b": 1}}, labels={"x": "y"}, empty={}, parts=[{"id": "a"}])


def test_metadata_is_decoded_by_its_types() -> None:
    obj = {**widget(size=1), "metadata": {"name": "w", "creationTimestamp": None, "colour": "red"}}
    result = crd.decode(obj, SCHEMA, WIDGET)
    assert result.unknown == ["metadata.colour"]
    assert result.obj["metadata"] == {"name": "w"}


def test_defaults() -> None:
    obj = widget(size=1, mode=None, parts=[{"id": "a"}, {"id": "b", "on": False}])
    before = deepcopy(obj)
    result = crd.fill(obj, SCHEMA)["spec"]
    assert result["mode"] == "fast"
    assert result["parts"] == [{"id": "a", "on": True}, {"id": "b", "on": False}]
    assert obj == before


CHECKS: list[tuple[dict[str, Any], list[str]]] = [
    ({"size": 1, "mode": "fast", "port": "http", "maybe": None, "one": {"a": "x"}}, []),
    ({}, ["spec.size: Required value"]),
    ({"size": "big"}, ['spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"']),
    ({"size": 0}, ["spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"]),
    ({"size": 11}, ["spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10"]),
    ({"size": 1, "mode": "odd"}, ['spec.mode: Unsupported value: "odd": supported values: "fast", "slow"']),
    ({"size": 1, "name": "UP"}, ["spec.name: Invalid value: \"UP\": spec.name in body should match '^[a-z]+$'"]),
    ({"size": 1, "name": "toolong"}, ["spec.name: Too long: may not be more than 5 bytes"]),
    ({"size": 1, "name": "a"}, ['spec.name: Invalid value: "a": spec.name in body should be at least 2 chars long']),
    ({"size": 1, "name": None},
     ['spec.name: Invalid value: "null": spec.name in body must be of type string: "null"']),
    ({"size": 1, "port": True},
     ['spec.port: Invalid value: "boolean": spec.port in body must be of type integer,string: "boolean"']),
    ({"size": 1, "labels": {"a": 1}},
     ['spec.labels.a: Invalid value: "integer": spec.labels.a in body must be of type string: "integer"']),
    ({"size": 1, "parts": [{"id": "a"}, {"id": "a"}]}, ['spec.parts[1]: Duplicate value: {"id":"a"}']),
    ({"size": 1, "parts": [{"id": c} for c in "abcd"]}, ["spec.parts: Too many: 4: must have at most 3 items"]),
    ({"size": 1, "parts": [{}]}, ["spec.parts[0].id: Required value"]),
    ({"size": 1, "one": {"a": "x", "b": "y"}},
     ['spec.one: Invalid value: {"a":"x","b":"y"}: "spec.one" must validate one and only one schema (oneOf). '
      "Found 2 valid alternatives"]),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "want"), CHECKS)
def test_values_that_the_schema_refuses(spec: dict[str, Any], want: list[str]) -> None:
    assert texts(spec) == want


def definition(schema: dict[str, Any] | None = None, **version: Any) -> dict[str, Any]:
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    first = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema or SCHEMA},
        **version,
    }
    spec = {"group": "example.org", "scope": "Namespaced", "names": names, "versions": [first]}
    return {"metadata": {"name": "widgets.example.org"}, "spec": spec}


ROOT = "spec.versions[0].schema.openAPIV3Schema"
BAD_SCHEMAS: list[tuple[dict[str, Any], list[str]]] = [
    (SCHEMA, []),
    ({"properties": {}}, [f"{ROOT}.type: Required value: must not be empty at the root"]),
    ({"type": "object", "properties": {"a": {}}},
     [f"{ROOT}.properties[a].type: Required value: must not be empty for specified object fields"]),
    ({"type": "object", "properties": {"a": {"type": "array"}}},
     [f"{ROOT}.properties[a].items: Required value: must be specified"]),
    ({"type": "object", "properties": {"a": {"type": "string", "$ref": "#/b"}}},
     [f"{ROOT}.properties[a].$ref: Forbidden: $ref is not supported"]),
    ({"type": "object", "properties": {"a": {"type": "strin"}}},
     [f'{ROOT}.properties[a].type: Unsupported value: "strin": supported values: "array", "boolean", "integer", '
      '"number", "object", "string"']),
    ({"type": "object", "properties": {"a": {"type": "null"}}},
     [f"{ROOT}.properties[a].type: Forbidden: type cannot be set to null, use nullable as an alternative"]),
    ({"type": "object", "properties": {"a": {"type": "array", "items": {}}}},
     [f"{ROOT}.properties[a].items.type: Required value: must not be empty for specified array items"]),
    ({"type": "object", "additionalProperties": False},
     [f"{ROOT}.additionalProperties: Forbidden: additionalProperties cannot be set to false"]),
    ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
     [f'{ROOT}.properties[a].pattern: Invalid value: "(": must be a valid regular expression, but isn\'t: error '
      "parsing regexp: missing ), unterminated subpattern at position 0: `(`"]),
    ({"type": "object", "properties": {"a": {"type": "string", "anyOf": [
        {"type": "string", "description": "d"}, {"minLength": 1}], "not": {"nullable": True}}}},
     [f"{ROOT}.properties[a].anyOf[0].type: Forbidden: must be empty to be structural",
      f"{ROOT}.properties[a].anyOf[0].description: Forbidden: must be empty to be structural",
      f"{ROOT}.properties[a].not.nullable: Forbidden: must be false to be structural"]),
    ({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": True, "anyOf": [
        {"type": "integer"}, {"type": "string"}]}}}, []),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "want"), BAD_SCHEMAS)
def test_structural(schema: dict[str, Any], want: list[str]) -> None:
    assert [f"{c.field}: {c.message}" for c in crd.check_definition(definition(schema), None)] == want


def test_definitions() -> None:
    old, new = definition(), definition(additionalPrinterColumns=[{"name": "A", "type": "text", "jsonPath": ".a["}])
    new["spec"]["scope"] = "Cluster"
    results = [cause.field for cause in crd.check_definition(new, old)]
    path = "spec.versions[0].additionalPrinterColumns[0]"
    assert results == [f"{path}.type", f"{path}.jsonPath", "spec.scope"]


def test_scale() -> None:
    paths = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas",
             "labelSelectorPath": ".status.selector"}  # fmt: skip
    obj = {**widget(size=2), "status": {"replicas": 1, "selector": "a=b"}}
    assert crd.read_scale(obj, paths) == (2, 1, "a=b")
    assert crd.write_scale(obj, paths, 5)["spec"]["size"] == 5
    assert obj["spec"]["size"] == 2


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 12) | st.sampled_from(["fast", "ab", "A"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["size", "mode", "parts", "id", "zzz"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"]["spec"]["properties"], "zzz"]), VALUES))
def test_laws(spec: dict[str, Any]) -> None:
    """Pruning and filling are final after one run, and whatever comes, the check ends."""
    once = crd.prune(widget(**spec), SCHEMA)
    assert crd.prune(once.obj, SCHEMA) == (once.obj, [])
    filled = crd.fill(once.obj, SCHEMA)
    assert crd.fill(filled, SCHEMA) == filled
    crd.check(filled, SCHEMA)
