"""CustomResourceDefinitions: served at once, checked, ended with their objects."""

from collections.abc import Callable
from typing import Any

from podwire.embedded.apiserver.customresources import kinds_of

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GADGETS = "/apis/example.com/v1/namespaces/default/gadgets"
MERGE = "application/merge-patch+json"


def definition(plural: str = "gadgets", kind: str = "Gadget") -> dict[str, Any]:
    spec = {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1, "default": 2}}}
    status = {"type": "object", "properties": {"ready": {"type": "integer"}}}
    version = {
        "name": "v1", "served": True, "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
        "subresources": {
            "status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.ready"},
        },
        "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
    }  # fmt: skip
    names = {"plural": plural, "kind": kind, "shortNames": ["gd"]}
    return {
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }


def test_the_best_version_comes_first() -> None:
    result = definition()
    base = result["spec"]["versions"][0]
    names = ("v1beta1", "v2", "v1", "odd", "v2alpha3", "v10")
    result["spec"]["versions"] = [{**base, "name": name} for name in names] + [{**base, "name": "v9", "served": False}]
    assert [kind.version for kind in kinds_of(result)] == ["v10", "v2", "v1", "v1beta1", "v2alpha3", "odd"]


def test_custom_kind_is_served_at_once_and_after_restart(play: Callable[..., None]) -> None:
    async def first(api: Any) -> None:
        assert (await api("GET", GADGETS))[0] == 404
        _, created = await api("POST", DEFINITIONS, definition())
        assert {c["type"]: c["status"] for c in created["status"]["conditions"]} == {
            "NamesAccepted": "True", "Established": "True",
        }  # fmt: skip
        status, gadget = await api("POST", GADGETS, {"metadata": {"name": "g"}, "spec": {"odd": 1}})
        assert (status, gadget["spec"], gadget["metadata"]["generation"]) == (201, {"size": 2}, 1)

    async def second(api: Any) -> None:
        _, gadget = await api("PATCH", f"{GADGETS}/g", {"spec": {"size": 3}}, content_type=MERGE)
        assert (gadget["spec"], gadget["metadata"]["generation"]) == ({"size": 3}, 2)
        status, refused = await api("PATCH", f"{GADGETS}/g", {"spec": {"size": 0}}, content_type=MERGE)
        assert (status, refused["details"]["causes"][0]["field"]) == (422, "spec.size")
        _, scale = await api("PATCH", f"{GADGETS}/g/scale", {"spec": {"replicas": 7}}, content_type=MERGE)
        assert (scale["kind"], scale["spec"]) == ("Scale", {"replicas": 7})
        _, table = await api("GET", GADGETS, accept="application/json;as=Table;g=meta.k8s.io;v=v1")
        assert [(c["name"]) for c in table["columnDefinitions"]] == ["Name", "Size"]
        assert table["rows"][0]["cells"] == ["g", 7]

    play(first)
    play(second)


def test_definition_is_deleted_after_its_objects(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", DEFINITIONS, definition())
        held = {"metadata": {"name": "g", "finalizers": ["example.com/hold"]}}
        await api("POST", GADGETS, held)
        await api("DELETE", f"{DEFINITIONS}/gadgets.example.com")
        await api.settle()
        assert (await api("GET", f"{GADGETS}/g"))[1]["metadata"]["deletionTimestamp"]
        await api("PATCH", f"{GADGETS}/g", {"metadata": {"finalizers": None}}, content_type=MERGE)
        await api.settle()
        assert (await api("GET", f"{DEFINITIONS}/gadgets.example.com"))[0] == 404
        assert (await api("GET", GADGETS))[0] == 404

    play(scenario)


def test_names_in_use_are_not_accepted(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", DEFINITIONS, definition())
        _, created = await api("POST", DEFINITIONS, definition("widgets"))
        assert created["status"]["conditions"][0]["message"] == '"Gadget" is already in use'
        assert (await api("GET", GADGETS.replace("gadgets", "widgets")))[0] == 404
        status, refused = await api("POST", DEFINITIONS, {"metadata": {"name": "x"}, "spec": {"group": "example.com"}})
        fields = {cause["field"] for cause in refused["details"]["causes"]}
        assert status == 422 and {"spec.scope", "spec.versions", "spec.names.plural", "metadata.name"} <= fields

    play(scenario)
