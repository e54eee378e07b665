"""MutatingAdmissionPolicies: what their patches make of objects, and how they fail."""

from collections.abc import Callable
from typing import Any

import pytest

Object = dict[str, Any]
Play = Callable[..., None]

GROUP = "/apis/admissionregistration.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
RULE = {"operations": ["CREATE", "UPDATE", "DELETE"], "apiGroups": ["", "apps"], "apiVersions": ["v1"],
        "resources": ["configmaps", "deployments"]}  # fmt: skip
LABEL = "Object{metadata: Object.metadata{labels: Object.metadata.labels{team: 'a'}}}"


def applied(expression: str) -> Object:
    return {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}


def patched(expression: str) -> Object:
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


async def bind(api: Any, *mutations: Object, name: str = "p", **spec: Any) -> None:
    """Writes a policy and a binding."""
    spec = {"matchConstraints": {"resourceRules": [RULE]}, "mutations": list(mutations),
            "reinvocationPolicy": "Never", **spec}  # fmt: skip
    policy = {"metadata": {"name": name}, "spec": spec}
    binding = {"metadata": {"name": name}, "spec": {"policyName": name}}
    for plural, obj in (("mutatingadmissionpolicies", policy), ("mutatingadmissionpolicybindings", binding)):
        status, answer = await api("POST", f"{GROUP}/{plural}", obj)
        assert status == 201, answer


def test_apply_configuration_is_merged_into_the_object(play: Play) -> None:
    async def scenario(api: Any) -> None:
        sidecar = (
            "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{"
            "containers: [Object.spec.template.spec.containers{name: 'proxy', image: variables.image}]}}}}"
        )
        variables = [{"name": "image", "expression": "'proxy:' + object.metadata.name"}]
        await bind(api, applied(LABEL), applied(sidecar), variables=variables)
        labels = {"app": "x"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}}
        body = {"metadata": {"name": "d", "labels": labels}, "spec": {"selector": {"matchLabels": labels},
                "template": template}}  # fmt: skip
        status, created = await api("POST", DEPLOYMENTS, body)
        assert (status, created["metadata"]["labels"]) == (201, {"app": "x", "team": "a"})
        containers = created["spec"]["template"]["spec"]["containers"]
        result = {container["name"]: (container["image"], container["imagePullPolicy"]) for container in containers}
        assert result == {"c": ("nginx", "Always"), "proxy": ("proxy:d", "IfNotPresent")}

    play(scenario)


def test_json_patch_is_applied_in_order(play: Play) -> None:
    async def scenario(api: Any) -> None:
        first = patched(
            "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {}}, JSONPatch{op: 'add', "
            "path: '/metadata/annotations/' + jsonpatch.escapeKey('a.b/c'), value: 'x'}]"
        )
        second = patched(
            "has(object.data) && 'k' in object.data ? [JSONPatch{op: 'move', from: '/data/k', path: '/data/moved'}, "
            "JSONPatch{op: 'add', path: '/metadata/labels', value: {'a': 'b'}}] : []"
        )
        failing_test = patched(
            "[JSONPatch{op: 'test', path: '/data/k', value: 'other'}, JSONPatch{op: 'remove', path: '/data'}]"
        )
        await bind(api, failing_test, first, second)
        status, created = await api("POST", MAPS, config_map("a", k="v"))
        assert status == 201, created
        assert (created["data"], created["metadata"]["labels"]) == ({"moved": "v"}, {"a": "b"})
        assert created["metadata"]["annotations"] == {"a.b/c": "x"}
        assert (await api("DELETE", f"{MAPS}/a"))[0] == 200

    play(scenario)


@pytest.mark.parametrize(
    ("mutation", "problem"),
    [
        (applied("Object{meta: Object.meta{}}"), ".meta: field not declared in schema"),
        (applied("Object{metadata: Object.metadata{finalizers: [object.none]}}"),
         "no such key: none"),
        (patched("[JSONPatch{op: 'remove', path: '/data/none'}]"), "JSON Patch: "),
        (patched("[JSONPatch{op: 'replace', path: '/data', value: 'text'}]"), "data"),
    ],
)  # fmt: skip
def test_failed_mutation_follows_the_failure_policy(play: Play, mutation: Object, problem: str) -> None:
    async def scenario(api: Any) -> None:
        await bind(api, mutation, patched("[JSONPatch{op: 'add', path: '/data/next', value: 'x'}]"))
        status, answer = await api("POST", MAPS, config_map("a", k="v"))
        assert (status, answer["reason"]) == (403, "Invalid")
        assert answer["message"].startswith("policy 'p' with binding 'p' denied request: ")
        assert problem in answer["message"]
        change = {"spec": {"failurePolicy": "Ignore"}}
        await api("PATCH", f"{GROUP}/mutatingadmissionpolicies/p", change, content_type="application/merge-patch+json")
        status, created = await api("POST", MAPS, config_map("a", k="v"))
        assert (status, created.get("data")) == (201, {"k": "v", "next": "x"})

    play(scenario)


def test_atomic_values_are_not_replaced(play: Play) -> None:
    async def scenario(api: Any) -> None:
        expression = "Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'a': 'b'}}}}"
        await bind(api, applied(expression))
        labels = {"app": "x"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        _, answer = await api("POST", DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": spec})
        assert "may not mutate atomic arrays, maps or structs: .spec.selector" in answer["message"]

    play(scenario)


def test_policy_is_asked_again_after_a_change(play: Play) -> None:
    async def scenario(api: Any) -> None:
        count = patched("[JSONPatch{op: 'add', path: '/data/size', value: string(object.data.size())}]")
        once = patched("'late' in object.data ? [] : [JSONPatch{op: 'add', path: '/data/late', value: 'x'}]")
        await bind(api, count, name="a", reinvocationPolicy="IfNeeded")
        await bind(api, once, name="b")
        _, created = await api("POST", MAPS, config_map("m", k="v"))
        assert created["data"] == {"k": "v", "late": "x", "size": "3"}

    play(scenario)


def test_match_conditions_choose_requests(play: Play) -> None:
    async def scenario(api: Any) -> None:
        conditions = [{"name": "c", "expression": "object.metadata.name == 'a'"}]
        await bind(api, applied(LABEL), matchConditions=conditions)
        for name, labels in (("a", {"team": "a"}), ("b", None)):
            _, created = await api("POST", MAPS, config_map(name))
            assert created["metadata"].get("labels") == labels

    play(scenario)


def test_changed_object_is_validated(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await bind(api, patched("[JSONPatch{op: 'add', path: '/data', value: {'no key!': 'x'}}]"))
        status, answer = await api("POST", MAPS, config_map("a"))
        assert (status, answer["reason"]) == (422, "Invalid")

    play(scenario)
