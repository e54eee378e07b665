"""The schemas of CustomResourceDefinitions in the published OpenAPI, and kubectl with them."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tests.e2e.connection import Connection
from tests.e2e.driver import Cluster

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_BARS = {"type": "array", "description": "List of Bars.", "items": {
    "type": "object", "required": ["name"],
    "properties": {"name": {"type": "string", "description": "Name of Bar."}, "age": {"type": "string"}}}}  # fmt: skip
_VALIDATED: dict[str, Any] = {
    "type": "object", "description": "Foo CRD for Testing",
    "properties": {"spec": {"type": "object", "description": "Specification of Foo",
                            "properties": {"bars": _BARS}}},
}  # fmt: skip
_EMBEDDED: dict[str, Any] = {"type": "object", "properties": {"spec": _OPEN}}
_SCHEMAS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # Schema, a field that kubectl refuses (empty: none), and what kubectl explains of a path.
    "validated": (_VALIDATED, '"unknown field \\"spec.foo\\""', "spec.bars.name", "Name of Bar."),
    "open": (_OPEN, "", "", "DESCRIPTION"),
    "root": ({**_OPEN, "description": "preserve-unknown-properties at root"}, "", "", "at root"),
    "embedded": (_EMBEDDED, "", "spec", "FIELD: spec"),
}


def definition(group: str, kind: str, schema: dict[str, Any], versions: tuple[str, ...] = ("v1",)) -> dict[str, Any]:
    """A definition whose versions have the same schema; the last one is stored."""
    plural = f"{kind.lower()}s"
    listed = [
        {"name": name, "served": True, "storage": name == versions[-1], "schema": {"openAPIV3Schema": schema}}
        for name in versions
    ]
    names = {"plural": plural, "kind": kind}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": listed}
    return {"metadata": {"name": f"{plural}.{group}"}, "spec": spec}


@contextmanager
def defined(api: Connection, body: dict[str, Any]) -> Iterator[str]:
    """The path of a definition, which is there until the end of the block."""
    path = f"{_DEFINITIONS}/{body['metadata']['name']}"
    api.do("POST", _DEFINITIONS, body)
    try:
        yield path
    finally:
        api.do("DELETE", path)


def group_of(word: str) -> str:
    return f"{word}-{os.getpid()}.example.com"


def model(group: str, version: str, kind: str) -> str:
    """The name of a kind's model in OpenAPI."""
    return ".".join((*reversed(group.split(".")), version, kind))


def published(api: Connection) -> dict[str, Any]:
    models: dict[str, Any] = api.do("GET", "/openapi/v2")["definitions"]
    return models


@pytest.mark.parametrize("word", _SCHEMAS)
def test_kubectl_checks_objects_by_the_published_schema(
    api: Connection, cluster: Cluster, namespace: str, word: str
) -> None:
    schema, refusal, path, explained = _SCHEMAS[word]
    group = group_of(word)
    with defined(api, definition(group, "Foo", schema)):
        assert model(group, "v1", "Foo") in published(api)
        good = {"apiVersion": f"{group}/v1", "kind": "Foo", "metadata": {"name": "one"},
                "spec": {"bars": [{"name": "b", "age": "1"}]}}  # fmt: skip
        where = ("-n", namespace, "-f", "-")
        cluster.kubectl("create", *where, stdin=json.dumps(good))
        cluster.kubectl("delete", *where, stdin=json.dumps(good))
        cluster.kubectl("apply", *where, stdin=json.dumps(good))
        other = {**good, "spec": {"foo": True}}
        if refusal:
            assert "unknown field" in cluster.refused("create", *where, stdin=json.dumps(other))
            assert "unknown field" in cluster.refused("apply", *where, stdin=json.dumps(other))
            lacks = {**good, "metadata": {"name": "two"}, "spec": {"bars": [{"age": "1"}]}}
            assert "Required value" in cluster.refused("create", *where, stdin=json.dumps(lacks))
        else:
            cluster.kubectl("apply", *where, stdin=json.dumps(other))
        subject = f"foos.{group}" + (f".{path}" if path else "")
        arguments = cluster.kubectl("explain", f"foos{path and '.'}{path}", "--api-version", f"{group}/v1")
        assert explained in arguments, (subject, arguments)


def test_definitions_of_all_groups_versions_and_kinds_are_published(api: Connection) -> None:
    item, two = group_of("multi-one"), group_of("multi-two")
    with ExitStack() as stack:
        stack.enter_context(defined(api, definition(item, "Foo", _VALIDATED)))
        stack.enter_context(defined(api, definition(item, "Bar", _VALIDATED)))
        stack.enter_context(defined(api, definition(two, "Foo", _VALIDATED, ("v2", "v3"))))
        result = published(api)
        for group, version, kind in ((item, "v1", "Foo"), (item, "v1", "Bar"), (two, "v2", "Foo"), (two, "v3", "Foo")):
            assert result[model(group, version, kind)]["x-kubernetes-group-version-kind"] == [
                {"group": group, "version": version, "kind": kind}
            ]
            schemas = api.do("GET", f"/openapi/v3/apis/{group}/{version}")["components"]["schemas"]
            assert schemas[model(group, version, kind)]["description"] == "Foo CRD for Testing"


def test_a_renamed_version_is_published(api: Connection) -> None:
    group = group_of("renamed")
    with defined(api, definition(group, "Foo", _VALIDATED, ("v2", "v3"))) as path:
        api.do("PATCH", path, [{"op": "replace", "path": "/spec/versions/0/name", "value": "v4"}], patch="json")
        result = published(api)
        assert model(group, "v4", "Foo") in result and model(group, "v2", "Foo") not in result
        assert model(group, "v3", "Foo") in result


def test_a_version_that_is_not_served_is_removed(api: Connection) -> None:
    group = group_of("unserved")
    with defined(api, definition(group, "Foo", _VALIDATED, ("v5", "v6"))) as path:
        assert model(group, "v5", "Foo") in published(api)
        api.do("PATCH", path, [{"op": "replace", "path": "/spec/versions/0/served", "value": False}], patch="json")
        result = published(api)
        assert model(group, "v5", "Foo") not in result and model(group, "v6", "Foo") in result
        assert api.ask("GET", f"/openapi/v3/apis/{group}/v5").status == 404
