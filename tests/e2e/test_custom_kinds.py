"""CustomResourceDefinitions and their objects: watches, status, defaults, field selectors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from tests.e2e.connection import Connection
from tests.e2e.driver import Cluster

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definition(plural: str, schema: dict[str, Any], **version: Any) -> dict[str, Any]:
    """A definition of a kind in a group of this test run."""
    group = f"kinds-{os.getpid()}.example.com"
    only = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **version}
    names = {"plural": plural, "kind": plural.capitalize(), "listKind": f"{plural.capitalize()}List"}
    return {
        "metadata": {"name": f"{plural}.{group}", "labels": {"kinds": plural}},
        "spec": {"group": group, "scope": "Cluster", "names": names, "versions": [only]},
    }


@contextmanager
def defined(api: Connection, body: dict[str, Any]) -> Iterator[str]:
    """The path of the objects of a kind, which is served until the end of the block."""
    api.do("POST", _DEFINITIONS, body)
    spec = body["spec"]
    try:
        yield f"/apis/{spec['group']}/v1/{spec['names']['plural']}"
    finally:
        api.do("DELETE", f"{_DEFINITIONS}/{body['metadata']['name']}")


def create_object(path: str, name: str, **content: Any) -> dict[str, Any]:
    """An object of the kind at a path."""
    _, _, group, version, plural = path.split("/")
    return {
        "apiVersion": f"{group}/{version}", "kind": plural.capitalize(), "metadata": {"name": name}, **content,
    }  # fmt: skip


def test_custom_objects_are_watched(api: Connection) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    with defined(api, definition("watched", schema)) as path:
        version = api.do("GET", path)["metadata"]["resourceVersion"]
        for name in ("a", "b"):
            api.do("POST", path, create_object(path, name, content={"key": "value"}))
            api.do("PATCH", f"{path}/{name}", {"content": {"key": "other"}})
            api.do("DELETE", f"{path}/{name}")
        watch = api.watch(path, resourceVersion=version)
        events = [(item["type"], item["object"]["metadata"]["name"]) for item in islice(watch, 6)]
        watch.close()
        assert events == [(subject, name) for name in ("a", "b") for subject in ("ADDED", "MODIFIED", "DELETED")]


def test_later_defaults_hold_for_stored_objects(api: Connection) -> None:
    def schema(**defaults: str) -> dict[str, Any]:
        fields = {
            name: {"type": "string", **({"default": defaults[name]} if name in defaults else {})} for name in "ab"
        }
        return {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}

    def specs() -> dict[str, dict[str, str]]:
        return {item["metadata"]["name"]: item["spec"] for item in api.do("GET", path)["items"]}

    body = definition("defaulted", schema())
    with defined(api, body) as path:
        where = f"{_DEFINITIONS}/{body['metadata']['name']}"
        api.do("POST", path, create_object(path, "old", spec={}))
        for defaults, result in (
            ({"a": "A"}, {"old": {"a": "A"}}),
            ({"b": "B"}, {"old": {"b": "B"}, "new": {"a": "A", "b": "B"}}),
        ):
            later = definition("defaulted", schema(**defaults))["spec"]["versions"]
            api.do("PATCH", where, {"spec": {"versions": later}})
            assert specs() == result
            if "new" not in result:
                api.do("POST", path, create_object(path, "new", spec={}))
        assert api.do("GET", f"{path}/old")["spec"] == {"b": "B"}


def test_custom_objects_are_selected_by_their_fields(api: Connection, cluster: Cluster) -> None:
    spec = {"type": "object", "properties": {"color": {"type": "string"}, "size": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"spec": spec}}
    fields = [{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}]
    body = definition("colored", schema, selectableFields=fields)
    with defined(api, body) as path:
        for name, color, size in (("a", "blue", 1), ("b", "red", 1), ("c", "blue", 2)):
            api.do("POST", path, create_object(path, name, spec={"color": color, "size": size}))
        blue = ("get", body["metadata"]["name"], "--field-selector", "spec.color=blue,spec.size!=2", "-o", "name")
        assert cluster.kubectl(*blue).split() == [f"{body['metadata']['name']}/a"]
        refused = cluster.refused("get", body["metadata"]["name"], "--field-selector", "spec.weight=1")
        assert "field label not supported: spec.weight" in refused
        watch = api.watch(path, fieldSelector="spec.color=blue")
        assert [event["object"]["metadata"]["name"] for event in islice(watch, 2)] == ["a", "c"]
        api.do("PATCH", f"{path}/b", {"spec": {"color": "blue"}})
        api.do("PATCH", f"{path}/a", {"spec": {"color": "red"}})
        events = [(event["type"], event["object"]["metadata"]["name"]) for event in islice(watch, 2)]
        watch.close()
        assert events == [("ADDED", "b"), ("DELETED", "a")]
        api.do("DELETE", path, fieldSelector="spec.color=blue")
        assert [item["metadata"]["name"] for item in api.do("GET", path)["items"]] == ["a"]


def test_definitions_are_listed_and_deleted_together(api: Connection) -> None:
    bodies = [definition(f"listed{number}", {"type": "object"}) for number in range(3)]
    for body in bodies:
        body["metadata"]["labels"] = {"kinds": "listed"}
        api.do("POST", _DEFINITIONS, body)
    result = api.do("GET", _DEFINITIONS, labelSelector="kinds=listed")["items"]
    assert [item["metadata"]["name"] for item in result] == [body["metadata"]["name"] for body in bodies]
    api.do("DELETE", _DEFINITIONS, labelSelector="kinds=listed")
    assert api.do("GET", _DEFINITIONS, labelSelector="kinds=listed")["items"] == []


def test_status_of_a_definition_is_read_and_written(api: Connection) -> None:
    body = definition("statuses", {"type": "object"})
    with defined(api, body):
        path = f"{_DEFINITIONS}/{body['metadata']['name']}/status"
        read = api.do("GET", path)
        assert {item["type"] for item in read["status"]["conditions"]} >= {"NamesAccepted", "Established"}
        update = {"type": "StatusUpdate", "status": "True", "reason": "E2E", "message": "Set from a test"}
        read["status"]["conditions"].append(update)
        written = api.do("PUT", path, read)["status"]["conditions"]
        assert [item["type"] for item in written][-1] == "StatusUpdate"
        patch = {"status": {"conditions": [{**update, "type": "StatusPatched"}]}}
        patched = api.do("PATCH", path, patch)["status"]["conditions"]
        assert [item["type"] for item in patched] == ["StatusPatched"]
