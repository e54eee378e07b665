"""Webhooks and the kinds that they review: changed configurations, definitions, custom objects, pods."""

from typing import Any

import pytest
from tests.unit.embedded.apiserver.admission.scripted_webhook import HOOKS, MAPS, MERGE, RULE, Object, Play, patched

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
JSON_PATCH = {"content_type": "application/json-patch+json"}
CUSTOM = "/apis/hooked.example.com/v1/foos"
CUSTOM_RULE = {**RULE, "apiGroups": ["hooked.example.com"], "apiVersions": ["*"], "resources": ["foos"]}
KINDS = pytest.mark.parametrize("kind", ["Mutating", "Validating"])


def definition(*versions: str) -> Object:
    """A definition whose last version is stored; its objects have one field, ``data.first``."""
    fields = {"type": "object", "properties": {"first": {"type": "string"}, "own": {"type": "string"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"data": fields}}}
    listed = [{"name": name, "served": True, "storage": name == versions[-1], "schema": schema} for name in versions]
    names = {"plural": "foos", "kind": "Foo"}
    spec = {"group": "hooked.example.com", "scope": "Cluster", "names": names, "versions": listed}
    return {"metadata": {"name": "foos.hooked.example.com"}, "spec": spec}


def foo(**data: str) -> Object:
    return {"apiVersion": "hooked.example.com/v1", "kind": "Foo", "metadata": {"name": "a"}, "data": data}


@KINDS
def test_changed_rules_of_a_webhook_count_at_once(play: Play, serve: Any, configure: Any, kind: str) -> None:
    async def scenario(api: Any) -> None:
        async with serve(lambda *_: {"allowed": True}) as hook:
            await configure(api, hook.url, kind)
            path = f"{HOOKS}/{kind.lower()}webhookconfigurations/hooks"
            for number, (operation, asked) in enumerate((("UPDATE", 0), ("CREATE", 1))):
                step = [{"op": "replace", "path": "/webhooks/0/rules/0/operations", "value": [operation]}]
                assert (await api("PATCH", path, step, **JSON_PATCH))[0] == 200
                await api("POST", MAPS, {"metadata": {"name": f"m{number}"}})
                assert len(hook.asked) == asked

    play(scenario)


@KINDS
def test_match_conditions_are_stored_and_changed(play: Play, configure: Any, kind: str) -> None:
    async def scenario(api: Any) -> None:
        first = [{"name": "expression-1", "expression": "object.metadata.namespace == 'production'"}]
        await configure(api, "https://127.0.0.1:9", kind, matchConditions=first)
        path = f"{HOOKS}/{kind.lower()}webhookconfigurations/hooks"
        _, saved = await api("GET", path)
        assert saved["webhooks"][0]["matchConditions"] == first
        second = [*first, {"name": "expression-2", "expression": "object.metadata.namespace == 'staging'"}]
        saved["webhooks"][0]["matchConditions"] = second
        assert (await api("PUT", path, saved))[0] == 200
        assert (await api("GET", path))[1]["webhooks"][0]["matchConditions"] == second

    play(scenario)


def test_definitions_and_custom_objects_are_reviewed(play: Play, serve: Any, configure: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve(lambda *_: {"allowed": False}) as hook:
            kinds = {**RULE, "apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"]}
            await configure(api, hook.url, rules=[kinds], name="kinds")
            assert (await api("POST", DEFINITIONS, definition("v1")))[0] == 400
            await api("DELETE", f"{HOOKS}/validatingwebhookconfigurations/kinds")
            await api("POST", DEFINITIONS, definition("v1"))
            assert (await api("POST", CUSTOM, foo()))[0] == 201
            await configure(api, hook.url, rules=[CUSTOM_RULE])
            assert (await api("PATCH", f"{CUSTOM}/a", {"data": {"own": "x"}}, **MERGE))[0] == 400
            assert (await api("DELETE", f"{CUSTOM}/a"))[0] == 400
            assert (await api("POST", CUSTOM, {**foo(), "metadata": {"name": "b"}}))[0] == 400

    play(scenario)


def test_custom_objects_are_changed_and_pruned(play: Play, serve: Any, configure: Any) -> None:
    async def scenario(api: Any) -> None:
        answer = patched(
            {"op": "add", "path": "/data/first", "value": "yes"}, {"op": "add", "path": "/data/second", "value": "yes"}
        )
        async with serve(lambda *_: answer) as hook:
            await api("POST", DEFINITIONS, definition("v1"))
            await configure(api, hook.url, "Mutating", rules=[CUSTOM_RULE])
            status, created = await api("POST", CUSTOM, foo(own="mine"))
            assert (status, created["data"]) == (201, {"own": "mine", "first": "yes"})

    play(scenario)


def test_webhook_sees_objects_while_the_stored_version_changes(play: Play, serve: Any, configure: Any) -> None:
    async def scenario(api: Any) -> None:
        answer = patched({"op": "add", "path": "/data/first", "value": "yes"})
        async with serve(lambda *_: answer) as hook:
            await api("POST", DEFINITIONS, definition("v2", "v1"))
            await configure(api, hook.url, "Mutating", rules=[CUSTOM_RULE])
            await api("POST", CUSTOM, foo(own="mine"))
            path = f"{DEFINITIONS}/foos.hooked.example.com"
            steps = [{"op": "replace", "path": f"/spec/versions/{n}/storage", "value": n == 0} for n in (0, 1)]
            assert (await api("PATCH", path, steps, **JSON_PATCH))[0] == 200
            status, changed = await api("PATCH", f"{CUSTOM}/a", {"data": {"own": "new"}}, **MERGE)
            assert (status, changed["data"]) == (200, {"own": "new", "first": "yes"})
            _, other = await api("GET", f"{CUSTOM.replace('v1', 'v2')}/a")
            assert (other["apiVersion"], other["data"]) == ("hooked.example.com/v2", changed["data"])

    play(scenario)


def test_pods_get_their_defaults_after_the_webhook(play: Play, serve: Any, configure: Any) -> None:
    async def scenario(api: Any) -> None:
        container = {"name": "added", "image": "busybox"}
        async with serve(
            lambda *_: patched({"op": "add", "path": "/spec/initContainers", "value": [container]})
        ) as hook:
            await configure(api, hook.url, "Mutating", rules=[{**RULE, "resources": ["pods"]}])
            spec = {"containers": [{"name": "c", "image": "nginx"}], "serviceAccountName": "default"}
            body = {"metadata": {"name": "p"}, "spec": spec}
            status, pod = await api("POST", "/api/v1/namespaces/default/pods", body)
            assert status == 201, pod
            (added,) = pod["spec"]["initContainers"]
            assert (added["name"], added["terminationMessagePolicy"]) == ("added", "File")

    play(scenario)
