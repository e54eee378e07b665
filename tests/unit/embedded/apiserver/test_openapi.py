"""OpenAPI documents: complete, without dangling references, with what kubectl looks for."""

import json
from typing import Any

import pytest

from podwire.embedded.apiserver import openapi
from podwire.embedded.apiserver.kinds import KINDS, ResourceKind

WIDGET = ResourceKind(group="example.org", version="v1", kind="Widget", plural="widgets", custom=True)
SCHEMA = {"type": "object", "properties": {"spec": {"type": "object", "description": "What it is."}}}
DOCUMENTS = openapi.Documents([*KINDS.values(), WIDGET], {("example.org", "v1", "Widget"): SCHEMA})
PATHS = sorted(json.loads(DOCUMENTS.index)["paths"])


def references(node: Any) -> set[str]:
    if isinstance(node, list):
        return {name for item in node for name in references(item)}
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(references(value) for value in node.values()))
    return set()


@pytest.mark.parametrize("path", PATHS)
def test_every_reference_has_a_definition(path: str) -> None:
    body = DOCUMENTS.v3(path)
    assert body is not None
    document = json.loads(body)
    schemas = document["components"]["schemas"]
    assert {name.removeprefix(openapi.V3_REF) for name in references(document)} <= schemas.keys()


def test_a_patch_says_that_fields_are_validated() -> None:
    document = json.loads(DOCUMENTS.v3("apis/apps/v1") or b"")
    patch = document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
    assert "fieldValidation" in {parameter["name"] for parameter in patch["parameters"]}
    assert patch["x-kubernetes-group-version-kind"] == {"group": "apps", "kind": "Deployment", "version": "v1"}


def test_kinds_and_descriptions() -> None:
    schemas = json.loads(DOCUMENTS.v3("api/v1") or b"")["components"]["schemas"]
    pod = schemas["io.k8s.api.core.v1.Pod"]
    assert pod["x-kubernetes-group-version-kind"] == [{"group": "", "kind": "Pod", "version": "v1"}]
    assert pod["properties"]["spec"]["allOf"] == [{"$ref": openapi.V3_REF + "io.k8s.api.core.v1.PodSpec"}]
    assert pod["properties"]["spec"]["description"].startswith("Specification of the desired behavior")


def test_custom_kinds() -> None:
    schemas = json.loads(DOCUMENTS.v3("apis/example.org/v1") or b"")["components"]["schemas"]
    widget = schemas["org.example.v1.Widget"]
    assert widget["properties"]["spec"] == {"type": "object", "description": "What it is."}
    assert {"apiVersion", "kind", "metadata"} <= widget["properties"].keys()


def test_v2() -> None:
    document = json.loads(DOCUMENTS.v2)
    results = {name.removeprefix(openapi.V2_REF) for name in references(document)}
    assert results <= document["definitions"].keys()


def test_hashes_follow_the_content() -> None:
    other = openapi.Documents([*KINDS.values(), WIDGET], {("example.org", "v1", "Widget"): {"type": "object"}})
    assert other.digest("apis/apps/v1") == DOCUMENTS.digest("apis/apps/v1")
    assert other.digest("apis/example.org/v1") != DOCUMENTS.digest("apis/example.org/v1")
    assert DOCUMENTS.v3("apis/nothing/v1") is None
