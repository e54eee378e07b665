"""Strategic merge patches against the built-in types, as kubectl sends them."""

from typing import Any

import pytest

from podwire.embedded.apiserver.patch import strategic
from podwire.embedded.apiserver.schema import data
from podwire.errors import ApiError

POD = data.for_kind("", "v1", "Pod")
SERVICE = data.for_kind("", "v1", "Service")
DEPLOYMENT = data.for_kind("apps", "v1", "Deployment")


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **spec}}


def box(name: str, **rest: Any) -> dict[str, Any]:
    return {"name": name, **rest}


CASES = {
    "an item merges by its key": (
        pod(box("a", image="1"), box("b", image="1")),
        pod(box("b", image="2")),
        pod(box("a", image="1"), box("b", image="2")),
    ),
    "an ordered patch keeps the server's item in its place": (
        pod(box("a"), box("server"), box("b")),
        {
            "spec": {
                "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
                "containers": [box("c")],
            }
        },
        pod(box("a"), box("server"), box("b"), box("c")),
    ),
    "order alone reorders": (
        pod(box("a"), box("b")),
        {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}},
        pod(box("b"), box("a")),
    ),
    "an item is deleted": (
        pod(box("a"), box("b")),
        pod({"name": "a", "$patch": "delete"}),
        pod(box("b")),
    ),
    "an ordered patch deletes": (
        pod(box("a"), box("b")),
        {"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a", "$patch": "delete"}]}},
        pod(box("b")),
    ),
    "a list is replaced on demand": (
        pod(box("a"), box("b")),
        pod({"$patch": "replace"}, box("c")),
        pod(box("c")),
    ),
    "nested lists merge too": (
        pod(box("a", env=[{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}])),
        pod(box("a", env=[{"name": "X", "value": "3"}])),
        pod(box("a", env=[{"name": "X", "value": "3"}, {"name": "Y", "value": "2"}])),
    ),
    "atomic lists are replaced": (
        pod(box("a", args=["1", "2"])),
        pod(box("a", args=["3"])),
        pod(box("a", args=["3"])),
    ),
    "primitives merge": (
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"finalizers": ["c", "a"]}},
        {"metadata": {"finalizers": ["c", "a", "b"]}},
    ),
    "primitives are deleted": (
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["b"]}},
        {"metadata": {"finalizers": ["b"]}},
    ),
    "retained keys drop the rest": (
        pod(box("a"), volumes=[{"name": "v", "emptyDir": {}}]),
        pod(volumes=[{"name": "v", "configMap": {"name": "c"}, "$retainKeys": ["name", "configMap"]}])
        | {"metadata": {"labels": {"x": "y"}}},
        pod(box("a"), volumes=[{"name": "v", "configMap": {"name": "c"}}]) | {"metadata": {"labels": {"x": "y"}}},
    ),
    "a map merges and null removes": (
        {"metadata": {"labels": {"a": "1", "b": "2"}}},
        {"metadata": {"labels": {"a": None, "c": "3"}}},
        {"metadata": {"labels": {"b": "2", "c": "3"}}},
    ),
    "nulls in new values vanish": (
        {"metadata": {}},
        {"metadata": {"creationTimestamp": None, "annotations": {"a": None, "b": "1"}}},
        {"metadata": {"annotations": {"b": "1"}}},
    ),
    "a map is replaced on demand": (
        {"spec": {"nodeSelector": {"a": "1"}}},
        {"spec": {"nodeSelector": {"$patch": "replace", "b": "2"}}},
        {"spec": {"nodeSelector": {"b": "2"}}},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_pod(name: str) -> None:
    old, patch, want = CASES[name]
    assert POD is not None
    got = strategic.apply(old, patch, POD)
    if "containers" in got.get("spec", {}) and not got["spec"]["containers"]:
        got["spec"].pop("containers")
    assert got == want


def test_service_ports_merge_by_port_alone() -> None:
    assert SERVICE is not None
    old = {"spec": {"ports": [{"port": 80, "protocol": "TCP", "nodePort": 30000}]}}
    patch = {"spec": {"$setElementOrder/ports": [{"port": 80}], "ports": [{"port": 80, "targetPort": 8080}]}}
    want = {"spec": {"ports": [{"port": 80, "protocol": "TCP", "nodePort": 30000, "targetPort": 8080}]}}
    assert strategic.apply(old, patch, SERVICE) == want


def test_strategy_keeps_only_retained_keys() -> None:
    assert DEPLOYMENT is not None
    old = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert strategic.apply(old, patch, DEPLOYMENT) == {"spec": {"strategy": {"type": "Recreate"}}}


@pytest.mark.parametrize(
    "patch",
    [
        pod({"image": "no name"}),
        {"spec": {"$patch": "explode"}},
        {"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [box("a")]}},
        {"spec": {"strategy": 1, "$retainKeys": ["x"]}},
    ],
)
def test_contradictions_are_the_clients_error(patch: dict[str, Any]) -> None:
    assert POD is not None
    with pytest.raises(ApiError) as caught:
        strategic.apply(pod(box("a")), patch, POD)
    assert caught.value.code == 400


def test_old_document_is_not_changed() -> None:
    assert POD is not None
    old = pod(box("a", image="1"))
    strategic.apply(old, pod(box("a", image="2"), box("b")), POD)
    assert old == pod(box("a", image="1"))
