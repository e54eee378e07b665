"""Custom objects in two versions, converted by a scripted HTTPS server."""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.embedded.apiserver.converted_tabs import DEFINITIONS, GROUP, V1, V2, Object, definition, tab

from podwire.http.message import Request, Response

Play = Callable[..., None]

MERGE = {"content_type": "application/merge-patch+json"}


async def until(check: Callable[[], bool]) -> None:
    while not check():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def test_objects_are_stored_in_one_version_and_read_in_all(play: Play, converter: Any, define: Any) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            status, created = await api("POST", V1, tab("a", hostPort="h:80"))
            assert (status, created["apiVersion"], created["spec"]) == (201, f"{GROUP}/v1", {"hostPort": "h:80"})
            saved = api.server.store.get(f"{GROUP}/tabs", "default", "a").object()
            assert (saved["apiVersion"], saved["spec"]["host"], saved["spec"]["port"]) == (f"{GROUP}/v2", "h", "80")
            assert saved["metadata"] == created["metadata"]
            _, other = await api("GET", f"{V2}/a")
            assert (other["apiVersion"], other["spec"]["host"]) == (f"{GROUP}/v2", "h")
            _, result = await api("GET", DEFINITIONS + f"/tabs.{GROUP}")
            assert result["status"]["storedVersions"] == ["v2"]

    play(scenario)


def test_list_is_one_call_and_kept(play: Play, converter: Any, define: Any) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            for number in range(3):
                await api("POST", V2, {**tab(f"t{number}", host="h", port="1"), "apiVersion": f"{GROUP}/v2"})
            assert hook.sizes == []
            _, listed = await api("GET", V1)
            assert [item["spec"] for item in listed["items"]] == [{"hostPort": "h:1"}] * 3
            assert hook.sizes == [3]
            await api("PATCH", f"{V2}/t1", {"spec": {"port": "2"}}, **MERGE)
            _, table = await api("GET", V1, accept="application/json;as=Table;g=meta.k8s.io;v=v1")
            assert (len(table["rows"]), hook.sizes) == (3, [1])
            _, result = await api("GET", f"{V1}/t1")
            assert (result["spec"], hook.sizes) == ({"hostPort": "h:2"}, [])

    play(scenario)


def test_writes_at_the_other_version_change_the_stored_one(play: Play, converter: Any, define: Any) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            _, created = await api("POST", V1, tab("a", hostPort="h:80"))
            _, result = await api("PATCH", f"{V1}/a", {"spec": {"hostPort": "i:81"}}, **MERGE)
            assert (result["spec"], result["metadata"]["generation"]) == ({"hostPort": "i:81"}, 2)
            _, result = await api("PUT", f"{V1}/a", {**result, "spec": {"hostPort": "j:82"}})
            assert result["spec"] == {"hostPort": "j:82"}
            _, result = await api("PATCH", f"{V1}/a/status", {"status": {"ready": "yes"}}, **MERGE)
            assert (result["spec"], result["status"]) == ({"hostPort": "j:82"}, {"ready": "yes"})
            _, scaled = await api("PATCH", f"{V1}/a/scale", {"spec": {"replicas": 3}}, **MERGE)
            assert scaled["spec"] == {"replicas": 3}
            apply = {"content_type": "application/apply-patch+yaml"}
            status, result = await api("PATCH", f"{V1}/a?fieldManager=m", tab("a", note="n"), **apply)
            assert (status, result["spec"]) == (200, {"hostPort": "j:82", "replicas": 3, "note": "n"})
            _, saved = await api("GET", f"{V2}/a")
            assert (saved["spec"]["host"], saved["spec"]["port"], saved["spec"]["note"]) == ("j", "82", "n")
            assert saved["metadata"]["uid"] == created["metadata"]["uid"]
            _, gone = await api("DELETE", f"{V1}/a")
            assert gone["status"] == "Success"

    play(scenario)


