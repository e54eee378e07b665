"""The packaged definitions and the tree over them."""

import pytest

from podwire.embedded.apiserver.kinds import KINDS
from podwire.embedded.apiserver.schema import data
from podwire.embedded.metrics.objects import SCHEMAS


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: f"{kind.resource}-{kind.version}")
def test_every_kind_has_a_schema(kind: object) -> None:
    gvk = (kind.group, kind.version, kind.kind)  # type: ignore[attr-defined]
    assert data.for_kind(*gvk) is not None or gvk in SCHEMAS


def test_unknown_kinds_have_none() -> None:
    assert data.for_kind("example.org", "v1", "Widget") is None


def node(*path: str) -> data.SchemaNode:
    result = data.for_kind("apps", "v1", "Deployment")
    for step in path:
        assert result is not None
        result = result.items if step == "*" else result.child(step)
    assert result is not None
    return result


POD = ("spec", "template", "spec")


def test_lists() -> None:
    containers = node(*POD, "containers")
    assert (containers.list_type, containers.list_keys, containers.merge_key) == ("map", ("name",), "name")
    ports = node(*POD, "containers", "*", "ports")
    assert (ports.list_keys, ports.merge_key) == (("containerPort", "protocol"), "containerPort")
    assert node(*POD, "containers", "*", "args").list_type == "atomic"
    assert node("metadata", "finalizers").list_type == "set"
    assert ports.items.properties["protocol"].default == "TCP"


def test_maps_and_structs() -> None:
    assert node("spec", "selector").map_atomic
    labels = node("metadata", "labels")
    assert labels.additional is not None
    assert labels.additional.type == "string"
    assert node("spec").additional is None
    assert "selector" in node("spec").required


def test_scalars() -> None:
    assert (node("spec", "replicas").type, node("spec", "replicas").format) == ("integer", "int32")
    assert node("spec", "strategy", "rollingUpdate", "maxSurge").type == data.INT_OR_STRING
    assert node("metadata", "creationTimestamp").format == "date-time"


def test_free_form_values() -> None:
    fields = node("metadata", "managedFields", "*", "fieldsV1")
    assert fields.preserves_unknown
    assert not node("spec").preserves_unknown
