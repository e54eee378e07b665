"""Admission policies and match conditions, as kubectl shows what they decide."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.driver import Cluster, deployment, eventually

Json = dict[str, Any]

GROUP = "admissionregistration.k8s.io"
DEPLOYMENTS = {"operations": ["CREATE", "UPDATE"], "apiGroups": ["apps"], "apiVersions": ["v1"],
               "resources": ["deployments"]}  # fmt: skip
MAPS = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}


def listed(*objects: Json) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def configuration(kind: str, namespace: str, **fields: Any) -> Json:
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": namespace}, **fields}


def only(namespace: str) -> Json:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}


@pytest.fixture
def configurations(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Deletes what a test has configured for its namespace."""
    yield
    for kind in ("validatingadmissionpolicy", "mutatingadmissionpolicy"):
        cluster.kubectl("delete", f"{kind}binding,{kind}", namespace, "--ignore-not-found")
    cluster.kubectl("delete", "validatingwebhookconfiguration", namespace, "--ignore-not-found")


@pytest.mark.usefixtures("configurations")
def test_policy_with_parameters_refuses_and_warns(cluster: Cluster, namespace: str) -> None:
    policy = configuration(
        "ValidatingAdmissionPolicy", namespace,
        spec={
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {"resourceRules": [DEPLOYMENTS]},
            "variables": [{"name": "most", "expression": "int(params.data.most)"}],
            "validations": [{
                "expression": "object.spec.replicas <= variables.most",
                "messageExpression": "'replicas must be at most %d'.format([variables.most])", "reason": "Forbidden",
            }],
        },
    )  # fmt: skip
    binding = configuration(
        "ValidatingAdmissionPolicyBinding", namespace,
        spec={
            "policyName": namespace, "validationActions": ["Deny"], "matchResources": only(namespace),
            "paramRef": {"name": "limit", "parameterNotFoundAction": "Deny"},
        },
    )  # fmt: skip
    cluster.kubectl("create", "configmap", "limit", "-n", namespace, "--from-literal=most=2")
    cluster.apply(listed(policy, binding))
    assert cluster.kubectl("get", "validatingadmissionpolicies", namespace).split()[4:7] == [
        namespace,
        "1",
        "v1/ConfigMap",
    ]
    denied = f"ValidatingAdmissionPolicy '{namespace}' with binding '{namespace}'"
    output = cluster.refused("apply", "-n", namespace, "-f", "-", stdin=deployment("big", replicas=3))
    assert f'deployments.apps "big" is forbidden: {denied} denied request: replicas must be at most 2' in output
    binding["spec"]["validationActions"] = ["Warn"]
    cluster.apply(listed(binding))
    created = cluster.run(["kubectl", "apply", "-n", namespace, "-f", "-"], stdin=deployment("big", replicas=3))
    warning = f"Warning: Validation failed for {denied}: replicas must be at most 2"
    assert (created.returncode, created.stderr.strip()) == (0, warning)


@pytest.mark.usefixtures("configurations")
def test_type_checking_tells_wrong_fields(cluster: Cluster, namespace: str) -> None:
    spec = {
        "matchConstraints": {"resourceRules": [DEPLOYMENTS]},
        "validations": [{"expression": "object.spec.replicas > 1"}, {"expression": "object.spec.repilcas > 1"}],
    }
    cluster.apply(listed(configuration("ValidatingAdmissionPolicy", namespace, spec=spec)))
    status = eventually(lambda: cluster.get("validatingadmissionpolicy", namespace).get("status"))
    (warning,) = status["typeChecking"]["expressionWarnings"]
    assert warning["fieldRef"] == "spec.validations[1].expression"
    assert "apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'repilcas'" in warning["warning"]
    spec["validations"] = [{"expression": "object.spec.replicas > 1 && request.typo == 'x'"}]
    output = cluster.refused(
        "apply", "-f", "-", stdin=listed(configuration("ValidatingAdmissionPolicy", namespace, spec=spec))
    )
    assert "spec.validations[0].expression: Invalid value" in output
    assert "undefined field 'typo'" in output
    assert "variables" in cluster.kubectl("explain", "validatingadmissionpolicy.spec")


@pytest.mark.usefixtures("configurations")
def test_policy_changes_objects(cluster: Cluster, namespace: str) -> None:
    policy = configuration(
        "MutatingAdmissionPolicy", namespace,
        spec={
            "matchConstraints": {"resourceRules": [{**DEPLOYMENTS, "operations": ["CREATE"]}]},
            "reinvocationPolicy": "Never",
            "mutations": [
                {"patchType": "ApplyConfiguration", "applyConfiguration": {
                    "expression": "Object{metadata: Object.metadata{annotations: Object.metadata.annotations{"
                                  "owner: request.userInfo.username}}}"}},
                {"patchType": "JSONPatch", "jsonPatch": {
                    "expression": "[JSONPatch{op: 'add', path: '/spec/revisionHistoryLimit', value: 3}]"}},
            ],
        },
    )  # fmt: skip
    spec = {"policyName": namespace, "matchResources": only(namespace)}
    cluster.apply(listed(policy, configuration("MutatingAdmissionPolicyBinding", namespace, spec=spec)))
    cluster.apply(deployment("small", replicas=0), "-n", namespace)
    result = cluster.get("deployment", "small", "-n", namespace)
    user = json.loads(cluster.kubectl("auth", "whoami", "-o", "json"))["status"]["userInfo"]["username"]
    assert (result["metadata"]["annotations"]["owner"], result["spec"]["revisionHistoryLimit"]) == (user, 3)


@pytest.mark.usefixtures("configurations")
def test_match_conditions_decide_whether_a_webhook_is_called(cluster: Cluster, namespace: str) -> None:
    hook = {
        "name": "hook.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "rules": [MAPS],
        "clientConfig": {"url": "https://127.0.0.1:1/"}, **only(namespace),
        "matchConditions": [{"name": "few", "expression": "!object.metadata.name.startsWith('free')"}],
    }  # fmt: skip
    cluster.apply(listed(configuration("ValidatingWebhookConfiguration", namespace, webhooks=[hook])))
    cluster.kubectl("create", "configmap", "free", "-n", namespace)
    output = cluster.refused("create", "configmap", "other", "-n", namespace)
    assert 'failed calling webhook "hook.example.com"' in output
    hook["matchConditions"] = [{"name": "few", "expression": "objects.metadata.name == 'x'"}]
    output = cluster.refused(
        "apply", "-f", "-", stdin=listed(configuration("ValidatingWebhookConfiguration", namespace, webhooks=[hook]))
    )
    assert "webhooks[0].matchConditions[0].expression: Invalid value" in output