def test_watch_sends_converted_objects_in_order(play: Play, converter: Any, define: Any) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            await api("POST", V1, tab("a", hostPort="h:1"))
            events = await api.watch(f"{V1}?watch=true")
            for number in range(2, 6):
                await api("PATCH", f"{V2}/a", {"spec": {"port": str(number)}}, **MERGE)
            await api("DELETE", f"{V2}/a")
            await until(lambda: len(events.seen) == 6)
            assert [event["type"] for event in events.seen] == ["ADDED", *["MODIFIED"] * 4, "DELETED"]
            ports = [event["object"]["spec"]["hostPort"] for event in events.seen]
            assert ports == ["h:1", "h:2", "h:3", "h:4", "h:5", "h:5"]

    play(scenario)


def test_converted_object_that_leaves_a_selection_is_sent_as_before(play: Play, converter: Any, define: Any) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            created = tab("a", hostPort="h:1")
            await api("POST", V1, {**created, "metadata": {**created["metadata"], "labels": {"x": "1"}}})
            events = await api.watch(f"{V1}?watch=true&labelSelector=x%3D1")
            change = {"metadata": {"labels": {"x": "2"}}, "spec": {"port": "2"}}
            _, remaining = await api("PATCH", f"{V2}/a", change, **MERGE)
            await until(lambda: len(events.seen) == 2)
            deleted = events.seen[1]["object"]
            assert (events.short[1], deleted["spec"]) == ("DELETED a", {"hostPort": "h:1"})
            assert deleted["metadata"]["labels"] == {"x": "1"}
            assert deleted["metadata"]["resourceVersion"] == remaining["metadata"]["resourceVersion"]

    play(scenario)


def test_change_of_the_definition_ends_watches_and_converts_anew(play: Play, converter: Any, define: Any) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            await api("POST", V1, tab("a", hostPort="h:1"))
            events = await api.watch(f"{V1}?watch=true")
            conversion = {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
            status, _ = await api("PATCH", f"{DEFINITIONS}/tabs.{GROUP}", conversion, **MERGE)
            assert (status, events.closed) == (200, True)
            _, result = await api("GET", f"{V1}/a")
            assert result["spec"]["host"] == "h"

    play(scenario)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda _: Response(500, b"boom"), 'failed: an error on the server ("boom") has prevented the request'),
        (lambda _: Response(200, b"{}"), "failed: expected webhook response of apiextensions.k8s.io/v1, Kind="),
        (lambda answer: {**answer, "uid": "x"}, 'failed: expected response.uid="'),
        (lambda answer: {**answer, "result": {"status": "Failed", "message": "no way"}}, "failed: no way"),
        (lambda answer: {**answer, "result": {}}, "failed: response.result.status was '', not 'Success'"),
        (lambda answer: {**answer, "convertedObjects": []}, "returned 0 objects, expected 1"),
        (
            lambda answer: {**answer, "convertedObjects": [tab("a")]},
            f"at index 0: invalid groupVersion (expected {GROUP}/v2, received {GROUP}/v1)",
        ),
        (
            lambda answer: {**answer, "convertedObjects": [{**tab("b"), "apiVersion": f"{GROUP}/v2"}]},
            "returned invalid converted object at index 0: must have the same name: a != b",
        ),
    ],
)  # fmt: skip
def test_failing_webhook_fails_the_request(
    play: Play, converter: Any, define: Any, change: Callable[[Object], Any], problem: str
) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            hook.change = change
            status, result = await api("POST", V1, tab("a", hostPort="h:1"))
            assert (status, result["reason"]) == (500, "InternalError")
            assert result["message"].startswith(f"conversion webhook for {GROUP}/v1, Kind=Tab "), result
            assert problem in result["message"], result
            assert (await api("GET", f"{V2}/a"))[0] == 404

    play(scenario)


def test_failing_webhook_fails_reads_and_watches(play: Play, converter: Any, define: Any) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            await api("POST", V2, {**tab("a", host="h"), "apiVersion": f"{GROUP}/v2"})
            hook.change = lambda _: Response(500, b"boom")
            for path in (V1, f"{V1}/a"):
                status, result = await api("GET", path)
                assert status == 500 and f"conversion webhook for {GROUP}/v2, Kind=Tab failed" in result["message"]
            events = await api.watch(f"{V1}?watch=true")
            await until(lambda: events.closed)
            assert [event["type"] for event in events.seen] == ["ERROR"]
            assert (await api("GET", f"{V2}/a"))[0] == 200

    play(scenario)


