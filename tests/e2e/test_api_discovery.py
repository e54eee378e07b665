"""Discovery: groups, versions and kinds, in both forms, and those of CustomResourceDefinitions."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.connection import Connection

from podwire.embedded.apiserver.kinds import KINDS

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_OWN = {"apps", "batch", "networking.k8s.io", "apiextensions.k8s.io", "admissionregistration.k8s.io"}
GROUP = f"discovered-{os.getpid()}.example.com"


@pytest.fixture
def definition(api: Connection) -> Iterator[str]:
    """A CustomResourceDefinition with two versions; the name of its group."""
    version: dict[str, Any] = {"served": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"plural": "foos", "singular": "foo", "kind": "Foo", "shortNames": ["fo"], "categories": ["all"]}
    versions = [{"name": "v1", "storage": True, **version}, {"name": "v1beta1", "storage": False, **version}]
    body = {
        "metadata": {"name": f"foos.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": versions},
    }
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    api.do("POST", path, body)
    yield GROUP
    api.do("DELETE", f"{path}/foos.{GROUP}")


def test_every_group_and_version_is_discovered(api: Connection, definition: str) -> None:
    groups = api.do("GET", "/apis")["groups"]
    assert {group["name"] for group in groups} >= {*_OWN, definition}
    for group in groups:
        assert group["preferredVersion"] in group["versions"]
        assert api.do("GET", f"/apis/{group['name']}")["preferredVersion"] == group["preferredVersion"]
        for version in group["versions"]:
            resources = api.do("GET", f"/apis/{version['groupVersion']}")
            assert resources["groupVersion"] == version["groupVersion"] and resources["resources"]
    hooks = api.do("GET", "/apis/admissionregistration.k8s.io/v1")["resources"]
    names = {resource["name"] for resource in hooks}
    assert names >= {"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}
    assert "customresourcedefinitions/status" in {
        resource["name"] for resource in api.do("GET", "/apis/apiextensions.k8s.io/v1")["resources"]
    }


def aggregated(api: Connection, root: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The resources of an aggregated document by group, version and plural."""
    answer = api.send("GET", root, accept=_AGGREGATED)
    assert answer.headers["content-type"] == _AGGREGATED
    assert answer.body["kind"] == "APIGroupDiscoveryList"
    return {
        (group["metadata"].get("name", ""), version["version"], resource["resource"]): resource
        for group in answer.body["items"]
        for version in group["versions"]
        for resource in version["resources"]
    }


def test_aggregated_discovery_has_every_kind(api: Connection) -> None:
    result = aggregated(api, "/apis") | aggregated(api, "/api")
    assert result.keys() >= KINDS.keys()
    pods = result["", "v1", "pods"]
    assert (pods["scope"], pods["shortNames"]) == ("Namespaced", ["po"])
    assert {"status", "log", "exec"} <= {sub["subresource"] for sub in pods["subresources"]}
    plain = api.send("GET", "/apis", accept=f"{_AGGREGATED.replace('v2;', 'v9;')},application/json")
    assert plain.body["kind"] == "APIGroupList"


def test_kinds_of_a_definition_are_discovered(api: Connection, definition: str) -> None:
    result = aggregated(api, "/apis")
    for version in ("v1", "v1beta1"):
        foos = result[definition, version, "foos"]
        assert foos["responseKind"] == {"group": definition, "version": version, "kind": "Foo"}
        assert (foos["singularResource"], foos["shortNames"], foos["categories"]) == ("foo", ["fo"], ["all"])
    (group,) = [item for item in api.do("GET", "/apis")["groups"] if item["name"] == definition]
    assert [version["version"] for version in group["versions"]] == ["v1", "v1beta1"]


def test_a_review_has_no_table(api: Connection) -> None:
    body = (
        '{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview",'
        '"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}'
    )
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    refused = api.send("POST", path, body, accept=_TABLE, content_type="application/json")
    assert (refused.status, refused.body["reason"]) == (406, "NotAcceptable")
