"""Paths of resources."""

from typing import Any

import pytest

from podwire.kube import resources
from podwire.kube.resources import DEPLOYMENTS, NODES, PODS, Resource


@pytest.mark.parametrize(
    ("resource", "args", "path"),
    [
        (PODS, (), "/api/v1/pods"),
        (PODS, ("ns",), "/api/v1/namespaces/ns/pods"),
        (PODS, ("ns", "a", "status"), "/api/v1/namespaces/ns/pods/a/status"),
        (NODES, ("ignored", "n"), "/api/v1/nodes/n"),
        (DEPLOYMENTS, ("ns", "d"), "/apis/apps/v1/namespaces/ns/deployments/d"),
        (PODS, ("ns", "a/../b"), "/api/v1/namespaces/ns/pods/a%2F..%2Fb"),
    ],
)
def test_paths(resource: Resource[Any], args: tuple[str, ...], path: str) -> None:
    assert resource.path(*args) == path


def test_raw_keeps_everything_but_the_type() -> None:
    assert PODS.raw.type is dict
    assert PODS.raw.path("a", "b") == PODS.path("a", "b")


def test_constants_agree_with_the_types() -> None:
    for value in vars(resources).values():
        if isinstance(value, Resource) and hasattr(value.type, "__struct_fields__"):
            empty = value.type()
            assert getattr(empty, "kind", value.kind) in ("", value.kind)


def test_annotations_name_the_types_that_are_loaded() -> None:
    checked = 0
    for name, annotation in vars(resources)["__annotations__"].items():
        value = vars(resources).get(name)
        if isinstance(value, Resource):
            assert annotation == f"Resource[{value.type.__name__}]", name
            checked += 1
    assert checked > 30
