"""Wrong admission policies and bindings: every wrong field with its path."""

from typing import Any

import pytest

from podwire.embedded.apiserver.kinds import BY_KIND
from podwire.embedded.apiserver.validate import objects

Object = dict[str, Any]

GROUP = "admissionregistration.k8s.io"
RULE = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "*"}
MATCH = {"resourceRules": [RULE], "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
SPEC = {"failurePolicy": "Fail", "matchConstraints": MATCH, "validations": [{"expression": "true"}]}


def wrong(kind: str, spec: Object) -> list[str]:
    obj = {"metadata": {"name": "p", "uid": "u"}, "spec": spec}
    return [f"{cause.field}: {cause.message}" for cause in objects.check(BY_KIND[GROUP, "v1", kind], obj, None)]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"matchConstraints": None}, "spec.matchConstraints: Required value"),
        ({"matchConstraints": {**MATCH, "resourceRules": []}}, "spec.matchConstraints.resourceRules: Required value"),
        (
            {"matchConstraints": {**MATCH, "matchPolicy": "Some"}},
            "spec.matchConstraints.matchPolicy: Unsupported value",
        ),
        (
            {"matchConstraints": {**MATCH, "resourceRules": [{**RULE, "operations": ["READ"]}]}},
            "spec.matchConstraints.resourceRules[0].operations[0]: Unsupported value",
        ),
        (
            {"matchConstraints": {**MATCH, "excludeResourceRules": [{**RULE, "resourceNames": ["a", "a"]}]}},
            'spec.matchConstraints.excludeResourceRules[0].resourceNames[1]: Duplicate value: "a"',
        ),
        (
            {"matchConstraints": {**MATCH, "objectSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}},
            "spec.matchConstraints.objectSelector.matchExpressions[0].operator: Invalid value",
        ),
        ({"failurePolicy": "Retry"}, 'spec.failurePolicy: Unsupported value: "Retry"'),
        ({"paramKind": {"apiVersion": "v1"}}, "spec.paramKind.kind: Required value"),
        ({"paramKind": {"apiVersion": "A/v1", "kind": "X"}}, 'spec.paramKind.apiVersion: Invalid value: "A"'),
        ({"variables": [{"name": "in", "expression": "1"}]}, "spec.variables[0].name: Invalid value"),
        (
            {"variables": [{"name": "a", "expression": "variables.b"}]},
            'spec.variables[0].expression: Invalid value: "variables.b": compilation failed: ERROR: <input>:1:10: '
            "undeclared reference to 'variables.b'",
        ),
        (
            {"variables": [{"name": "a", "expression": "1"}], "validations": [{"expression": "variables.b == 1"}]},
            'spec.validations[0].expression: Invalid value: "variables.b == 1": compilation failed: ERROR: '
            "<input>:1:10: undefined field 'b'",
        ),
        (
            {"variables": [{"name": "a", "expression": "1"}], "validations": [{"expression": "variables.a == 'x'"}]},
            "spec.validations[0].expression: Invalid value: \"variables.a == 'x'\": compilation failed: ERROR: "
            "<input>:1:13: found no matching overload for '_==_' applied to '(int, string)'",
        ),
        (
            {"validations": [{"expression": "params == null"}]},
            'spec.validations[0].expression: Invalid value: "params == null": compilation failed',
        ),
        (
            {"validations": [{"expression": "object.spec.hostNetwork"}]},
            'spec.validations[0].expression: Invalid value: "object.spec.hostNetwork": must evaluate to bool but '
            "got dyn",
        ),
        (
            {"validations": [{"expression": "request.userInfo.name == 'x'"}]},
            "spec.validations[0].expression: Invalid value: \"request.userInfo.name == 'x'\": compilation failed: "
            "ERROR: <input>:1:17: undefined field 'name'",
        ),
        (
            {"validations": [{"expression": "true", "messageExpression": "authorizer.path('/').check('a').reason()"}]},
            "spec.validations[0].messageExpression: Invalid value",
        ),
        (
            {"validations": [{"expression": "true", "messageExpression": "1"}]},
            'spec.validations[0].messageExpression: Invalid value: "1": must evaluate to string but got int',
        ),
        ({"validations": [{"expression": " "}]}, "spec.validations[0].expression: Required value"),
        ({"validations": [{"expression": "true", "message": "a\nb"}]}, "spec.validations[0].message: Invalid value"),
        (
            {"validations": [{"expression": "true", "reason": "Gone"}]},
            'spec.validations[0].reason: Unsupported value: "Gone"',
        ),
        (
            {"auditAnnotations": [{"key": "k", "valueExpression": "1"}]},
            'spec.auditAnnotations[0].valueExpression: Invalid value: "1": must evaluate to one of [string null_type]',
        ),
        ({"auditAnnotations": [{"key": "k k", "valueExpression": "'a'"}]}, "spec.auditAnnotations[0].key: Invalid"),
        (
            {"matchConditions": [{"name": "x", "expression": "variables.a"}]},
            'spec.matchConditions[0].expression: Invalid value: "variables.a": compilation failed',
        ),
    ],
)
def test_wrong_field_of_a_policy_is_named(fields: Object, problem: str) -> None:
    (result,) = wrong("ValidatingAdmissionPolicy", {**SPEC, **fields})
    assert result.startswith(problem)


