"""Server-side apply and managed fields, as kubectl and controllers meet them."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.embedded.apiserver.patch import fieldset, server_side
from podwire.embedded.apiserver.patch.server_side import Author
from podwire.embedded.apiserver.schema import data
from podwire.errors import ApiError, Conflict

DEPLOYMENT = data.for_kind("apps", "v1", "Deployment")
CONFIG_MAP = data.for_kind("", "v1", "ConfigMap")
SERVICE = data.for_kind("", "v1", "Service")
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"


def apply(
    live: dict[str, Any] | None, applied: dict[str, Any], manager: str = "kubectl", *, schema: Any = None,
    force: bool = False, now: str = NOW,
) -> dict[str, Any]:  # fmt: skip
    before = deepcopy(live)
    out = server_side.apply(live, applied, schema or schema_of(applied), Author(manager, now, force=force))
    assert live == before
    return out


def update(
    old: dict[str, Any] | None, new: dict[str, Any], manager: str = "editor", subresource: str = "", now: str = NOW
) -> dict[str, Any]:
    new = deepcopy(new)
    server_side.track(old, new, schema_of(new), Author(manager, now, subresource))
    return new


def schema_of(obj: dict[str, Any]) -> Any:
    return {"Deployment": DEPLOYMENT, "ConfigMap": CONFIG_MAP, "Service": SERVICE}[obj["kind"]]


def config_map(**values: str | None) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "d"}, "data": values}


def deployment(replicas: int | None = 1, image: str = "i:1", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": image, "ports": [{"containerPort": 80}]}
    template = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [container]}}
    selector = {"matchLabels": {"app": "w"}}
    body = {"selector": selector, "template": template, **spec}
    if replicas is not None:
        body["replicas"] = replicas
    meta = {"name": "w", "namespace": "d", "labels": {"app": "w"}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": body}


def owned(obj: dict[str, Any], manager: str, operation: str = "Apply") -> dict[str, Any]:
    results = [
        entry["fieldsV1"]
        for entry in obj["metadata"].get("managedFields", ())
        if (entry["manager"], entry["operation"]) == (manager, operation)
    ]
    return results[0] if results else {}


def test_fields_of_an_apply() -> None:
    out = apply(None, deployment())
    container: dict[str, Any] = {
        ".": {}, "f:image": {}, "f:name": {},
        "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
    }  # fmt: skip
    assert owned(out, "kubectl") == {
        "f:metadata": {"f:labels": {"f:app": {}}},
        "f:spec": {
            "f:replicas": {},
            "f:selector": {},
            "f:template": {
                "f:metadata": {"f:labels": {"f:app": {}}},
                "f:spec": {"f:containers": {'k:{"name":"c"}': container}},
            },
        },
    }
    entry = out["metadata"]["managedFields"][0]
    assert {key: entry[key] for key in ("manager", "operation", "apiVersion", "time", "fieldsType")} == {
        "manager": "kubectl", "operation": "Apply", "apiVersion": "apps/v1", "time": NOW,
        "fieldsType": "FieldsV1",
    }  # fmt: skip


def test_fields_of_a_create() -> None:
    out = update(None, deployment(strategy={"type": "Recreate"}), "kubectl-create")
    fields = owned(out, "kubectl-create", "Update")
    assert fields["f:metadata"] == {"f:labels": {".": {}, "f:app": {}}}
    assert fields["f:spec"]["f:strategy"] == {"f:type": {}}
    assert fields["f:spec"]["f:selector"] == {}
    containers = fields["f:spec"]["f:template"]["f:spec"]["f:containers"]
    assert "." not in containers
    assert set(containers['k:{"name":"c"}']) == {".", "f:image", "f:name", "f:ports"}
    assert "." in containers['k:{"name":"c"}']["f:ports"]


def test_a_conflict_names_manager_and_field() -> None:
    live = update(None, deployment(), "kubectl-client-side-apply")
    with pytest.raises(Conflict) as caught:
        apply(live, deployment(replicas=3), "tool")
    assert caught.value.message == (
        'Apply failed with 1 conflict: conflict with "kubectl-client-side-apply" using apps/v1: .spec.replicas'
    )
    assert caught.value.details["causes"] == [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "kubectl-client-side-apply" using apps/v1',
            "field": ".spec.replicas",
        }
    ]


def test_several_conflicts() -> None:
    live = apply(None, deployment(), "first")
    with pytest.raises(Conflict) as caught:
        apply(live, deployment(replicas=3, image="i:2"), "second")
    assert caught.value.message == (
        'Apply failed with 2 conflicts: conflicts with "first":\n- .spec.replicas\n'
        '- .spec.template.spec.containers[name="c"].image'
    )


def test_force_takes_the_field() -> None:
    live = apply(None, deployment(), "first")
    out = apply(live, deployment(replicas=3), "second", force=True)
    assert out["spec"]["replicas"] == 3
    assert "f:replicas" not in owned(out, "first")["f:spec"]
    assert "f:replicas" in owned(out, "second")["f:spec"]
    assert "f:selector" in owned(out, "first")["f:spec"]


def test_equal_values_are_shared() -> None:
    live = apply(None, config_map(a="1"), "first")
    out = apply(live, config_map(a="1"), "second")
    assert owned(out, "first") == owned(out, "second") == {"f:data": {"f:a": {}}}
    out = apply(out, config_map(), "first")
    assert out["data"] == {"a": "1"}
    assert owned(out, "first") == {"f:data": {}}


def test_fields_no_longer_applied_are_removed() -> None:
    live = apply(None, config_map(a="1", b="2"))
    assert apply(live, config_map(a="1"))["data"] == {"a": "1"}
    out = apply(apply(None, deployment()), deployment(replicas=None))
    assert "replicas" not in out["spec"]


def test_fields_of_another_manager_stay() -> None:
    live = apply(None, config_map(a="1"), "first")
    both = apply(live, config_map(b="2"), "second")
    assert both["data"] == {"a": "1", "b": "2"}
    out = apply(both, config_map(c="3"), "first")
    assert out["data"] == {"b": "2", "c": "3"}


def test_container_is_removed_with_its_defaults() -> None:
    two = deployment()
    two["spec"]["template"]["spec"]["containers"].append({"name": "d", "image": "j"})
    live = apply(None, two)
    live["spec"]["template"]["spec"]["containers"][1]["imagePullPolicy"] = "Always"
    out = apply(live, deployment())
    assert [item["name"] for item in out["spec"]["template"]["spec"]["containers"]] == ["c"]


def test_defaults_survive_another_apply() -> None:
    live = apply(None, deployment())
    live["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "Always"
    live["spec"]["template"]["spec"]["containers"][0]["ports"][0]["protocol"] = "TCP"
    out = apply(live, deployment(image="i:2"))
    assert out["spec"]["template"]["spec"]["containers"] == [
        {"name": "c", "image": "i:2", "imagePullPolicy": "Always",
         "ports": [{"containerPort": 80, "protocol": "TCP"}]}
    ]  # fmt: skip


def test_metadata_is_never_removed() -> None:
    live = apply(None, deployment())
    live["metadata"]["uid"] = "u"
    bare = deployment()
    del bare["metadata"]["labels"]
    out = apply(live, bare)
    assert out["metadata"]["uid"] == "u"
    assert "labels" not in out["metadata"] or out["metadata"]["labels"] == {}


def test_an_update_owns_the_fields_it_changes() -> None:
    live = apply(None, deployment())
    changed = deepcopy(live)
    changed["spec"]["replicas"] = 5
    out = update(live, changed, "scaler", now=LATER)
    assert owned(out, "scaler", "Update") == {"f:spec": {"f:replicas": {}}}
    assert "f:replicas" not in owned(out, "kubectl")["f:spec"]
    assert out["metadata"]["managedFields"][1]["time"] == LATER
    assert out["metadata"]["managedFields"][0]["time"] == NOW


def test_an_update_without_a_change_leaves_times_alone() -> None:
    live = update(None, deployment())
    again = deepcopy(live)
    again["metadata"]["resourceVersion"] = "9"
    assert update(live, again, now=LATER)["metadata"]["managedFields"] == live["metadata"]["managedFields"]


def test_status_is_owned_apart() -> None:
    live = update(None, deployment(), "creator")
    changed = deepcopy(live)
    changed["status"] = {"replicas": 1, "conditions": [{"type": "Available", "status": "True"}]}
    out = update(live, changed, "controller", "status")
    entry = next(item for item in out["metadata"]["managedFields"] if item["manager"] == "controller")
    assert entry["subresource"] == "status"
    conditions = entry["fieldsV1"]["f:status"]["f:conditions"]
    assert conditions == {".": {}, 'k:{"type":"Available"}': {".": {}, "f:status": {}, "f:type": {}}}
    assert "f:status" not in owned(out, "creator", "Update")


def test_clients_may_clear_the_managed_fields() -> None:
    live = update(None, deployment())
    cleared = deepcopy(live)
    cleared["metadata"]["managedFields"] = [{}]
    assert "managedFields" not in update(live, cleared)["metadata"]


def test_objects_without_managed_fields() -> None:
    out = apply({**config_map(a="1", b="2")}, config_map(a="1"))
    assert owned(out, "before-first-apply", "Update") == {"f:data": {"f:a": {}, "f:b": {}}}
    assert out["data"] == {"a": "1", "b": "2"}


def test_kubectl_moves_from_client_side_to_server_side() -> None:
    first = config_map(a="1", b="2")
    saved = deepcopy(first)
    saved["metadata"]["annotations"] = {server_side.LAST_APPLIED: json.dumps(first)}
    live = update(None, saved, "kubectl-client-side-apply")
    assert apply(live, config_map(a="9", b="2"))["data"] == {"a": "9", "b": "2"}
    with pytest.raises(Conflict):
        apply(live, config_map(a="9"), "somebody-else")
    drifted = deepcopy(live)
    drifted["data"]["a"] = "5"
    live = update(live, drifted, "other")
    with pytest.raises(Conflict):
        apply(live, config_map(a="9", b="2"))


def test_many_updaters_are_folded() -> None:
    live = config_map(start="0")
    for number in range(15):
        new = deepcopy(live)
        new["data"][f"k{number:02}"] = "1"
        live = update(live, new, f"m{number}", now=f"2026-01-01T00:00:{number:02}Z")
    managers = [entry["manager"] for entry in live["metadata"]["managedFields"]]
    assert len(managers) == 11
    assert managers[0] == "ancient-changes"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"metadata": {"name": "w", "managedFields": []}}, "metadata.managedFields must be nil"),
        ({"spec": {"nonsense": 1}}, r"\(w; apps/v1, Kind=Deployment\): .spec.nonsense: field not declared"),
        ({"spec": {"template": {"spec": {"containers": [{"image": "i"}]}}}}, 'omits key field "name"'),
        (
            {"spec": {"template": {"spec": {"containers": [{"name": "a", "x": 1}]}}}},
            r'.spec.template.spec.containers\[name="a"\].x: field not declared',
        ),
    ],
)
def test_bad_configurations(change: dict[str, Any], problem: str) -> None:
    bad = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w"}, **change}
    with pytest.raises(ApiError, match=problem) as caught:
        apply(None, bad)
    assert caught.value.code == 400


def test_ports_merge_by_port_and_protocol() -> None:
    def service(*ports: dict[str, Any]) -> dict[str, Any]:
        meta = {"name": "s", "namespace": "d"}
        return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": list(ports)}}

    live = apply(None, service({"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}))
    live["spec"]["ports"][1]["nodePort"] = 30053
    out = apply(live, service({"port": 53, "name": "t"}, {"port": 53, "protocol": "UDP"}))
    ports = {port.get("protocol", "TCP"): port for port in out["spec"]["ports"]}
    assert ports["TCP"] == {"port": 53, "name": "t", "nodePort": 30053}


DATA = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["1", "2"]), max_size=4)
STEPS = st.lists(st.tuples(st.sampled_from(["x", "y", "edit"]), DATA), min_size=1, max_size=6)


@given(STEPS)
def test_laws(steps: list[tuple[str, dict[str, str]]]) -> None:
    """After a forced apply the object has what was applied; applying again changes nothing."""
    live: dict[str, Any] | None = None
    for user, values in steps:
        config = config_map(**values)
        if user == "edit":
            live = update(live, {**config, "metadata": dict((live or config)["metadata"])}, "edit")
            continue
        out = apply(live, config, user, force=True)
        assert values.items() <= out["data"].items()
        assert apply(out, config, user, now=LATER) == out
        fields = [owned(out, name, op).get("f:data", {}) for name, op in
                  (("x", "Apply"), ("y", "Apply"), ("edit", "Update"))]  # fmt: skip
        owners = [{key[2:] for key in field if key != "."} for field in fields]
        assert set().union(*owners) == out["data"].keys() or live is None
        live = out


KEYS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.just({".": {}}), lambda inner: st.dictionaries(st.sampled_from(["f:a", "f:b", "f:c"]), inner, min_size=1)
)


@given(KEYS, KEYS)
def test_set_algebra(left: Any, right: Any) -> None:
    both = fieldset.union(left, right)
    assert fieldset.union(fieldset.difference(both, right), fieldset.intersection(both, right)) == both
    assert fieldset.intersection(fieldset.difference(left, right), right) == {}
    assert fieldset.load(fieldset.dump(left)) == left
