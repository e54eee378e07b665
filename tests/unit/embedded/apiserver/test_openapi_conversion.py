"""OpenAPI of version 2 as version 3: each form that documents of API servers use, and forms that no document has."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.embedded.apiserver import openapi_merge, openapi_protobuf
from podwire.embedded.apiserver.aggregation.documents import openapi_of
from podwire.embedded.apiserver.openapi_conversion import to_v3

Json = dict[str, Any]

MARK = {"group": "example.com", "version": "v1", "kind": "Tab"}
REFERENCE = {"$ref": "#/definitions/Tab"}
CONVERTED = {"$ref": "#/components/schemas/Tab"}


def operation(**fields: Any) -> Json:
    """The only operation of a document, in version 3."""
    document = {"paths": {"/x": {"get": {"responses": {}, **fields}}}}
    result: Json = to_v3(document)["paths"]["/x"]["get"]
    return result


@pytest.mark.parametrize(
    ("schema", "converted"),
    [
        (REFERENCE, CONVERTED),
        ({**REFERENCE, "description": "a tab", "default": {}},
         {"allOf": [CONVERTED], "description": "a tab", "default": {}}),
        ({"type": "array", "items": REFERENCE}, {"type": "array", "items": CONVERTED}),
        ({"type": "object", "additionalProperties": REFERENCE}, {"type": "object", "additionalProperties": CONVERTED}),
        ({"properties": {"items": REFERENCE, "$ref": {"type": "string"}}},
         {"properties": {"items": CONVERTED, "$ref": {"type": "string"}}}),
        ({"allOf": [REFERENCE], "not": REFERENCE}, {"allOf": [CONVERTED], "not": CONVERTED}),
        ({"type": "string", "format": "int-or-string", "description": "port"},
         {"description": "port", "oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"}),
        ({"x-kubernetes-group-version-kind": [MARK]}, {"x-kubernetes-group-version-kind": [MARK]}),
    ],
)  # fmt: skip
def test_definitions_become_schemas(schema: Json, converted: Json) -> None:
    assert to_v3({"definitions": {"x": schema}})["components"] == {"schemas": {"x": converted}}


def test_body_and_parameters_are_told_apart() -> None:
    body = {"name": "body", "in": "body", "required": True, "schema": REFERENCE}
    query = {"name": "n", "in": "query", "type": "array", "items": {"type": "string"}, "collectionFormat": "multi",
             "uniqueItems": True}  # fmt: skip
    result = operation(parameters=[body, query], consumes=["application/json", "*/*"], operationId="list", tags=["t"])
    content = {"schema": CONVERTED}
    assert result == {
        "operationId": "list", "tags": ["t"], "responses": {},
        "parameters": [
            {"name": "n", "in": "query",
             "schema": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
        ],
        "requestBody": {"required": True, "content": {"application/json": content, "*/*": content}},
    }  # fmt: skip


def test_responses_have_their_media_types() -> None:
    response = {"description": "OK", "schema": REFERENCE, "headers": {"Age": {"type": "integer", "description": "s"}}}
    result = operation(responses={"200": response, "401": {}}, produces=["application/yaml"])["responses"]
    assert result == {
        "200": {
            "description": "OK", "content": {"application/yaml": {"schema": CONVERTED}},
            "headers": {"Age": {"description": "s", "schema": {"type": "integer"}}},
        },
        "401": {"description": ""},
    }  # fmt: skip


def test_shared_parameters_stand_where_they_are_used() -> None:
    shared = {"dry": {"name": "dryRun", "in": "query", "type": "string"}}
    url = "/apis/example.com/v1/tabs"
    v2 = {
        "parameters": shared,
        "paths": {url: {"get": {"parameters": [{"$ref": "#/parameters/dry"}], "responses": {}}}, "/apis/other": {}},
        "definitions": {"Tab": {"x-kubernetes-group-version-kind": [MARK]}, "Other": {}},
    }
    v3, part = (json.loads(body) for body in openapi_of("apis/example.com/v1", {}, v2))
    assert part["paths"] == {url: {"get": {"parameters": [shared["dry"]], "responses": {}}}}
    assert list(part["definitions"]) == list(v3["components"]["schemas"]) == ["Tab"]
    parameter = {"name": "dryRun", "in": "query", "schema": {"type": "string"}}
    assert v3["paths"][url]["get"]["parameters"] == [parameter]


def test_own_document_of_version_3_is_kept() -> None:
    v3, _ = openapi_of("apis/example.com/v1", {"openapi": "3.0.0"}, {"paths": {}})
    assert json.loads(v3) == {"openapi": "3.0.0"}


def test_document_that_is_nested_too_deeply_is_left_out() -> None:
    deep: Any = {}
    for _ in range(3_000):
        deep = {"items": deep}
    assert openapi_of("apis/example.com/v1", {}, {"definitions": {"x": deep}}) == (b"", b"")


_KEYS = st.sampled_from([
    "$ref", "200", "additionalProperties", "allOf", "consumes", "description", "enum", "format", "get", "headers", "in",
    "items", "maxLength", "name", "parameters", "properties", "required", "responses", "schema", "type",
    "x-kubernetes-group-version-kind",
])  # fmt: skip
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(paths=_VALUES, definitions=_VALUES, parameters=_VALUES)
def test_hostile_documents_never_fail(paths: Any, definitions: Any, parameters: Any) -> None:
    known = {"Tab": definitions, "Other": {"x-kubernetes-group-version-kind": definitions}}
    whole = {"paths": {"/apis/example.com/v1/tabs": paths}, "definitions": known, "parameters": parameters}
    own = {"swagger": "2.0", "info": {"title": "", "version": ""}}
    for document in (whole, {"paths": paths, "definitions": definitions, "parameters": parameters}):
        v3, v2 = openapi_of("apis/example.com/v1", {}, document)
        assert json.loads(v3)["openapi"] == "3.0.0"
        part = json.loads(v2)
        assert part.keys() == {"paths", "definitions"}
        merged = openapi_merge.merge({**own, "paths": {}, "definitions": {}}, part, "apis/example.com/v1")
        assert merged == openapi_merge.merge(merged, part, "apis/example.com/v1")
        openapi_protobuf.encode(merged)