def test_policy_without_checks_is_refused() -> None:
    result = wrong("ValidatingAdmissionPolicy", {**SPEC, "validations": []})
    assert [text.partition(":")[0] for text in result] == ["spec.validations", "spec.auditAnnotations"]


def test_right_policy_is_accepted() -> None:
    spec = {
        **SPEC, "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "variables": [{"name": "a", "expression": "params.data"}, {"name": "b", "expression": "variables.a == {}"}],
        "validations": [{"expression": "variables.b", "messageExpression": "string(variables.a)", "reason": "Invalid"}],
        "auditAnnotations": [{"key": "k", "valueExpression": "object == null ? dyn(null) : 'x'"}],
        "matchConditions": [{"name": "a.b/c", "expression": "params != null"}],
    }  # fmt: skip
    assert wrong("ValidatingAdmissionPolicy", spec) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"policyName": ""}, "spec.policyName: Required value"),
        ({"policyName": "A B"}, 'spec.policyName: Invalid value: "A B"'),
        ({"validationActions": []}, "spec.validationActions: Required value: at least one validation action"),
        ({"validationActions": ["Deny", "Warn"]}, 'spec.validationActions: Invalid value: ["Deny","Warn"]: must not'),
        ({"validationActions": ["Stop"]}, 'spec.validationActions[0]: Unsupported value: "Stop"'),
        ({"paramRef": {"parameterNotFoundAction": "Deny"}}, "spec.paramRef: Required value: one of name or selector"),
        (
            {"paramRef": {"name": "a", "parameterNotFoundAction": "Stop"}},
            "spec.paramRef.parameterNotFoundAction: Unsupp",
        ),
        ({"matchResources": {**MATCH, "matchPolicy": "Some"}}, "spec.matchResources.matchPolicy: Unsupported value"),
    ],
)
def test_wrong_field_of_a_binding_is_named(fields: Object, problem: str) -> None:
    (result,) = wrong("ValidatingAdmissionPolicyBinding", {"policyName": "p", "validationActions": ["Deny"], **fields})
    assert result.startswith(problem)


MUTATION = {"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"mutations": []}, "spec.mutations: Required value: mutations must contain at least one item"),
        ({"reinvocationPolicy": "Often"}, 'spec.reinvocationPolicy: Unsupported value: "Often"'),
        ({"mutations": [{"patchType": "Merge"}]}, 'spec.mutations[0].patchType: Unsupported value: "Merge"'),
        ({"mutations": [{"patchType": "JSONPatch"}]}, "spec.mutations[0].jsonPatch: Required value"),
        (
            {"mutations": [{**MUTATION, "applyConfiguration": {"expression": "Object{}"}}]},
            "spec.mutations[0].applyConfiguration: Forbidden",
        ),
        (
            {"mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "Object{}"}}]},
            'spec.mutations[0].jsonPatch.expression: Invalid value: "Object{}": must evaluate to list(JSONPatch) but '
            "got Object",
        ),
        (
            {"mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "object.x"}}]},
            'spec.mutations[0].applyConfiguration.expression: Invalid value: "object.x": must evaluate to Object',
        ),
        ({"variables": [{"name": "a", "expression": "nobody"}]}, "spec.variables[0].expression: Invalid value"),
    ],
)
def test_wrong_field_of_a_mutating_policy_is_named(fields: Object, problem: str) -> None:
    spec = {"failurePolicy": "Fail", "matchConstraints": MATCH, "mutations": [MUTATION], "reinvocationPolicy": "Never"}
    (result,) = wrong("MutatingAdmissionPolicy", {**spec, **fields})
    assert result.startswith(problem)
    assert wrong("MutatingAdmissionPolicy", spec) == []


def test_wrong_field_of_a_mutating_binding_is_named() -> None:
    (result,) = wrong("MutatingAdmissionPolicyBinding", {"policyName": ""})
    assert result.startswith("spec.policyName: Required value")
