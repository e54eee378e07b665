"""Policies and webhooks see custom objects in the version of their rules."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.embedded.apiserver.admission.scripted_webhook import HOOKS, MERGE, Object, Play, patched
from tests.unit.embedded.apiserver.converted_tabs import GROUP, V1, V2, tab

from podwire.http.message import Response

TABS = {"operations": ["*"], "apiGroups": [GROUP], "apiVersions": ["v2"], "resources": ["tabs", "tabs/*"]}
MAPS = {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}


async def bind(api: Any, kind: str, rule: Object, spec: Object, **binding: Any) -> None:
    """Writes a policy of a kind, ``validating`` or ``mutating``, and a binding."""
    spec = {"matchConstraints": {"resourceRules": [rule]}, **spec}
    target = f"{HOOKS}/{kind}admissionpolicies"
    for path, body in ((target, spec), (f"{HOOKS}/{kind}admissionpolicybindings", {"policyName": "p", **binding})):
        status, answer = await api("POST", path, {"metadata": {"name": "p"}, "spec": body})
        assert status == 201, answer


@pytest.mark.parametrize("expression", ["object.spec.host != 'bad'", "object.apiVersion == 'example.com/v2' && false"])
def test_validating_policy_sees_the_version_of_its_rules(
    play: Play, converter: Any, define: Any, expression: str
) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            spec = {"validations": [{"expression": expression}]}
            await bind(api, "validating", TABS, spec, validationActions=["Deny"])
            status, answer = await api("POST", V1, tab("a", hostPort="bad:80"))
            assert (status, answer["message"].partition("denied request: ")[2]) == (
                422, f"failed expression: {expression}",
            )  # fmt: skip

    play(scenario)


def test_validating_policy_sees_the_old_object_converted(play: Play, converter: Any, define: Any) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            check = {"expression": "oldObject == null || oldObject.spec.host == object.spec.host"}
            await bind(api, "validating", TABS, {"validations": [check]}, validationActions=["Deny"])
            assert (await api("POST", V1, tab("a", hostPort="h:80")))[0] == 201
            assert (await api("PATCH", f"{V1}/a", {"spec": {"hostPort": "h:81"}}, **MERGE))[0] == 200
            assert (await api("PATCH", f"{V1}/a", {"spec": {"hostPort": "i:81"}}, **MERGE))[0] == 422

    play(scenario)


@pytest.mark.parametrize(("failure_policy", "status"), [("Fail", 422), ("Ignore", 201)])
def test_failed_conversion_follows_the_failure_policy(
    play: Play, converter: Any, define: Any, failure_policy: str, status: int
) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            rule = {**TABS, "apiVersions": ["v1"]}
            spec = {"validations": [{"expression": "true"}], "failurePolicy": failure_policy}
            await bind(api, "validating", rule, spec, validationActions=["Deny"])
            hook.change = lambda _: Response(500, b"boom")
            result, answer = await api("POST", V2, {**tab("a", host="h"), "apiVersion": f"{GROUP}/v2"})
            assert result == status, answer
            if status != 201:
                assert "failed to convert object version: conversion webhook for" in answer["message"]

    play(scenario)


@pytest.mark.parametrize(
    "mutation",
    [
        {"patchType": "JSONPatch", "jsonPatch": {
            "expression": "[JSONPatch{op: 'replace', path: '/spec/host', value: object.spec.host + '.example'}]"}},
        {"patchType": "ApplyConfiguration", "applyConfiguration": {
            "expression": "Object{spec: Object.spec{host: object.spec.host + '.example'}}"}},
    ],
)  # fmt: skip
def test_mutating_policy_changes_the_version_of_its_rules(
    play: Play, converter: Any, define: Any, mutation: Object
) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            spec = {"reinvocationPolicy": "Never", "mutations": [mutation]}
            await bind(api, "mutating", {**TABS, "operations": ["CREATE"]}, spec)
            status, created = await api("POST", V1, tab("a", hostPort="h:80"))
            assert (status, created["apiVersion"], created.get("spec")) == (
                201, f"{GROUP}/v1", {"hostPort": "h.example:80"},
            ), created  # fmt: skip

    play(scenario)


def test_parameters_are_converted_to_their_kind(play: Play, converter: Any, define: Any) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            await api("POST", V2, {**tab("limit", host="h", port="1"), "apiVersion": f"{GROUP}/v2"})
            spec = {
                "paramKind": {"apiVersion": f"{GROUP}/v1", "kind": "Tab"},
                "validations": [{"expression": "params.spec.hostPort == 'h:1'"}],
            }
            reference = {"name": "limit", "namespace": "default", "parameterNotFoundAction": "Deny"}
            await bind(api, "validating", MAPS, spec, validationActions=["Deny"], paramRef=reference)
            for name in ("a", "b"):
                status, answer = await api(
                    "POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": name}}
                )
                assert status == 201, answer
            assert hook.sizes == [1], "a converted parameter is kept"

    play(scenario)


def test_match_conditions_of_a_webhook_see_its_version(
    play: Play, converter: Any, define: Any, serve: Callable[..., Any], configure: Any
) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook, serve(lambda *_: {"allowed": False}) as review:
            await define(api, hook.url)
            conditions = [{"name": "bad", "expression": "object.spec.host == 'bad'"}]
            await configure(api, review.url, rules=[TABS], matchConditions=conditions)
            assert (await api("POST", V1, tab("a", hostPort="good:80")))[0] == 201
            assert (await api("POST", V1, tab("b", hostPort="bad:80")))[0] == 400
            assert [asked["object"]["spec"]["host"] for _, asked in review.asked] == ["bad"]

    play(scenario)


@pytest.mark.parametrize("kind", ["Mutating", "Validating"])
def test_scale_is_reviewed_without_conversion(
    play: Play, converter: Any, define: Any, serve: Callable[..., Any], configure: Any, kind: str
) -> None:
    async def scenario(api: Any) -> None:
        operation = {"op": "replace", "path": "/spec/replicas", "value": 5}
        mutates = kind == "Mutating"
        async with (
            converter() as hook,
            serve(lambda *_: patched(operation) if mutates else {"allowed": True}) as review,
        ):
            await define(api, hook.url)
            await api("POST", V1, tab("a", hostPort="h:80", replicas=1))
            await configure(api, review.url, kind, rules=[{**TABS, "resources": ["tabs/scale"]}])
            status, scaled = await api("PATCH", f"{V1}/a/scale", {"spec": {"replicas": 3}}, **MERGE)
            assert (status, scaled["spec"]) == (200, {"replicas": 5 if mutates else 3}), scaled
            assert [asked["object"]["apiVersion"] for _, asked in review.asked] == ["autoscaling/v1"]

    play(scenario)


def test_mutating_policy_keeps_the_fields_of_events(play: Play) -> None:
    async def scenario(api: Any) -> None:
        rule = {"operations": ["CREATE"], "apiGroups": ["events.k8s.io"], "apiVersions": ["v1"],
                "resources": ["events"]}  # fmt: skip
        expression = "[JSONPatch{op: 'add', path: '/note', value: object.regarding.name + ' changed'}]"
        mutation = {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}
        await bind(api, "mutating", rule, {"reinvocationPolicy": "Never", "mutations": [mutation]})
        event = {
            "metadata": {"name": "e"}, "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Do", "reason": "Done",
            "type": "Normal", "reportingController": "example.com/c", "reportingInstance": "c-1",
            "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        }  # fmt: skip
        status, created = await api("POST", "/apis/events.k8s.io/v1/namespaces/default/events", event)
        assert (status, created.get("note"), created.get("regarding", {}).get("name")) == (201, "p changed", "p"), (
            created
        )

    play(scenario)
