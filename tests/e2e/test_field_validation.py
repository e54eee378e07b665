"""Field validation: strict requests with unknown and duplicate fields, of built-in and custom kinds."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.connection import Connection

_DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: strict
  {extra}
spec:
  unknown: 1
  replicas: 0
  replicas: 0
  selector: {{matchLabels: {{a: b}}}}
  template:
    metadata: {{labels: {{a: b}}}}
    spec: {{containers: [{{name: c, image: nginx}}]}}
"""
GROUP = f"strict-{os.getpid()}.example.com"
_PORTS: dict[str, Any] = {
    "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["containerPort"],
    "items": {"type": "object", "required": ["containerPort"],
              "properties": {"containerPort": {"type": "integer"}, "name": {"type": "string"}}},
}  # fmt: skip
_VALIDATED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {"cronSpec": {"type": "string", "pattern": "^[0-9]+$"}, "ports": _PORTS},
        }
    },
}
_OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_EMBEDDED: dict[str, Any] = {
    **_OPEN,
    "properties": {"spec": {"type": "object", "properties": {"template": {
        "type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True}}}},
}  # fmt: skip


@pytest.fixture(scope="module")
def strict(api: Connection) -> Iterator[str]:
    """The path of a group with three kinds: ``validated``, ``open`` and ``embedded``."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    schemas = {"validated": _VALIDATED, "open": _OPEN, "embedded": _EMBEDDED}
    for plural, schema in schemas.items():
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"plural": plural, "kind": plural.capitalize()}
        spec = {"group": GROUP, "scope": "Cluster", "names": names, "versions": [version]}
        api.do("POST", definitions, {"metadata": {"name": f"{plural}.{GROUP}"}, "spec": spec})
    yield f"/apis/{GROUP}/v1"
    for plural in schemas:
        api.do("DELETE", f"{definitions}/{plural}.{GROUP}")


def sent(api: Connection, method: str, path: str, text: str) -> tuple[int, str]:
    """Status and message of a strict request with YAML."""
    kind = "application/apply-patch+yaml" if method == "PATCH" else "application/yaml"
    answer = api.send(method, f"{path}?fieldValidation=Strict&fieldManager=test", text, content_type=kind)
    return answer.status, answer.body.get("message", "") if isinstance(answer.body, dict) else ""


def test_unknown_and_duplicate_fields_of_a_deployment(api: Connection, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    status, message = sent(api, "POST", path, _DEPLOYMENT.format(extra=""))
    assert (status, "strict decoding error: " in message) == (400, True)
    assert 'unknown field "spec.unknown"' in message and 'key "replicas" already set' in message
    warned = api.send(
        "POST", f"{path}?fieldValidation=Warn", _DEPLOYMENT.format(extra=""), content_type="application/yaml"
    )
    assert warned.status == 201
    for text in ("unknown field", "already set"):
        assert text in warned.headers["warning"]


def test_unknown_metadata_of_a_deployment(api: Connection, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    text = _DEPLOYMENT.format(extra="unknownMeta: foo").replace("  unknown: 1\n", "").replace("  replicas: 0\n", "", 1)
    status, message = sent(api, "POST", path, text)
    assert status == 400 and 'unknown field "metadata.unknownMeta"' in message
    status, message = sent(api, "PATCH", f"{path}/strict", text)
    assert status >= 400 and "unknownMeta" in message


_VALID = "spec: {cronSpec: '1', ports: [{containerPort: 8080, name: x}]}"
_STRICT: dict[str, tuple[str, str, str, str]] = {
    # Kind, content, the refusal of a creation, and that of an apply; empty texts mean accepted.
    "valid": ("validated", _VALID, "", ""),
    "extra": (
        "validated", _VALID.replace("name: x", "name: x, extra: y"),
        'unknown field "spec.ports[0].extra"', ".extra: field not declared in schema",
    ),
    "no schema": ("open", "spec: {anything: {else: 1}}", "", ""),
    "duplicate": ("open", "spec: {foo: a, foo: b}", 'key "foo" already set', 'key "foo" already set'),
    "metadata": (
        "embedded",
        "spec: {template: {apiVersion: v1, kind: Pod, metadata: {name: p, unknownSub: 1}}}\nunknownRoot: kept",
        'unknown field "spec.template.metadata.unknownSub"', "unknownSub",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", _STRICT)
def test_strict_applies_of_custom_objects(api: Connection, strict: str, case: str) -> None:
    plural, content, refusal, applied = _STRICT[case]
    name = case.replace(" ", "-")
    path = f"{strict}/{plural}"
    head = f"apiVersion: {GROUP}/v1\nkind: {plural.capitalize()}\nmetadata: {{name: {name}}}\n"
    status, message = sent(api, "POST", path, head + content)
    assert (status, refusal in message) == (400 if refusal else 201, True), message
    status, message = sent(api, "PATCH", f"{path}/{name}", head + content)
    assert (status >= 400, applied in message) == (bool(applied), True), (status, message)
    if case == "metadata":
        text = head.replace("name: metadata", "name: metadata, unknownMeta: 1")
        status, message = sent(api, "POST", path, text)
        assert status == 400 and 'unknown field "metadata.unknownMeta"' in message