def test_dry_run_stores_nothing(play: Play, converter: Any, define: Any) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            status, created = await api("POST", f"{V1}?dryRun=All", tab("a", hostPort="h:1"))
            assert (status, created["spec"]) == (201, {"hostPort": "h:1"})
            assert (await api("GET", f"{V1}/a"))[0] == 404

    play(scenario)


@pytest.mark.parametrize(
    ("conversion", "problem"),
    [
        ({"strategy": "Magic"}, 'spec.conversion.strategy: Unsupported value: "Magic": supported values: "None", "W'),
        ({"strategy": "Webhook"}, "spec.conversion.webhookClientConfig: Required value: required when"),
        ({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "http://x"}, "conversionReviewVersions": ["v1"]}},
         "spec.conversion.webhookClientConfig.url: Invalid value"),
        ({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://x"}, "conversionReviewVersions": ["v3"]}},
         "spec.conversion.conversionReviewVersions: Invalid value: [\"v3\"]: must include at least one of v1, v1beta1"),
        ({"strategy": "None", "webhook": {"clientConfig": {"url": "https://x"}, "conversionReviewVersions": ["v1"]}},
         "spec.conversion.webhookClientConfig: Forbidden: should not be set when strategy is not set to Webhook"),
    ],
)  # fmt: skip
def test_wrong_conversion_is_refused(play: Play, conversion: Object, problem: str) -> None:
    async def scenario(api: Any) -> None:
        body = definition("")
        body["spec"]["conversion"] = conversion
        status, result = await api("POST", DEFINITIONS, body)
        assert status == 422 and problem in result["message"], result

    play(scenario)


def test_stored_version_cannot_be_removed(play: Play, converter: Any, define: Any) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            await define(api, hook.url)
            _, result = await api("GET", f"{DEFINITIONS}/tabs.{GROUP}")
            first, second = result["spec"]["versions"]
            versions = [{**first, "storage": True}, {**second, "storage": False}]
            _, result = await api(
                "PUT", f"{DEFINITIONS}/tabs.{GROUP}", {**result, "spec": {**result["spec"], "versions": versions}}
            )
            assert result["status"]["storedVersions"] == ["v2", "v1"]
            body = {**result, "spec": {**result["spec"], "versions": versions[:1]}}
            status, answer = await api("PUT", f"{DEFINITIONS}/tabs.{GROUP}", body)
            assert status == 422 and 'status.storedVersions[0]: Invalid value: "v2": missing from spec.versions' in str(
                answer["message"]
            )

    play(scenario)


def test_admission_webhook_gets_the_version_of_its_rules(play: Play, converter: Any, define: Any) -> None:
    rule = {"operations": ["*"], "apiGroups": [GROUP], "apiVersions": ["v2"], "resources": ["tabs"]}

    async def scenario(api: Any) -> None:
        asked: list[Object] = []

        def admit(request: Request) -> Response:
            asked.append(json.loads(request.body)["request"])
            patch = base64.b64encode(json.dumps([{"op": "add", "path": "/spec/note", "value": "n"}]).encode()).decode()
            response = {"uid": asked[-1]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
            review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
            return Response(200, json.dumps(review).encode())

        async with converter() as hook:
            await define(api, hook.url)
            convert = hook.answer
            hook.answer = lambda request: admit(request) if request.path == "/admit" else convert(request)
            _, result = await api("GET", f"{DEFINITIONS}/tabs.{GROUP}")
            client = result["spec"]["conversion"]["webhook"]["clientConfig"]
            config = {
                "name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "rules": [rule],
                "clientConfig": {**client, "url": hook.url.replace("convert", "admit")},
            }  # fmt: skip
            path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
            await api("POST", path, {"metadata": {"name": "a"}, "webhooks": [config]})
            status, created = await api("POST", V1, tab("a", hostPort="h:1"))
            assert (status, created["spec"]) == (201, {"hostPort": "h:1", "note": "n"})
        assert (asked[0]["object"]["apiVersion"], asked[0]["object"]["spec"]["host"]) == (f"{GROUP}/v2", "h")
        assert (asked[0]["kind"]["version"], asked[0]["requestKind"]["version"]) == ("v2", "v1")

    play(scenario)
