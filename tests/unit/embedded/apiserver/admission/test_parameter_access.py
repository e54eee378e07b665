"""Who may write policies and bindings with parameters: who may read the parameters."""

from typing import Any

import pytest
from tests.unit.embedded.apiserver.admission.scripted_webhook import MERGE, Object, Play

GROUP = "/apis/admissionregistration.k8s.io/v1"
ROLES = "/apis/rbac.authorization.k8s.io/v1"
ADA = {"subject": ((("commonName", "ada"),),)}
RULE = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
SECRETS: Object = {"apiVersion": "v1", "kind": "Secret"}
MAPS: Object = {"apiVersion": "v1", "kind": "ConfigMap"}
KINDS = pytest.mark.parametrize("kind", ["validating", "mutating"])


async def allow(api: Any, *rules: Object, namespace: str = "") -> None:
    """Lets ada write policies and bindings, and do what the rules say in one namespace or everywhere."""
    write = {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]}
    for name, place, granted in (("author", "", (write,)), ("reader", namespace, rules)):
        await api("POST", f"{ROLES}/clusterroles", {"metadata": {"name": name}, "rules": list(granted)})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        subjects = [{"kind": "User", "name": "ada", "apiGroup": "rbac.authorization.k8s.io"}]
        target = f"{ROLES}/namespaces/{place}/rolebindings" if place else f"{ROLES}/clusterrolebindings"
        body = {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects}
        status, answer = await api("POST", target, body)
        assert status == 201, answer


def reading(verb: str, resource: str, *names: str) -> Object:
    return {"apiGroups": [""], "resources": [resource], "verbs": [verb], "resourceNames": list(names)}


def policy(kind: str, param_kind: Object | None = None) -> Object:
    work: Object = {"validations": [{"expression": "true"}]}
    if kind == "mutating":
        patch = {"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}}
        work = {"mutations": [patch], "reinvocationPolicy": "Never"}
    spec = {"matchConstraints": {"resourceRules": [RULE]}, **work}
    return {"metadata": {"name": "p"}, "spec": {**spec, **({"paramKind": param_kind} if param_kind else {})}}


def binding(kind: str, **reference: Any) -> Object:
    actions = {"validationActions": ["Deny"]} if kind == "validating" else {}
    spec: Object = {"policyName": "p", **actions}
    return {"metadata": {"name": "b"}, "spec": {**spec, **({"paramRef": reference} if reference else {})}}


@KINDS
def test_author_of_a_policy_must_read_its_parameters(play: Play, kind: str) -> None:
    async def scenario(api: Any) -> None:
        await allow(api, reading("get", "configmaps"))
        target = f"{GROUP}/{kind}admissionpolicies"
        status, answer = await api("POST", target, policy(kind, SECRETS), user=ADA)
        assert (status, answer["message"]) == (
            422,
            f'{kind.title()}AdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: '
            'user ada must have "get" permission on all objects of the referenced paramKind (kind=Secret, '
            "apiVersion=v1)",
        )
        assert (await api("POST", target, policy(kind, MAPS), user=ADA))[0] == 201
        change = {"spec": {"paramKind": SECRETS}}
        assert (await api("PATCH", f"{target}/p", change, user=ADA, **MERGE))[0] == 422
        assert (await api("PATCH", f"{target}/p", change, **MERGE))[0] == 200

    play(scenario)


@KINDS
@pytest.mark.parametrize(
    ("granted", "namespace", "reference", "status"),
    [
        (reading("get", "secrets", "limit"), "kube-system", {"name": "limit", "namespace": "kube-system"}, 201),
        (reading("get", "secrets", "limit"), "kube-system", {"name": "other", "namespace": "kube-system"}, 422),
        (reading("get", "secrets"), "kube-system", {"name": "limit", "namespace": "default"}, 422),
        (reading("get", "secrets"), "kube-system", {"name": "limit"}, 422),
        (reading("get", "secrets"), "", {"name": "limit"}, 201),
        (reading("get", "secrets"), "", {"selector": {}}, 422),
        (reading("list", "secrets"), "", {"selector": {}}, 201),
        (reading("get", "configmaps"), "", {"name": "limit"}, 422),
        (reading("get", "configmaps"), "", {}, 201),
    ],
)
def test_author_of_a_binding_must_read_its_parameters(
    play: Play, kind: str, granted: Object, namespace: str, reference: Object, status: int
) -> None:
    async def scenario(api: Any) -> None:
        await allow(api, granted, namespace=namespace)
        assert (await api("POST", f"{GROUP}/{kind}admissionpolicies", policy(kind, SECRETS)))[0] == 201
        asked = {**reference, "parameterNotFoundAction": "Deny"} if reference else {}
        result, answer = await api("POST", f"{GROUP}/{kind}admissionpolicybindings", binding(kind, **asked), user=ADA)
        assert result == status, answer
        if status == 422:
            verb = "get" if "name" in reference else "list"
            problem = f'spec.paramRef: Forbidden: user ada must have "{verb}" permission on the objects referenced by'
            assert problem in answer["message"]

    play(scenario)


@KINDS
def test_changed_reference_is_checked_and_others_are_not(play: Play, kind: str) -> None:
    async def scenario(api: Any) -> None:
        await allow(api, reading("get", "secrets", "mine"))
        await api("POST", f"{GROUP}/{kind}admissionpolicies", policy(kind, SECRETS))
        target = f"{GROUP}/{kind}admissionpolicybindings"
        secret = binding(kind, name="theirs", namespace="default", parameterNotFoundAction="Deny")
        assert (await api("POST", target, secret))[0] == 201
        labels = {"metadata": {"labels": {"a": "b"}}}
        assert (await api("PATCH", f"{target}/b", labels, user=ADA, **MERGE))[0] == 200
        for name, status in (("other", 422), ("mine", 200)):
            change = {"spec": {"paramRef": {"name": name}}}
            assert (await api("PATCH", f"{target}/b", change, user=ADA, **MERGE))[0] == status

    play(scenario)


def test_binding_before_its_policy_needs_every_right(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await allow(api, reading("get", "secrets"))
        target = f"{GROUP}/validatingadmissionpolicybindings"
        early = binding("validating", name="x", parameterNotFoundAction="Deny")
        assert (await api("POST", target, early, user=ADA))[0] == 422
        assert (await api("POST", target, early))[0] == 201

    play(scenario)
