"""The version 2 document as protobuf, read back field by field."""

import json
from typing import Any

from podwire.embedded.apiserver.openapi_protobuf import encode
from podwire.embedded.apiserver.protobuf import scan

DOCUMENT = {
    "swagger": "2.0",
    "info": {"title": "Kubernetes", "version": "v1.36.0"},
    "paths": {
        "/api/v1/pods": {
            "patch": {
                "operationId": "patchPod",
                "consumes": ["application/merge-patch+json"],
                "parameters": [{"name": "dryRun", "in": "query", "type": "string"}],
                "responses": {"200": {"description": "OK"}},
                "x-kubernetes-action": "patch",
            }
        }
    },
    "definitions": {
        "Pod": {
            "description": "A pod.",
            "type": "object",
            "required": ["spec"],
            "properties": {
                "spec": {"$ref": "#/definitions/PodSpec"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "rest": {"type": "object", "additionalProperties": True},
                "words": {"type": "array", "items": {"type": "string", "maxLength": 300}, "default": ["a"]},
            },
            "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Pod"}],
        }
    },
}


def fields(data: bytes | int) -> dict[int, list[Any]]:
    """Values by field number."""
    assert isinstance(data, bytes)
    result: dict[int, list[Any]] = {}
    for number, _kind, value in scan(data):
        result.setdefault(number, []).append(value)
    return result


def only(data: bytes | int, *numbers: int) -> Any:
    """The one value at a path of field numbers."""
    value: Any = data
    for number in numbers:
        (value,) = fields(value)[number]
    return value


def named(data: bytes) -> dict[str, bytes]:
    """Entries of a map by name."""
    return {only(field, 1).decode(): only(field, 2) for field in fields(data)[1]}


def test_definitions_come_back() -> None:
    document = encode(DOCUMENT)
    assert only(document, 1) == b"2.0"
    assert only(document, 2, 2) == b"v1.36.0"
    pod = named(only(document, 9))["Pod"]
    assert only(pod, 4) == b"A pod."
    assert only(pod, 19) == b"spec"
    assert only(pod, 22, 1) == b"object"
    assert only(pod, 31, 1) == b"x-kubernetes-group-version-kind"
    assert json.loads(only(pod, 31, 2, 2)) == [{"group": "", "version": "v1", "kind": "Pod"}]
    properties = named(only(pod, 25))
    assert only(properties["spec"], 1) == b"#/definitions/PodSpec"
    assert only(properties["labels"], 21, 1, 22, 1) == b"string"
    assert only(properties["rest"], 21, 2) == 1
    assert only(properties["words"], 23, 1, 11) == 300
    assert json.loads(only(properties["words"], 5, 2)) == ["a"]


def test_operations_come_back() -> None:
    path = only(encode(DOCUMENT), 8, 2)
    assert only(path, 1) == b"/api/v1/pods"
    patch = only(path, 2, 8)
    assert only(patch, 5) == b"patchPod"
    assert only(patch, 7) == b"application/merge-patch+json"
    assert only(patch, 8, 1, 2, 3, 4) == b"dryRun"
    assert only(patch, 9, 1, 1) == b"200"
    assert json.loads(only(patch, 13, 2, 2)) == "patch"
