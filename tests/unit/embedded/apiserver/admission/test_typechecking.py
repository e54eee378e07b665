"""The status of policies: what the schemas of their objects say to their expressions."""

from collections.abc import Callable
from typing import Any

import pytest

Object = dict[str, Any]
Play = Callable[..., None]

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
MERGE = {"content_type": "application/merge-patch+json"}


def rule(resource: str, group: str = "apps", version: str = "v1") -> Object:
    return {"operations": ["CREATE"], "apiGroups": [group], "apiVersions": [version], "resources": [resource]}


def policy(*validations: Object, rules: Any, **spec: Any) -> Object:
    match = {"resourceRules": list(rules)}
    return {"metadata": {"name": "p"}, "spec": {"matchConstraints": match, "validations": list(validations), **spec}}


async def status_of(api: Any, obj: Object) -> Object:
    """The status of a new policy, once the server has checked it."""
    status, answer = await api("POST", POLICIES, obj)
    assert status == 201, answer
    await api.settle()
    _, result = await api("GET", f"{POLICIES}/p")
    return dict(result["status"])


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("object.spec.repilcas > 1", "ERROR: <input>:1:12: undefined field 'repilcas'"),
        ("object.spec.template.spec.containers.all(c, c.imgae != '')", "undefined field 'imgae'"),
        ("oldObject.metadata.name == 1", "found no matching overload for '_==_' applied to '(string, int)'"),
        ("variables.spec.typo == 1", "undefined field 'typo'"),
        ("object.spec.template.spec.containers[0].resources.limits['cpu'] == '1'", ""),
        (
            "object.metadata.creationTimestamp.getFullYear() > 1 && object.spec.strategy.rollingUpdate.maxSurge == 1",
            "",
        ),
        ("has(object.metadata.labels) && object.metadata.labels['a'] == 'b'", ""),
    ],
)
def test_wrong_fields_become_warnings(play: Play, expression: str, problem: str) -> None:
    async def scenario(api: Any) -> None:
        variables = [{"name": "spec", "expression": "object.spec"}, {"name": "bad", "expression": "object.bad"}]
        value = policy({"expression": expression}, rules=[rule("deployments")], variables=variables)
        status = await status_of(api, value)
        assert status["observedGeneration"] == 1
        warnings = status["typeChecking"].get("expressionWarnings", [])
        assert [warning["fieldRef"] for warning in warnings] == ["spec.validations[0].expression"] * bool(problem)
        if problem:
            assert warnings[0]["warning"].startswith("apps/v1, Kind=Deployment: ERROR: ")
            assert problem in warnings[0]["warning"]

    play(scenario)


def test_each_kind_is_checked(play: Play) -> None:
    async def scenario(api: Any) -> None:
        rules = [rule("deployments"), rule("services", ""), rule("*"), rule("pods", "*"), rule("nothing")]
        status = await status_of(api, policy({"expression": "object.spec.replicas > 1"}, rules=rules))
        (result,) = status["typeChecking"]["expressionWarnings"]
        assert result["warning"].startswith("/v1, Kind=Service: ERROR: <input>:1:12: undefined field 'replicas'")

    play(scenario)


def test_parameters_and_custom_objects_are_checked(play: Play) -> None:
    async def scenario(api: Any) -> None:
        limits = {"type": "object", "properties": {"most": {"type": "integer"}}}
        definition = {
            "metadata": {"name": "limits.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "limits", "kind": "Limit"},
                     "versions": [{"name": "v1", "served": True, "storage": True,
                                   "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": limits}}}}]},
        }  # fmt: skip
        await api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        await api.settle()
        value = policy(
            {"expression": "params.spec.most > 1 && object.spec.most > 1",
             "messageExpression": "string(params.spec.least)"},
            rules=[rule("limits", "example.com")], paramKind={"apiVersion": "example.com/v1", "kind": "Limit"},
        )  # fmt: skip
        (result,) = (await status_of(api, value))["typeChecking"]["expressionWarnings"]
        assert result["fieldRef"] == "spec.validations[0].messageExpression"
        assert "example.com/v1, Kind=Limit: ERROR: <input>:1:19: undefined field 'least'" in result["warning"]

    play(scenario)


def test_changed_policy_is_checked_again(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await status_of(api, policy({"expression": "object.spec.typo == 1"}, rules=[rule("deployments")]))
        await api("PATCH", f"{POLICIES}/p", {"spec": {"validations": [{"expression": "true"}]}}, **MERGE)
        await api.settle()
        _, result = await api("GET", f"{POLICIES}/p")
        assert result["status"] == {"observedGeneration": 2, "typeChecking": {}}

    play(scenario)
